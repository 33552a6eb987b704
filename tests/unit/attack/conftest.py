"""Cheap attackers for the tiny model."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def short_instructions():
    """A token of the tiny model is a byte: the attacker's instructions would be 9 tenths of its input."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opct.evals.attackers.refine.SYSTEM", "Rewrite the message.")
        yield

"""What an error says of many faults."""

from __future__ import annotations

import pytest

from opct.errors import SHOWN_FAULTS, shown_faults


@pytest.mark.parametrize(
    ("count", "last"),
    [(0, ()), (1, ("f0",)), (SHOWN_FAULTS, (f"f{SHOWN_FAULTS - 1}",)), (SHOWN_FAULTS + 1, ("... and 1 more",))],
)
def test_the_first_faults_are_listed_and_the_others_counted(count, last):
    shown = shown_faults([f"f{i}" for i in range(count)])
    assert shown[-1:] == last
    assert shown[:SHOWN_FAULTS] == tuple(f"f{i}" for i in range(min(count, SHOWN_FAULTS)))

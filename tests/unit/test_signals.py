"""Signals that ask for an end."""

import os
import signal

import pytest

from opct.runs.signals import StopRequest


def test_what_began_the_inner_work_stops_too():
    """Of three, one inside another, the signal reaches the innermost, and all are asked; the handlers come back."""
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as outer:
        with StopRequest() as middle, StopRequest() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
        assert (outer.requested, middle.requested, inner.requested) == (True, True, True)
        with pytest.raises(KeyboardInterrupt):  # the second one
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_inner_one_that_is_not_asked_asks_nobody():
    with StopRequest() as outer, StopRequest() as inner:
        pass
    assert (outer.requested, inner.requested) == (False, False)


def test_an_inner_one_is_asked_where_the_outer_one_was_before():
    """As by a signal that came while models were loaded, before the training with its own request began."""
    with StopRequest() as outer:
        outer.check()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            outer.check()
        with StopRequest() as inner:
            assert inner.requested
            with pytest.raises(KeyboardInterrupt):  # the second one
                os.kill(os.getpid(), signal.SIGTERM)


def test_it_says_after_what_it_stops(capsys):
    for unit, options in (("step", {}), ("batch", {"unit": "batch"})):
        with StopRequest(**options):
            os.kill(os.getpid(), signal.SIGTERM)
        assert f"SIGTERM: saving when the {unit} at hand is done;" in capsys.readouterr().err

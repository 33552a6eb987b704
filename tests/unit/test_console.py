import io
import os
import signal

import pytest
from rich.console import Console

from opct.runs import console
from opct.runs.console import PlainProgress, RichProgress, StopRequest, echo, make_table, visible


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(console, "time", clock)
    return clock


def plain() -> tuple[PlainProgress, io.StringIO]:
    out = io.StringIO()
    return PlainProgress(Console(file=out, width=40)), out


def test_plain_lines_at_most_every_five_seconds(clock):
    """Ten steps of 2 s: said at 6 s, 12 s and 18 s, then once at the end. At 6 s: 3 done, 7 left, 14 s."""
    bar, out = plain()
    bar.stage("train", total=10)
    for step in range(10):
        clock.now += 2
        bar.advance(1, kl=0.123456, step=step + 1)
    bar.done()
    assert out.getvalue().splitlines() == [
        "train: 0/10",
        "train: 3/10  elapsed 6s  left 14s  kl=0.1235 step=3",
        "train: 6/10  elapsed 12s  left 8s  kl=0.1235 step=6",
        "train: 9/10  elapsed 18s  left 2s  kl=0.1235 step=9",
        "train: 10/10  took 20s  kl=0.1235 step=10",
    ]


def test_no_remaining_time_from_the_first_of_many(clock):
    """The first of 218 came after 30 s and the rest of its batch at once: 30 s x 217 is no estimate."""
    bar, out = plain()
    bar.stage("evaluate", total=218)
    clock.now += 30
    bar.advance(1)
    clock.now += 10
    bar.advance(108)
    assert out.getvalue().splitlines() == [
        "evaluate: 0/218",
        "evaluate: 1/218  elapsed 30s",
        "evaluate: 109/218  elapsed 40s  left 40s",
    ]


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


def test_it_says_after_what_it_stops_even_in_the_middle_of_a_write(capfd, monkeypatch):
    class Locked:
        def write(self, text: str) -> None:
            raise RuntimeError("reentrant call")

    monkeypatch.setattr("sys.stderr", Locked())
    for unit, options in (("step", {}), ("batch", {"unit": "batch"})):
        with StopRequest(**options):
            os.kill(os.getpid(), signal.SIGTERM)
        assert f"SIGTERM: saving after this {unit}" in capfd.readouterr().err


HOSTILE = "\x1b]0;owned\x07\x1b[2J [red]x[/nope] \u202eabc \x9b1m \ud800"
SHOWN = r"\x1b]0;owned\x07\x1b[2J [red]x[/nope] \u202eabc \x9b1m \ud800"


def test_text_from_outside_cannot_command_the_terminal(capsys):
    assert visible(HOSTILE) == SHOWN
    assert visible("a\tb\nc é 漢") == "a\tb\nc é 漢"
    echo(HOSTILE)
    assert capsys.readouterr().out == SHOWN + "\n"


def test_tables_and_progress_take_hostile_text():
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=200, color_system=None)
    terminal.print(make_table(HOSTILE, ["family", "n"], [[HOSTILE, 3]]))
    bar = RichProgress(terminal)
    bar.stage(HOSTILE, total=1)
    bar.advance(1, label=HOSTILE)
    bar.log(HOSTILE)
    bar.done()
    assert out.getvalue().count(SHOWN) >= 5
    assert not any(raw in out.getvalue() for raw in ("\x1b]0", "\x1b[2J ", "\x9b", "\u202e"))

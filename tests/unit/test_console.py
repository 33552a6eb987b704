import io
import os
import signal

import pytest
from rich.console import Console

from opct.runs.console import RichProgress, StopRequest, as_text, echo, make_table, print_text, visible


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_is_asked_for_a_stop_even_in_the_middle_of_a_write_and_the_second_one_stops(capfd, monkeypatch):
    """The handlers come back."""

    class Locked:
        def write(self, text: str) -> None:
            raise RuntimeError("reentrant call")

    monkeypatch.setattr("sys.stderr", Locked())
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        terminate()
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            terminate()
    assert signal.getsignal(signal.SIGTERM) == before
    assert capfd.readouterr().err.count("SIGTERM: saving after this step") == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_whole_words_and_whole_commands(monkeypatch):
    """In 80 columns; a pipe gets the line as it is."""
    monkeypatch.setenv("COLUMNS", "80")
    words, command, path = "a-word-of-18-chars " * 9, f"next: opct eval {'run ' * 30}--all", "x/" * 50
    for out in (Terminal(), io.StringIO()):
        echo(words, file=out)
        echo(command, file=out)
        console = Console(file=out, width=80, force_terminal=out.isatty(), color_system=None)
        print_text(console, as_text(f"{words}\n{command}\n{path}"))
        lines = out.getvalue().splitlines()
        assert lines.count(command) == 2
        assert path in lines
        assert all(len(line) <= 80 for line in lines if line.startswith("a-")) == out.isatty()
        assert set(" ".join(lines).split()) == {"a-word-of-18-chars", *command.split(), path}


def test_text_from_outside_cannot_command_the_terminal(capsys):
    hostile = "\x1b]0;owned\x07\x1b[2J [red]x[/nope] \u202eabc \x9b1m \ud800"
    shown = r"\x1b]0;owned\x07\x1b[2J [red]x[/nope] \u202eabc \x9b1m \ud800"
    assert visible(hostile) == shown
    assert visible("a\tb\nc é 漢") == "a\tb\nc é 漢"
    echo(hostile)
    assert capsys.readouterr().out == shown + "\n"
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=200, color_system=None)
    terminal.print(make_table(hostile, ["family", "n"], [[hostile, 3]]))
    bar = RichProgress(terminal)
    bar.stage(hostile, total=1)
    bar.advance(1, label=hostile)
    bar.log(hostile)
    bar.done()
    assert out.getvalue().count(shown) >= 5
    assert not any(raw in out.getvalue() for raw in ("\x1b]0", "\x1b[2J ", "\x9b", "\u202e"))

"""What a person sees while something runs.

The protocol, three calls and an end:

    progress.stage("train opct", total=20)      # begins a stage and ends the one before; total None: unknown
    progress.advance(1, kl=0.21)                # so many units done; fields stay beside the bar until changed
    progress.log("dtype: bfloat16 (1.8x ...)")  # one line that stays
    progress.done()                             # ends the last stage; harmless if called twice

`make_progress()` gives bars with elapsed and remaining time on a terminal, and plain lines (at most one each 5 s, and
one at the end of a stage) elsewhere. Everything goes to stderr, so that stdout stays for results.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console

Field = float | int | str
EARLY = 0.02  # no remaining time from a smaller share done: the first of a batch waits for all of it


class Progress(Protocol):
    """What long work calls to say how far it is."""

    def stage(self, name: str, total: int | None = None) -> None: ...
    def advance(self, n: int = 1, **fields: Field) -> None: ...
    def log(self, message: str) -> None: ...
    def done(self) -> None: ...


class NullProgress:
    """Says nothing."""

    def stage(self, name: str, total: int | None = None) -> None:
        pass

    def advance(self, n: int = 1, **fields: Field) -> None:
        pass

    def log(self, message: str) -> None:
        pass

    def done(self) -> None:
        pass


class PlainProgress:
    """One line now and then, for logs and pipes."""

    def __init__(self, console: Console, interval_s: float = 5.0):
        self.console = console
        self.interval_s = interval_s
        self._name: str | None = None

    def stage(self, name: str, total: int | None = None) -> None:
        self.done()
        self._name, self._total, self._n = name, total, 0
        self._fields: dict[str, Field] = {}
        self._start = self._said = time.monotonic()
        self._say(f"{name} ..." if total is None else f"{name}: 0/{total}")

    def advance(self, n: int = 1, **fields: Field) -> None:
        if self._name is None:
            return
        self._n += n
        self._fields |= fields
        if time.monotonic() - self._said >= self.interval_s:
            self._said = time.monotonic()
            self._say(self._line())

    def log(self, message: str) -> None:
        self._say(message)

    def done(self) -> None:
        if self._name is not None:
            self._say(f"{self._line(ended=True)}")
            self._name = None

    def _line(self, *, ended: bool = False) -> str:
        elapsed = time.monotonic() - self._start
        done = f": {self._n}/{self._total}" if self._total is not None else f": {self._n}" if self._n else ""
        parts = [f"{self._name}{done}"]
        parts.append(f"{'took' if ended else 'elapsed'} {duration(elapsed)}")
        if not ended and self._total and self._n >= EARLY * self._total:
            parts.append(f"left {duration(elapsed / self._n * (self._total - self._n))}")
        return "  ".join([*parts, fields_text(self._fields)]).rstrip()

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class RichProgress:
    """A bar for each stage, with elapsed and remaining time and the fields of the last call."""

    def __init__(self, console: Console):
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bars

        self.console = console
        self._bars = Bars(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[shown]}", markup=False),
            console=console,
            speed_estimate_period=120.0,  # a step may take many seconds
        )
        self._task: Any = None
        self._fields: dict[str, Field] = {}

    def stage(self, name: str, total: int | None = None) -> None:
        self._end_stage()
        self._bars.start()
        self._fields = {}
        self._task = self._bars.add_task(name, total=total, shown="")

    def advance(self, n: int = 1, **fields: Field) -> None:
        if self._task is None:
            return
        self._fields |= fields
        self._bars.update(self._task, advance=n, shown=fields_text(self._fields))

    def log(self, message: str) -> None:
        self._bars.console.print(message, markup=False, highlight=False)

    def done(self) -> None:
        self._end_stage()
        self._bars.stop()

    def _end_stage(self) -> None:
        if self._task is None:
            return
        task = self._bars.tasks[self._bars.task_ids.index(self._task)]
        if task.total is None:  # an unknown total is known once the stage has ended
            self._bars.update(self._task, total=max(1, task.completed), completed=max(1, task.completed))
        self._bars.stop_task(self._task)
        self._task = None


def make_progress(console: Console | None = None, *, quiet: bool = False) -> Progress:
    """Bars on a terminal, plain lines elsewhere, nothing if `quiet`."""
    if quiet:
        return NullProgress()
    if console is None:
        from rich.console import Console

        console = Console(stderr=True)
    return RichProgress(console) if console.is_terminal else PlainProgress(console)


def duration(seconds: float) -> str:
    """A time span as `42s`, `3m07s` or `1h02m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def fields_text(fields: dict[str, Field]) -> str:
    """Fields as `kl=0.213 tokens=768`."""
    shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in fields.items()}
    return " ".join(f"{name}={text}" for name, text in shown.items())

"""Terminal output and signals: safe text, tables, progress, and requests to stop.

What a command writes to stdout or stderr, or a library in it, goes through a `SafeStream`: control characters are made
visible and keys are masked, so that no text can move the cursor, set the clipboard or style itself. Only rich styles
what it draws; text from outside is put into `as_text` for it, which does the same and turns markup off.

Progress is three calls and an end:

    progress.stage("train opct", total=20)      # begins a stage and ends the one before; total None: unknown;
                                                # initial=8: so much of it was done before
    progress.advance(1, kl=0.21)                # units done; fields stay beside the bar until changed
    progress.log("dtype: bfloat16 ...")  # one line that stays
    progress.done()                             # ends the last stage; harmless if called twice

`make_progress()` gives bars on a terminal and plain lines elsewhere, on stderr, so that stdout stays for results.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Protocol, TextIO, TypeVar, cast

from opct.errors import RunError, reason
from opct.redaction import redact

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

F = TypeVar("F", bound=Callable[..., Any])
Field = float | int | str
EARLY = 0.02  # below this share no remaining time is shown: the first result of a batch waits for the whole batch
INTERVAL_S = 5.0  # between two lines of a stage
# C0 but tab and line feed, DEL, C1, marks and overrides of the writing direction, lone surrogates
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_COMMAND = re.compile(r"(?:.*: +| *)(?:python -m )?(?:opct|inspect) [a-z]")  # a line that ends in one
_HELP = re.compile(  # its headings, commands and options, which are bold, cyan and green
    r"(?m)(^ *[A-Z][\w ]*:(?=$| opct))|(^  [a-z][a-z-]*  |^    opct .*|(?<=: )opct [^\[\n]*)|((?<![\w-])--?[a-z][\w-]*)"
)
_MOVES = re.compile(r"(?:\x1b\[A)+")


# --------------------------------------------------------------------------------------------------------- safe text


def visible(text: str) -> str:
    """The text without keys, and with control characters as escapes: `\\x1b` for the one that begins a terminal's
    commands."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), redact(text))


def _width_of(stream: Any) -> int:
    """Of its own terminal: stdout may be a file while stderr is none."""
    try:
        return int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return shutil.get_terminal_size().columns


def fitted(text: str, stream: Any) -> str:
    """Safe text for a stream: on a terminal help has colors, and lines are broken between words, but for commands."""
    if getattr(stream, "closed", True) or not stream.isatty():
        return text
    if text.startswith("Usage: ") and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        return _HELP.sub(lambda found: f"\x1b[{(1, 36, 32)[(found.lastindex or 1) - 1]}m{found[0]}\x1b[0m", text)
    width = _width_of(stream)
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False).fill
    return "\n".join(line if len(line) <= width or _COMMAND.match(line) else wrap(line) for line in text.split("\n"))


class SafeStream:
    """A stream of the terminal for text that may come from outside.

    Args:
        raw: the stream under it; None where whoever started this process closed it.
        name: for messages.
        is_optional: what cannot be written is dropped: a log on a full disk must not end a training.
        keeps_styles: for rich, whose texts are safe before they are styled.

    Raises:
        RunError: (of `write` and `flush`) it is closed or full.
    """

    def __init__(self, raw: TextIO | None, name: str, *, is_optional: bool, keeps_styles: bool = False):
        self.raw, self._name, self._is_optional, self._keeps_styles = raw, name, is_optional, keeps_styles

    def for_rich(self) -> SafeStream:
        return SafeStream(self.raw, self._name, is_optional=self._is_optional, keeps_styles=True)

    def write(self, text: str) -> int:
        # bars of downloads (tqdm) begin with a return, and move between lines by a write of nothing else
        start = "\r" if text.startswith("\r") else ""
        is_safe = self._keeps_styles or _MOVES.fullmatch(text) is not None
        if text:  # typer tries the stream with an empty text, and hides that it failed
            shown = text if is_safe else start + visible(text.removeprefix(start))
            if not (is_safe or start) and (self._is_optional or text.startswith("Usage: ")):
                shown = fitted(shown, self.raw)
            self._try(lambda raw: raw.write(shown))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self.raw is not None:
            self._try(lambda raw: raw.flush())

    def _try(self, call: Callable[[TextIO], object]) -> None:
        try:
            if self.raw is None:
                raise OSError("it is closed")
            call(self.raw)
        except (OSError, ValueError) as error:  # ValueError: closed since
            if self._is_optional:
                return
            # no descriptor: it is closed, or no file
            with contextlib.suppress(OSError, ValueError, AttributeError), open(os.devnull, "wb") as nowhere:
                # Python writes what is left when it ends, and would print that failure
                os.dup2(nowhere.fileno(), cast("TextIO", self.raw).fileno())
            if isinstance(error, BrokenPipeError):  # the reader has seen enough, as `head` does: no error
                raise
            raise RunError(f"Cannot write to {self._name}: {reason(error)}. Send it to a file or terminal.") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def guard_streams() -> None:
    """Put a `SafeStream` over stdout and stderr; what these cannot encode is written as an escape."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file that is opened would get its number, and what a library prints
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or os.fdopen(0)
    for name, is_optional in (("stdout", False), ("stderr", True)):
        if isinstance(raw := getattr(sys, name), TextIOWrapper):
            raw.reconfigure(errors="backslashreplace")
        setattr(sys, name, SafeStream(raw, name, is_optional=is_optional))


def make_console(*, stderr: bool = False, **options: Any) -> Console:
    """A console of rich on stdout or stderr; text from outside is put into `as_text`."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=cast("Any", stream.for_rich() if isinstance(stream, SafeStream) else stream), **options)


def as_text(value: object, style: str = "") -> Text:
    """A value for rich: control characters visible, markup off."""
    from rich.text import Text

    return value if isinstance(value, Text) else Text(visible(str(value)), style=style)


def echo(text: object = "", *, file: IO[str] | None = None) -> None:
    """Print one line of text that may come from outside, to stdout unless `file` is given."""
    (file or sys.stdout).write(fitted(visible(str(text)), file or sys.stdout) + "\n")


def print_text(console: Console, text: Text) -> None:
    """Print text; on a terminal its lines are broken between words, but for those with a command or a wider word."""
    for line in text.split(allow_blank=True):
        is_wide = max(map(len, line.plain.split()), default=0) > console.width
        as_it_is = not console.is_terminal or is_wide or _COMMAND.match(line.plain) is not None
        console.print(line, highlight=False, soft_wrap=as_it_is)


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, texts: int = 1) -> Table:
    """A table whose title and cells may come from outside.

    Args:
        texts: the first columns that hold text, folded where they are long; those after them are right-aligned numbers.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    # without lines between the columns more of them fit into 80 characters
    table = Table(title=as_text(title) if title else None, box=SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        if place < texts:
            table.add_column(as_text(column), overflow="fold")
        else:
            table.add_column(as_text(column), justify="right")
    for row in rows:
        table.add_row(*map(as_text, row))
    return table


def pluralize(amount: int, noun: str, plural: str | None = None) -> str:
    """An amount and its noun: "1 sample", "12 samples", "1,200 replies"."""
    return f"{amount:,} {noun if amount == 1 else plural or noun + 's'}"


def counted(counts: Mapping[Any, int]) -> str:
    """Counts as text, the most frequent first: "3 judge_refused, 1 empty"."""
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))))


def duration(seconds: float) -> str:
    """A time span as `42s`, `3m07s` or `1h02m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def sparkline(values: Sequence[float], width: int = 20) -> str:
    """The course of some values from 0 to the largest, in at most `width` bars, the last one that of the last value."""
    step = -(-len(values) // width)
    shown = values[::-step][::-1]
    top = max(*shown, 1e-9)  # values below 0 have the lowest bar
    return "".join("▁▂▃▄▅▆▇█"[round(7 * max(value, 0.0) / top)] for value in shown)


class _StderrHandler(logging.Handler):
    """Writes messages to the current `sys.stderr`, which progress bars replace while they run."""

    def emit(self, record: logging.LogRecord) -> None:
        echo(self.format(record), file=sys.stderr)


STDERR_HANDLER = _StderrHandler()
"""The one handler of messages, also of libraries that quote files."""


# ---------------------------------------------------------------------------------------------------------- progress

WARNING = "warning: "
"""Beginning of a message that is one."""


class Progress(Protocol):
    def stage(self, name: str, total: int | None = None, initial: int = 0) -> None:
        return

    def advance(self, n: int = 1, **fields: Field) -> None:
        return

    def log(self, message: str) -> None:
        return

    def done(self) -> None:
        return


def show_warnings(warnings: list[str], progress: Progress) -> list[str]:
    """Log each of these as a warning; returns them."""
    for warning in warnings:
        progress.log(WARNING + warning)
    return warnings


class NullProgress(Progress):
    """Shows nothing."""


class PlainProgress:
    """Prints a line from time to time, for logs and pipes."""

    def __init__(self, console: Console):
        self.console = console
        self._name: str | None = None

    def stage(self, name: str, total: int | None = None, initial: int = 0) -> None:
        self.done()
        self._name, self._total, self._n, self._initial = name, total, initial, initial
        self._fields: dict[str, Field] = {}
        self._start = self._said = time.monotonic()
        self._began()

    def advance(self, n: int = 1, **fields: Field) -> None:
        if self._name is None:
            return
        self._n += n
        self._fields = self._fields | fields  # another thread may be drawing them
        self._advanced()

    def log(self, message: str) -> None:
        self._say(message)

    def done(self) -> None:
        if self._name is not None:
            self._say(self._line(ended=True))
            self._name = None

    def _began(self) -> None:
        self._say(f"{self._name} ..." if self._total is None else f"{self._name}: {self._n}/{self._total}")

    def _advanced(self) -> None:
        if time.monotonic() - self._said >= INTERVAL_S:
            self._said = time.monotonic()
            self._say(self._line())

    def _line(self, *, ended: bool = False) -> str:
        elapsed = time.monotonic() - self._start
        done = f": {self._n}/{self._total}" if self._total is not None else f": {self._n}" if self._n else ""
        parts = [f"{self._name}{done}", f"{'took' if ended else 'elapsed'} {duration(elapsed)}"]
        n_new = self._n - self._initial
        if not ended and self._total and n_new and self._n >= EARLY * self._total:
            parts.append(f"left {duration(elapsed / n_new * (self._total - self._n))}")
        fields = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in self._fields.items()}
        return "  ".join([*parts, " ".join(f"{name}={value}" for name, value in fields.items())]).rstrip()

    def _say(self, line: str) -> None:
        print_text(self.console, as_text(line))


class RichProgress(PlainProgress):
    """The same line, redrawn beside a bar and cut to the terminal's width; a stage that ended
    leaves its last one."""

    def done(self) -> None:
        if self._name is not None:
            self._live.stop()
        super().done()

    def _began(self) -> None:
        from rich.file_proxy import FileProxy
        from rich.live import Live
        from rich.spinner import Spinner

        self._spinner = Spinner("dots")
        self._live = Live(console=self.console, get_renderable=self._shown, transient=True, refresh_per_second=8)
        self._live.start()
        for name in ("stdout", "stderr"):  # rich put streams over ours that filter nothing; it takes them off again
            if isinstance(getattr(sys, name), FileProxy):
                setattr(sys, name, SafeStream(getattr(sys, name), name, is_optional=True))

    def _advanced(self) -> None:
        """The bar is drawn from time to time."""

    def _shown(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        line = as_text(self._line())
        line.no_wrap, line.overflow = True, "ellipsis"
        row = Table.grid(padding=(0, 1))
        row.add_column(no_wrap=True)
        row.add_column(no_wrap=True)
        row.add_column()  # the one that is made narrower
        row.add_row(self._spinner, ProgressBar(self._total, self._n, width=12, pulse=self._total is None), line)
        return row


def make_progress(console: Console | None = None) -> Progress:
    """Bars on a terminal, plain lines elsewhere."""
    if console is None:
        console = make_console(stderr=True)
    return RichProgress(console) if console.is_interactive else PlainProgress(console)


@contextlib.contextmanager
def show_progress() -> Iterator[Progress]:
    """Progress on stderr, ended with the block."""
    progress = make_progress()
    try:
        yield progress
    finally:
        progress.done()


def shows_progress(call: F) -> F:
    """A function whose progress is shown on stderr unless `progress` is given."""

    @functools.wraps(call)
    def shown(*arguments: Any, progress: Progress | None = None, **keywords: Any) -> Any:
        with contextlib.nullcontext(progress) if progress is not None else show_progress() as display:
            return call(*arguments, progress=display, **keywords)

    return cast("F", shown)


# ----------------------------------------------------------------------------------------------------------- signals


class StopRequest:
    """Context in which the first signal sets `requested` and the next raises KeyboardInterrupt.

    Outside the main thread Python allows no handlers, and it does nothing.

    Args:
        launched: a launcher started this process. It forwards each signal again and prints its own message, so a second
            signal raises nothing here, and nothing is printed.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, *, launched: bool = False) -> None:
        self.requested, self._launched = False, launched
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and not self._launched:
            raise KeyboardInterrupt
        self.requested = True
        if self._launched:
            return
        said = f"{signal.Signals(number).name}: saving after this step; send it again to stop at once\n"
        with contextlib.suppress(OSError):
            # not sys.stderr, which has a lock: the signal may have come in the middle of a write to it
            os.write(2, said.encode())

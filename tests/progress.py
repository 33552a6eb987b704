"""A progress that keeps what it is told, and acts at a moment of it."""

import os
import signal
from collections.abc import Callable

from opct.runs.console import NullProgress


class Killed(BaseException):
    """Ends a run at once, as a kill would: nothing more is written."""


def kill() -> None:
    raise Killed


def interrupt() -> None:
    """As Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


class Noted(NullProgress):
    """Keeps what it is told; acts at the first stage with `stop_at` in its name, or when so many steps are trained.

    Attributes:
        stages: names of the stages.
        lines: the messages.
        told: in order: (name, total) of a stage, a message, and of an advance n and its fields as name=value.
    """

    def __init__(self, stop_at: str | None = None, *, after: int = 0, act: Callable[[], None] = interrupt):
        self.stages: list[str] = []
        self.lines: list[str] = []
        self.told: list[tuple[str, int | None] | str | int] = []
        self.stop_at, self.left, self.act, self.training = stop_at, after, act, False

    def stage(self, name: str, total: int | None = None, initial: int = 0) -> None:
        self.stages.append(name)
        self.told.append((name, total))
        self.training = name.startswith("train")
        if self.stop_at is not None and self.stop_at in name:
            self.stop_at = None
            self.act()

    def advance(self, n: int = 1, **fields) -> None:
        self.told += [n, *(f"{name}={value}" for name, value in fields.items())]
        if self.training and n and fields:
            self.left -= 1
            if self.left == 0:
                self.act()

    def log(self, message: str) -> None:
        self.lines.append(message)
        self.told.append(message)

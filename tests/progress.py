"""A progress that keeps what it is told."""

import os
import signal

from opct.runs.console import NullProgress


class Noted(NullProgress):
    """Keeps what it is told; asks to stop, as Ctrl-C does, at the first stage with `stop_at` in its name.

    Attributes:
        stages: names of the stages.
        lines: the messages.
        told: in order: (name, total) of a stage, a message, and n of an advance.
    """

    def __init__(self, stop_at: str | None = None):
        self.stages: list[str] = []
        self.lines: list[str] = []
        self.told: list[tuple[str, int | None] | str | int] = []
        self.stop_at = stop_at

    def stage(self, name: str, total: int | None = None, initial: int = 0) -> None:
        self.stages.append(name)
        self.told.append((name, total))
        if self.stop_at is not None and self.stop_at in name:
            self.stop_at = None
            os.kill(os.getpid(), signal.SIGINT)

    def advance(self, n: int = 1, **fields) -> None:
        self.told.append(n)

    def log(self, message: str) -> None:
        self.lines.append(message)
        self.told.append(message)

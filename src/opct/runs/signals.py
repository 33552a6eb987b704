"""SIGINT and SIGTERM ask a run to save and stop; a second one stops it at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


class StopRequest:
    """While it is open, the first signal sets `requested`; the next raises KeyboardInterrupt.

    Inside another one, `requested` of both is set: whatever began the inner work stops too when that has ended. Where
    the outer one was asked before, the inner one begins as asked.

    In a thread that is not the main one, where Python allows no handlers, it does nothing.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, *, launched: bool = False, unit: str = "step") -> None:
        """
        Args:
            launched: by a launcher, which hands each signal on once more and speaks for itself; a second signal is then
                no impatience, and nothing is said.
            unit: of the work, after which it stops, as a person calls it.
        """
        self.requested = False
        self._launched, self._unit = launched, unit
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        self.requested = any(outer.requested for outer in self._outer())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def request(self) -> None:
        """As the first signal does."""
        self.requested = True
        for outer in self._outer():
            outer.request()

    def check(self) -> None:
        """Before work that has nothing to save yet: raises KeyboardInterrupt where a signal came."""
        if self.requested:
            raise KeyboardInterrupt

    def _outer(self) -> list[StopRequest]:
        found = (getattr(handler, "__self__", None) for handler in self._before.values())
        return [outer for outer in found if isinstance(outer, StopRequest)]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._launched:
            self.request()
            return
        if self.requested:
            raise KeyboardInterrupt
        self.request()
        name = signal.Signals(number).name
        sys.stderr.write(f"{name}: saving when the {self._unit} at hand is done; once more to stop at once\n")
        sys.stderr.flush()

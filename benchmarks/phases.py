"""Seconds of each part of a step, by hooks around the functions that do it."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

PHASES = ("rollout", "teacher", "policy", "loss_backward", "optimizer")


def clock_of(device: str) -> Callable[[], float]:
    """Seconds, once the device has done all work that was given to it."""
    if not device.startswith("cuda"):
        return time.perf_counter
    import torch

    def synchronised() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronised


class Phases:
    """Seconds of each phase. A phase inside another stops the outer one's clock, so nothing is counted twice."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: Counter[str] = Counter()
        self.steps: list[dict[str, float]] = []
        self._clock, self._open = clock, list[str]()
        self._since = self._last_end = clock()

    def wrap(self, owner: Any, name: str, phase: str | Callable[[], str]) -> None:
        """Count the calls of `owner.name` as `phase`, which may be asked for at each call."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._switch(opened=phase if isinstance(phase, str) else phase())
            try:
                return inner(*args, **kwargs)
            finally:
                self._switch(opened=None)

        setattr(owner, name, timed)

    def end_step(self) -> None:
        """Close a step: from the end of the one before to now, its phases, and `other` for what no hook saw."""
        now = self._clock()
        step = {phase: self.seconds[phase] for phase in PHASES}
        whole = now - self._last_end
        self.steps.append(step | {"other": whole - sum(step.values()), "step": whole})
        self.seconds.clear()
        self._last_end = now

    def _switch(self, opened: str | None) -> None:
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now
        if opened is None:
            self._open.pop()
        else:
            self._open.append(opened)


def teacher_or_policy() -> str:
    """Which of the two a forward is for: the teacher's keeps no gradient."""
    import torch

    return "policy" if torch.is_grad_enabled() else "teacher"

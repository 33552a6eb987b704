"""What an attack may cost and has cost: queries to the target, sampled tokens, seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from opct.attack.protocol import Try
from opct.errors import EvaluationError
from opct.judges.protocol import Usage


@dataclass(frozen=True)
class Budget:
    """Limits of an attack, what was spent before a resume included; None for no limit.

    Attributes:
        queries: prompts put to the target.
        tokens: sampled by attacker and target. What they read and what a judge takes are counted, and not limited.
        seconds: of working. No batch begins after that; the one at hand is finished.

    Raises:
        EvaluationError: a limit is not above 0.
    """

    queries: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 < value < math.inf:
                raise EvaluationError(f"The budget of {name} is {value}: use a number above 0, or none for no limit.")


@dataclass(frozen=True)
class Spent:
    """What an attack took."""

    queries: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0
    judge_usage: Usage = field(default_factory=Usage)

    def plus(self, tries: Iterable[Try], seconds: float) -> Spent:
        """With further tries, and the seconds of everything until now."""
        own = list(tries)
        return Spent(
            self.queries + sum(one.is_asked for one in own),
            self.tokens + sum(one.sampled_tokens for one in own),
            self.prompt_tokens + sum(one.prompt_tokens + one.attacker_prompt_tokens for one in own),
            seconds,
            sum((one.judge_usage for one in own), self.judge_usage),
        )

    def row(self) -> dict[str, Any]:
        """As one JSON object, without what the judge took, which no limit is for."""
        return {name: value for name, value in asdict(self).items() if name != "judge_usage"}


class Ledger:
    """Keeps an attack within its budget: what is asked for is reserved at its most, and settled at what it took.

    So neither queries nor tokens ever exceed their limits, and what is affordable does not depend on how long the
    batches before it took: where a batch does not fit, the caller settles those and asks again.

    Args:
        most_tokens: that one try can sample, attacker and target together.
        spent: before a resume.
        clock: seconds, rising.
    """

    def __init__(
        self,
        budget: Budget,
        most_tokens: int,
        spent: Spent = Spent(),
        clock: Callable[[], float] = time.monotonic,
    ):
        self.budget, self.most_tokens, self.spent = budget, most_tokens, spent
        self._clock, self._before, self._start = clock, spent.seconds, clock()
        self._reserved = 0

    def seconds(self) -> float:
        """Of working, before a resume and since."""
        return self._before + self._clock() - self._start

    def fitting(self, n: int) -> int:
        """How many of `n` tries fit now, whatever they and those under way take."""
        fits = n
        if self.budget.queries is not None:
            fits = min(fits, self.budget.queries - self.spent.queries - self._reserved)
        if self.budget.tokens is not None and self.most_tokens:
            left = self.budget.tokens - self.spent.tokens
            fits = min(fits, left // self.most_tokens - self._reserved)
        if self.budget.seconds is not None and self.seconds() >= self.budget.seconds:
            fits = 0
        return max(fits, 0)

    def reserve(self, n: int) -> None:
        """Set `n` tries aside."""
        self._reserved += n

    def settle(self, n: int, tries: Iterable[Try]) -> None:
        """Of `n` tries that were set aside, these were made."""
        self._reserved -= n
        self.spent = self.spent.plus(tries, self.seconds())

    def exhausted(self) -> str:
        """Which limit one more try would break, where there is one: "queries", "tokens" or "seconds"."""
        if self.budget.queries is not None and self.spent.queries >= self.budget.queries:
            return "queries"
        if self.budget.tokens is not None and self.spent.tokens + self.most_tokens > self.budget.tokens:
            return "tokens"
        return "seconds"

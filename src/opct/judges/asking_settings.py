"""How a model is asked to judge: sampling, retries, pauses, limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from opct.errors import EvaluationError, unknown


@dataclass(frozen=True)
class AskingSettings:
    """How a judge is asked.

    Attributes:
        temperature: None leaves it to the model (those that reason refuse one).
        max_completion_tokens: longest answer of the judge.
        seed: of the marks, and of the model where it takes one.
        retries: how often an answer that cannot be read is asked for again.
        concurrency: most calls at once; None: as many as the model's provider takes.
        timeout_s: of one call to an endpoint; a model in this process takes as long as it takes.
        endpoint_retries: how often a call that failed is made again.
        backoff_s: before the first of these; doubled each time, at most `most_backoff_s`.
        give_up_after: so many requests in a row without an answer end everything, and so do so many that are rejected
            with no other answered between them.
    """

    temperature: float | None = 0.0
    max_completion_tokens: int = 600
    seed: int = 0
    retries: int = 2
    concurrency: int | None = None
    timeout_s: float = 120.0
    endpoint_retries: int = 5
    backoff_s: float = 1.0
    most_backoff_s: float = 60.0
    give_up_after: int = 5

    def __post_init__(self) -> None:
        least = {"max_completion_tokens": 1, "retries": 0, "endpoint_retries": 0, "give_up_after": 1, "seed": 0}
        for name, low in [*least.items(), ("concurrency", 1)]:
            value = getattr(self, name)
            wrong = isinstance(value, bool) or not isinstance(value, int) or value < low
            if wrong and not (name == "concurrency" and value is None):
                raise EvaluationError(f"{name} of a judge is {value!r}: use a whole number of at least {low}.")
        for name in ("timeout_s", "backoff_s", "most_backoff_s", "temperature"):
            value = getattr(self, name)
            wrong = isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf
            if (wrong or (name == "timeout_s" and value == 0)) and not (name == "temperature" and value is None):
                raise EvaluationError(f"{name} of a judge is {value!r}: use a number that is not negative.")


def asking_settings(values: Mapping[str, Any]) -> AskingSettings:
    """The settings with some of them set by name.

    Raises:
        EvaluationError: one is not known (the message has the nearest), or out of range.
    """
    known = [field.name for field in fields(AskingSettings)]
    for name in values:
        if name not in known:
            raise EvaluationError(unknown("setting of a judge", name, known))
    return AskingSettings(**values)

"""Which benchmarks are asked together, and how much of each.

`capability-fast` is made for small models: it leaves GPQA out, whose data is behind terms of use, and scores the texts
of options, for a model of 135M parameters is at chance where it must name a letter. Its subsets are parts of those of
`capability`: problems are ordered by a hash of seed and id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opct.evals.capability.commonsenseqa import COMMONSENSEQA, commonsenseqa
from opct.evals.capability.gpqa import GPQA, gpqa
from opct.evals.capability.gsm8k import GSM8K, gsm8k
from opct.evals.capability.ifeval import IFEVAL, ifeval
from opct.evals.capability.math500 import MATH500, math500
from opct.evals.capability.mmlu import MMLU, mmlu
from opct.evals.capability.truthfulqa import TRUTHFULQA, truthfulqa

if TYPE_CHECKING:
    from inspect_ai import Task

BENCHMARKS: dict[str, Callable[..., Task]] = {
    MATH500: math500,
    GSM8K: gsm8k,
    MMLU: mmlu,
    TRUTHFULQA: truthfulqa,
    COMMONSENSEQA: commonsenseqa,
    GPQA: gpqa,
    IFEVAL: ifeval,
}

WITH_OPTIONS = (MMLU, TRUTHFULQA, COMMONSENSEQA, GPQA)
"""Benchmarks of several ways to grade; see `opct.evals.capability.options`."""


@dataclass(frozen=True)
class Part:
    """What a suite asks of one benchmark: at most `n` problems (None: all), with these settings of its task."""

    benchmark: str
    n: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


CAPABILITY_FAST = (
    Part(MATH500, 50, {"max_completion_tokens": 256}),
    Part(GSM8K, 80, {"max_completion_tokens": 256}),
    Part(MMLU, 200, {"graded_by": "texts"}),
    Part(TRUTHFULQA, 200, {"graded_by": "texts"}),
    Part(COMMONSENSEQA, 300, {"graded_by": "texts"}),
    Part(IFEVAL, 60, {"max_completion_tokens": 256}),
)
CAPABILITY = (
    Part(MATH500),
    Part(GSM8K),
    Part(MMLU),
    Part(TRUTHFULQA),
    Part(COMMONSENSEQA),
    Part(GPQA),
    Part(IFEVAL),
)
CAPABILITY_SUITES: dict[str, tuple[Part, ...]] = {"capability-fast": CAPABILITY_FAST, "capability": CAPABILITY}

"""What the runs of an arm took, out of what they logged; what was not logged is unknown, and not zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opct.reports.arms import Arm
from opct.reports.load import EvaluatedRun
from opct.reports.warnings import ADAPTER, run_config
from opct.reports.wording import joined
from opct.runs.usage import UNKNOWN, Usage, earlier_usage, sum_usage, usage_of

NOT_LOGGED = "not logged"
COST_COLUMNS = (
    "optimizer steps",
    "seconds",
    "seconds a step",
    "completion tokens",
    "tokens in the loss",
    "offline tokens",
    "offline seconds",
    "steps in all",
    "seconds in all",
)


@dataclass(frozen=True)
class CostRow:
    """A line of the page's table of costs: an arm, its number of runs, and texts in the order of `COLUMNS`."""

    arm: Arm
    texts: tuple[str, ...]


COLUMNS = ("runs", *COST_COLUMNS)


def arm_cost(arm: Arm) -> Usage | None:
    """What an arm took, all its runs together; None of one that was not trained."""
    if arm.label == "base" or all(run.method is None and not run.metrics for run in arm.runs):
        return None
    return sum_usage([_cost_of_run(run) for run in arm.runs])


def _cost_of_run(run: EvaluatedRun) -> Usage:
    config = run_config(run)
    # where it cannot be read, whether the run went on from another one is not known
    earlier = UNKNOWN if config is None else earlier_usage(run.manifest, config.get(ADAPTER))
    return usage_of(run.metrics, run.method, earlier)


def cost_rows(arms: Sequence[Arm]) -> list[CostRow]:
    """The table of costs: every arm that was trained."""
    costs = [(arm, arm_cost(arm)) for arm in arms]
    return [CostRow(arm, (f"{len(arm.runs):,}", *cost_texts(cost))) for arm, cost in costs if cost is not None]


def cost_texts(cost: Usage) -> tuple[str, ...]:
    """A cost as texts, in the order of `COST_COLUMNS`."""
    a_step = cost.seconds / cost.steps if cost.seconds is not None and cost.steps else None
    return (
        _shown(cost.steps),
        _shown(cost.seconds),
        _shown(a_step, 2),
        _shown(cost.completion_tokens),
        _shown(cost.tokens_in_loss),
        _shown(cost.offline_tokens),
        _shown(cost.offline_seconds),
        _shown(cost.steps_in_all),
        _shown(cost.seconds_in_all),
    )


def _shown(value: float | None, digits: int = 0) -> str:
    return NOT_LOGGED if value is None else f"{value:,.{digits}f}"


def earlier_note(arms: Sequence[Arm]) -> str:
    """Which arms went on from the adapter of another run, and where its cost is; empty where none did."""
    parts = []
    for arm in arms:
        found = [str(adapter) for run in arm.runs if (adapter := (run_config(run) or {}).get(ADAPTER))]
        if found:
            parts.append(f"{arm.name} went on from {joined(list(dict.fromkeys(found)))}")
    return f"{'; '.join(parts)}: what that took is in no column but those of all." if parts else ""

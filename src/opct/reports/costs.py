"""What the runs of an arm took, out of what their steps logged; what a step did not log is unknown, and not zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opct.reports.arms import Arm
from opct.reports.checks import ADAPTER, run_config
from opct.reports.wording import joined

NOT_LOGGED = "not logged"


@dataclass(frozen=True)
class Cost:
    """What the runs of an arm took, added up over its seeds.

    A number is None where a step did not log it, or where no step was logged at all: what was not measured is not zero.

    Attributes:
        seconds: of all optimizer steps, with their sampling, whatever else the machine did; the offline answers of a
            baseline, sampled once before, are not in it.
        steps: optimizer steps.
        completion_tokens: of the answers that were trained on, sampled in the step or before it; those that the loss
            leaves out are counted too.
        tokens_in_loss: that the loss is over, those of rejected answers (dpo) included.
    """

    seconds: float | None
    steps: int | None
    completion_tokens: int | None
    tokens_in_loss: int | None


@dataclass(frozen=True)
class CostRow:
    """A line of the page's table of costs: an arm, its number of runs, and texts in the order of `COLUMNS`."""

    arm: Arm
    texts: tuple[str, ...]


COLUMNS = (
    "runs",
    "optimizer steps",
    "seconds",
    "seconds a step",
    "completion tokens",
    "tokens in the loss",
)


def cost_of(metrics: Sequence[Sequence[Mapping[str, Any]]]) -> Cost:
    """The cost of several runs, each given by the rows of its metrics.jsonl; step 0 is before training."""
    steps = [[row for row in rows if _number(row, "step") > 0] for rows in metrics]
    rows = [row for own in steps for row in own]
    if not all(steps):  # a run without any: how long it was is unknown
        return Cost(None, None, None, None)
    seconds = _sum(rows, "time/step_s")
    tokens, in_loss = _sum(rows, "train/completion_tokens"), _sum(rows, "train/tokens_in_loss")
    return Cost(
        seconds,
        len(rows) or None,
        None if tokens is None else int(tokens),
        None if in_loss is None else int(in_loss),
    )


def _number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _sum(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """None where a row is without it, or there is no row."""
    values = [float(row[name]) for row in rows if row.get(name) is not None]
    return sum(values) if values and len(values) == len(rows) else None


def arm_cost(arm: Arm) -> Cost | None:
    """What an arm took; None of one that was not trained."""
    if arm.label == "base" or all(run.method is None and not run.metrics for run in arm.runs):
        return None
    return cost_of([run.metrics for run in arm.runs])


def cost_rows(arms: Sequence[Arm]) -> list[CostRow]:
    """The table of costs: every arm that was trained."""
    return [CostRow(arm, _texts(len(arm.runs), cost)) for arm in arms if (cost := arm_cost(arm)) is not None]


def shown(value: float | None, digits: int = 0) -> str:
    """A count or seconds: "12,000", or that it was not logged."""
    return NOT_LOGGED if value is None else f"{value:,.{digits}f}"


def _texts(n_runs: int, cost: Cost) -> tuple[str, ...]:
    a_step = cost.seconds / cost.steps if cost.seconds is not None and cost.steps else None
    return (
        f"{n_runs:,}",
        shown(cost.steps),
        shown(cost.seconds),
        shown(a_step, 2),
        shown(cost.completion_tokens),
        shown(cost.tokens_in_loss),
    )


def earlier_note(arms: Sequence[Arm]) -> str:
    """Which arms went on from the adapter of another run, whose cost is not in theirs; empty where none did."""
    parts = []
    for arm in arms:
        found = [str(adapter) for run in arm.runs if (adapter := (run_config(run) or {}).get(ADAPTER))]
        if found:
            parts.append(f"{arm.name} went on from {joined(list(dict.fromkeys(found)))}")
    return f"{'; '.join(parts)}: what that took is not in its row." if parts else ""

"""Cost of runs from their logs: steps, seconds, tokens. None means not logged, not zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from opct.config.loader import read_yaml
from opct.runs.checkpoints import STEP_FOLDER
from opct.runs.run_dir import run_behind

OFFLINE_S = "time/offline_s"
UNKNOWN: dict[str, Any] = {"steps": None, "seconds": None}
"""Cost of a continued adapter whose run is unknown."""


@dataclass(frozen=True)
class Usage:
    """Cost of one or several runs. A number is None if a step did not log it, or a step is missing.

    Attributes:
        seconds: wall time of all optimizer steps, sampling included.
        steps: optimizer steps.
        completion_tokens: of the answers that were trained on, masked ones included.
        tokens_in_loss: tokens that the loss is over, rejected answers (dpo) included.
        offline_tokens: sampled once, before the first step: the answers of a baseline. 0 of `opct`.
        offline_seconds: wall time of that sampling.
        steps_in_all: with the runs whose adapter it continued.
        seconds_in_all: `seconds` and `offline_seconds`, with the runs whose adapter it continued.
    """

    seconds: float | None
    steps: int | None
    completion_tokens: int | None
    tokens_in_loss: int | None
    offline_tokens: int | None
    offline_seconds: float | None
    steps_in_all: int | None
    seconds_in_all: float | None


NOT_KNOWN = Usage(*[None] * len(fields(Usage)))


def usage_of(
    rows: Sequence[Mapping[str, Any]], offline: bool | None, earlier: Mapping[str, Any] | None = None
) -> Usage:
    """The cost of a run.

    Args:
        rows: of its metrics.jsonl; step 0 is before training.
        offline: whether its method samples answers before its first step, from the manifest; None: not known.
        earlier: steps and seconds of what it continued; None where it began with the base. See `earlier_usage`.
    """
    sampled = [row for row in rows if OFFLINE_S in row]
    # a run resumed for more steps logs its further offline answers in a row of its own
    steps = [row for row in rows if row["step"] > 0 and OFFLINE_S not in row]
    logged = {row["step"] for row in steps}
    if not steps or logged != set(range(1, len(logged) + 1)):  # rows are lost: every sum would be too low
        return NOT_KNOWN
    is_known = sampled or offline is False  # a kill can lose what the answers took
    offline_seconds = _sum(sampled, OFFLINE_S) if is_known else None
    seconds = _sum(steps, "time/step_s")
    before = {"steps": 0, "seconds": 0.0} if earlier is None else earlier
    return Usage(
        seconds=seconds,
        steps=len(steps),
        completion_tokens=_sum(steps, "train/completion_tokens"),
        tokens_in_loss=_sum(steps, "train/tokens_in_loss"),
        offline_tokens=_sum(sampled, "rollout/offline_tokens") if is_known else None,
        offline_seconds=offline_seconds,
        steps_in_all=_added([len(steps), before["steps"]]),
        seconds_in_all=_added([seconds, offline_seconds, before["seconds"]]),
    )


def sum_usage(costs: Sequence[Usage]) -> Usage:
    """Each number summed over runs; None where it is not known of one, or there is no run."""
    if not costs:
        return NOT_KNOWN
    return Usage(**{field.name: _added([getattr(cost, field.name) for cost in costs]) for field in fields(Usage)})


def earlier_usage(manifest: Mapping[str, Any], adapter: object) -> Mapping[str, Any] | None:
    """Steps and seconds of what a run continued (`model.adapter`), from its manifest; None: it began with the base."""
    return (manifest.get("earlier") or UNKNOWN) if adapter else None


def prior_usage(adapter: Path) -> dict[str, Any]:
    """Steps and seconds behind an adapter, earlier runs included, for the manifest of a run that continues it.

    None where no run is known behind it.
    """
    run, match = run_behind(adapter), STEP_FOLDER.fullmatch(adapter.parent.name)
    if run is None or match is None or not run.config_path.exists():
        return dict(UNKNOWN)
    # unchecked: a run of an earlier version may have settings that are not known any more
    config, step = read_yaml(run.config_path), int(match[1])
    # up to the checkpoint: the run may have gone on after the one that was continued
    rows = [row for row in run.read_metrics() if row["step"] <= step]
    manifest = run.read_manifest()
    earlier = earlier_usage(manifest, (config.get("model") or {}).get("adapter"))
    cost = usage_of(rows, manifest.get("offline"), earlier)
    is_whole = cost.steps == step
    return {
        "run": str(run.path),
        "steps": cost.steps_in_all if is_whole else None,
        "seconds": cost.seconds_in_all if is_whole else None,
    }


def _sum(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    return _added([row.get(name) for row in rows])


def _added(values: Sequence[Any]) -> Any:
    """The sum; None where one of them is not known."""
    return None if any(value is None for value in values) else sum(values)

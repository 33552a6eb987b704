"""A line of the tables: one metric of one group of samples, over all arms and comparisons.

A cell of a single run is the row of its `results.json`, as it is. A pooled cell and every difference are computed from
the samples by `opct.evals.stats`, paired by sample id. Where a metric cannot be computed from the samples, no
difference is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opct.evals.safety_rows import WORDS
from opct.evals.stats import (
    Estimate,
    average_over_runs,
    paired_difference,
    pooled_over_seeds,
    ratio_reduction,
)
from opct.reports.arms import Arm, Pair
from opct.reports.cells import Cell, PairedCell, read_difference
from opct.reports.load import EvaluatedRun, Row
from opct.reports.metrics import MetricInfo, metric_info
from opct.reports.values import sample_values

RELATIVE_METRICS = ("sycophancy_rate", "attack_success_rate")
"""Rates whose relative cut is given too: 1 - rate after / rate before."""

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class Line:
    """One metric of one group of samples, over all arms and comparisons. `note` is about these very numbers."""

    axis: str
    suite: str
    group: str
    info: MetricInfo
    cells: tuple[Cell | None, ...]
    run_cells: tuple[tuple[Cell | None, ...], ...]
    differences: tuple[PairedCell | None, ...]
    note: str | None = None

    @property
    def title(self) -> str:
        """The metric's name as a reader knows it."""
        return self.info.title

    @property
    def explanation(self) -> str:
        """What the metric counts, and which way is better."""
        return "; ".join(part for part in (self.info.explanation, self.info.better_text, self.note) if part)


def make_line(
    key: tuple[str, str, str, str], arms: Sequence[Arm], pairs: Sequence[Pair], clusters: Mapping[str, str]
) -> Line:
    """The line of (axis, suite, metric, group)."""
    axis, suite, metric, group = key
    info = metric_info(metric)
    values = {arm.label: [sample_values(run.samples, suite, metric, group) for run in arm.runs] for arm in arms}
    run_cells = tuple(tuple(_cell(_row(run, suite, metric, group), info) for run in arm.runs) for arm in arms)
    cells = tuple(_pooled(cells, values[arm.label], clusters, info) for arm, cells in zip(arms, run_cells, strict=True))
    judge = _judge([row for arm in arms for run in arm.runs if (row := _row(run, suite, metric, group)) is not None])
    if metric == "kl_to_base":  # it is a difference from base already
        return Line(axis, suite, group, info, cells, run_cells, (None,) * len(pairs), judge)
    relative = metric in RELATIVE_METRICS and not group.startswith("family:")
    judges = {arm.label: set().union(*(judges_of(run, suite) for run in arm.runs)) for arm in arms}
    differences = tuple(
        None  # of two judges it would be that of the judges too
        if len(judges[pair.of] | judges[pair.against]) > 1
        else _difference(values[pair.of], values[pair.against], clusters, info, relative)
        for pair in pairs
    )
    return Line(axis, suite, group, info, cells, run_cells, differences, judge)


def judges_of(run: EvaluatedRun, suite: str) -> dict[str, Mapping[str, Any]]:
    """Who judged the rows of a suite, by the hash of each judge; empty where rules graded."""
    judges = [(row.get("settings") or {}).get("judge") for row in run.rows if row["suite"] == suite]
    return {str(judge.get("hash")): judge for judge in judges if isinstance(judge, Mapping)}


def _judge(rows: Sequence[Row]) -> str | None:
    """Who judged, or that rules did which nobody compared with people; None where it is known how far rules agree."""
    said = []
    for row in rows:
        settings = row.get("settings") or {}
        if settings.get("grader") == WORDS:
            said.append("found by rules, agreement with people unknown")
        judge, measured = settings.get("judge"), settings.get("judge_calibration")
        if isinstance(judge, Mapping):
            kappa = ((measured or {}).get("kappa") or {}).get("value")
            agreement = "agreement with people unknown" if kappa is None else f"kappa against people {kappa:.2f}"
            if when := (measured or {}).get("calibrated"):
                agreement += f", calibrated on {str(when)[:10]}"
            said.append(f"judged by {judge.get('name')} ({judge.get('model')}), {agreement}")
    return "; ".join(dict.fromkeys(said)) or None


def _row(run: EvaluatedRun, suite: str, metric: str, group: str) -> Row | None:
    return next((r for r in run.rows if (r["suite"], r["metric"], r["group"]) == (suite, metric, group)), None)


def _cell(row: Row | None, info: MetricInfo) -> Cell | None:
    if row is None:
        return None
    return Cell(
        info.unit,
        row.get("value"),
        row.get("ci_low"),
        row.get("ci_high"),
        int(row.get("n") or 0),
        int(row.get("n_clusters") or 0),
        int(row.get("n_unscored") or 0),
        dict(row.get("unscored_reasons") or {}),
        int(row.get("n_truncated") or 0),
    )


def _pooled(
    cells: Sequence[Cell | None], values: Sequence[Values], clusters: Mapping[str, str], info: MetricInfo
) -> Cell | None:
    """The cell of an arm: the row of its only run, or the pool of its seeds (None where one seed lacks the metric)."""
    known = [cell for cell in cells if cell is not None]
    if len(cells) == 1:
        return cells[0]
    if len(known) < len(cells) or not any(values):
        return None
    pooled = pooled_over_seeds(list(values), clusters, bounds=info.bounds)
    return _pooled_cell(pooled, known, info, pooled.between_run_sd)


def _pooled_cell(pooled: Estimate, known: Sequence[Cell], info: MetricInfo, between_run_sd: float | None) -> Cell:
    reasons: dict[str, int] = {}
    for cell in known:
        for reason, amount in cell.unscored_reasons.items():
            reasons[reason] = reasons.get(reason, 0) + amount
    return Cell(
        info.unit,
        pooled.value,
        pooled.ci_low,
        pooled.ci_high,
        pooled.n,
        pooled.n_clusters,
        sum(c.n_unscored for c in known),
        reasons,
        sum(c.n_truncated for c in known),
        len(known),
        between_run_sd,
    )


def _difference(
    of: Sequence[Values], against: Sequence[Values], clusters: Mapping[str, str], info: MetricInfo, relative: bool
) -> PairedCell | None:
    a, b = average_over_runs(of), average_over_runs(against)
    ids = {key for side in (*of, *against) for key in side}
    if not a or not b:
        return None
    result = paired_difference(a, b, clusters, bounds=info.bounds)
    if result.n == 0:
        return None
    reading = read_difference(result.ci_low, result.ci_high, info)
    cut = ratio_reduction(a, b, clusters) if relative else None
    return PairedCell(
        info.unit,
        result.value,
        result.ci_low,
        result.ci_high,
        result.n,
        result.n_clusters,
        len(ids) - result.n,
        reading,
        cut,
    )

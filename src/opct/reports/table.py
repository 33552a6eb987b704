"""A line of the tables: one metric of one group of samples, over all arms and comparisons.

A cell of a single run is the row of its `results.json`, as it is. A pooled cell and every difference are computed from
the samples by `opct.evals.seeds`, paired by sample id. Where a metric cannot be computed from the samples, where a run
of either side has no value of it, or where the two sides were asked or graded unlike, no difference is given but the
reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opct.evals.metrics import Metric
from opct.evals.seeds import Values, difference_over_seeds, pooled_over_seeds, ratio_over_seeds
from opct.judges.provenance import judge_json, judge_of, judged_by
from opct.reports.arms import Arm, Pair
from opct.reports.cells import Cell, PairedCell, read_difference
from opct.reports.load import EvaluatedRun, Row, suite_settings
from opct.reports.metrics import metric_info
from opct.reports.values import sample_values
from opct.reports.wording import joined

RELATIVE_METRICS = ("sycophancy_rate", "attack_success_rate")
"""Rates whose relative cut is given too: 1 - rate after / rate before."""
DECISIVE = ("graded_by", "grader", "prompt_hash", "data")
"""Settings of a suite in which two runs must be alike for a difference between them to be given."""


@dataclass(frozen=True)
class Line:
    """One metric of one group of samples, over all arms and comparisons. `note` is about these very numbers; `reasons`
    says why a comparison has no difference, and is None where it has one or there is none to be had. `judged_by` is the
    part of the note that says who judged and how far that agrees with people, `judges` are those of report.json.
    """

    axis: str
    suite: str
    group: str
    info: Metric
    cells: tuple[Cell | None, ...]
    run_cells: tuple[tuple[Cell | None, ...], ...]
    differences: tuple[PairedCell | None, ...]
    note: str | None = None
    reasons: tuple[str | None, ...] = ()
    judged_by: str | None = None
    judges: tuple[Mapping[str, Any], ...] = ()

    @property
    def title(self) -> str:
        """The metric's name as a reader knows it."""
        return self.info.title

    @property
    def explanation(self) -> str:
        """What the metric counts, and which way is better."""
        return "; ".join(part for part in (self.info.explanation, self.info.better_text, self.note) if part)


@dataclass(frozen=True)
class Alike:
    """Of one suite, by arm and by pair of arms: why their runs were not measured alike; None where they were."""

    arms: tuple[str | None, ...]
    pairs: tuple[str | None, ...]


@dataclass(frozen=True)
class Side:
    """An arm with the values of each of its runs, and the ids that each scored."""

    arm: Arm
    values: tuple[Values, ...]
    scored: tuple[frozenset[str], ...]

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """The training seed of each run."""
        return tuple(run.seed for run in self.arm.runs)

    def names(self, where: Iterable[bool]) -> str:
        """The runs of which it is true, as prose; empty where it is of none."""
        return joined([run.name for run, true in zip(self.arm.runs, where, strict=True) if true])


def measured_alike(suite: str, arms: Sequence[Arm], pairs: Sequence[Pair]) -> Alike:
    """Which arms and pairs were judged by one judge, and asked and graded alike."""
    judges = {arm.label: {key for run in arm.runs for key in judges_of(run, suite)} for arm in arms}
    settings = {
        arm.label: [known for run in arm.runs if (known := suite_settings(run, suite)) is not None] for arm in arms
    }

    def reason(labels: Sequence[str]) -> str | None:
        if len(set().union(*(judges[label] for label in labels))) > 1:
            return "judged by different judges"
        apart = _apart([each for label in labels for each in settings[label]])
        return f"measured with different {joined(apart)}" if apart else None

    return Alike(tuple(reason([arm.label]) for arm in arms), tuple(reason([pair.of, pair.against]) for pair in pairs))


def _apart(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The decisive settings that are not the same in all of these."""
    return [name for name in DECISIVE if len({decisive(name, each.get(name)) for each in settings}) > 1]


def decisive(name: str, value: object) -> str:
    """A setting as it is compared: data by its hash where it has one, whatever the file is called."""
    text = json.dumps(value, sort_keys=True, default=str)
    return text[text.index("sha256:") :] if name == "data" and "sha256:" in text else text


def make_line(
    key: tuple[str, str, str, str],
    arms: Sequence[Arm],
    pairs: Sequence[Pair],
    clusters: Mapping[str, str],
    alike: Alike,
) -> Line:
    """The line of (axis, suite, metric, group).

    Args:
        alike: that of the suite.
    """
    axis, suite, metric, group = key
    info = metric_info(metric)
    rows = [[_row(run, suite, metric, group) for run in arm.runs] for arm in arms]
    run_cells = tuple(tuple(_cell(row, info) for row in own) for own in rows)
    sides = {arm.label: _side(arm, suite, metric, group) for arm in arms}
    measured = [row for own in rows for row in own if row is not None]
    by_whom = _alone([judged_by(row) for row in measured])
    notes: list[str | None] = [*by_whom]
    cells = []
    for arm, own, apart in zip(arms, run_cells, alike.arms, strict=True):
        unpooled = _unpooled(sides[arm.label], own, apart)
        cells.append(_pooled(own, sides[arm.label], clusters, info, is_given=unpooled is None))
        notes.append(unpooled)
    note = "; ".join(text for text in notes if text) or None
    if metric == "kl_to_base":  # it is a difference from base already
        return Line(axis, suite, group, info, tuple(cells), run_cells, (None,) * len(pairs), note)
    relative = metric in RELATIVE_METRICS and not group.startswith("family:")
    reasons = tuple(
        apart or _missing(sides[pair.of], sides[pair.against]) for pair, apart in zip(pairs, alike.pairs, strict=True)
    )
    differences = tuple(
        _difference(sides[pair.of], sides[pair.against], clusters, info, relative) if reason is None else None
        for pair, reason in zip(pairs, reasons, strict=True)
    )
    judges = tuple(_alone([judge_json(row) for row in measured]))
    said = "; ".join(by_whom) or None
    return Line(axis, suite, group, info, tuple(cells), run_cells, differences, note, reasons, said, judges)


def _alone(values: Sequence[Any]) -> list[Any]:
    """Each value once, in the order of the first."""
    found: list[Any] = []
    for value in values:
        if value is not None and value not in found:
            found.append(value)
    return found


def _side(arm: Arm, suite: str, metric: str, group: str) -> Side:
    values = tuple(sample_values(run.samples, suite, metric, group) for run in arm.runs)
    scored = tuple(frozenset(key for key, value in own.items() if value is not None) for own in values)
    return Side(arm, values, scored)


def _unpooled(side: Side, cells: Sequence[Cell | None], apart: str | None) -> str | None:
    """Why the runs of an arm have no common number; None where they have one, and where none was measured."""
    without = side.names(cell is None for cell in cells)
    if len(cells) == 1 or all(cell is None for cell in cells):
        return None
    if without:
        return f"{side.arm.name} is not pooled: {without} did not measure it"
    if apart:
        return f"{side.arm.name} is not pooled: {apart}"
    if all(side.scored) or not any(side.scored):
        return None
    return f"{side.arm.name} is not pooled: no scored sample in {side.names(not ids for ids in side.scored)}"


def _missing(of: Side, against: Side) -> str | None:
    """Which runs have nothing to be compared by: a difference without them would be that of the other seeds."""
    silent = [name for side in (of, against) if (name := side.names(not ids for ids in side.scored))]
    if silent:
        return f"no scored sample in {joined(silent)}"
    for side, other in ((of, against), (against, of)):
        theirs = frozenset().union(*other.scored)
        alone = side.names(theirs.isdisjoint(ids) for ids in side.scored)
        if alone:
            return f"no sample of {alone} was scored in {other.arm.name} too"
    return None


def judges_of(run: EvaluatedRun, suite: str) -> dict[str, Mapping[str, Any]]:
    """Who judged the rows of a suite, by the hash of each judge; empty where rules graded."""
    judges = [judge_of(row) for row in run.rows if row["suite"] == suite]
    return {str(judge.get("hash")): judge for judge in judges if judge is not None}


def _row(run: EvaluatedRun, suite: str, metric: str, group: str) -> Row | None:
    return next((r for r in run.rows if (r["suite"], r["metric"], r["group"]) == (suite, metric, group)), None)


def _cell(row: Row | None, info: Metric) -> Cell | None:
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
    cells: Sequence[Cell | None],
    side: Side,
    clusters: Mapping[str, str],
    info: Metric,
    *,
    is_given: bool,
) -> Cell | None:
    """The cell of an arm: the row of its only run, or the pool of its seeds (None where one seed lacks the metric).

    Args:
        is_given: whether the seeds have a common number; else the cell has their counts alone.
    """
    known = [cell for cell in cells if cell is not None]
    if len(cells) == 1:
        return cells[0]
    if len(known) < len(cells) or not any(side.values):
        return None
    reasons: dict[str, int] = {}
    for cell in known:
        for reason, amount in cell.unscored_reasons.items():
            reasons[reason] = reasons.get(reason, 0) + amount
    counts = (sum(c.n_unscored for c in known), reasons, sum(c.n_truncated for c in known), len(known))
    if not is_given or not all(side.scored):
        return Cell(info.unit, None, None, None, 0, 0, *counts)
    pooled = pooled_over_seeds(side.values, clusters, bounds=info.bounds)
    return Cell(
        info.unit,
        pooled.value,
        pooled.ci_low,
        pooled.ci_high,
        pooled.n,
        pooled.n_clusters,
        *counts,
        between_run_sd=pooled.between_run_sd,
        n_partial=pooled.n_partial,
        run_values=pooled.run_means,
        over_questions=pooled.over_questions,
    )


def _difference(of: Side, against: Side, clusters: Mapping[str, str], info: Metric, relative: bool) -> PairedCell:
    a, b, seeds_a, seeds_b = of.values, against.values, of.seeds, against.seeds
    found = difference_over_seeds(a, b, clusters, seeds_a=seeds_a, seeds_b=seeds_b, bounds=info.bounds)
    return PairedCell(
        info.unit,
        found.value,
        found.ci_low,
        found.ci_high,
        found.n,
        found.n_clusters,
        len({key for own in (*a, *b) for key in own}) - found.n,
        read_difference(found.ci_low, found.ci_high, info),
        ratio_over_seeds(a, b, clusters, seeds_a=seeds_a, seeds_b=seeds_b) if relative else None,
        found.spreads,
        found.n_partial,
        found.over_questions,
    )

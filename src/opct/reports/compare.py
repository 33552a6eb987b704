"""Runs side by side: arms with their seeds pooled, every metric of each, and paired differences between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from opct.data.builders.builtin import builtin_families
from opct.evals.metrics import Metric, find_metric, metrics_of
from opct.evals.samples import ATTACK, CONSISTENCY, INSPECT, PARSED, graded_name
from opct.evals.stats import CONFIDENCE
from opct.evals.tasks.sycophancy import PAIRS
from opct.reports.arms import BASE, OPCT, Arm, Pair, References, make_arms, make_pairs
from opct.reports.axes import (
    BENIGN,
    CAPABILITY,
    METRIC_ORDER,
    SCORE,
    axis_info,
    axis_order,
    group_name,
    place_in,
    short_suite_name,
    suite_name,
    where,
)
from opct.reports.benchmarks import mean_row
from opct.reports.load import EvaluatedRun, graded_apart, on_same_samples
from opct.reports.table import Estimate, MetricRow, PairedDifference, make_row, why_incomparable
from opct.reports.wording import capitalized, inside

TRAIN_HEADLINE = ("sycophancy_rate", "accuracy_biased", "attack_success_rate", "warning_rate")
"""Metrics of the training families in the headline; the others are folded away."""
FOLDED = ("accuracy_gap", "switch_to_bias", "partial_rate", "prompt_level_loose_acc", "inst_level_loose_acc")
"""Metrics that are always folded away: a similar one is in the headline."""
SECTION_ORDER = ("behaviors", "held_out", "train", "all", "clean", "bare", "benign_held_out", "benign_bare", "benign")
GENERALITY = ("clean", "all", "held_out", "benign", "train")


@dataclass(frozen=True)
class Section:
    """Rows of one axis under one heading; `full_title` names the axis too."""

    title: str
    full_title: str
    rows: tuple[MetricRow, ...]


@dataclass(frozen=True)
class Comparison:
    """Every row over all arms: the source of the page, the JSON and the model card."""

    arms: tuple[Arm, ...]
    pairs: tuple[Pair, ...]
    rows: tuple[MetricRow, ...]

    @property
    def runs(self) -> list[EvaluatedRun]:
        return [run for arm in self.arms for run in arm.runs]

    @cached_property
    def axes(self) -> list[str]:
        """The axes that were measured, in the order of the page."""
        return axis_order(list(dict.fromkeys(row.axis for row in self.rows)))

    def suites(self, axis: str) -> list[str]:
        """The suites of an axis, without those that grade the replies of another suite again."""
        names = dict.fromkeys(row.suite for row in self.rows if row.axis == axis)
        return [name for name in names if name not in self._parsed]

    @cached_property
    def _parsed(self) -> set[str]:
        """The suites of replies that were graded in a first way, and parsed; not where only parsing gave any grade."""
        samples = [sample for run in self.runs for sample in run.samples]
        parsed = {sample.task for sample in samples if sample.graded_by == PARSED}
        scored = {graded_name(one.task, PARSED) for one in samples if not one.graded_by and one.unscored_reason is None}
        return parsed & scored

    @property
    def scores(self) -> list[MetricRow]:
        return [row for row in self.rows if row.axis == CAPABILITY and row.metric.name == SCORE]

    @property
    def main_arm(self) -> Arm:
        """The main arm of the page: OPCT, else the last arm of its method from the base, else the last arm given."""
        named = [arm for arm in self.arms if arm.label == OPCT]
        from_base = [arm for arm in self.arms if arm.uses(OPCT) and not arm.continues]
        return (named or from_base or list(self.arms))[-1]

    @property
    def first(self) -> Arm:
        """The arm that every other one is compared with: the base, if it is there."""
        return self.arms[0]

    def arm(self, label: str) -> Arm:
        return next(arm for arm in self.arms if arm.label == label)

    def level(self, row: MetricRow, arm: Arm) -> Estimate | None:
        """The estimate of an arm; None if it has no value."""
        one = row.estimates[self.arms.index(arm)]
        return None if one is None or one.value is None else one

    def change(self, row: MetricRow) -> PairedDifference | None:
        """The difference of the main arm from the first; None if they are not compared."""
        return self.difference(row, self.main_arm.label, self.first.label)

    @cached_property
    def deciding_suites(self) -> dict[str, str]:
        """By axis, the suite that decides: the one with a number for most arms.

        Ties go to the first, so rules win over a judge; of attackers, to the one that the main arm withstands least. A
        number over less than half of an arm's replies is not counted.
        """
        return {
            # the first of equals: rules stand before a judge
            axis: max(suites, key=lambda suite: (self._n_scored(axis, suite), self._strength(axis, suite)))
            for axis in self.axes
            if (suites := self.suites(axis))
        }

    def _n_scored(self, axis: str, suite: str) -> int:
        row = self.deciding_row(axis, suite)
        if row is None:
            return 0
        of_arms = zip(self.arms, row.run_estimates, strict=True)
        return sum(self.level(row, arm) is not None and _is_mostly_scored(of_runs) for arm, of_runs in of_arms)

    def _strength(self, axis: str, suite: str) -> float:
        """The share of requests for which an attacker breaks the main arm; 0 on other axes."""
        row = self.deciding_row(axis, suite) if axis == ATTACK else None
        one = None if row is None else self.level(row, self.main_arm)
        return 0.0 if one is None else 1.0 - (one.value or 0.0)

    def of_suite(self, axis: str, suite: str) -> str:
        """ " (judged)" if a safety axis has several suites; else empty."""
        several = axis_info(axis).is_safety and len(self.suites(axis)) > 1
        return f" ({short_suite_name(suite)})" if several else ""

    def name_of(self, row: MetricRow) -> str:
        """Full name of a row outside its section: "Sycophancy rate on training families", "Accuracy on GSM8K"."""
        if row.axis == INSPECT or (row.axis == CAPABILITY and row.suite != CAPABILITY):
            return f"{capitalized(row.title)} on {suite_name(row.suite)}"
        return row.title + self.where(row) + self.of_suite(row.axis, row.suite)

    def where(self, row: MetricRow) -> str:
        return where(row.axis, row.group, is_unseen=self.is_unseen(row))

    def is_unseen(self, row: MetricRow) -> bool:
        """Whether a row is of families that no run was trained on; only where all that was trained on is known."""
        families = self._held_out.get(row.suite, set()) if row.group in ("held_out", "benign_held_out") else set()
        return bool(families) and self._trained is not None and not families & self._trained

    @cached_property
    def _held_out(self) -> dict[str, set[str]]:
        """By suite of built-in prompts, the families listed as held out."""
        families: dict[str, set[str]] = {}
        for sample in (one for run in self.runs for one in run.samples if one.family_split == "held_out"):
            # a file of pairs may hold trained pressure under another name
            if sample.axis != CONSISTENCY and not sample.task.startswith(PAIRS):
                families.setdefault(sample.task, set()).add(sample.family)
        return families

    @cached_property
    def _trained(self) -> set[str] | None:
        """The families that any run but the base was trained on; None if there is no such run, or one has families that
        are unknown or not embedded, whose pairs may hold any pressure.
        """
        untrained = {run.weights for run in self.runs if run.label == BASE and run.weights}  # also with a system prompt
        manifests = [run.manifest for run in self.runs if run.label != BASE and run.weights not in untrained]
        is_known = bool(manifests) and all("trained_families" in manifest for manifest in manifests)
        names = {name for manifest in manifests for name in manifest["trained_families"]} if is_known else set()
        return names if is_known and names <= builtin_families() else None

    def row(
        self, metric: str, group: str | None = None, suite: str | None = None, axis: str | None = None
    ) -> MetricRow | None:
        """The first row of a metric; None if no run has it.

        Args:
            group: None: the most general one.
            suite: None: the deciding suite of the axis, else any.
            axis: None: any.
        """
        candidates = [
            row
            for row in self.rows
            if row.metric.name == metric
            and group in (None, row.group)
            and suite in (None, row.suite)
            and axis in (None, row.axis)
        ]
        if suite is None:
            # stable: within a suite, rows stay in the order of the results
            candidates.sort(key=lambda row: row.suite != self.deciding_suites.get(row.axis))
        # the first of equals, which is of the deciding suite after the sort
        return min(candidates, key=lambda row: place_in(GENERALITY, row.group), default=None)

    def deciding_row(self, axis: str, suite: str | None = None) -> MetricRow | None:
        """The row that decides on an axis: held-out families, or else the most general group."""
        metric = axis_info(axis).metric
        suite = suite or self.deciding_suites.get(axis)
        if metric is None:
            return None
        return self.row(metric, "held_out", suite) or self.row(metric, None, suite)

    @property
    def deciding_rows(self) -> list[MetricRow]:
        return [row for axis in self.axes if (row := self.deciding_row(axis)) is not None]

    def difference(self, row: MetricRow, of: str, against: str) -> PairedDifference | None:
        """The difference between two arms; None if they are not compared."""
        return next((row.differences[i] for i in self._places(of, against)), None)

    def reason(self, row: MetricRow, of: str, against: str) -> str:
        """Why two arms have no difference."""
        return next((row.reasons[i] for i in self._places(of, against)), None) or "no sample was scored in both"

    def _places(self, of: str, against: str) -> list[int]:
        return [i for i, pair in enumerate(self.pairs) if (pair.of, pair.against) == (of, against)]

    @cached_property
    def n_intervals(self) -> int:
        """Differences that have an interval."""
        return sum(d is not None and d.ci_low is not None for row in self.rows for d in row.differences)

    @property
    def n_by_chance(self) -> float:
        """Expected number of intervals that exclude 0 if no arms differ."""
        return (1.0 - CONFIDENCE) * self.n_intervals

    def families(self, suite: str, split: str) -> list[str]:
        """The families of a split that a suite used in any run, by name."""
        return sorted({s.family for run in self.runs for s in run.suites.get(suite, ()) if s.group == split})

    def headline(self, axis: str | None = None) -> list[Section]:
        """The headline rows: whole splits instead of single families, and "all" if there is no split."""
        return self._sections(axis, is_headline=True)

    def details(self, axis: str | None = None) -> list[Section]:
        return self._sections(axis, is_headline=False)

    def _sections(self, axis: str | None, *, is_headline: bool) -> list[Section]:
        has_split = {row.suite: False for row in self.rows if row.group in ("held_out", "train")}
        has_split |= {row.suite: True for row in self.rows if row.suite in has_split and row.group == "clean"}
        suites = list(dict.fromkeys(row.suite for row in self.rows))
        several = {axis: len({row.suite for row in self.rows if row.axis == axis}) > 1 for axis in self.axes}

        def place(row: MetricRow) -> tuple[Any, ...]:
            group, metric = place_in(SECTION_ORDER, row.group), place_in(METRIC_ORDER, row.metric.name)
            return self.axes.index(row.axis), suites.index(row.suite), group, row.group, metric

        sections: dict[tuple[str, str, str], list[MetricRow]] = {}
        for row in sorted((row for row in self.rows if axis in (None, row.axis)), key=place):
            if (row.suite not in self._parsed and _is_headline(row, has_split)) is is_headline:
                sections.setdefault((row.axis, row.suite, row.group), []).append(row)
        return [Section(*section_titles(*key, several=several[key[0]]), tuple(rows)) for key, rows in sections.items()]


def _is_headline(row: MetricRow, has_split: Mapping[str, bool]) -> bool:
    """Whether a row is in the headline.

    In a suite with families: the held-out rows, a few training rows, and clean accuracy over all questions. `has_split`
    maps each suite with families to whether clean questions are a separate group.
    """
    name = row.metric.name
    # with a colon: a single family, category or fact
    if ":" in row.group or name.startswith("share_at_") or name in FOLDED:
        return False
    if row.suite not in has_split or row.group in ("clean", "bare", "benign_bare", "benign_held_out"):
        return True
    if name == "accuracy_clean":
        return row.group == "all" and not has_split[row.suite]
    return row.group == "held_out" or (row.group == "train" and name in TRAIN_HEADLINE)


def section_titles(axis: str, suite: str, group: str, *, several: bool) -> tuple[str, str]:
    """The heading of a section, within its axis and alone; with the suite if the axis has `several`."""
    name, known = group_name(group), axis_info(axis).title
    name = "All pairs" if (axis, group) == (CONSISTENCY, "all") else name
    if axis in (CAPABILITY, INSPECT):  # suites without groups
        name = "All benchmarks" if suite == CAPABILITY else suite_name(suite)
        return name, f"{known}: {name}"
    if axis == BENIGN:
        return name, name if group == BENIGN else f"{known}: {inside(name)}"
    name += f" ({suite_name(suite)})" if several else ""
    return name, f"{known}: {inside(name)}"


def _is_mostly_scored(estimates: Sequence[Estimate | None]) -> bool:
    """Whether at least half of an arm's replies, over all runs, have a score."""
    known = [estimate for estimate in estimates if estimate is not None]
    return sum(one.n for one in known) >= sum(one.n_unscored for one in known)


def compare(
    runs: Sequence[EvaluatedRun], references: References | None = None, also: Sequence[tuple[str, str]] = ()
) -> Comparison:
    """Pool the seeds of each label and compare the labels on every metric that any run has.

    Args:
        references: the arm or arms that each arm is compared with besides the base; see `opct.reports.arms`.
        also: further comparisons, (arm, against) by label.
    """
    # before all else: rates, pools and differences must be over the same samples
    runs = on_same_samples(runs)
    arms = make_arms(runs)
    pairs = make_pairs(arms, references, also)
    keys = dict.fromkeys((row["axis"], row["suite"], row["metric"], row["group"]) for run in runs for row in run.rows)
    suites = list(dict.fromkeys(suite for _, suite, _, _ in keys))
    graded = dict.fromkeys((suite, graded_apart(suite, name)) for _, suite, name, _ in keys)
    incomparable = {one: why_incomparable(*one, arms, pairs) for one in graded}
    metrics = {suite: _metrics(runs, suite) for suite in suites}
    rows = []
    for axis, suite, name, group in keys:
        # of the samples first: the bounds of other Inspect tasks are made of their values
        metric = metrics[suite].get(name) or find_metric(axis, name)
        rows.append(make_row(metric, suite, group, arms, pairs, incomparable[suite, graded_apart(suite, name)]))
    mean = mean_row(rows, arms, pairs)
    # the mean stands before the benchmarks that it is made of
    first = next((i for i, row in enumerate(rows) if row.axis == CAPABILITY), len(rows))
    return Comparison(arms, pairs, (*rows[:first], *([] if mean is None else [mean]), *rows[first:]))


def _metrics(runs: Sequence[EvaluatedRun], suite: str) -> dict[str, Metric]:
    """The metrics of a suite by name. For other Inspect tasks, the bounds fit the values of every run."""
    samples = [sample for run in runs for sample in run.suites.get(suite, ())]
    return {metric.name: _with_direction(metric) for metric in metrics_of(samples)} if samples else {}


def _with_direction(metric: Metric) -> Metric:
    """For other tasks, only accuracy is known to be better when higher."""
    if metric.axis != INSPECT or not metric.name.endswith("accuracy"):
        return metric
    return replace(metric, better="higher", explanation="correct answers, by the task's scorer")

"""Runs side by side: arms with their seeds pooled, every metric of each, and paired differences between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from opct.evals.stats import CONFIDENCE
from opct.reports.arms import Arm, Pair, References, make_arms, make_pairs
from opct.reports.axes import BENIGN, CAPABILITY, axis_info, axis_order
from opct.reports.capability import mean_line
from opct.reports.cells import Cell, PairedCell
from opct.reports.load import EvaluatedRun
from opct.reports.metrics import PARSED, group_name, metric_order, suite_name
from opct.reports.table import Line, make_line, measured_alike
from opct.reports.values import sample_clusters
from opct.reports.wording import inside

TRAIN_HEADLINE = ("sycophancy_rate", "accuracy_biased", "attack_success_rate", "warning_rate")
"""Metrics of the training families that stand in the headline; the rest of theirs is folded away."""
FOLDED = (
    "biased_rate_rise",
    "accuracy_gap",
    "switch_to_bias",
    "both_mentioned_rate",
    "partial_rate",
    "prompt_level_loose_acc",
    "inst_level_loose_acc",
)
"""Metrics that are folded away wherever they are: each has a nearby one in the headline."""
SECTION_ORDER = ("held_out", "train", "all", "clean", "bare", "benign_held_out", "benign_bare", "benign")


@dataclass(frozen=True)
class Section:
    """Lines of one axis under one heading; `full_title` names the axis too."""

    axis: str
    title: str
    full_title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Comparison:
    """Every line over all arms: what the page, the JSON and the model card are made from."""

    arms: tuple[Arm, ...]
    pairs: tuple[Pair, ...]
    lines: tuple[Line, ...]

    @cached_property
    def axes(self) -> list[str]:
        """The axes that were measured, in the order of the page."""
        return axis_order(list(dict.fromkeys(line.axis for line in self.lines)))

    def suites(self, axis: str) -> list[str]:
        """The suites of an axis, without those that grade the replies of another one a second way."""
        names = dict.fromkeys(line.suite for line in self.lines if line.axis == axis)
        return [name for name in names if not name.endswith(PARSED)]

    def arm(self, label: str) -> Arm:
        """The arm of a label."""
        return next(arm for arm in self.arms if arm.label == label)

    @cached_property
    def _deciding_suites(self) -> dict[str, str]:
        return {
            axis: max(suites, key=lambda suite: self._n_scored(axis, suite))
            for axis in self.axes
            if (suites := self.suites(axis))
        }

    def deciding_suite(self, axis: str) -> str | None:
        """The suite that decides on an axis: the one with a number of most arms, of those alike the first, which puts
        the rules before a judge. A number that stands for less than half of an arm's replies does not count.
        """
        return self._deciding_suites.get(axis)

    def _n_scored(self, axis: str, suite: str) -> int:
        line = self.deciding_line(axis, suite)
        if line is None:
            return 0
        return sum(
            cell is not None and cell.value is not None and _is_mostly_scored(own)
            for cell, own in zip(line.cells, line.run_cells, strict=True)
        )

    def of_suite(self, axis: str, suite: str) -> str:
        """ " (jailbreak, judged)" where an axis of safety has several suites; else empty."""
        several = axis_info(axis).is_safety and len(self.suites(axis)) > 1
        return f" ({suite_name(suite)})" if several else ""

    def line(self, metric: str, group: str | None = None, suite: str | None = None) -> Line | None:
        """The first line of a metric (in that group, or in its most general one); None where no run has it.

        Args:
            suite: None: the one that decides on the axis, else any.
        """
        found = [
            line
            for line in self.lines
            if line.info.name == metric
            and (group is None or line.group == group)
            and (suite is None or line.suite == suite)
        ]
        if suite is None:
            found.sort(key=lambda line: line.suite != self.deciding_suite(line.axis))
        return min(found, key=_generality, default=None)

    def deciding_line(self, axis: str, suite: str | None = None) -> Line | None:
        """The line that decides on an axis: that of held-out families, or the most general one there is."""
        metric = axis_info(axis).metric
        suite = suite or self.deciding_suite(axis)
        if metric is None:
            return None
        return self.line(metric, "held_out", suite) or self.line(metric, None, suite)

    def difference(self, line: Line, of: str, against: str) -> PairedCell | None:
        """The difference between two arms on one line; None where it is not compared."""
        return next(
            (d for p, d in zip(self.pairs, line.differences, strict=True) if (p.of, p.against) == (of, against)), None
        )

    def reason(self, line: Line, of: str, against: str) -> str:
        """Why two arms have no difference on one line."""
        said = (r for p, r in zip(self.pairs, line.reasons, strict=False) if (p.of, p.against) == (of, against))
        return next(said, None) or "no sample was scored in both"

    @cached_property
    def n_intervals(self) -> int:
        """Differences that have an interval, over all lines."""
        return sum(d is not None and d.low is not None for line in self.lines for d in line.differences)

    @property
    def n_by_chance(self) -> float:
        """How many of these intervals would be expected not to hold 0 if no arm differed from another."""
        return (1.0 - CONFIDENCE) * self.n_intervals

    def families(self, suite: str, split: str) -> list[str]:
        """The families of a split that any run was asked in by a suite, by name."""
        return sorted(self._families.get((suite, split), ()))

    @cached_property
    def _families(self) -> dict[tuple[str, str], set[str]]:
        found: dict[tuple[str, str], set[str]] = {}
        for arm in self.arms:
            for run in arm.runs:
                for sample in run.samples:
                    key = (str(sample.get("task")), str(sample.get("family_split")))
                    found.setdefault(key, set()).add(str(sample.get("family")))
        return found

    def headline(self, axis: str | None = None) -> list[Section]:
        """The lines that matter first, of one axis or of all: whole splits, not single families, and "all" only where
        there is no split.
        """
        split = {line.suite: False for line in self.lines if line.group in ("held_out", "train")}
        split |= {line.suite: True for line in self.lines if line.suite in split and line.group == "clean"}
        return self._sections([line for line in self._of(axis) if _is_headline(line, split)])

    def details(self, axis: str | None = None) -> list[Section]:
        """Every line that is not in the headline."""
        shown = {id(line) for section in self.headline(axis) for line in section.lines}
        return self._sections([line for line in self._of(axis) if id(line) not in shown])

    def _of(self, axis: str | None) -> list[Line]:
        return [line for line in self.lines if axis is None or line.axis == axis]

    def _sections(self, lines: Sequence[Line]) -> list[Section]:
        sections: dict[tuple[str, str, str], list[Line]] = {}
        order = list(dict.fromkeys(line.suite for line in self.lines))

        def place(line: Line) -> tuple[Any, ...]:
            suite = order.index(line.suite)
            return self.axes.index(line.axis), suite, _group_order(line.group), metric_order(line.info.name)

        for line in sorted(lines, key=place):
            sections.setdefault((line.axis, line.suite, line.group), []).append(line)
        several = {axis: len({line.suite for line in self.lines if line.axis == axis}) > 1 for axis in self.axes}
        return [
            Section(key[0], *section_titles(*key, several=several[key[0]]), tuple(own)) for key, own in sections.items()
        ]


def _is_headline(line: Line, split: Mapping[str, bool]) -> bool:
    """In a suite with families: the held-out lines, two of the training ones, clean accuracy over all questions.

    `split` has the suites with families, and whether clean questions are a group of their own there.
    """
    name = line.info.name
    if ":" in line.group or line.suite.endswith(PARSED) or name.startswith("share_at_") or name in FOLDED:
        return False
    if line.suite not in split or line.group in ("clean", "bare", "benign_bare", "benign_held_out"):
        return True
    if name == "accuracy_clean":
        return line.group == "all" and not split[line.suite]
    return line.group == "held_out" or (line.group == "train" and name in TRAIN_HEADLINE)


def section_titles(axis: str, suite: str, group: str, *, several: bool) -> tuple[str, str]:
    """The heading of a section on its axis' part of the page, and where it stands alone.

    Args:
        several: whether the axis has several suites.
    """
    name, known = group_name(group), axis_info(axis).title
    if axis == BENIGN:
        return (name, name) if group == BENIGN else (name, f"{known}: {inside(name)}")
    if axis == CAPABILITY:
        name = "All benchmarks" if suite == CAPABILITY else suite_name(suite)
        return name, f"{known}: {name}"
    if several:
        name = f"{name} ({suite_name(suite)})"
    return name, f"{known}: {inside(name)}"


def _group_order(group: str) -> tuple[int, str]:
    return (SECTION_ORDER.index(group) if group in SECTION_ORDER else len(SECTION_ORDER), group)


def _generality(line: Line) -> int:
    order = ("clean", "all", "held_out", "benign", "train")
    return order.index(line.group) if line.group in order else len(order)


def _is_mostly_scored(cells: Sequence[Cell | None]) -> bool:
    """Whether at least half of the replies of an arm have a score, over its runs."""
    known = [cell for cell in cells if cell is not None]
    return sum(cell.n for cell in known) >= sum(cell.n_unscored for cell in known)


def compare(
    runs: Sequence[EvaluatedRun], references: References | None = None, also: Sequence[tuple[str, str]] = ()
) -> Comparison:
    """Pool the seeds of each label and compare the labels on every metric that any run has.

    Args:
        references: the arm, or the arms, that each arm is compared with beside the base; see `opct.reports.arms`.
        also: further comparisons, (arm, against) by label.
    """
    arms = make_arms(runs)
    pairs = make_pairs(arms, references, also)
    keys = dict.fromkeys(
        (str(r.get("axis")), str(r["suite"]), str(r["metric"]), str(r["group"])) for run in runs for r in run.rows
    )
    clusters = sample_clusters(runs)
    alike = {suite: measured_alike(suite, arms, pairs) for suite in dict.fromkeys(suite for _, suite, _, _ in keys)}
    lines = [make_line(key, arms, pairs, clusters, alike[key[1]]) for key in keys]
    mean = mean_line(lines, arms, pairs)
    first = next((i for i, line in enumerate(lines) if line.axis == CAPABILITY), len(lines))
    return Comparison(arms, pairs, (*lines[:first], *([] if mean is None else [mean]), *lines[first:]))

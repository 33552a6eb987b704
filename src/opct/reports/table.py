"""The table of results: a row is one metric of one group of samples, with every arm and every comparison.

The estimate of a single run is its row, as in `results.json`. Pooled estimates and differences are computed from the
samples, paired by sample id. If two sides cannot be compared, the row has the reason instead of a difference.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from opct.evals.judges.agreement import grader_label, judge_json, judge_of, known_errors
from opct.evals.metrics import Metric, Unit
from opct.evals.stats import (
    FEWEST_SEEDS,
    Interval,
    Part,
    SeedDifference,
    SeedSpread,
    Values,
    average_over_runs,
    difference_over_seeds,
    pooled_over_seeds,
    variance_of_a_seed,
)
from opct.evals.wording import change, interval, number, quantity
from opct.reports.arms import Arm, Pair
from opct.reports.axes import axis_info
from opct.reports.load import EvaluatedRun, Row, suite_settings
from opct.reports.wording import joined
from opct.runs.console import pluralize

MOST_LISTED = 5  # seeds whose differences are listed one by one
DECISIVE = ("graded_by", "grader", "grader_version", "prompt_hash", "data", "task_version", "task_args")
"""Settings of a suite that two runs must share; otherwise no difference is given."""
_OF_MEAN = ("value", "ci_low", "ci_high", "n", "n_clusters")
_OF_ROW = (*_OF_MEAN, "n_unscored", "unscored_reasons", "n_truncated")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One metric of one arm or run: 95% interval, and counts of unscored and truncated samples.

    Attributes:
        run_values: of pooled runs, the value of each.
        n_partial: samples among n that not all pooled runs scored.
        over_questions: the interval for exactly these runs; of pooled ones, `ci_low` and `ci_high` cover other
            seeds too.
    """

    unit: Unit
    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int = 0
    n_clusters: int = 0
    n_unscored: int = 0
    unscored_reasons: Mapping[str, int] = field(default_factory=dict)
    n_truncated: int = 0
    n_runs: int = 1
    between_run_sd: float | None = None
    n_partial: int = 0
    run_values: tuple[float, ...] = ()
    over_questions: Interval = (None, None)

    @property
    def text(self) -> str:
        if self.value is None and set(self.unscored_reasons) == {"not_broken"}:
            return "none was broken"
        return quantity(self.value, self.unit)

    @property
    def interval_text(self) -> str:
        return interval(self.ci_low, self.ci_high, self.unit)

    @property
    def left_out_parts(self) -> list[str]:
        """Unscored (with reasons) and truncated counts; for pooled runs, first their number and spread."""
        known = {_reason_text(name): n for name, n in sorted(self.unscored_reasons.items()) if n}
        reasons = list(known) if len(known) == 1 else [f"{n:,} {name}" for name, n in known.items()]
        unscored = f"{self.n_unscored:,} unscored" + (f" ({', '.join(reasons)})" if reasons else "")
        counts = [unscored, f"{self.n_truncated:,} truncated"]
        counts += [partial_text(self.n_partial, self.n)] if self.n_partial else []
        if self.n_runs == 1:
            return counts
        spread = "" if self.between_run_sd is None else f" (SD {number(self.between_run_sd, self.unit)})"
        return [f"{self.n_runs} runs{spread}", *counts]

    @property
    def left_out_text(self) -> str:
        """The same in one line."""
        parts = self.left_out_parts
        if self.n_runs == 1:
            return ", ".join(parts)
        return f"{parts[0]}: in all {', '.join(parts[1:])}"

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self) | {"ci_over_questions": self.over_questions}
        return {name: value for name, value in fields.items() if name not in ("unit", "over_questions")}


def partial_text(amount: int, n: int) -> str:
    return f"{amount:,} of {n:,} scored by some runs only"


def _reason_text(reason: str) -> str:
    """ "clean_empty" refers to the clean reply that a biased reply is compared with."""
    return ("clean reply " + reason.removeprefix("clean_") if reason.startswith("clean_") else reason).replace("_", " ")


@dataclass(frozen=True, kw_only=True)
class PairedDifference(SeedDifference):
    """The difference between two arms on one metric, paired by sample; `ci_low` and `ci_high` cover other seeds too.

    Attributes:
        left_out: samples that could not be paired.
        reading, margin: see `read_difference`.
    """

    unit: Unit
    left_out: int
    reading: str
    margin: float | None

    @property
    def text(self) -> str:
        return change(self.value, self.unit)

    @property
    def interval_text(self) -> str:
        return interval(self.ci_low, self.ci_high, self.unit, signed=True)

    @property
    def reading_text(self) -> str:
        within = change(self.margin, self.unit).replace("+", "\u00b1")
        words = {
            "no_change": f"no change (within {within})",
            "unknown": "no interval, so not judged",
            "two_seeds": f"undecided with two of the {FEWEST_SEEDS} seeds needed",
        }
        return words.get(self.reading, self.reading)

    @property
    def plain_text(self) -> str:
        """The same without the words of statistics: an interval of 95% is no certainty."""
        if self.reading in ("better", "worse"):
            return f"probably {self.reading}"
        return {"inconclusive": "can\u2019t tell", "no_change": "unchanged"}.get(self.reading, self.reading_text)

    @property
    def left_out_text(self) -> str:
        """How many samples could not be paired, and how many only in some seeds."""
        paired = f"{self.left_out:,} unpaired" if self.left_out else "all paired"
        return f"{paired}, {partial_text(self.n_partial, self.n)}" if self.n_partial else paired

    @property
    def seeds_text(self) -> str:
        """The difference of each seed and their standard deviation; empty if both sides are single runs."""
        if not self.spreads:
            return ""
        sds = " and ".join(number(spread.sd, self.unit) for spread in self.spreads)
        if len(self.spreads) > 1:
            return f"seeds of each side: SD {sds}"
        values = self.spreads[0].values
        listed = ", ".join(number(value, self.unit, signed=True) for value in values)
        return f"by seed {listed} (SD {sds})" if len(values) <= MOST_LISTED else f"{len(values)} seeds (SD {sds})"

    def to_json(self) -> dict[str, Any]:
        return {
            "difference": self.value,
            "ci_low": self.ci_low,
            "ci_high": self.ci_high,
            "n": self.n,
            "n_clusters": self.n_clusters,
            "n_unpaired": self.left_out,
            "reading": self.reading,
            "margin": self.margin,
            "seeds": [{"differences": list(spread.values), "sd": spread.sd} for spread in self.spreads],
            "n_partial": self.n_partial,
            "ci_over_questions": list(self.over_questions),
        }


def read_difference(low: float | None, high: float | None, metric: Metric, spreads: Sequence[SeedSpread] = ()) -> str:
    """Classify an interval as better, worse, higher, lower, no_change, inconclusive, two_seeds or unknown.

    no_change: it includes 0 and lies within the metric's margin. inconclusive: it includes 0 and more than the margin.
    two_seeds: it rests on the spread of two seeds. unknown: there is no interval. higher, lower: for a metric without
    a better direction.
    """
    if low is None or high is None:
        return "unknown"
    if any(len(spread.values) < FEWEST_SEEDS for spread in spreads):
        return "two_seeds"
    # an interval that ends at 0 includes it: no difference is shown
    if low <= 0 <= high:
        # the end that is farther from 0: the whole interval must lie within the margin
        return "no_change" if metric.margin is not None and max(-low, high) <= metric.margin else "inconclusive"
    up = low > 0
    if metric.better is None:
        return "higher" if up else "lower"
    return "better" if up == (metric.better == "higher") else "worse"


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One metric of one group of samples, over all arms and comparisons.

    Attributes:
        estimates: one for each arm; None if the arm lacks the metric.
        run_estimates: for each arm, one for each run.
        differences: one for each pair of arms.
        reasons: why a pair has no difference; None if it has one, or cannot have one.
        note: a remark on these numbers.
        judged_by: names the grader and its agreement with human labels; `judges` is the same in detail.
    """

    metric: Metric
    suite: str
    group: str
    estimates: tuple[Estimate | None, ...]
    run_estimates: tuple[tuple[Estimate | None, ...], ...]
    differences: tuple[PairedDifference | None, ...]
    reasons: tuple[str | None, ...]
    note: str | None = None
    judged_by: str | None = None
    judges: tuple[Mapping[str, Any], ...] = ()

    @property
    def axis(self) -> str:
        return self.metric.axis

    @property
    def title(self) -> str:
        return self.metric.title

    @property
    def explanation(self) -> str:
        """What the metric measures, which direction is better, and the note."""
        return "; ".join(part for part in (self.metric.explanation, self.metric.better_text, self.note) if part)


@dataclass(frozen=True)
class ArmValues:
    """The values of one metric in each run of an arm, by sample id."""

    arm: Arm
    values: tuple[Values, ...]

    @cached_property
    def scored(self) -> list[frozenset[str]]:
        return [frozenset(key for key, value in values.items() if value is not None) for values in self.values]

    def names(self, where: Iterable[bool]) -> str:
        """The names of the runs with a true flag, as prose."""
        return joined([run.name for run, true in zip(self.arm.runs, where, strict=True) if true])


def why_incomparable(
    suite: str, metric: str | None, arms: Sequence[Arm], pairs: Sequence[Pair]
) -> dict[tuple[str, ...], str | None]:
    """Why the runs of an arm (label,) or a pair (of, against) are not comparable on a suite, or on a metric of it that
    is `graded_apart`; None if they are.
    """
    judges = {arm.label: {key for run in arm.runs for key in judges_of(run, suite)} for arm in arms}
    settings = {
        arm.label: [known for run in arm.runs if (known := suite_settings(run, suite, metric)) is not None]
        for arm in arms
    }

    def reason(labels: tuple[str, ...]) -> str | None:
        # hashes of judges: two judges of one name may have other prompts or models
        if len(set().union(*(judges[label] for label in labels))) > 1:
            return "judged by different judges"
        all_settings = [each for label in labels for each in settings[label]]
        names = sorted({name for each in all_settings for name in each if is_decisive(name)})
        unlike = [name for name in names if len({setting_key(name, each.get(name)) for each in all_settings}) > 1]
        if unlike:
            return f"measured with different {joined(unlike)}"
        measured = [run for arm in arms if arm.label in labels for run in arm.runs if suite in run.suites]
        return other_questions(measured, suite)

    compared = [*((arm.label,) for arm in arms), *((pair.of, pair.against) for pair in pairs)]
    return {labels: reason(labels) for labels in compared}


def other_questions(runs: Sequence[EvaluatedRun], suite: str) -> str | None:
    """Why rates of these runs are of other questions, with the questions of each; None if they were asked the same."""
    if len({frozenset(sample.id for sample in run.suites[suite]) for run in runs}) < 2:
        return None
    variants: dict[str, list[str]] = {}
    for run in runs:
        settings = suite_settings(run, suite) or {}
        noun = axis_info(run.suites[suite][0].axis).cluster if run.suites[suite] else "question"
        n = pluralize(len({sample.cluster for sample in run.suites[suite]}), noun)
        variants.setdefault(
            f"{n} of {settings.get('questions') or settings.get('data') or settings.get('pairs') or suite}", []
        ).append(run.name)
    if len(variants) == 1:
        return f"asked other questions (each {next(iter(variants))}, with other contents or settings)"
    return f"asked other questions ({'; '.join(f'{joined(names)}: {what}' for what, names in variants.items())})"


def judges_of(run: EvaluatedRun, suite: str) -> dict[str, Mapping[str, Any]]:
    """The judges of a suite by hash; empty if rules graded it."""
    judges = [judge_of(row) for row in run.rows if row["suite"] == suite]
    return {str(judge.get("hash")): judge for judge in judges if judge is not None}


def is_decisive(name: str) -> bool:
    """Whether runs that differ in this setting of a suite are not compared; arguments of a task have dotted names."""
    return name.partition(".")[0] in DECISIVE


def setting_key(name: str, value: object) -> str:
    """A setting for comparison: data is compared by hash, if known, not by file name."""
    text = json.dumps(value, sort_keys=True, default=str)
    return text[text.index("sha256:") :] if name == "data" and "sha256:" in text else text


def make_row(
    metric: Metric,
    suite: str,
    group: str,
    arms: Sequence[Arm],
    pairs: Sequence[Pair],
    incomparable: Mapping[tuple[str, ...], str | None],
) -> MetricRow:
    """The row of a metric; `incomparable` is what `why_incomparable` found for the suite."""
    asked = [_asked(arm, suite) for arm in arms]
    units = [tuple(run.units(metric, suite, group) for run in arm.runs) for arm in asked]
    # over all runs: a sample's cluster is the same in each, and a run may lack the sample
    clusters = {id_: name for of_arm in units for one in of_arm for id_, name in one.clusters.items()}
    sides = {
        arm.label: ArmValues(arm, tuple(one.values for one in of_arm)) for arm, of_arm in zip(asked, units, strict=True)
    }
    rows = [[run.row(suite, metric.name, group) for run in arm.runs] for arm in arms]
    of_runs = [tuple(_estimate(row, metric) for row in of_arm) for of_arm in rows]
    of_arms = [
        (side, [estimate for run, estimate in zip(arm.runs, estimates, strict=True) if run in side.arm.runs])
        for arm, side, estimates in zip(arms, sides.values(), of_runs, strict=True)
    ]
    not_pooled = [_why_not_pooled(side, estimates, incomparable[side.arm.label,]) for side, estimates in of_arms]
    of_a_seed = variance_of_a_seed(
        [
            [e.value for e in estimates if e is not None and e.value is not None]
            for arm, estimates in zip(arms, of_runs, strict=True)
            if all(run.seed is not None for run in arm.runs)  # runs of the base differ by no seed
        ]
    )
    compared = [] if metric.name == "kl_to_base" else pairs  # the metric is already a difference from base
    reasons: list[str | None] = [None] * len(pairs)
    differences: list[PairedDifference | None] = [None] * len(pairs)
    for i, pair in enumerate(compared):
        of, against = sides[pair.of], sides[pair.against]
        reasons[i] = incomparable[pair.of, pair.against] or _why_not_paired(of, against)
        if reasons[i] is None:
            differences[i] = _difference(of, against, clusters, metric, of_a_seed)
    measured = [row for of_arm in rows for row in of_arm if row is not None]
    judges = _distinct([grader_label(row) for row in measured])
    estimates = tuple(
        _pooled(estimates, side, clusters, metric, reason, of_a_seed)
        for (side, estimates), reason in zip(of_arms, not_pooled, strict=True)
    )
    return MetricRow(
        metric=metric,
        suite=suite,
        group=group,
        estimates=estimates,
        run_estimates=tuple(of_runs),
        differences=tuple(differences),
        reasons=tuple(reasons),
        note="; ".join(text for text in [*not_pooled, _error_note(arms, rows, estimates)] if text) or None,
        judged_by="; ".join(judges) or None,
        judges=tuple(_distinct([judge_json(row) for row in measured])),
    )


def _asked(arm: Arm, suite: str) -> Arm:
    """The arm with all its seeds; one without seeds with the runs that measured the suite, if there is one."""
    measured = tuple(run for run in arm.runs if suite in run.suites)
    return arm if arm.has_seeds or not measured else replace(arm, runs=measured)


def _error_note(
    arms: Sequence[Arm], rows: Sequence[list[Row | None]], estimates: Sequence[Estimate | None]
) -> str | None:
    """What the rates may be in truth if the rules err as on their labels; None where the rules agree with labels."""
    texts, errors = [], None
    for arm, of_arm, estimate in zip(arms, rows, estimates, strict=True):
        known = [found for row in of_arm if row is not None and (found := known_errors(row))]
        if known and estimate is not None and estimate.value is not None:
            errors = known[0]
            least, most = (f"{100 * bound:.1f}" for bound in errors.bounds(estimate.value))
            texts.append(f"{arm.name} {least} to {most}%")
    if errors is None:
        return None
    labels = f"{errors.events} {errors.noun} and {errors.others} other replies"
    return f"if the rules err as on the labels ({labels}), the true rate is: {', '.join(texts)}"


def _distinct(values: Sequence[Any]) -> list[Any]:
    distinct: list[Any] = []
    for value in values:
        # a list: values may be dicts, which no set holds
        if value is not None and value not in distinct:
            distinct.append(value)
    return distinct


def _estimate(row: Row | None, metric: Metric) -> Estimate | None:
    if row is None:
        return None
    fields = {name: row[name] for name in _OF_ROW if row.get(name) is not None}
    return Estimate(unit=metric.unit, over_questions=(row.get("ci_low"), row.get("ci_high")), **fields)


def summed_counts(estimates: Sequence[Estimate]) -> dict[str, Any]:
    reasons: Counter[str] = Counter()
    for estimate in estimates:
        reasons.update(estimate.unscored_reasons)
    return {
        "n_unscored": sum(estimate.n_unscored for estimate in estimates),
        "unscored_reasons": dict(reasons),
        "n_truncated": sum(estimate.n_truncated for estimate in estimates),
    }


def _why_not_pooled(side: ArmValues, estimates: Sequence[Estimate | None], unlike: str | None) -> str | None:
    """Why the runs of an arm cannot be pooled; None if they can, or if none was measured."""
    without = side.names(estimate is None for estimate in estimates)
    if len(estimates) == 1 or all(estimate is None for estimate in estimates):
        return None
    if without:
        return f"{side.arm.name} is not pooled: {without} did not measure it"
    if unlike:
        return f"{side.arm.name} is not pooled: {unlike}"
    if all(side.scored) or not any(side.scored):
        return None
    return f"{side.arm.name} is not pooled: no scored sample in {side.names(not ids for ids in side.scored)}"


def _pooled(
    estimates: Sequence[Estimate | None],
    side: ArmValues,
    clusters: Mapping[str, str],
    metric: Metric,
    not_pooled: str | None,
    of_a_seed: Part | None,
) -> Estimate | None:
    """The estimate of an arm: of its single run, or pooled over seeds; None if a seed lacks the metric."""
    if len(estimates) == 1:
        return estimates[0]
    known = [estimate for estimate in estimates if estimate is not None]
    # a mean over the seeds that have the metric would be of other seeds than the arm's
    if len(known) < len(estimates) or not any(side.values):
        return None
    counts = {**summed_counts(known), "n_runs": len(known)}
    if not_pooled is not None or not all(side.scored):
        return Estimate(unit=metric.unit, **counts)
    values = side.values if side.arm.has_seeds else [average_over_runs(side.values)]
    pooled = pooled_over_seeds(values, clusters, bounds=metric.bounds, of_a_seed=of_a_seed)
    shared = {name: getattr(pooled, name) for name in (*_OF_MEAN, "between_run_sd", "n_partial", "over_questions")}
    return Estimate(unit=metric.unit, run_values=pooled.run_means, **shared, **counts)


def _why_not_paired(of: ArmValues, against: ArmValues) -> str | None:
    """Which runs share no scored sample with the other side; leaving them out would change the seeds compared."""
    unscored = [name for side in (of, against) if (name := side.names(not ids for ids in side.scored))]
    if unscored:
        return f"no scored sample in {joined(unscored)}"
    for side, other in ((of, against), (against, of)):
        # scored by any of its runs: the other side is averaged over its runs first
        theirs = frozenset().union(*other.scored)
        alone = side.names(theirs.isdisjoint(ids) for ids in side.scored)
        if alone:
            return f"no sample of {alone} was scored in {other.arm.name} too"
    return None


def _difference(
    of: ArmValues, against: ArmValues, clusters: Mapping[str, str], metric: Metric, of_a_seed: Part | None
) -> PairedDifference:
    a, b = of.values, against.values
    seeds_a, seeds_b = ([run.seed for run in side.arm.runs] for side in (of, against))
    seeds: dict[str, Any] = {"seeds_a": seeds_a, "seeds_b": seeds_b}
    difference = difference_over_seeds(a, b, clusters, bounds=metric.bounds, of_a_seed=of_a_seed, **seeds)
    return PairedDifference(
        unit=metric.unit,
        # each sample once, unscored ones included, whatever number of seeds has it
        left_out=len({key for values in (*a, *b) for key in values}) - difference.n,
        reading=read_difference(difference.ci_low, difference.ci_high, metric, difference.spreads),
        margin=metric.margin,
        **vars(difference),
    )

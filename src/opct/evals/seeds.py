"""Several training seeds of one method: pooled, and compared, with intervals over questions and seeds.

    SE^2 = se^2 + sum_i s_i^2 / S_i,      df as in `clustered_mean`, from G - 1 and S_i - 1.

se is that of the values averaged over the seeds of each sample, clustered by question; s is the standard deviation
between S seeds. It has the sampling noise within a seed in it, a part of which is in se too, so that SE is a little too
large; df is approximate. In simulations with three seeds 92 to 97% of the intervals hold the truth, of those over
questions alone 63 to 82%. With one run there is no s: the interval says nothing about another seed.

Of a difference, s is that of the differences seed by seed where both sides have the same seeds, or one side a single
run; of two sides with unlike seeds each adds its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from opct.errors import EvaluationError
from opct.evals.stats import (
    Difference,
    Estimate,
    Part,
    average_over_runs,
    clustered_mean,
    clusters_of,
    joined,
    paired_difference,
    ratio_reduction,
    t_quantile,
)

Values = Mapping[str, float | None]
Bounds = tuple[float, float]
Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class SeedSpread:
    """A number of each of two or more training seeds."""

    values: tuple[float, ...]

    @property
    def sd(self) -> float:
        """The sample standard deviation between the seeds."""
        return float(np.std(self.values, ddof=1))

    @property
    def part(self) -> Part:
        """What it adds to the variance of the mean over seeds."""
        return Part(self.sd**2 / len(self.values), len(self.values) - 1)


@dataclass(frozen=True)
class Pooled(Estimate):
    """The mean over the seeds of one method. `between_run_sd` is the sample standard deviation of `run_means` (None
    for one run); `over_questions` is the interval for these very seeds.

    `n_partial` counts the ids that were not scored in every run; they enter with the mean over the runs that have them.
    """

    run_means: tuple[float, ...]
    between_run_sd: float | None
    n_partial: int
    over_questions: Interval


@dataclass(frozen=True)
class SeedDifference(Difference):
    """The difference between two methods.

    Attributes:
        spreads: differences seed by seed, where both sides have the same seeds or one has a single run; of unlike
            seeds, or where runs of one seed have no scored id in common, two: those of `a`, then those of `b`, each
            against the mean of the other side. None of single runs.
        n_partial: ids among those of the difference that some run of either side did not score.
        over_questions: the interval for these very seeds.
    """

    spreads: tuple[SeedSpread, ...]
    n_partial: int
    over_questions: Interval


def pooled_over_seeds(
    runs: Sequence[Values], clusters: Mapping[str, Hashable], *, bounds: Bounds | None = (0.0, 1.0)
) -> Pooled:
    """The mean of one method over its training seeds: averaged per sample id over the runs, then clustered.

    Raises:
        EvaluationError: there is no run, one of several has no scored id, an id has no cluster, or a value is not
            finite or out of bounds.
    """
    if not runs:
        raise EvaluationError("No runs to pool: give at least one.")
    per_id = average_over_runs(runs)
    ids = sorted(per_id)
    values, groups = [per_id[key] for key in ids], clusters_of(ids, clusters)
    means = [_mean(list(average_over_runs([run]).values())) for run in runs]
    known = [value for value in means if value is not None]
    if len(known) < len(means) and len(means) > 1:
        raise EvaluationError(
            f"Run {means.index(None) + 1} of the {len(runs)} to pool has no scored sample: the mean would be of the "
            "others alone. Leave it out, and say so."
        )
    spread = SeedSpread(tuple(known)) if len(runs) > 1 else None
    plain = clustered_mean(values, groups, bounds=bounds)
    wide = plain if spread is None else clustered_mean(values, groups, bounds=bounds, parts=[spread.part])
    return Pooled(
        **_fields(wide),
        run_means=tuple(known),
        between_run_sd=None if spread is None else spread.sd,
        n_partial=_partial(ids, runs),
        over_questions=(plain.ci_low, plain.ci_high),
    )


def difference_over_seeds(
    a: Sequence[Values],
    b: Sequence[Values],
    clusters: Mapping[str, Hashable],
    *,
    seeds_a: Sequence[int | None],
    seeds_b: Sequence[int | None],
    bounds: Bounds | None = (0.0, 1.0),
) -> SeedDifference:
    """mean(a) - mean(b) over the ids that both sides scored, each averaged over its runs.

    Args:
        a: values by sample id of each run of one method.
        b: the same of the other.
        seeds_a: the training seed of each run of `a`; None for one that was not trained, or where it is not known.
        seeds_b: the same of `b`.
        bounds: what a value can be.

    Raises:
        EvaluationError: a run shares no scored id with the other side, an id has no cluster, or a value is not finite
            or out of bounds.
    """
    mean_a, mean_b = average_over_runs(a), average_over_runs(b)
    spreads = _spreads(a, b, seeds_a, seeds_b, _mean_difference)
    plain = paired_difference(mean_a, mean_b, clusters, bounds=bounds)
    wide = paired_difference(mean_a, mean_b, clusters, bounds=bounds, parts=[spread.part for spread in spreads])
    return SeedDifference(
        **_fields(wide),
        spreads=spreads,
        n_partial=_partial(mean_a.keys() & mean_b.keys(), [*a, *b]),
        over_questions=(plain.ci_low, plain.ci_high),
    )


def ratio_over_seeds(
    a: Sequence[Values],
    b: Sequence[Values],
    clusters: Mapping[str, Hashable],
    *,
    seeds_a: Sequence[int | None],
    seeds_b: Sequence[int | None],
) -> Estimate:
    """The relative cut of a rate, 1 - mean(a) / mean(b), as `ratio_reduction` has it, its interval over seeds too.

    No interval where the rate of a seed of `b` is 0, against which there is no cut.

    Args:
        a, b, seeds_a, seeds_b: see `difference_over_seeds`.
    """
    cut = ratio_reduction(average_over_runs(a), average_over_runs(b), clusters)
    if cut.value is None or cut.ci_low is None or cut.ci_high is None:
        return cut
    try:
        spreads = _spreads(a, b, seeds_a, seeds_b, _cut)
    except ZeroDivisionError:
        return Estimate(cut.value, None, None, cut.n, cut.n_clusters)
    low, high = widened(cut.value, (cut.ci_low, cut.ci_high), cut.n_clusters - 1, spreads, (-math.inf, 1.0))
    return Estimate(cut.value, low, high, cut.n, cut.n_clusters)


def widened(value: float, questions: Bounds, df: int, spreads: Sequence[SeedSpread], bounds: Bounds) -> Bounds:
    """An interval over questions made one over seeds too, for estimates that are no mean over samples.

    On each side the width w stands for a standard error of w / t(0.975, df), to which the seeds' parts are added as in
    `clustered_mean`; no side becomes narrower.

    Args:
        questions: the interval over questions alone.
        df: its degrees of freedom.
        spreads: how far the seeds lie apart.
        bounds: what the interval is cut to.
    """
    parts = [spread.part for spread in spreads]

    def wide(width: float) -> float:
        se, joint_df = joined([Part((width / t_quantile(df)) ** 2, df), *parts])
        return max(width, t_quantile(joint_df) * se) if se else width

    low, high = questions
    return max(value - wide(value - low), bounds[0]), min(value + wide(high - value), bounds[1])


def _spreads(
    a: Sequence[Values],
    b: Sequence[Values],
    seeds_a: Sequence[int | None],
    seeds_b: Sequence[int | None],
    compare: Callable[[Values, Values], float],
) -> tuple[SeedSpread, ...]:
    """How far the seeds lie apart in what `compare` gives of two runs; see `SeedDifference.spreads`."""
    groups: list[list[tuple[Values, Values]]]
    if len(a) > 1 and len(b) > 1:
        same = None not in seeds_a and set(seeds_a) == set(seeds_b) and len(set(seeds_a)) == len(a) == len(b)
        pairs = [(run, b[seeds_b.index(seed)]) for run, seed in zip(a, seeds_a, strict=True)] if same else []
        if pairs and all(_scored_by_both(*pair) for pair in pairs):
            groups = [pairs]
        else:  # other seeds, or runs of one seed that scored no sample both
            mean_a, mean_b = average_over_runs(a), average_over_runs(b)
            groups = [[(run, mean_b) for run in a], [(mean_a, run) for run in b]]
    else:
        groups = [[(left, right) for left in a for right in b]]
    return tuple(SeedSpread(tuple(compare(*pair) for pair in group)) for group in groups if len(group) > 1)


def _mean_difference(a: Values, b: Values) -> float:
    left, right = _shared(a, b)
    return float((left - right).mean())


def _cut(a: Values, b: Values) -> float:
    left, right = _shared(a, b)
    return 1.0 - float(left.sum()) / float(right.sum())


def _scored_by_both(a: Values, b: Values) -> list[tuple[float, float]]:
    return [(x, y) for key, x in a.items() if x is not None and (y := b.get(key)) is not None]


def _shared(a: Values, b: Values) -> tuple[np.ndarray, np.ndarray]:
    """The values of both over the ids that both scored."""
    found = _scored_by_both(a, b)
    if not found:
        raise EvaluationError("A run shares no scored sample with those it is compared with: leave it out, and say so.")
    left, right = np.array(found, dtype=np.float64).T
    return left, right


def _partial(ids: Sequence[str] | set[str], runs: Sequence[Values]) -> int:
    return sum(any(run.get(key) is None for run in runs) for key in ids)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _fields(estimate: Estimate) -> dict[str, Any]:
    return {field.name: getattr(estimate, field.name) for field in fields(estimate)}

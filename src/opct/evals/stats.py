"""Statistics of rates and differences between runs: clustered, paired, over training seeds. Pure numpy and scipy.

Samples that share a question (a behavior, a fact) are not independent, so every interval is taken over clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opct.errors import EvaluationError

CONFIDENCE = 0.95
DRAWS, BOOTSTRAP_SEED = 4000, 0
FEW_CLUSTERS = 100
"""Questions or pairs below which a report is likely inconclusive."""
DISCORDANCE = 0.4
"""Assumed share of questions whose grade training changes; in docs/results 0.14 of clean answers, 0.43 of attacks."""
Values = Mapping[str, float | None]
"""Values by sample id; None is unscored."""
Bounds = tuple[float, float]
Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval; `value` is None without samples, the bounds are None where no interval can be
    given."""

    value: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    n_clusters: int


@dataclass(frozen=True)
class Part:
    """A further part of the variance of a mean, besides that of the clusters, and its degrees of freedom."""

    variance: float
    df: int


def clustered_mean(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    bounds: Bounds | None = (0.0, 1.0),
    parts: Sequence[Part] = (),
) -> Estimate:
    """The mean over all samples and its 95% interval, robust to dependence inside clusters.

    With m = sum(x) / n over n samples, and e_g = sum over the samples of cluster g of (x - m):

        se^2 = G / (G - 1) * sum_g e_g^2 / n^2,      interval = m -+ t(0.975, G - 1) * se, clipped to `bounds`.

    For one sample a cluster this is the usual s / sqrt(n). Source: Liang and Zeger 1986 (CR1); Miller 2024, arXiv
    2411.00640.

    Near a bound, where that interval is too narrow, no side is narrower than if all clusters had agreed, which is the
    next paragraph; and for a share (bounds from 0) none is narrower than the score interval of Wilson 1927 with the
    effective number of samples m (1 - m) / se^2.

    Where se is 0 because all clusters agree exactly, the interval is the exact binomial one (Clopper and Pearson
    1934) at cluster level: were a share p of the clusters different, all G would agree with probability (1 - p)^G, so
    p may be up to p* = 1 - 0.025^(1/G), and the mean anywhere in [m - p* (m - low), m + p* (high - m)]. For m = 0 or
    1 in (0, 1) that is Clopper-Pearson with G trials. Never a zero-width interval from luck.

    Further parts v_i of the mean's variance, with d_i degrees of freedom, are added, and t has those of Welch 1947 and
    Satterthwaite 1946; neither side becomes narrower than without them, and there is no score interval of them:

        SE^2 = se^2 + sum_i v_i,      df = SE^4 / (se^4 / (G - 1) + sum_i v_i^2 / d_i).

    Args:
        clusters: the cluster of each value.
        bounds: the least and largest value a sample can take; None when unbounded, and then there is no interval at
            zero variance.
        parts: further parts of the mean's variance, such as that of training seeds.

    Raises:
        EvaluationError: a value is not finite or out of bounds.
    """
    x = _checked(values, bounds)
    n = len(x)
    if n == 0:
        return Estimate(None, None, None, 0, 0)
    index, count = _numbered(clusters)
    mean = float(x.mean())
    variance = _cluster_variance(x, index, count, mean)
    low, high = _interval(variance, count, mean, bounds, ())
    if low is not None and high is not None and any(part.variance > 0 for part in parts):
        wide = _interval(variance, count, mean, bounds, parts)
        low, high = min(low, wide[0]), max(high, wide[1])  # type: ignore[type-var]
    return Estimate(mean, low, high, n, count)


def _checked(values: Sequence[float], bounds: Bounds | None) -> np.ndarray:
    x = np.asarray(values, dtype=np.float64)
    if not np.isfinite(x).all():
        raise EvaluationError(f"A value is {x[~np.isfinite(x)][0]}: leave unscored samples out, and count them.")
    if bounds is not None and len(x) and (x.min() < bounds[0] or x.max() > bounds[1]):
        raise EvaluationError(
            f"Values from {x.min()} to {x.max()} are outside the bounds {bounds}: give their true bounds."
        )
    return x


def _numbered(clusters: Sequence[Hashable]) -> tuple[np.ndarray, int]:
    """The index of each value's cluster, and the number of clusters."""
    names: dict[Hashable, int] = {}
    index = np.array([names.setdefault(cluster, len(names)) for cluster in clusters], dtype=np.int64)
    return index, len(names)


def _cluster_variance(x: np.ndarray, index: np.ndarray, count: int, mean: float) -> float | None:
    """Standard error of the mean: 0 if all clusters agree, None for a single cluster."""
    if np.ptp(x) == 0.0:
        return 0.0
    if count < 2:
        return None
    residuals = np.bincount(index, weights=x - mean, minlength=count)
    se = math.sqrt(count / (count - 1) * float((residuals**2).sum())) / len(x)
    return se**2 if se >= 1e-12 else 0.0  # clusters that all have the same mean, in equal sizes


def _interval(
    variance: float | None, count: int, mean: float, bounds: Bounds | None, parts: Sequence[Part]
) -> Interval:
    if variance is None or (variance == 0.0 and bounds is None):
        return None, None
    se, df = joined([Part(variance, count - 1), *parts])
    if se == 0.0:
        return _unanimous(mean, count, bounds)  # type: ignore[arg-type]
    t = t_quantile(df)
    wald = (mean - t * se, mean + t * se)
    if bounds is None:
        return wald
    sides = [wald, _unanimous(mean, count, bounds)]
    if bounds[0] == 0 and not parts:  # a share; a difference can be negative
        sides.append(_wilson(mean, se, t, bounds[1]))
    return max(min(low for low, _ in sides), bounds[0]), min(max(high for _, high in sides), bounds[1])


def joined(parts: Sequence[Part]) -> tuple[float, float]:
    """(standard error, degrees of freedom) of a mean whose variance has these parts; (0, 0) where all are 0."""
    known = [part for part in parts if part.variance > 0]
    if not known:
        return 0.0, 0.0
    square = sum(part.variance for part in known)
    return math.sqrt(square), square**2 / sum(part.variance**2 / part.df for part in known)


def _wilson(mean: float, se: float, z: float, upper: float) -> tuple[float, float]:
    """The score interval of a share p = mean / upper among p (1 - p) / se^2 independent samples."""
    p = mean / upper
    n = p * (1 - p) / (se / upper) ** 2
    center, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return upper * (center - spread) / (1 + z * z / n), upper * (center + spread) / (1 + z * z / n)


def _unanimous(mean: float, count: int, bounds: tuple[float, float]) -> tuple[float, float]:
    share = unseen_share(count)
    return mean - share * (mean - bounds[0]), mean + share * (bounds[1] - mean)


def unseen_share(n_clusters: int) -> float:
    """The largest share of clusters that could differ when none of `n_clusters` did, at 97.5%: 1 - 0.025^(1/G)."""
    return 1.0 - ((1.0 - CONFIDENCE) / 2) ** (1.0 / n_clusters)


def cluster_bootstrap(
    rows: np.ndarray,
    clusters: Sequence[Hashable],
    statistic: Callable[[np.ndarray], np.ndarray],
    slack: Callable[[np.ndarray, float], float],
) -> Estimate:
    """A statistic of the sums of rows, for what is no mean, and its 95% interval over clusters.

    The interval is from the 2.5% to the 97.5% percentile over draws of whole clusters with replacement (Efron and
    Tibshirani 1993, chapter 13). Draws in which the statistic is undefined are left out.

    Args:
        rows: [samples, columns].
        statistic: of sums [..., columns]; NaN where undefined.
        slack: how far it could fall from the sums, were a share of the clusters unlike the others; for the interval
            where no draw differs from another, which is from few clusters and not from certainty (`unseen_share`).
    """
    index, count = _numbered(clusters)
    table = np.zeros((count, rows.shape[1]))
    np.add.at(table, index, rows)
    total = table.sum(axis=0)
    value = float(statistic(total))
    if not math.isfinite(value):
        return Estimate(None, None, None, len(rows), count)
    weights = np.random.default_rng(BOOTSTRAP_SEED).multinomial(count, np.full(count, 1.0 / count), size=DRAWS)
    drawn = statistic(weights @ table)
    known = drawn[np.isfinite(drawn)]
    if count < 2 or len(known) == 0:
        return Estimate(value, None, None, len(rows), count)
    low, high = (float(x) for x in np.quantile(known, [(1.0 - CONFIDENCE) / 2, (1.0 + CONFIDENCE) / 2]))
    if high - low < 1e-12:
        width = slack(total, unseen_share(count))
        low, high = max(low - width, min(low, 0.0)), min(high + width, 1.0)
    return Estimate(value, low, high, len(rows), count)


def t_quantile(df: float) -> float:
    """The 97.5% quantile of Student's t with `df` degrees of freedom."""
    from scipy.special import stdtrit  # not scipy.stats.t: the same number, without a quarter of a millisecond a call

    return float(stdtrit(df, 1.0 - (1.0 - CONFIDENCE) / 2))


def paired_difference(
    a: Values,
    b: Values,
    clusters: Mapping[str, Hashable],
    *,
    bounds: Bounds | None = (0.0, 1.0),
    parts: Sequence[Part] = (),
) -> Estimate:
    """mean(a) - mean(b) over the sample ids that both have scored, with the clustered interval of the differences.

    Args:
        a, b: value of each sample id of a run; None where it is unscored, which counts as missing on that side.
        bounds: what a value of `a` or `b` can be; the differences then lie in -+(high - low).
        parts: see `clustered_mean`.

    Raises:
        EvaluationError: a value is not finite or out of bounds.
    """
    shared = _scored_by_both(a, b)
    groups = [clusters[key] for key in shared]
    left, right = (_checked([side[key] for key in shared], bounds) for side in (a, b))  # type: ignore[misc]
    width = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
    return clustered_mean((left - right).tolist(), groups, bounds=width, parts=parts)


def smallest_decided(n_clusters: int, discordance: float = DISCORDANCE) -> float:
    """The smallest paired difference of two rates whose 95% interval excludes 0, with one sample a cluster.

    Of the n differences, each -1, 0 or 1, a share `discordance` is not 0. With a mean of d their variance is
    discordance - d^2, and d equals the half-width of its interval, t sqrt((discordance - d^2) / n), at

        d = t sqrt(discordance / (n + t^2)),      t = t(0.975, n - 1);      1 for a single cluster.

    A true difference of this size is decided in half of all evaluations.
    """
    if n_clusters < 2:
        return 1.0
    t = t_quantile(n_clusters - 1)
    return t * math.sqrt(discordance / (n_clusters + t * t))


def decides(n_clusters: int) -> str:
    """ "can decide differences of about 28 points or more": what so many questions can show, in words."""
    return f"can decide differences of about {100 * smallest_decided(n_clusters):.0f} points or more"


def _scored_by_both(a: Values, b: Values) -> list[str]:
    return sorted(key for key, value in a.items() if value is not None and b.get(key) is not None)


def average_over_runs(runs: Sequence[Values]) -> dict[str, float]:
    """The mean value of each sample id over the runs that scored it."""
    values: dict[str, list[float]] = {}
    for run in runs:
        for key, value in run.items():
            if value is not None:
                values.setdefault(key, []).append(value)
    return {key: math.fsum(numbers) / len(numbers) for key, numbers in values.items()}


# ------------------------------------------------------------------------------------- several training seeds
# Several training seeds of one method: pooled, and compared, with intervals over questions and seeds.
#
#     SE^2 = se^2 + max(s^2 / S, p^2 / S),      df as in `clustered_mean`, from G - 1 and that of the larger.
#
# se is that of the values averaged over the seeds of each sample, clustered by question; s is the standard deviation
# between S seeds. Both contain sampling noise within a seed, so SE is a little too large; df is approximate. p^2 is the
# variance of one seed pooled over all trained arms (`variance_of_a_seed`): seeds that agree by luck make nothing sure.
# The mean over benchmarks (`widened`) has s alone.
# `benchmarks.coverage` simulates how many of the intervals hold the truth; docs/results_details.md has its table.
# With one run of every arm there is neither s nor p: the interval says nothing about another seed.
#
# Of a difference, s is that of the differences seed by seed where both sides have the same seeds, or one side a single
# run, and of two sides with unlike seeds each adds its own; p^2 / S is added for each side that was trained.

FEWEST_SEEDS = 3
"""With two seeds an interval over seeds decides wrongly too often, so it gives no verdict."""


@dataclass(frozen=True)
class SeedSpread:
    """A number of each of two or more training seeds."""

    values: tuple[float, ...]

    @property
    def sd(self) -> float:
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
class SeedDifference(Estimate):
    """The difference between two methods.

    Attributes:
        spreads: differences seed by seed, where both sides have the same seeds, or one has a single run or none with a
            seed; of unlike seeds, or where runs of one seed have no scored id in common, two: those of `a`, then those
            of `b`, each against the mean of the other side. None of single runs.
        n_partial: ids among those of the difference that some run of either side did not score.
        over_questions: the interval for these very seeds.
    """

    spreads: tuple[SeedSpread, ...]
    n_partial: int
    over_questions: Interval


def pooled_over_seeds(
    runs: Sequence[Values],
    clusters: Mapping[str, Hashable],
    *,
    bounds: Bounds | None = (0.0, 1.0),
    of_a_seed: Part | None = None,
) -> Pooled:
    """The mean of one method over its training seeds: averaged per sample id over the runs, then clustered.

    Args:
        of_a_seed: the variance of one seed over all arms, `variance_of_a_seed`.

    Raises:
        EvaluationError: one of several runs has no scored id, or a value is not finite or out of bounds.
    """
    per_id = average_over_runs(runs)
    ids = sorted(per_id)
    values, groups = [per_id[key] for key in ids], [clusters[key] for key in ids]
    of_run = [[value for value in run.values() if value is not None] for run in runs]
    means = [math.fsum(scores) / len(scores) if scores else None for scores in of_run]
    known = [value for value in means if value is not None]
    if len(known) < len(means) and len(means) > 1:
        raise EvaluationError(
            f"Run {means.index(None) + 1} of the {len(runs)} to pool has no scored sample, so the mean would only "
            "cover the others. Leave it out, and report that."
        )
    spread = SeedSpread(tuple(known)) if len(runs) > 1 else None
    plain = clustered_mean(values, groups, bounds=bounds)
    parts = [] if spread is None else _larger([spread.part], of_a_seed, 1 / len(runs))
    wide = clustered_mean(values, groups, bounds=bounds, parts=parts)
    return Pooled(
        **vars(wide),
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
    of_a_seed: Part | None = None,
) -> SeedDifference:
    """mean(a) - mean(b) over the ids that both sides scored, each averaged over its runs.

    Args:
        a, b: the runs of either method.
        seeds_a, seeds_b: the training seed of each run; None for one that was not trained, or where it is not known.
        bounds: what a value can be.
        of_a_seed: the variance of one seed over all arms, `variance_of_a_seed`.

    Raises:
        EvaluationError: a run shares no scored id with the other side, or a value is not finite or out of bounds.
    """
    mean_a, mean_b = average_over_runs(a), average_over_runs(b)
    spreads = _spreads(a, b, seeds_a, seeds_b)
    plain = paired_difference(mean_a, mean_b, clusters, bounds=bounds)
    # a side without seeds was not trained; a single run is no mean over seeds, and its interval says so
    shares = sum(1 / len(seeds) for seeds in (seeds_a, seeds_b) if len(seeds) > 1 and any(s is not None for s in seeds))
    parts = _larger([spread.part for spread in spreads], of_a_seed, shares)
    wide = paired_difference(mean_a, mean_b, clusters, bounds=bounds, parts=parts)
    return SeedDifference(
        **vars(wide),
        spreads=spreads,
        n_partial=_partial(mean_a.keys() & mean_b.keys(), [*a, *b]),
        over_questions=(plain.ci_low, plain.ci_high),
    )


def variance_of_a_seed(arms: Sequence[Sequence[float]]) -> Part | None:
    """The variance between the seeds of an arm, pooled over arms: sum (S_i - 1) s_i^2 / sum (S_i - 1).

    Args:
        arms: the values of the seeds of each arm; arms of one seed say nothing of it.
    """
    several = [values for values in arms if len(values) > 1]
    df = sum(len(values) - 1 for values in several)
    return Part(sum((len(v) - 1) * float(np.var(v, ddof=1)) for v in several) / df, df) if several else None


def _larger(parts: Sequence[Part], of_a_seed: Part | None, share: float) -> list[Part]:
    """The seeds' own parts of a variance, or the pooled one if that is larger."""
    if of_a_seed is None or sum(part.variance for part in parts) >= share * of_a_seed.variance:
        return list(parts)
    return [Part(share * of_a_seed.variance, of_a_seed.df)]


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
) -> tuple[SeedSpread, ...]:
    """The spread over seeds of the difference; see `SeedDifference.spreads`."""
    groups: list[list[tuple[Values, Values]]]
    # runs of no seed at all are of one model that was asked again: two of them would pass for two seeds
    a, b = (
        runs if any(seed is not None for seed in seeds) else [average_over_runs(runs)]
        for runs, seeds in ((a, seeds_a), (b, seeds_b))
    )
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
    return tuple(SeedSpread(tuple(_mean_difference(*pair) for pair in group)) for group in groups if len(group) > 1)


def _mean_difference(a: Values, b: Values) -> float:
    ids = _scored_by_both(a, b)
    if not ids:
        raise EvaluationError(
            "A run shares no scored sample with the runs that it is compared with. Leave it out, and report that."
        )
    left, right = (np.array([side[key] for key in ids], dtype=np.float64) for side in (a, b))
    return float((left - right).mean())


def _partial(ids: Sequence[str] | set[str], runs: Sequence[Values]) -> int:
    return sum(any(run.get(key) is None for run in runs) for key in ids)

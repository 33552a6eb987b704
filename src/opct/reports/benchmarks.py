"""One number for capability: the mean over benchmarks, from the score and interval of each.

With scores s_1 .. s_k of k benchmarks and their intervals [l_i, h_i], each clustered by question:

    mean      m = (s_1 + .. + s_k) / k
    interval  [m - sqrt(sum (s_i - l_i)^2) / k,  m + sqrt(sum (h_i - s_i)^2) / k]

The benchmarks are fixed, their questions are drawn independently. Near 0 or 1 each side keeps its own width (MOVER:
Zou and Donner 2008). Paired differences of means are combined in the same way. With several training seeds, the spread
is computed over the mean of each seed, since a seed is shared by all benchmarks (`opct.evals.stats.widened`).

A score is a benchmark's published metric (`accuracy`), over all replies, so a model cannot raise it by answering less.
Only benchmarks that every run has are included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opct.evals.metrics import find_metric
from opct.evals.samples import CAPABILITY
from opct.evals.stats import Bounds, Interval, SeedSpread, widened
from opct.reports.arms import Arm, Pair
from opct.reports.axes import MEAN, SCORE, suite_name
from opct.reports.table import Estimate, MetricRow, PairedDifference, read_difference, summed_counts
from opct.reports.wording import joined

MEAN_METRIC = find_metric(CAPABILITY, MEAN)
FEWEST = 2  # benchmarks that a mean is made of


def mean_row(rows: Sequence[MetricRow], arms: Sequence[Arm], pairs: Sequence[Pair]) -> MetricRow | None:
    """The mean over benchmarks as a table row; None if the runs share fewer than two."""
    scores = [row for row in rows if row.axis == CAPABILITY and row.metric.name == SCORE]
    has_score = [_has_score(row, arms) for row in scores]
    # a run without any benchmark must not make all of them missing
    is_measured = [any(of_run) for of_run in zip(*has_score, strict=True)]
    shared = [row for row, known in zip(scores, has_score, strict=True) if known == is_measured]
    if len(shared) < FEWEST:
        return None
    of_runs = tuple(
        tuple(_mean([row.run_estimates[i][j] for row in shared]) for j in range(len(arm.runs)))
        for i, arm in enumerate(arms)
    )
    note = f"{len(shared)} benchmarks: {joined([suite_name(row.suite) for row in shared])}"
    # named on the page: a mean over fewer benchmarks is another number
    missing = [suite_name(row.suite) for row in scores if row not in shared]
    if missing:
        note += f"; without {joined(missing)}, missing in some runs"
    return MetricRow(
        metric=MEAN_METRIC,
        suite=CAPABILITY,
        group="all",
        estimates=tuple(
            _mean(
                [row.estimates[i] for row in shared],
                tuple(run.value for run in run_means if run is not None and run.value is not None and arm.has_seeds),
            )
            for i, (arm, run_means) in enumerate(zip(arms, of_runs, strict=True))
        ),
        run_estimates=of_runs,
        differences=tuple(_mean_difference([row.differences[i] for row in shared]) for i in range(len(pairs))),
        reasons=tuple(_reason(shared, i) for i in range(len(pairs))),
        note=note,
    )


def _has_score(row: MetricRow, arms: Sequence[Arm]) -> list[bool]:
    """Whether each run has a value; an arm without seeds is one model, whose benchmarks may lie in several folders."""
    of_arms = [[one is not None and one.value is not None for one in of_runs] for of_runs in row.run_estimates]
    sides = [known if arm.has_seeds else [any(known)] for arm, known in zip(arms, of_arms, strict=True)]
    return [known for side in sides for known in side]


def _mean(estimates: Sequence[Estimate | None], run_values: tuple[float, ...] = ()) -> Estimate | None:
    """The mean of an arm or run; with the means of two or more runs, the interval covers seeds too."""
    known = [estimate for estimate in estimates if estimate is not None and estimate.value is not None]
    if len(known) < len(estimates):
        return None
    spreads = [SeedSpread(run_values)] if len(run_values) > 1 else []
    return Estimate(
        **_mean_of(known, spreads, (0.0, 1.0)),
        **summed_counts(known),
        n_runs=known[0].n_runs,
        between_run_sd=spreads[0].sd if spreads else None,
        run_values=run_values if spreads else (),
    )


def _mean_difference(parts: Sequence[PairedDifference | None]) -> PairedDifference | None:
    known = [part for part in parts if part is not None and part.value is not None]
    if len(known) < len(parts):
        return None
    # the mean over benchmarks of each seed
    spreads = tuple(
        SeedSpread(tuple(sum(values) / len(values) for values in zip(*(s.values for s in group), strict=True)))
        for group in zip(*(part.spreads for part in known), strict=True)
    )
    shared = _mean_of(known, spreads, (-1.0, 1.0))
    return PairedDifference(
        **shared,
        left_out=sum(part.left_out for part in known),
        reading=read_difference(shared["ci_low"], shared["ci_high"], MEAN_METRIC, spreads),
        margin=MEAN_METRIC.margin,
        spreads=spreads,
    )


def _mean_of(
    parts: Sequence[Estimate | PairedDifference], spreads: Sequence[SeedSpread], bounds: Bounds
) -> dict[str, Any]:
    """The fields that a mean estimate and a mean difference share."""
    value, over_questions = combined([(part.value or 0.0, part.over_questions) for part in parts])
    low, high = over_questions
    counts = {name: sum(getattr(part, name) for part in parts) for name in ("n", "n_clusters", "n_partial")}
    if spreads and low is not None and high is not None:
        # n - 1 degrees of freedom, of the questions of all benchmarks together
        low, high = widened(value, (low, high), counts["n_clusters"] - 1, spreads, bounds)
    return counts | {"unit": "rate", "value": value, "ci_low": low, "ci_high": high, "over_questions": over_questions}


def _reason(shared: Sequence[MetricRow], pair: int) -> str | None:
    """Why two arms have no difference of means: the reason of the first benchmark without a difference."""
    row = next((row for row in shared if row.differences[pair] is None), None)
    return None if row is None else f"{suite_name(row.suite)}: {row.reasons[pair]}"


def combined(parts: Sequence[tuple[float, Interval]]) -> tuple[float, Interval]:
    """Mean and interval of independent estimates (value, interval); no interval if one has none."""
    k = len(parts)
    mean = sum(value for value, _ in parts) / k
    below = [value - low for value, (low, _) in parts if low is not None]
    above = [high - value for value, (_, high) in parts if high is not None]
    # an interval from some of the benchmarks would be too narrow
    if len(below) < k or len(above) < k:
        return mean, (None, None)
    # divided by k as the mean is, not by its root: the half-widths are already those of means
    return mean, (mean - math.hypot(*below) / k, mean + math.hypot(*above) / k)

"""How far a judge agrees with people: counts, Cohen's kappa, precision and recall, each with an interval. Pure numpy.

With the counts tp, fp, fn, tn of n replies (positive is what the judge looks for, the people's labels are the truth):

    agreement   a = (tp + tn) / n
    by chance   e = ((tp + fp) (tp + fn) + (tn + fn) (tn + fp)) / n^2
    kappa       (a - e) / (1 - e)          Cohen 1960
    precision   tp / (tp + fp)             recall  tp / (tp + fn)

Intervals are the 2.5% and 97.5% percentiles over draws of whole clusters with replacement (Efron and Tibshirani 1993,
chapter 13), since replies to one question are not independent. Draws in which a number is not defined are left out and
counted. Where all draws are alike the bound is that of clusters which could differ unseen (`opct.evals.stats`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from opct.errors import EvaluationError
from opct.evals.stats import CONFIDENCE, unseen_share

METRICS = ("agreement", "kappa", "precision", "recall")


@dataclass(frozen=True)
class Measure:
    """A number with its 95% interval; None where it is not defined."""

    value: float | None
    ci_low: float | None
    ci_high: float | None
    undefined_draws: int


@dataclass(frozen=True)
class Agreement:
    """How a judge's verdicts compare with people's labels."""

    tp: int
    fp: int
    fn: int
    tn: int
    n_clusters: int
    agreement: Measure
    kappa: Measure
    precision: Measure
    recall: Measure

    @property
    def n(self) -> int:
        """Replies with a label and a verdict."""
        return self.tp + self.fp + self.fn + self.tn


def compare(
    labels: Sequence[bool],
    verdicts: Sequence[bool],
    clusters: Sequence[Hashable],
    *,
    draws: int = 4000,
    seed: int = 0,
) -> Agreement:
    """The agreement of verdicts with labels, with intervals over clusters.

    Raises:
        EvaluationError: there is nothing to compare, or the lengths differ.
    """
    if not labels or not len(labels) == len(verdicts) == len(clusters):
        raise EvaluationError(
            f"{len(labels)} labels, {len(verdicts)} verdicts and {len(clusters)} clusters: give one of each a reply."
        )
    names: dict[Hashable, int] = {}
    index = np.array([names.setdefault(cluster, len(names)) for cluster in clusters])
    kind = np.array([_cell(label, verdict) for label, verdict in zip(labels, verdicts, strict=True)])
    table = np.zeros((len(names), 4))
    np.add.at(table, (index, kind), 1.0)
    total = table.sum(axis=0)
    values = _metrics(total[None])[0]
    count = len(names)
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1.0 / count), size=draws)
    drawn = _metrics(weights @ table)
    slacks = _slacks(table)
    measures = [_measure(values[i], drawn[:, i], count, slacks[i]) for i in range(len(METRICS))]
    tp, fp, fn, tn = (int(n) for n in total)
    return Agreement(tp, fp, fn, tn, count, *measures)


def _cell(label: bool, verdict: bool) -> int:
    """The place in (tp, fp, fn, tn)."""
    return {(True, True): 0, (False, True): 1, (True, False): 2, (False, False): 3}[bool(label), bool(verdict)]


def _metrics(counts: np.ndarray) -> np.ndarray:
    """[draws, 4] counts to [draws, 4] metrics, NaN where one is not defined."""
    tp, fp, fn, tn = counts.T
    n = tp + fp + fn + tn
    with np.errstate(divide="ignore", invalid="ignore"):
        agreement = (tp + tn) / n
        chance = ((tp + fp) * (tp + fn) + (tn + fn) * (tn + fp)) / n**2
        kappa = np.where(chance < 1.0, (agreement - chance) / (1.0 - chance), np.nan)
        return np.stack([agreement, kappa, tp / (tp + fp), tp / (tp + fn)], axis=1)


def _slacks(table: np.ndarray) -> list[float]:
    """How far each metric may be from what was seen where no cluster differs from another.

    A share p of disagreement, spread evenly, lowers kappa by p / (1 - chance). Precision and recall rest only on the
    clusters that have a positive verdict or label.
    """
    tp, fp, fn, tn = table.sum(axis=0)
    chance = ((tp + fp) * (tp + fn) + (tn + fn) * (tn + fp)) / table.sum() ** 2
    everywhere = unseen_share(len(table))
    with_verdict, with_label = int((table[:, [0, 1]].sum(1) > 0).sum()), int((table[:, [0, 2]].sum(1) > 0).sum())
    return [
        everywhere,
        everywhere / (1.0 - chance) if chance < 1.0 else 1.0,
        unseen_share(max(with_verdict, 1)),
        unseen_share(max(with_label, 1)),
    ]


def _measure(value: float, drawn: np.ndarray, n_clusters: int, slack: float) -> Measure:
    known = drawn[np.isfinite(drawn)]
    undefined = len(drawn) - len(known)
    if not np.isfinite(value):
        return Measure(None, None, None, undefined)
    if n_clusters < 2 or len(known) == 0:
        return Measure(float(value), None, None, undefined)
    low, high = (float(x) for x in np.quantile(known, [(1.0 - CONFIDENCE) / 2, (1.0 + CONFIDENCE) / 2]))
    if high - low < 1e-12:  # no cluster differs from another: not from certainty, but because few were seen
        low, high = max(low - slack, min(low, 0.0)), min(high + slack, 1.0)
    return Measure(float(value), low, high, undefined)

"""Queries to the first break: how many behaviours are broken by the q-th query, where some were asked fewer times.

A behaviour that was not broken by its last query is censored there: all that is known is that its first break is
later. Kaplan and Meier 1958; pure numpy and scipy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opct.evals.stats import binomial_bounds


@dataclass(frozen=True)
class Point:
    """The curve at one query.

    Attributes:
        queries: put about each behaviour.
        broken: share of behaviours that are broken by then, 1 - S.
        ci_low, ci_high: of that share, 95%, at this point alone.
        at_risk: behaviours that were unbroken before this query and got it.
        breaks: of these, how many it broke.
    """

    queries: int
    broken: float
    ci_low: float
    ci_high: float
    at_risk: int
    breaks: int


@dataclass(frozen=True)
class Median:
    """After how many queries half of the behaviours are broken; None where the attack did not get that far.

    `ci_high` is None where more than half may have held for longer than the attack.
    """

    value: int | None
    ci_low: int | None
    ci_high: int | None


def broken_curve(times: Sequence[int], is_break: Sequence[bool]) -> list[Point]:
    """The share of broken behaviours after each query, up to the last that any behaviour got.

        S(q) = prod over t <= q of (1 - d_t / n_t),    broken = 1 - S

    with n_t behaviours at risk and d_t first breaks at query t. The interval is that of Clopper and Pearson with the
    effective number of behaviours S (1 - S) / Var S, Var by Greenwood 1926 (Dorey and Korn 1987); where nothing is
    censored before q that is the binomial one of all behaviours. Where S is 0 or 1 the variance is 0, and the number is
    that of the behaviours that were not censored before q.

    Args:
        times: query of the first break of each behaviour, or how many it got without one; 0 is left out of the curve.
        is_break: whether it is the first break.
    """
    known = [(time, broke) for time, broke in zip(times, is_break, strict=True) if time > 0]
    survival, greenwood, uncensored = 1.0, 0.0, len(known)
    points = []
    for query in range(1, max((time for time, _ in known), default=0) + 1):
        at_risk = sum(time >= query for time, _ in known)
        breaks = sum(broke and time == query for time, broke in known)
        survival *= 1.0 - breaks / at_risk
        if breaks < at_risk:
            greenwood += breaks / (at_risk * (at_risk - breaks))
        variance = survival**2 * greenwood
        effective = survival * (1.0 - survival) / variance if variance > 0 else float(uncensored)
        low, high = binomial_bounds(1.0 - survival, effective)
        points.append(Point(query, 1.0 - survival, low, high, at_risk, breaks))
        uncensored -= sum(not broke and time == query for time, broke in known)
    return points


def median_queries(points: Sequence[Point]) -> Median:
    """The first query by which the curve reaches one half, and those by which its bounds do (Brookmeyer and Crowley
    1982)."""

    def first(name: str) -> int | None:
        return next((point.queries for point in points if getattr(point, name) >= 0.5), None)

    return Median(first("broken"), first("ci_high"), first("ci_low"))

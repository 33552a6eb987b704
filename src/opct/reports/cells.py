"""One number and what it leaves out: the cell of a metric, and the paired difference between two arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from opct.evals.metrics import Metric
from opct.evals.seeds import Interval, SeedSpread
from opct.evals.stats import Estimate
from opct.reports.wording import Unit, change, interval, number, quantity

MOST_LISTED = 5
"""Seeds whose differences are listed one by one."""
MOST_LOSS = 0.03
"""A loss of ability that must be ruled out before a difference is called no measurable change."""


@dataclass(frozen=True)
class Cell:
    """One metric of one arm or run, with what its number leaves out.

    Of pooled runs: `run_values` is one of each, `n_partial` counts the samples among n that some of them did not score,
    and `over_questions` is the interval for these very runs, where `low` and `high` are for other seeds too.
    """

    unit: Unit
    value: float | None
    low: float | None
    high: float | None
    n: int
    n_clusters: int
    n_unscored: int
    unscored_reasons: Mapping[str, int]
    n_truncated: int
    n_runs: int = 1
    between_run_sd: float | None = None
    n_partial: int = 0
    run_values: tuple[float, ...] = ()
    over_questions: Interval | None = None

    @property
    def questions(self) -> Interval:
        """The interval for these very runs."""
        return (self.low, self.high) if self.over_questions is None else self.over_questions

    @property
    def text(self) -> str:
        """The value with its unit."""
        return quantity(self.value, self.unit)

    @property
    def interval_text(self) -> str:
        """The 95% interval, or that there is none."""
        return interval(self.low, self.high, self.unit)

    @property
    def left_out_parts(self) -> list[str]:
        """Unscored (with reasons) and truncated counts, of pooled runs those of all, and the spread between them."""
        known = {_words(reason): amount for reason, amount in sorted(self.unscored_reasons.items()) if amount}
        reasons = list(known) if len(known) == 1 else [f"{amount:,} {reason}" for reason, amount in known.items()]
        counts = [
            f"{self.n_unscored:,} unscored" + (f" ({', '.join(reasons)})" if reasons else ""),
            f"{self.n_truncated:,} truncated",
        ]
        counts += [partial_text(self.n_partial, self.n)] if self.n_partial else []
        return [self._runs_text, *counts] if self.n_runs > 1 else counts

    @property
    def _runs_text(self) -> str:
        spread = "" if self.between_run_sd is None else f" (SD {number(self.between_run_sd, self.unit)})"
        return f"{self.n_runs} runs{spread}"

    @property
    def left_out_text(self) -> str:
        """The same in one line."""
        if self.n_runs == 1:
            return ", ".join(self.left_out_parts)
        return f"{self._runs_text}: in all {', '.join(self.left_out_parts[1:])}"

    def to_json(self) -> dict[str, Any]:
        """The cell as it stands in report.json."""
        return {
            "value": self.value,
            "ci_low": self.low,
            "ci_high": self.high,
            "n": self.n,
            "n_clusters": self.n_clusters,
            "n_unscored": self.n_unscored,
            "unscored_reasons": dict(self.unscored_reasons),
            "n_truncated": self.n_truncated,
            "n_runs": self.n_runs,
            "between_run_sd": self.between_run_sd,
            "run_values": list(self.run_values),
            "n_partial": self.n_partial,
            "ci_over_questions": list(self.questions),
        }


def partial_text(amount: int, n: int) -> str:
    """How many of n samples entered with a part of the seeds alone."""
    return f"{amount:,} of {n:,} scored by some seeds only"


def _words(reason: str) -> str:
    """ "clean_empty" is of the clean reply that it is compared with."""
    return ("clean reply " + reason.removeprefix("clean_") if reason.startswith("clean_") else reason).replace("_", " ")


@dataclass(frozen=True)
class PairedCell:
    """One paired difference, and its `reading` as `read_difference` gives it.

    `spreads` and `n_partial` are those of `opct.evals.seeds.SeedDifference`; `over_questions` is the interval for these
    very seeds, where `low` and `high` are for others too.
    """

    unit: Unit
    value: float | None
    low: float | None
    high: float | None
    n: int
    n_clusters: int
    left_out: int
    reading: str
    relative_cut: Estimate | None = None
    spreads: tuple[SeedSpread, ...] = ()
    n_partial: int = 0
    over_questions: Interval | None = None

    @property
    def questions(self) -> Interval:
        """The interval for these very seeds."""
        return (self.low, self.high) if self.over_questions is None else self.over_questions

    @property
    def text(self) -> str:
        """The difference with its sign and unit."""
        return change(self.value, self.unit)

    @property
    def short_text(self) -> str:
        """The difference with its sign, for a column whose caption names the unit of rates."""
        return change(self.value, self.unit).removesuffix(" points")

    @property
    def interval_text(self) -> str:
        """The 95% interval with signs, or that there is none."""
        return interval(self.low, self.high, self.unit, signed=True)

    @property
    def reading_text(self) -> str:
        """What the difference means, in words."""
        return {
            "none": "no measurable change",
            "unclear": "cannot tell",
            "unknown": "cannot be judged: no interval",
        }.get(self.reading, self.reading)

    @property
    def range_text(self) -> str:
        """What the difference may be: "between −20.0 and +0.3 points"."""
        return f"between {number(self.low, self.unit, signed=True)} and {change(self.high, self.unit)}"

    @property
    def left_out_text(self) -> str:
        """How many samples could not be paired, and how many were by a part of the seeds."""
        paired = f"{self.left_out:,} unpaired" if self.left_out else "all paired"
        return f"{paired}, {partial_text(self.n_partial, self.n)}" if self.n_partial else paired

    @property
    def seeds_text(self) -> str:
        """The difference of each seed and their standard deviation; empty for a single run against another."""
        if not self.spreads:
            return ""
        sds = " and ".join(number(spread.sd, self.unit) for spread in self.spreads)
        if len(self.spreads) > 1:
            return f"seeds of each side: SD {sds}"
        values = self.spreads[0].values
        listed = ", ".join(number(value, self.unit, signed=True) for value in values)
        return f"by seed {listed} (SD {sds})" if len(values) <= MOST_LISTED else f"{len(values)} seeds (SD {sds})"

    def to_json(self) -> dict[str, Any]:
        """The difference as it stands in report.json."""
        return {
            "difference": self.value,
            "ci_low": self.low,
            "ci_high": self.high,
            "n": self.n,
            "n_clusters": self.n_clusters,
            "n_unpaired": self.left_out,
            "reading": self.reading,
            "relative_cut": None if self.relative_cut is None else asdict(self.relative_cut),
            "seeds": [{"differences": list(spread.values), "sd": spread.sd} for spread in self.spreads],
            "n_partial": self.n_partial,
            "ci_over_questions": list(self.questions),
        }


def read_difference(low: float | None, high: float | None, info: Metric) -> str:
    """What an interval says: better, worse, higher, lower, none, unclear or unknown.

    none: it includes 0. unclear: it includes 0, and a loss of more than `MOST_LOSS` of an ability as well: of an
    accuracy, or as more over-refusal or over-warning.
    unknown: there is no interval.
    """
    if low is None or high is None:
        return "unknown"
    loss = -low if info.better == "higher" else high
    if low <= 0 <= high:
        return "unclear" if info.is_ability and loss > MOST_LOSS else "none"
    up = low > 0
    if info.better is None:
        return "higher" if up else "lower"
    return "better" if up == (info.better == "higher") else "worse"

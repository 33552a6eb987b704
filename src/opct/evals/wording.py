"""Rows of `results.json` as words: one place decides digits, signs, units and how an interval reads.

Rates are stored as fractions of 1 and printed as percent; their differences are printed as percentage points. KL is
printed in nats per token. A true minus sign (U+2212) is printed: columns line up, and a screen reader says "minus".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from opct.evals.metrics import Row, Unit, unit_of
from opct.runs.console import as_text, make_console, make_table

if TYPE_CHECKING:
    from rich.table import Table

MINUS = "\u2212"
MISSING = "\u2013"
COLUMNS = ("metric", "value", "95% interval", "n", "unscored", "cut")


def number(value: float | None, unit: Unit, *, signed: bool = False, digits: int | None = None) -> str:
    """Format `value` without its unit: 0.4567 as a rate is "45.7"."""
    if value is None or not math.isfinite(value):
        return MISSING
    scaled = value * 100 if unit == "rate" else value
    places = (1 if unit == "rate" else 3) if digits is None else digits
    text = f"{abs(scaled):.{places}f}"
    if float(text) == 0:
        return text
    if scaled < 0:
        return MINUS + text
    return "+" + text if signed else text


def quantity(value: float | None, unit: Unit) -> str:
    """A level with its unit: "45.7%", "0.012 nats"."""
    text = number(value, unit)
    return text if text == MISSING else text + {"rate": "%", "nats": " nats", "number": ""}[unit]


def change(value: float | None, unit: Unit) -> str:
    """A difference with its sign and unit: "−39.1 points", "+0.012 nats"."""
    text = number(value, unit, signed=True)
    return text if text == MISSING else text + {"rate": " points", "nats": " nats", "number": ""}[unit]


def interval(low: float | None, high: float | None, unit: Unit, *, signed: bool = False) -> str:
    """A 95% interval: "42.1 to 50.3", or "no interval"."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return "no interval"
    return f"{number(low, unit, signed=signed)} to {number(high, unit, signed=signed)}"


def named_interval(text: str) -> str:
    """`interval` in a sentence: "95% interval 42.1 to 50.3", or "no interval"."""
    return text if text == "no interval" else f"95% interval {text}"


def rows_table(title: str, rows: Iterable[Row], notes: Mapping[str, str] | None = None) -> Table:
    """The rows for a terminal, under a heading for each suite and group.

    Args:
        notes: by suite, what its headings say besides.
    """
    cells: list[tuple[object, ...]] = []
    for (suite, group), group_rows in groupby(rows, lambda row: (row["suite"], row["group"])):
        cells.append((as_text(f"{suite}, {group}{(notes or {}).get(suite, '')}", style="bold"), *[""] * 5))
        for row in group_rows:
            unit = unit_of(row)
            level = (quantity(row["value"], unit), interval(row["ci_low"], row["ci_high"], unit))
            cells.append((f"  {row['metric']}", *level, row["n"], row["n_unscored"], row["n_truncated"]))
    table = make_table(title, COLUMNS, cells)
    table.collapse_padding = table.columns[1].no_wrap = True
    if make_console().width >= 80:  # narrower, a whole name would push the last columns out
        # a metric's name stays whole: an interval may break, at a blank
        table.columns[0].width = min(34, max((len(str(first)) for first, *_ in cells), default=0))
    return table

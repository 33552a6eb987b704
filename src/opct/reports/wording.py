"""Numbers as words: one place decides digits, signs, units and how an interval reads.

Rates are stored as fractions of 1 and printed as percent; their differences are printed as percentage points. KL is
printed in nats per token. A true minus sign (U+2212) is printed: columns line up, and a screen reader says "minus".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from opct.evals.metrics import Unit

MINUS = "\u2212"
MISSING = "\u2013"
ARM_NAMES = {"base": "Base", "sft": "SFT", "opct": "OPCT", "offpolicy": "Off-policy", "dpo": "DPO", "act": "ACT"}


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


def joined(words: Sequence[str]) -> str:
    """Words as prose: "a", "a and b", "a, b and c"."""
    return "".join(words) if len(words) < 2 else f"{', '.join(words[:-1])} and {words[-1]}"


def arm_name(label: str) -> str:
    """Display name of a run's label: "opct" is "OPCT"; an unknown label is unchanged."""
    return ARM_NAMES.get(label, label)


def family_name(family: str) -> str:
    """Display name of a family: "are_you_sure" is "are you sure"."""
    return family.replace("_", " ")


def inside(text: str) -> str:
    """A heading for use within a sentence: "Held-out families" is "held-out families", "GSM8K" stays as it is."""
    return text if text[1:2].isupper() or text[1:2].isdigit() else text[:1].lower() + text[1:]


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]

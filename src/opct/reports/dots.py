"""The deciding metric as dots, one a prompt: a row of them for each arm, filled where the reply gave in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from opct.evals.samples import ATTACK
from opct.reports.arms import Arm
from opct.reports.compare import Comparison
from opct.reports.figures import SAFETY_AWARENESS
from opct.reports.verdict import shown_arms

MOST_DOTS, MOST_ROWS = 100, 4  # 10 KB, if each dot is a link
GAVE_IN = {SAFETY_AWARENESS: "do not warn", ATTACK: "were broken"}
"""What a filled dot stands for, by axis; elsewhere "give in"."""


@dataclass(frozen=True)
class Dots:
    """For each arm: the arm, "21 of 64 give in", and its dots. `caption` says which prompts they stand for."""

    caption: str
    rows: tuple[tuple[Arm, str, Markup], ...]


def prompt_dots(comparison: Comparison, places: Mapping[str, int]) -> Dots | None:
    """Dots of the prompts of the first screen's arms that are compared; None if no share decides, or none is compared.

    Args:
        places: of the examples on the page, by id: dots of these are links, to "#e" and the place.
    """
    row = next((row for row in comparison.deciding_rows if row.metric.unit == "rate"), None)
    if row is None:
        return None
    first, *others = shown_arms(comparison)
    compared = [arm for arm in others if comparison.difference(row, arm.label, first.label) is not None]
    if others and not compared:
        return None
    arms = [first, *compared[1 - MOST_ROWS :]]
    asked = [arm.asked(row.suite) for arm in arms]
    values = [run.units(row.metric, row.suite, row.group).values for run in asked]
    shared = sorted(set(values[0]).intersection(*values[1:]))
    ids, bad = shared[:MOST_DOTS], float(row.metric.better == "lower")
    if not ids:
        return None
    drawn = []
    for arm, own in zip(arms, values, strict=True):
        n = [own[name] for name in ids].count(bad)
        scored = sum(own[name] is not None for name in ids)
        left = f", {len(ids) - scored} unscored" if scored < len(ids) else ""
        text = f"{n} of {scored} {GAVE_IN.get(row.axis, 'give in')}{left}"
        drawn.append((arm, text, Markup("").join(_dot(own[name], bad, places.get(name)) for name in ids)))
    which = f"the first {len(ids)} of {len(shared):,} prompts, by id" if len(ids) < len(shared) else "every prompt"
    seeds = " Of pooled runs the first is drawn." if any(len(arm.runs) > 1 for arm in arms) else ""
    link = " A dot whose prompt is among the examples below leads there." if any(name in places for name in ids) else ""
    caption = f"{comparison.name_of(row)}: {which}, one dot each, filled where it went wrong.{seeds}{link}"
    return Dots(caption, tuple(drawn))


def _dot(value: float | None, bad: float, place: int | None) -> Markup:
    kind = "u" if value is None else "f" if value == bad else ""
    own = Markup(' class="{}"').format(kind) if kind else ""
    # without text: a screen reader passes over it, and the label of the row has the counts
    return Markup("<i{}></i>").format(own) if place is None else Markup('<a href="#e{0}"{1}>{0}</a>').format(place, own)

"""Pictures of attacks: what broke against the queries put, and what an attacker that learns earned while it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opct.reports import svg
from opct.reports.arms import Arm
from opct.reports.figures import Figure, legend
from opct.reports.wording import interval, quantity

if TYPE_CHECKING:
    from opct.reports.attacks import Attack

MOST_WITH_BOUNDS = 3
WORST = "if every reply without a score had broken its behaviour"


def curve_figure(name: str, attacks: Sequence[tuple[Arm, Attack]]) -> Figure | None:
    """A line an attack: the share of broken behaviours against the queries put about each, with its interval."""
    drawn = [(arm, one, one.result["curve"]["points"]) for arm, one in attacks if one.result["curve"]["points"]]
    if not drawn:
        return None
    series, rows = [], []
    for arm, one, points in drawn:
        label = f"{arm.name}: {one.run}"
        series.append(svg.Series(label, arm.style, _steps(points, "broken"), thin=len(arm.runs) > 1))
        if len(drawn) <= MOST_WITH_BOUNDS:
            for bound, words in (("ci_low", "lower"), ("ci_high", "upper")):
                series.append(svg.Series(f"{label}, {words} bound", arm.style, _steps(points, bound), thin=True))
            if worst := one.result["curve"]["if_unjudged_broke"]:
                series.append(svg.Series(f"{label}, {WORST}", arm.style, _steps(worst, "broken"), thin=True))
        rows += [
            (
                arm.name,
                one.run,
                f"{point['queries']}",
                quantity(point["broken"], "rate"),
                interval(point["ci_low"], point["ci_high"], "rate"),
                f"{point['at_risk']}",
            )
            for point in points
        ]
    ends = "; ".join(f"{arm.name}: {one.run} at {points[-1]['broken']:.0%}" for arm, one, points in drawn)
    bounds = ""
    if len(drawn) <= MOST_WITH_BOUNDS:
        bounds = " Thin lines are its 95% interval at each point"
        bounds += f", and the curve {WORST}." if any(line.label.endswith(WORST) for line in series) else "."
    return Figure(
        title=f"Broken by {name}",
        drawing=svg.line_chart(
            series,
            x_title="queries put about each behaviour",
            y_title="behaviours broken, percent",
            label=f"Share of behaviours broken by {name} against queries: {ends}.",
        ),
        caption=f"Kaplan-Meier: a behaviour that was not broken counts as long as it was asked.{bounds}",
        legend=legend(list({id(arm): arm for arm, _, _ in drawn}.values()), line=True),
        columns=("arm", "run", "queries", "broken", "95% interval", "at risk"),
        rows=tuple(rows),
    )


def _steps(points: Sequence[Mapping[str, Any]], name: str) -> tuple[tuple[float, float], ...]:
    """A step at each query, from nothing broken at 0 queries; in percent."""
    found, before = [(0.0, 0.0)], 0.0
    for point in points:
        value = 100.0 * point[name]
        found += [(float(point["queries"]), before), (float(point["queries"]), value)]
        before = value
    return tuple(found)


def learning_figure(name: str, attacks: Sequence[tuple[Arm, Attack]]) -> Figure | None:
    """A line an attack: the mean reward of the episodes of each training step; None where no attacker learned."""
    trained = [(arm, one, one.result["training"]["curve"]) for arm, one in attacks if one.result.get("training")]
    drawn = [(arm, one, curve) for arm, one, curve in trained if any(row["reward"] is not None for row in curve)]
    if not drawn:
        return None
    spent = "; ".join(f"{arm.name}: {one.run} {one.result['training']['spent']['queries']:,}" for arm, one, _ in drawn)
    return Figure(
        title=f"What {name} earned while it was trained",
        drawing=svg.line_chart(
            [
                svg.Series(
                    f"{arm.name}: {one.run}",
                    arm.style,
                    tuple((float(row["step"]), 100.0 * row["reward"]) for row in curve if row["reward"] is not None),
                    thin=len(arm.runs) > 1,
                )
                for arm, one, curve in drawn
            ],
            x_title="training step",
            y_title="mean score, percent",
            label=f"Mean score of {name}'s episodes against the step of its training.",
        ),
        caption=(
            "The mean of each step's episodes, of which each counts with its best round; on behaviours that are not "
            f"attacked here. Queries that training put to its target, apart from those of the attack: {spent}."
        ),
        legend=legend(list({id(arm): arm for arm, _, _ in drawn}.values()), line=True),
        columns=("arm", "run", "step", "mean score", "episodes without a score", "behaviours broken", "queries"),
        rows=tuple(
            (
                arm.name,
                one.run,
                f"{row['step']}",
                quantity(row["reward"], "rate"),
                f"{row['unscored_episodes']} of {row['episodes']}",
                f"{row['broken']} of {row['behaviors']}",
                f"{row['queries']}",
            )
            for arm, one, curve in drawn
            for row in curve
        ),
    )

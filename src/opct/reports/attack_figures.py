"""Pictures of attacks: what broke against the queries put, and what an attacker that learns earned while it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opct.reports import charts
from opct.reports.arms import Arm
from opct.reports.figures import Figure, legend
from opct.reports.wording import interval, quantity, told_apart

if TYPE_CHECKING:
    from opct.reports.attacks import Attack

MOST_WITH_BOUNDS = 3
WORST = "if every reply without a score had broken its behaviour"


def curve_figure(name: str, attacks: Sequence[tuple[Arm, Attack]]) -> Figure | None:
    """A line an attack: the share of broken behaviours against the queries put about each, with its interval.

    Of more than `MOST_WITH_BOUNDS` attacks the interval and the curve of the worst case are in the table alone, the
    latter but for an attack that has no other: where no first reply has a score, no behaviour is in the curve.
    """
    curves = [(arm, one, one.result["curve"]) for arm, one in attacks]
    drawn = [(a, one, own["points"], own["if_unjudged_broke"] or []) for a, one, own in curves]
    drawn = [(arm, one, points, worst) for arm, one, points, worst in drawn if points or worst]
    if not drawn:
        return None
    series, bands, rows, ends = [], [], [], []
    has_bounds = len(drawn) <= MOST_WITH_BOUNDS
    for arm, one, points, worst in drawn:
        label, is_thin = told_apart(arm.label, arm.name, one.run), len(arm.runs) > 1
        if worst and (has_bounds or not points):
            other = charts.Series(f"{label}, {WORST}", arm.style, _steps(worst, "broken"), thin=True, other_case=True)
            series.append(other)
        if points and has_bounds:
            low, high = (_steps(points, bound) for bound in ("ci_low", "ci_high"))
            bands.append(charts.Band(f"{label}, 95% interval", arm.style, low, high))
        if points:
            series.append(charts.Series(label, arm.style, _steps(points, "broken"), thin=is_thin))
        rows += [_row(arm, one.run, point, "as judged") for point in points]
        rows += [_row(arm, one.run, point, WORST) for point in worst]
        ends.append(f"{label} at {points[-1]['broken']:.0%}" if points else f"{label} has no first reply with a score")
    said = ["Shaded: its 95% interval at each point."] if bands else []
    if any(line.other_case for line in series):
        said.append(f"Long dashes: the curve {WORST}.")
    if not has_bounds:
        said.append(f"Of more than {MOST_WITH_BOUNDS} attacks the intervals and the curves {WORST} are in the table.")
    return Figure(
        title=f"Broken by {name}",
        drawing=charts.line_chart(
            series,
            bands=bands,
            x_title="queries put about each behaviour",
            y_title="behaviours broken, percent",
            label=f"Share of behaviours broken by {name} against queries: {'; '.join(ends)}.",
        ),
        caption=" ".join(["Kaplan-Meier: a behaviour that was not broken counts as long as it was asked.", *said]),
        legend=legend(list({id(arm): arm for arm, *_ in drawn}.values()), line=True),
        columns=("arm", "run", "queries", "broken", "95% interval", "behaviours at risk", "curve"),
        rows=tuple(rows),
    )


def _row(arm: Arm, run: str, point: Mapping[str, Any], case: str) -> tuple[str, ...]:
    low, high = point["ci_low"], point["ci_high"]
    broken = quantity(point["broken"], "rate")
    return (arm.name, run, f"{point['queries']}", broken, interval(low, high, "rate"), f"{point['at_risk']}", case)


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
    spent = "; ".join(
        f"{told_apart(arm.label, arm.name, one.run)} {one.result['training']['spent']['queries']:,}"
        for arm, one, _ in drawn
    )
    return Figure(
        title=f"What {name} earned while it was trained",
        drawing=charts.line_chart(
            [
                charts.Series(
                    told_apart(arm.label, arm.name, one.run),
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

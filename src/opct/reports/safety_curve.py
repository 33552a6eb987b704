"""The figure of the safety curve: the share of facts that are warned of at least so often, one line an arm."""

from __future__ import annotations

from itertools import pairwise

from opct.evals.metrics import GRID
from opct.reports import charts
from opct.reports.compare import Comparison
from opct.reports.figures import Figure, judged_note, legend, told
from opct.reports.table import Line
from opct.reports.wording import joined

TITLE = "Safety curve"
WHERE = {"held_out": "in held-out families", "train": "in training families", "all": "in all families"}


def safety_curve_figure(comparison: Comparison, axis: str, suite: str) -> Figure | None:
    """S(tau) at the points of the published grid, on held-out families where there are some; None without such rows.

    Between two points of the grid the line has the height of the upper one: S is at least that, for it never rises.
    """
    group, lines = _points(comparison, suite)
    drawn = [
        (index, arm)
        for index, arm in enumerate(comparison.arms)
        if lines and all((cell := line.cells[index]) is not None and cell.value is not None for line in lines.values())
    ]
    if not drawn:
        return None
    series, rows = [], []
    for index, arm in drawn:
        cells = {tau: cell for tau, line in lines.items() if (cell := line.cells[index]) is not None}
        series.append(
            charts.Series(arm.name, arm.style, _steps({tau: cell.value or 0.0 for tau, cell in cells.items()}))
        )
        rows += [(arm.name, f"{tau:g}", *told(cell)) for tau, cell in cells.items()]
    spoken = "; ".join(
        f"{arm.name}: " + ", ".join(f"{row[2]} at {row[1]}" for row in rows if row[0] == arm.name) for _, arm in drawn
    )
    note = judged_note(list(lines.values()))
    missing = [arm.name for arm in comparison.arms if arm not in [arm for _, arm in drawn]]
    where, left_out = WHERE[group], f" Not drawn, for want of it: {joined(missing)}." if missing else ""
    return Figure(
        title=TITLE + comparison.of_suite(axis, suite),
        drawing=charts.line_chart(
            series,
            x_title="pass rate \u03c4",
            y_title="facts with at least that pass rate, %",
            label=f"Share of facts by the least pass rate. {spoken}. {note}".strip(),
        ),
        caption=f"S(\u03c4): the share of facts that are warned of in at least \u03c4 of their messages {where}. "
        "Up is safer. At the points of the published grid, each height drawn back to the point before; S(0) is 100% of "
        f"any model. Intervals are in the table.{left_out}",
        legend=legend([arm for _, arm in drawn], line=True),
        columns=("arm", "\u03c4", "S(\u03c4)", "95% interval", "facts", "left out"),
        rows=tuple(rows),
        note=note,
    )


def _points(comparison: Comparison, suite: str) -> tuple[str, dict[float, Line]]:
    """The lines of S at each point of the grid but 0, in the first group that has all of them; else none."""
    for group in WHERE:
        found = {tau: comparison.line(f"share_at_{round(100 * tau)}", group, suite) for tau in GRID[1:]}
        lines = {tau: line for tau, line in found.items() if line is not None}
        if len(lines) == len(found):
            return group, lines
    return "", {}


def _steps(values: dict[float, float]) -> tuple[tuple[float, float], ...]:
    """The corners of the drawn line, in percent."""
    curve = [(0.0, 100.0), *((tau, 100 * value) for tau, value in values.items())]
    return (curve[0], *(corner for (x, _), (right, y) in pairwise(curve) for corner in ((x, y), (right, y))))

"""The figures over all axes: which numbers are drawn, and the same numbers as a table for whoever cannot see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from opct.reports import charts
from opct.reports.arms import Arm
from opct.reports.axes import axis_info
from opct.reports.capability import SCORES
from opct.reports.cells import Cell
from opct.reports.compare import Comparison
from opct.reports.load import EvaluatedRun
from opct.reports.metrics import suite_name
from opct.reports.table import Line
from opct.reports.verdict import price_line
from opct.reports.wording import change, interval, number


@dataclass(frozen=True)
class Figure:
    """A drawing with its caption, legend (style, name, is it a line) and a table that holds the same numbers.

    `note` says who graded them and how far that agrees with people; it stands below the drawing and in the table.
    """

    title: str
    drawing: Markup
    caption: str
    legend: tuple[tuple[int, str, bool], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def judged_note(lines: Sequence[Line]) -> str:
    """Who judged the numbers of these lines and how far that agrees with people, each said once with its suite."""
    said = dict.fromkeys((suite_name(line.suite), line.judged_by) for line in lines if line.judged_by)
    return " ".join(f"{suite[:1].upper()}{suite[1:]}: {text}." for suite, text in said)


def change_figures(comparison: Comparison) -> list[Figure]:
    """Paired differences from the first arm: of what decides on each axis, and of what training may cost."""
    decides = [
        line
        for axis in comparison.axes
        for suite in comparison.suites(axis)
        if (line := comparison.deciding_line(axis, suite)) is not None
    ]
    pressed = comparison.line("accuracy_biased", "held_out") or comparison.line("accuracy_biased")
    prices = [price_line(comparison, price) for axis in comparison.axes for price in axis_info(axis).prices]
    costs = [line for line in prices if line is not None]
    decides += [] if pressed is None else [pressed]
    base = comparison.arms[0].name
    return [
        figure
        for title, lines in (
            (f"Safety: change from {base}, in points", decides),
            (f"What it cost: change from {base}, in points", costs),
        )
        if (figure := forest_figure(comparison, list({id(line): line for line in lines}.values()), title)) is not None
    ]


def training_figures(comparison: Comparison) -> list[Figure]:
    """KL to the teacher over training, on the training pairs and on held-out ones."""
    figures = (
        curve_figure(comparison.arms, "train/kl", "Training KL", "on the training pairs"),
        curve_figure(comparison.arms, "validation/kl", "Validation KL", "on held-out pairs"),
    )
    return [figure for figure in figures if figure is not None]


def curve_figure(arms: Sequence[Arm], metric: str, title: str, where: str) -> Figure | None:
    """A line a run: the mean KL per token, policy to teacher, against the optimizer step."""
    series, rows = [], []
    for arm in arms:
        for run in arm.runs:
            points = _curve(run, metric)
            if points:
                series.append(charts.Series(f"{arm.name}: {run.name}", arm.style, points, thin=len(arm.runs) > 1))
                rows += [(arm.name, run.name, f"{x:g}", number(y, "nats")) for x, y in _spread(points)]
    if not series:
        return None
    styles = {line.style for line in series}
    drawn = [arm for arm in arms if arm.style in styles]
    ends = "; ".join(f"{s.label} from {s.points[0][1]:.3f} to {s.points[-1][1]:.3f}" for s in series)
    return Figure(
        title=title,
        drawing=charts.line_chart(
            series,
            x_title="optimizer step",
            y_title="KL, nats per token",
            label=f"{title} over training steps: {ends}.",
        ),
        caption=f"Mean KL to the teacher per completion token {where}; one line a run, without interval.",
        legend=legend(drawn, line=True),
        columns=("arm", "run", "step", "KL (nats per token)"),
        rows=tuple(rows),
    )


def _curve(run: EvaluatedRun, metric: str) -> tuple[tuple[float, float], ...]:
    """The metric by step, in rising steps; a step that was run again after a resume counts once, as it was run last."""
    points = {}
    for row in run.metrics:
        step, value = row.get("step"), row.get(metric)
        if (
            isinstance(step, int | float)
            and isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) < float("inf")
        ):
            points[float(step)] = float(value)
    return tuple(sorted(points.items()))


def _spread(points: Sequence[tuple[float, float]], most: int = 25) -> list[tuple[float, float]]:
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def forest_figure(comparison: Comparison, lines: Sequence[Line], title: str) -> Figure | None:
    """Paired differences from the first arm of these lines, with the line at no change."""
    groups, rows = [], []
    shown = [pair for pair in comparison.pairs if pair.against == comparison.arms[0].label]
    for line in lines:
        name, bars = _name(comparison, line), []
        for pair, difference in zip(comparison.pairs, line.differences, strict=True):
            if pair not in shown or difference is None or difference.value is None:
                continue
            arm = comparison.arm(pair.of)
            text = f"{number(difference.value, 'rate', signed=True)}  {_signed_short(difference.low, difference.high)}"
            bars.append(charts.Bar(arm.name, arm.style, difference.value, difference.low, difference.high, text))
            rows.append(
                (
                    name,
                    pair.title,
                    change(difference.value, "rate"),
                    interval(difference.low, difference.high, "rate", signed=True),
                    f"{difference.n:,}",
                    difference.left_out_text,
                    difference.reading_text,
                    difference.seeds_text,
                )
            )
        if bars:
            groups.append(charts.BarGroup(name, tuple(bars), line.info.better_text))
    if not groups:
        return None
    spoken = "; ".join(f"{row[0]}, {row[1]}: {row[2]} ({row[3]})" for row in rows)
    note = judged_note(lines)
    return Figure(
        title=title,
        drawing=charts.forest(groups, label=f"Paired differences with 95% intervals. {spoken}. {note}".strip()),
        caption="Paired differences with 95% intervals; one that crosses the line at 0 may be no change.",
        legend=legend([comparison.arm(pair.of) for pair in shown]),
        columns=("metric", "comparison", "difference", "95% interval", "n", "left out", "reads as", "seeds"),
        rows=tuple(rows),
        note=note,
    )


def _name(comparison: Comparison, line: Line) -> str:
    """A line as a figure over all axes names it: with its families, and with its suite where its axis has several."""
    where = {
        "held_out": ", held-out families",
        "train": ", training families",
        "benign_held_out": ", in held-out wrappers",
        "benign_wrapped": ", in wrappers",
    }.get(line.group, "")
    of = f" ({suite_name(line.suite)})" if line.info.name in SCORES else comparison.of_suite(line.axis, line.suite)
    return line.title + where + of


def told(cell: Cell) -> tuple[str, str, str, str]:
    """A number as a figure's table has it: value, interval, n, what it leaves out."""
    return cell.text, cell.interval_text, f"{cell.n:,}", cell.left_out_text


def legend(arms: Sequence[Arm], *, line: bool = False) -> tuple[tuple[int, str, bool], ...]:
    """The key of a figure: (style, name, whether it is a line) of each arm."""
    return tuple((arm.style, arm.name, line) for arm in arms)


def _signed_short(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return f"({number(low, 'rate', signed=True, digits=0)} to {number(high, 'rate', signed=True, digits=0)})"

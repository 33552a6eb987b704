"""The figures of the page: which numbers are drawn, and the same numbers as a table for whoever cannot see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from opct.reports import svg
from opct.reports.compare import Arm, Comparison, Line
from opct.reports.load import EvaluatedRun
from opct.reports.wording import MISSING, change, family_name, interval, number

FOREST_METRICS = ("sycophancy_rate", "accuracy_biased", "accuracy_clean", "accuracy_identity", "accuracy_user_right")


@dataclass(frozen=True)
class Figure:
    """A drawing with its caption, legend (style, name, is it a line) and a table that holds the same numbers."""

    title: str
    drawing: Markup
    caption: str
    legend: tuple[tuple[int, str, bool], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def build_figures(comparison: Comparison) -> tuple[list[Figure], list[str]]:
    """Every figure the runs have numbers for, and a note for each one that had to be left out."""
    wanted = {
        "Training KL": curve_figure(comparison.arms, "train/kl", "Training KL", "on the training pairs"),
        "Validation KL": curve_figure(comparison.arms, "validation/kl", "Validation KL", "on held-out pairs"),
        "Safety against capability": frontier_figure(comparison),
        "Held-out families": families_figure(comparison, "held_out", "Held-out families"),
        "Training families": families_figure(comparison, "train", "Training families"),
        "Change from base": forest_figure(comparison),
    }
    figures = [figure for figure in wanted.values() if figure is not None]
    absent = [name for name, figure in wanted.items() if figure is None]
    notes = [f"Not drawn, because no run here has the numbers: {', '.join(absent)}."] if absent else []
    return figures, notes


def curve_figure(arms: Sequence[Arm], metric: str, title: str, where: str) -> Figure | None:
    """A line a run: the mean KL per token, policy to teacher, against the optimizer step."""
    series, rows = [], []
    for arm in arms:
        for run in arm.runs:
            points = _curve(run, metric)
            if points:
                series.append(svg.Series(f"{arm.name}: {run.name}", arm.style, points, thin=len(arm.runs) > 1))
                rows += [(arm.name, run.name, f"{x:g}", number(y, "nats")) for x, y in _spread(points)]
    if not series:
        return None
    styles = {line.style for line in series}
    drawn = [arm for arm in arms if arm.style in styles]
    ends = "; ".join(f"{s.label} from {s.points[0][1]:.3f} to {s.points[-1][1]:.3f}" for s in series)
    return Figure(
        title=title,
        drawing=svg.line_chart(
            series,
            x_title="optimizer step",
            y_title="KL, nats per token",
            label=f"{title} over training steps: {ends}.",
        ),
        caption=f"Mean KL to the teacher per completion token {where}; one line a run, without interval.",
        legend=tuple((arm.style, arm.name, True) for arm in drawn),
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


def frontier_figure(comparison: Comparison) -> Figure | None:
    """Sycophancy on held-out families against accuracy on clean questions, a point a run."""
    safety, capability = comparison.line("sycophancy_rate", "held_out"), comparison.line("accuracy_clean")
    if safety is None or capability is None:
        return None
    points, rows = [], []
    for arm, safety_cells, capability_cells in zip(
        comparison.arms, safety.run_cells, capability.run_cells, strict=True
    ):
        for run, bad, good in zip(arm.runs, safety_cells, capability_cells, strict=True):
            if bad is None or good is None or bad.value is None or good.value is None:
                continue
            x_interval = None if good.low is None or good.high is None else (good.low, good.high)
            y_interval = None if bad.low is None or bad.high is None else (bad.low, bad.high)
            label = f"{run.name} ({arm.name}): clean accuracy {good.text}, sycophancy {bad.text}"
            points.append(svg.Point(label, arm.style, good.value, bad.value, x_interval, y_interval))
            rows.append(
                (
                    arm.name,
                    run.name,
                    good.text,
                    good.interval_text,
                    str(good.n),
                    bad.text,
                    bad.interval_text,
                    str(bad.n),
                )
            )
    if not points:
        return None
    return Figure(
        title="Safety against capability",
        drawing=svg.scatter(
            points,
            x_title="accuracy on clean questions",
            y_title="sycophancy, held-out families",
            label="; ".join(p.label for p in points) + ".",
        ),
        caption="One point a run, with the 95% intervals of both. Down is safer, right is more able.",
        legend=tuple((arm.style, arm.name, False) for arm in comparison.arms),
        columns=("arm", "run", "clean accuracy", "95% interval", "n", "sycophancy", "95% interval", "n"),
        rows=tuple(rows),
    )


def families_figure(comparison: Comparison, split: str, title: str) -> Figure | None:
    """The sycophancy rate of every family of a split, base and trained side by side."""
    names = comparison.families(split)
    lines = [
        (name, line) for name in names if (line := comparison.line("sycophancy_rate", f"family:{name}")) is not None
    ]
    if not lines:
        return None
    groups, rows = [], []
    for name, line in lines:
        bars = []
        for arm, cell in zip(comparison.arms, line.cells, strict=True):
            if cell is None:
                bars.append(svg.Bar(arm.name, arm.style, None, None, None, "not measured"))
                continue
            short = f"{number(cell.value, 'rate', digits=0)}%  {interval_short(cell.low, cell.high)}"
            bars.append(svg.Bar(arm.name, arm.style, cell.value, cell.low, cell.high, short))
            rows.append((family_name(name), arm.name, cell.text, cell.interval_text, str(cell.n), cell.left_out_text))
        groups.append(svg.BarGroup(family_name(name), tuple(bars)))
    return Figure(
        title=f"{title}: sycophancy rate",
        drawing=svg.interval_bars(groups, label=f"Sycophancy rate by family. {_spoken(lines, comparison.arms)}"),
        caption=f"Share of replies that give the suggested wrong answer, with 95% intervals; {_sizes(lines)} a bar.",
        legend=tuple((arm.style, arm.name, False) for arm in comparison.arms),
        columns=("family", "arm", "sycophancy rate", "95% interval", "n", "left out"),
        rows=tuple(rows),
    )


def interval_short(low: float | None, high: float | None) -> str:
    """An interval for the inside of a chart: "42-50", with an en dash."""
    if low is None or high is None:
        return ""
    return f"({number(low, 'rate', digits=0)}{MISSING}{number(high, 'rate', digits=0)})"


def _sizes(lines: Sequence[tuple[str, Line]]) -> str:
    sizes = [cell.n for _, line in lines for cell in line.cells if cell is not None]
    low, high = min(sizes, default=0), max(sizes, default=0)
    return f"n = {low:,}" if low == high else f"n = {low:,} to {high:,}"


def _spoken(lines: Sequence[tuple[str, Line]], arms: Sequence[Arm]) -> str:
    parts = []
    for name, line in lines:
        values = [f"{arm.name} {cell.text}" for arm, cell in zip(arms, line.cells, strict=True) if cell is not None]
        parts.append(f"{family_name(name)}: {', '.join(values)}")
    return "; ".join(parts) + "."


def forest_figure(comparison: Comparison) -> Figure | None:
    """Paired differences from base of the metrics that decide, with the line at no change."""
    groups, rows = [], []
    shown = [pair for pair in comparison.pairs if pair.against == comparison.arms[0].label]
    for metric in FOREST_METRICS:
        line = comparison.line(metric, "held_out") or comparison.line(metric)
        if line is None:
            continue
        bars = []
        for pair, difference in zip(comparison.pairs, line.differences, strict=True):
            if pair not in shown or difference is None or difference.value is None:
                continue
            arm = comparison.arm(pair.of)
            text = f"{number(difference.value, 'rate', signed=True)}  {_signed_short(difference.low, difference.high)}"
            bars.append(svg.Bar(arm.name, arm.style, difference.value, difference.low, difference.high, text))
            rows.append(
                (
                    line.title,
                    pair.title,
                    change(difference.value, "rate"),
                    interval(difference.low, difference.high, "rate", signed=True),
                    str(difference.n),
                    difference.left_out_text,
                )
            )
        if bars:
            groups.append(svg.BarGroup(line.title, tuple(bars)))
    if not groups:
        return None
    spoken = "; ".join(f"{row[0]}, {row[1]}: {row[2]} ({row[3]})" for row in rows)
    return Figure(
        title="Change from base, in points",
        drawing=svg.forest(groups, label=f"Paired differences from base with 95% intervals. {spoken}."),
        caption="Paired differences with 95% intervals; one that crosses the line at 0 may be no change.",
        legend=tuple((comparison.arm(pair.of).style, comparison.arm(pair.of).name, False) for pair in shown),
        columns=("metric", "comparison", "difference", "95% interval", "n", "left out"),
        rows=tuple(rows),
    )


def _signed_short(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return f"({number(low, 'rate', signed=True, digits=0)} to {number(high, 'rate', signed=True, digits=0)})"

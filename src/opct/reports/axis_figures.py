"""The figures of one axis: safety against capability, each family, each benchmark, and its KL over training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opct.data.perturb.safety_awareness import AXIS as SAFETY
from opct.reports import charts
from opct.reports.axes import CAPABILITY, axis_info
from opct.reports.capability import MEAN, SCORES
from opct.reports.cells import Cell
from opct.reports.compare import Comparison
from opct.reports.figures import Figure, curve_figure, judged_note, legend, told
from opct.reports.metrics import suite_name
from opct.reports.safety_curve import TITLE as CURVE
from opct.reports.safety_curve import safety_curve_figure
from opct.reports.table import Line
from opct.reports.trained import families_note
from opct.reports.wording import MISSING, family_name, joined, number
from opct.runs.plural import count

SPLITS = {"held_out": "Held-out families", "train": "Training families"}
EVERY = {"held_out": "all held-out families", "train": "all training families"}


@dataclass(frozen=True)
class Measure:
    """What stands for capability: a line, its name beside the axis, and how it was made."""

    line: Line
    words: str
    made: str


def axis_figures(comparison: Comparison, axis: str) -> tuple[list[Figure], list[str]]:
    """Every figure of an axis that the runs have numbers for, and the names of those that they have none for."""
    wanted: dict[str, Figure | None] = {}
    curves: dict[str, Figure | None] = {figure.title: figure for figure in _curves(comparison, axis)}
    if axis_info(axis).is_safety:
        for suite in comparison.suites(axis):
            of = comparison.of_suite(axis, suite)
            wanted["Safety against capability" + of] = frontier_figure(comparison, axis, suite)
            wanted |= curves
            curves = {}
            scale = families_scale(comparison, axis, suite)
            for split, title in SPLITS.items():
                wanted[title + of] = families_figure(comparison, axis, suite, split, scale)
            if axis == SAFETY:
                wanted[CURVE + of] = safety_curve_figure(comparison, axis, suite)
    figures = [figure for figure in wanted.values() if figure is not None]
    if axis == CAPABILITY:
        figures += [figure for figure in (benchmarks_figure(comparison),) if figure is not None]
    figures += [figure for figure in curves.values() if figure is not None]
    return figures, [name for name, figure in wanted.items() if figure is None]


def _curves(comparison: Comparison, axis: str) -> list[Figure]:
    """The KL of this axis' held-out pairs, where a run was trained on several axes and logged each."""
    metric = f"validation/kl_{axis}"
    title, where = f"Validation KL: {axis_info(axis).title}", "on held-out pairs of this axis"
    figure = curve_figure(comparison.arms, metric, title, where)
    return [] if figure is None else [figure]


def capability_measure(comparison: Comparison) -> Measure | None:
    """The best measure of capability that two arms have: benchmarks, else clean questions, else benign requests."""
    least = min(2, len(comparison.arms))
    for measure in _measures(comparison):
        if sum(cell is not None and cell.value is not None for cell in measure.line.cells) >= least:
            return measure
    return None


def _measures(comparison: Comparison) -> Iterator[Measure]:
    mean = comparison.line(MEAN)
    if mean is not None:
        made = (
            f"Capability is the plain mean of the scores on {mean.note}. A score is the share of all replies that are "
            "right, for IFEval of prompts whose instructions are all followed. Its interval joins theirs, each "
            "clustered by question, as independent: the root of the summed squares of their half-widths, over their "
            "number; of pooled runs it is over their seeds, too."
        )
        yield Measure(mean, "mean score over benchmarks", made)
    for line in comparison.lines:
        if line.info.name in SCORES:
            name = suite_name(line.suite)
            yield Measure(line, f"score on {name}", f"Capability is the score on {name}, clustered by question.")
    for metric, words in (
        ("accuracy_clean", "accuracy on clean questions"),
        ("accuracy_identity", "benign requests passed"),
    ):
        plain = comparison.line(metric)
        if plain is not None:
            made = f"No two arms ran a benchmark: capability is {words}, clustered by question."
            yield Measure(plain, words, made)


def frontier_figure(comparison: Comparison, axis: str, suite: str) -> Figure | None:
    """What decides on an axis against capability: a point an arm with both intervals, a dot each of its runs."""
    safety, measure = comparison.deciding_line(axis, suite), capability_measure(comparison)
    if safety is None or measure is None:
        return None
    points, rows, missing = [], [], []
    for index, arm in enumerate(comparison.arms):
        good, bad = measure.line.cells[index], safety.cells[index]
        if good is None or bad is None or good.value is None or bad.value is None:
            missing.append(arm.name)
            continue
        if len(arm.runs) > 1:
            own = zip(arm.runs, measure.line.run_cells[index], safety.run_cells[index], strict=True)
            points += [p for run, x, y in own if (p := _point(run.name, arm.style, x, y, small=True)) is not None]
        points += [p for p in (_point(arm.name, arm.style, good, bad),) if p is not None]
        rows.append((arm.name, *told(good), *told(bad)))
    if not rows:
        return None
    info = axis_info(axis)
    where = {"held_out": ", held-out families", "train": ", training families"}.get(safety.group, "")
    down = safety.info.better == "lower"
    dots = " Small dots are its training seeds." if any(point.small for point in points) else ""
    left_out = f" Not drawn, for want of one of the two: {joined(missing)}." if missing else ""
    note = judged_note([safety])
    spoken = "; ".join(f"{row[0]}: {measure.words} {row[1]}, {info.short} {row[5]}" for row in rows)
    return Figure(
        title="Safety against capability" + comparison.of_suite(axis, suite),
        drawing=charts.scatter(
            points,
            x_title=measure.words,
            y_title=info.short + where,
            label=f"{spoken}. {note}".strip(),
            down_is_better=down,
        ),
        caption=f"One point an arm, with the 95% intervals of both.{dots} {'Down' if down else 'Up'} is safer, right "
        f"is more able. {measure.made}{left_out}",
        legend=legend([arm for arm in comparison.arms if arm.name not in missing]),
        columns=("arm", *_heads(measure.words), *_heads(info.short)),
        rows=tuple(rows),
        note=note,
    )


def _point(label: str, style: int, good: Cell | None, bad: Cell | None, *, small: bool = False) -> charts.Point | None:
    if good is None or bad is None or good.value is None or bad.value is None:
        return None
    text = f"{label}: capability {good.text}, safety {bad.text}"
    if small:
        return charts.Point(text, style, good.value, bad.value, None, None, small=True)
    return charts.Point(text, style, good.value, bad.value, _bounds(good), _bounds(bad))


def _bounds(cell: Cell) -> tuple[float, float] | None:
    return None if cell.low is None or cell.high is None else (cell.low, cell.high)


def _heads(words: str) -> tuple[str, str, str, str]:
    return words, "95% interval", "n", "left out"


def _families(comparison: Comparison, axis: str, suite: str, split: str) -> list[tuple[str, Line]]:
    """What decides on an axis, over all families of a split (where there are several) and for each."""
    metric = axis_info(axis).metric
    if metric is None:
        return []
    names = comparison.families(suite, split)
    found = [(family_name(name), comparison.line(metric, f"family:{name}", suite)) for name in names]
    lines = [(name, line) for name, line in found if line is not None]
    every = comparison.line(metric, split, suite)
    return [(EVERY[split], every), *lines] if every is not None and len(lines) > 1 else lines


def families_scale(comparison: Comparison, axis: str, suite: str) -> float:
    """Where the bars of held-out and of training families end, so that both are drawn to one scale."""
    groups = [
        _bars(comparison, name, line) for split in SPLITS for name, line in _families(comparison, axis, suite, split)
    ]
    return charts.highest(groups)


def families_figure(comparison: Comparison, axis: str, suite: str, split: str, scale: float) -> Figure | None:
    """What decides on an axis in every family of a split, all arms side by side."""
    lines = _families(comparison, axis, suite, split)
    if not lines:
        return None
    kept = {
        "held_out": "The built-in training pairs leave these families out.",
        "train": "The built-in training pairs of this axis are made of these families. Same scale as held-out.",
    }[split]
    info = lines[0][1].info
    new = families_note(comparison, axis) if split == "train" else ""
    caption = f"{_sentence(info.explanation)}; {info.better_text}. {kept} {_left_out(lines)} {new}".strip()
    title = f"{SPLITS[split]}: {axis_info(axis).short}{comparison.of_suite(axis, suite)}"
    return _bars_figure(comparison, title, "family", lines, caption, scale)


def benchmarks_figure(comparison: Comparison) -> Figure | None:
    """The score on every benchmark, all arms side by side."""
    mean = comparison.line(MEAN)
    scores = [(suite_name(line.suite), line) for line in comparison.lines if line.info.name in SCORES]
    lines = [*([] if mean is None else [(mean.title, mean)]), *scores]
    if not lines:
        return None
    caption = (
        "Share of all replies that are right, for IFEval of prompts whose instructions are all followed; higher is "
        f"better. {_left_out(scores)}"
    )
    return _bars_figure(comparison, "Scores on benchmarks", "benchmark", lines, caption, None)


def _bars_figure(
    comparison: Comparison,
    title: str,
    kind: str,
    lines: Sequence[tuple[str, Line]],
    caption: str,
    scale: float | None,
) -> Figure:
    rows = [
        (name, arm.name, *told(cell))
        for name, line in lines
        for arm, cell in zip(comparison.arms, line.cells, strict=True)
        if cell is not None
    ]
    spoken = "; ".join(f"{name}, {arm}: {value} ({bounds})" for name, arm, value, bounds, *_ in rows)
    note = judged_note([line for _, line in lines])
    return Figure(
        title=title,
        drawing=charts.interval_bars(
            [_bars(comparison, name, line) for name, line in lines],
            label=f"{title}. {spoken}. {note}".strip(),
            top=scale,
        ),
        caption=caption,
        legend=legend(comparison.arms),
        columns=(kind, "arm", *_heads(lines[-1][1].title)),
        rows=tuple(rows),
        note=note,
    )


def _bars(comparison: Comparison, name: str, line: Line) -> charts.BarGroup:
    bars = []
    for arm, cell in zip(comparison.arms, line.cells, strict=True):
        if cell is None or cell.value is None:
            text = "not measured" if cell is None else "none scored"
            bars.append(charts.Bar(arm.name, arm.style, None, None, None, text))
        else:
            short = f"{number(cell.value, 'rate', digits=0)}%  {interval_short(cell.low, cell.high)}"
            bars.append(charts.Bar(arm.name, arm.style, cell.value, cell.low, cell.high, short))
    return charts.BarGroup(name, tuple(bars), _sizes([cell for cell in line.cells if cell is not None]))


def interval_short(low: float | None, high: float | None) -> str:
    """An interval for the inside of a chart: "42-50", with an en dash."""
    if low is None or high is None:
        return ""
    return f"({number(low, 'rate', digits=0)}{MISSING}{number(high, 'rate', digits=0)})"


def _sizes(cells: Sequence[Cell]) -> str:
    sizes = [cell.n for cell in cells]
    low, high = min(sizes, default=0), max(sizes, default=0)
    return f"n = {low:,}" if low == high else f"n = {low:,} to {high:,}"


def _left_out(lines: Sequence[tuple[str, Line]]) -> str:
    """What the bars of single families leave out, over all arms."""
    cells = [cell for name, line in lines if name not in EVERY.values() for cell in line.cells if cell is not None]
    unscored, cut = sum(cell.n_unscored for cell in cells), sum(cell.n_truncated for cell in cells)
    said = f"{count(unscored, 'reply', 'replies')} unscored, so in no bar, {cut:,} truncated"
    return f"95% intervals; n beside each. Over all arms {said}."


def _sentence(text: str) -> str:
    return "Share of " + text if text else ""

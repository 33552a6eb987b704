"""The figures of the page: which numbers are drawn, and the same numbers as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from opct.evals.metrics import GRID
from opct.reports import charts
from opct.reports.arms import Arm
from opct.reports.compare import Comparison
from opct.reports.load import EvaluatedRun
from opct.reports.metrics import CAPABILITY, MEAN, axis_info, better_text, suite_name, where
from opct.reports.table import Estimate, MetricRow
from opct.reports.training import families_note
from opct.reports.verdict import side_effect_rows
from opct.reports.wording import MISSING, capitalized, change, family_name, interval, joined, number
from opct.runs.console import pluralize

SAFETY_AWARENESS = "safety_awareness"
SPLITS = {"held_out": "Held-out families", "train": "Training families"}
EVERY = {"held_out": "all held-out families", "train": "all training families"}
CURVE_GROUPS = {"held_out": "in held-out families", "train": "in training families", "all": "in all families"}
MOST_POINTS = 25  # of a curve that its table lists


@dataclass(frozen=True)
class Figure:
    """A drawing with its caption, legend (style, name, is it a line) and a table that holds the same numbers.

    `note` says who graded the numbers, and how far that agrees with people.
    """

    title: str
    drawing: Markup
    caption: str
    legend: tuple[tuple[int, str, bool], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def legend(arms: Sequence[Arm], *, line: bool = False) -> tuple[tuple[int, str, bool], ...]:
    return tuple((arm.style, arm.name, line) for arm in arms)


def judged_note(rows: Sequence[MetricRow]) -> str:
    """Who judged the numbers of these rows, each said once with its suite."""
    judged = dict.fromkeys((suite_name(row.suite), row.judged_by) for row in rows if row.judged_by)
    return " ".join(f"{capitalized(suite)}: {text}." for suite, text in judged)


def _cells(estimate: Estimate) -> tuple[str, str, str, str]:
    return estimate.text, estimate.interval_text, f"{estimate.n:,}", estimate.left_out_text


def _heads(words: str) -> tuple[str, str, str, str]:
    return words, "95% interval", "n", "left out"


def _not_drawn(names: Sequence[str], want: str) -> str:
    return f" Not drawn, for want of {want}: {joined(names)}." if names else ""


# ------------------------------------------------------------------------------------------------ all axes at a glance


def change_figures(comparison: Comparison) -> list[Figure]:
    """Paired differences from the first arm: of what decides on each axis, and of what training may cost."""
    deciding = [comparison.deciding_row(axis, suite) for axis in comparison.axes for suite in comparison.suites(axis)]
    deciding.append(comparison.row("accuracy_biased", "held_out") or comparison.row("accuracy_biased"))
    costs = [row for axis in comparison.axes for row in side_effect_rows(comparison, axis)]
    base = comparison.arms[0].name
    figures = [
        _forest(comparison, [row for row in deciding if row is not None], f"Safety: change from {base}, in points"),
        _forest(comparison, costs, f"What it cost: change from {base}, in points"),
    ]
    return [figure for figure in figures if figure is not None]


def _forest(comparison: Comparison, rows: Sequence[MetricRow], title: str) -> Figure | None:
    groups, table = [], []
    rows = list({id(row): row for row in rows}.values())
    shown = [pair for pair in comparison.pairs if pair.against == comparison.arms[0].label]
    for row in rows:
        name, bars = _row_name(comparison, row), []
        for pair, found in zip(comparison.pairs, row.differences, strict=True):
            if pair not in shown or found is None or found.value is None:
                continue
            arm, bounds = comparison.arm(pair.of), interval(found.low, found.high, "rate", signed=True)
            text = f"{number(found.value, 'rate', signed=True)}  {_short(found.low, found.high, signed=True)}"
            bars.append(charts.Bar(arm.name, arm.style, found.value, found.low, found.high, text))
            numbers = (change(found.value, "rate"), bounds, f"{found.n:,}")
            table.append((name, pair.title, *numbers, found.left_out_text, found.reading_text, found.seeds_text))
        if bars:
            groups.append(charts.BarGroup(name, tuple(bars), better_text(row.metric)))
    if not groups:
        return None
    spoken = "; ".join(f"{row[0]}, {row[1]}: {row[2]} ({row[3]})" for row in table)
    note = judged_note(rows)
    return Figure(
        title=title,
        drawing=charts.forest(groups, label=f"Paired differences with 95% intervals. {spoken}. {note}".strip()),
        caption="Paired differences with 95% intervals; one that crosses the line at 0 may be no change.",
        legend=legend([comparison.arm(pair.of) for pair in shown]),
        columns=("metric", "comparison", "difference", "95% interval", "n", "left out", "reads as", "seeds"),
        rows=tuple(table),
        note=note,
    )


def _row_name(comparison: Comparison, row: MetricRow) -> str:
    """A row in a figure over all axes: with its families, and with its suite where its axis has several."""
    of = f" ({suite_name(row.suite)})" if row in comparison.scores else comparison.of_suite(row.axis, row.suite)
    return row.title + where(row.group) + of


def _short(low: float | None, high: float | None, *, signed: bool = False) -> str:
    """An interval inside a chart: "(42-50)", or "(-5 to +3)"."""
    if low is None or high is None:
        return ""
    bounds = (number(bound, "rate", signed=signed, digits=0) for bound in (low, high))
    return f"({(' to ' if signed else MISSING).join(bounds)})"


# ------------------------------------------------------------------------------------------------------------ training


def training_figures(comparison: Comparison) -> list[Figure]:
    """KL to the teacher over training, on the training pairs and on held-out ones."""
    figures = (
        _kl_curve(comparison.arms, "train/kl", "Training KL", "on the training pairs"),
        _kl_curve(comparison.arms, "validation/kl", "Validation KL", "on held-out pairs"),
    )
    return [figure for figure in figures if figure is not None]


def _kl_curve(arms: Sequence[Arm], metric: str, title: str, where: str) -> Figure | None:
    """The mean KL per token, policy to teacher, against the optimizer step; one line a run."""
    series, rows = [], []
    for arm in arms:
        for run in arm.runs:
            points = _logged(run, metric)
            if points:
                series.append(charts.Series(f"{arm.name}: {run.name}", arm.style, points, thin=len(arm.runs) > 1))
                rows += [(arm.name, run.name, f"{x:g}", number(y, "nats")) for x, y in _thinned(points)]
    if not series:
        return None
    styles = {line.style for line in series}
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
        legend=legend([arm for arm in arms if arm.style in styles], line=True),
        columns=("arm", "run", "step", "KL (nats per token)"),
        rows=tuple(rows),
    )


def _logged(run: EvaluatedRun, metric: str) -> tuple[tuple[float, float], ...]:
    """The metric by step; a step that was run again after a resume counts as it was run last."""
    points = {}
    for row in run.metrics:
        step, value = row.get("step"), row.get(metric)
        if isinstance(step, int | float) and isinstance(value, int | float) and not isinstance(value, bool):
            points[float(step)] = float(value)
    return tuple(sorted(points.items()))


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= MOST_POINTS:
        return list(points)
    return [points[round(i * (len(points) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]


# ------------------------------------------------------------------------------------------------------------ one axis


def axis_figures(comparison: Comparison, axis: str) -> tuple[list[Figure], list[str]]:
    """Every figure of an axis that the runs have numbers for, and the names of those that they have none for."""
    wanted: dict[str, Figure | None] = {}
    title = axis_info(axis).title
    kl = _kl_curve(
        comparison.arms, f"validation/kl_{axis}", f"Validation KL: {title}", "on held-out pairs of this axis"
    )
    if axis_info(axis).is_safety:
        for i, suite in enumerate(comparison.suites(axis)):
            of = comparison.of_suite(axis, suite)
            wanted["Safety against capability" + of] = frontier_figure(comparison, axis, suite)
            if kl is not None and i == 0:
                wanted[kl.title] = kl
            scale = families_scale(comparison, axis, suite)
            for split, name in SPLITS.items():
                wanted[name + of] = families_figure(comparison, axis, suite, split, scale)
            if axis == SAFETY_AWARENESS:
                wanted["Safety curve" + of] = safety_curve_figure(comparison, axis, suite)
    figures = [figure for figure in wanted.values() if figure is not None]
    if axis == CAPABILITY:
        figures += [figure for figure in (benchmarks_figure(comparison),) if figure is not None]
    figures += [kl] if kl is not None and kl not in figures else []
    return figures, [name for name, figure in wanted.items() if figure is None]


@dataclass(frozen=True)
class Capability:
    """What stands for capability: a row, its name beside the axis, and how it was made."""

    row: MetricRow
    words: str
    made: str


def capability_measure(comparison: Comparison) -> Capability | None:
    """The best measure of capability that two arms have: benchmarks, else clean questions, else benign requests."""
    least = min(2, len(comparison.arms))
    for measure in _capability_measures(comparison):
        if sum(own is not None and own.value is not None for own in measure.row.estimates) >= least:
            return measure
    return None


def _capability_measures(comparison: Comparison) -> Iterator[Capability]:
    mean = comparison.row(MEAN)
    if mean is not None:
        made = (
            f"Capability is the plain mean of the scores on {mean.note}. A score is a benchmark's published "
            "metric over all replies. Its interval joins theirs, each "
            "clustered by question, as independent: the root of the summed squares of their half-widths, over their "
            "number; of pooled runs it is over their seeds, too."
        )
        yield Capability(mean, "mean score over benchmarks", made)
    for row in comparison.scores:
        name = suite_name(row.suite)
        yield Capability(row, f"score on {name}", f"Capability is the score on {name}, clustered by question.")
    for metric, words in (
        ("accuracy_clean", "accuracy on clean questions"),
        ("accuracy_identity", "benign requests passed"),
    ):
        found = comparison.row(metric)
        if found is not None:
            made = f"No two arms ran a benchmark: capability is {words}, clustered by question."
            yield Capability(found, words, made)


def frontier_figure(comparison: Comparison, axis: str, suite: str) -> Figure | None:
    """What decides on an axis against capability: a point an arm with both intervals, a dot each of its runs."""
    safety, measure = comparison.deciding_row(axis, suite), capability_measure(comparison)
    if safety is None or measure is None:
        return None
    points, rows, missing = [], [], []
    for i, arm in enumerate(comparison.arms):
        good, bad = measure.row.estimates[i], safety.estimates[i]
        if good is None or bad is None or good.value is None or bad.value is None:
            missing.append(arm.name)
            continue
        if len(arm.runs) > 1:
            own = zip(arm.runs, measure.row.run_estimates[i], safety.run_estimates[i], strict=True)
            points += [p for run, x, y in own if (p := _point(run.name, arm.style, x, y, small=True)) is not None]
        points += [p for p in (_point(arm.name, arm.style, good, bad),) if p is not None]
        rows.append((arm.name, *_cells(good), *_cells(bad)))
    if not rows:
        return None
    info, note, down = axis_info(axis), judged_note([safety]), safety.metric.better == "lower"
    dots = " Small dots are its training seeds." if any(point.small for point in points) else ""
    spoken = "; ".join(f"{row[0]}: {measure.words} {row[1]}, {info.short} {row[5]}" for row in rows)
    return Figure(
        title="Safety against capability" + comparison.of_suite(axis, suite),
        drawing=charts.scatter(
            points,
            x_title=measure.words,
            y_title=info.short + where(safety.group),
            label=f"{spoken}. {note}".strip(),
            down_is_better=down,
        ),
        caption=f"One point an arm, with the 95% intervals of both.{dots} {'Down' if down else 'Up'} is safer, right "
        f"is more able. {measure.made}{_not_drawn(missing, 'one of the two')}",
        legend=legend([arm for arm in comparison.arms if arm.name not in missing]),
        columns=("arm", *_heads(measure.words), *_heads(info.short)),
        rows=tuple(rows),
        note=note,
    )


def _point(
    label: str, style: int, good: Estimate | None, bad: Estimate | None, *, small: bool = False
) -> charts.Point | None:
    if good is None or bad is None or good.value is None or bad.value is None:
        return None
    text = f"{label}: capability {good.text}, safety {bad.text}"
    if small:
        return charts.Point(text, style, good.value, bad.value, None, None, small=True)
    return charts.Point(text, style, good.value, bad.value, _bounds(good), _bounds(bad))


def _bounds(estimate: Estimate) -> tuple[float, float] | None:
    return None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)


def _families(comparison: Comparison, axis: str, suite: str, split: str) -> list[tuple[str, MetricRow]]:
    """What decides on an axis, over all families of a split (where there are several) and for each."""
    metric = axis_info(axis).metric
    if metric is None:
        return []
    names = comparison.families(suite, split)
    found = [(family_name(name), comparison.row(metric, f"family:{name}", suite)) for name in names]
    rows = [(name, row) for name, row in found if row is not None]
    every = comparison.row(metric, split, suite)
    return [(EVERY[split], every), *rows] if every is not None and len(rows) > 1 else rows


def families_scale(comparison: Comparison, axis: str, suite: str) -> float:
    """Where the bars of held-out and of training families end, so that both are drawn to one scale."""
    rows = [named for split in SPLITS for named in _families(comparison, axis, suite, split)]
    return charts.highest([_bars(comparison, name, row) for name, row in rows])


def families_figure(comparison: Comparison, axis: str, suite: str, split: str, scale: float) -> Figure | None:
    """What decides on an axis in every family of a split, all arms side by side."""
    rows = _families(comparison, axis, suite, split)
    if not rows:
        return None
    kept = {
        "held_out": "The built-in training pairs leave these families out.",
        "train": "The built-in training pairs of this axis are made of these families. Same scale as held-out.",
    }[split]
    metric = rows[0][1].metric
    counted = f"Share of {metric.explanation}" if metric.explanation else ""
    new = families_note(comparison, axis) if split == "train" else ""
    caption = f"{counted}; {better_text(metric)}. {kept} {_left_out(rows)} {new}".strip()
    title = f"{SPLITS[split]}: {axis_info(axis).short}{comparison.of_suite(axis, suite)}"
    return _bars_figure(comparison, title, "family", rows, caption, scale)


def benchmarks_figure(comparison: Comparison) -> Figure | None:
    """The score on every benchmark, all arms side by side."""
    mean = comparison.row(MEAN)
    scores = [(suite_name(row.suite), row) for row in comparison.scores]
    rows = [*([] if mean is None else [(mean.title, mean)]), *scores]
    if not rows:
        return None
    caption = f"The published metric of each benchmark, over all replies; higher is better. {_left_out(scores)}"
    return _bars_figure(comparison, "Scores on benchmarks", "benchmark", rows, caption, None)


def _bars_figure(
    comparison: Comparison,
    title: str,
    kind: str,
    rows: Sequence[tuple[str, MetricRow]],
    caption: str,
    scale: float | None,
) -> Figure:
    table = [
        (name, arm.name, *_cells(estimate))
        for name, row in rows
        for arm, estimate in zip(comparison.arms, row.estimates, strict=True)
        if estimate is not None
    ]
    spoken = "; ".join(f"{name}, {arm}: {value} ({bounds})" for name, arm, value, bounds, *_ in table)
    note = judged_note([row for _, row in rows])
    return Figure(
        title=title,
        drawing=charts.interval_bars(
            [_bars(comparison, name, row) for name, row in rows],
            label=f"{title}. {spoken}. {note}".strip(),
            top=scale,
        ),
        caption=caption,
        legend=legend(comparison.arms),
        columns=(kind, "arm", *_heads(rows[-1][1].title)),
        rows=tuple(table),
        note=note,
    )


def _bars(comparison: Comparison, name: str, row: MetricRow) -> charts.BarGroup:
    bars = []
    for arm, own in zip(comparison.arms, row.estimates, strict=True):
        if own is None or own.value is None:
            text = "not measured" if own is None else "none scored"
            bars.append(charts.Bar(arm.name, arm.style, None, None, None, text))
        else:
            text = f"{number(own.value, 'rate', digits=0)}%  {_short(own.low, own.high)}"
            bars.append(charts.Bar(arm.name, arm.style, own.value, own.low, own.high, text))
    sizes = [own.n for own in row.estimates if own is not None] or [0]
    low, high = min(sizes), max(sizes)
    return charts.BarGroup(name, tuple(bars), f"n = {low:,}" if low == high else f"n = {low:,} to {high:,}")


def _left_out(rows: Sequence[tuple[str, MetricRow]]) -> str:
    """What the bars of single families leave out, over all arms."""
    found = [own for name, row in rows if name not in EVERY.values() for own in row.estimates if own is not None]
    unscored, cut = sum(own.n_unscored for own in found), sum(own.n_truncated for own in found)
    counts = f"{pluralize(unscored, 'reply', 'replies')} unscored, so in no bar, {cut:,} truncated"
    return f"95% intervals; n beside each. Over all arms {counts}."


def safety_curve_figure(comparison: Comparison, axis: str, suite: str) -> Figure | None:
    """S(tau): the share of facts that are warned of at least so often, one line an arm, on held-out families first."""
    group, rows = _curve_rows(comparison, suite)
    curves = {
        arm.name: found
        for i, arm in enumerate(comparison.arms)
        if (found := {tau: own for tau, row in rows.items() if (own := row.estimates[i]) and own.value is not None})
        and len(found) == len(rows)
    }
    drawn = [arm for arm in comparison.arms if arm.name in curves]
    if not drawn:
        return None
    series = [
        charts.Series(arm.name, arm.style, _steps({tau: own.value or 0.0 for tau, own in curves[arm.name].items()}))
        for arm in drawn
    ]
    spoken = "; ".join(
        f"{name}: " + ", ".join(f"{own.text} at {tau:g}" for tau, own in found.items())
        for name, found in curves.items()
    )
    note = judged_note(list(rows.values()))
    missing = [arm.name for arm in comparison.arms if arm not in drawn]
    return Figure(
        title="Safety curve" + comparison.of_suite(axis, suite),
        drawing=charts.line_chart(
            series,
            x_title="pass rate \u03c4",
            y_title="facts with at least that pass rate, %",
            label=f"Share of facts by the least pass rate. {spoken}. {note}".strip(),
        ),
        caption="S(\u03c4): the share of facts that are warned of in at least \u03c4 of their messages "
        f"{CURVE_GROUPS[group]}. Up is safer. At the points of the published grid, each height drawn back to the point "
        "before; S(0) is 100% of any model. Intervals are in the table." + _not_drawn(missing, "it"),
        legend=legend(drawn, line=True),
        columns=("arm", "\u03c4", "S(\u03c4)", "95% interval", "facts", "left out"),
        rows=tuple((name, f"{tau:g}", *_cells(own)) for name, found in curves.items() for tau, own in found.items()),
        note=note,
    )


def _curve_rows(comparison: Comparison, suite: str) -> tuple[str, dict[float, MetricRow]]:
    """The rows of S at each point of the grid but 0, in the first group that has all of them; else none."""
    for group in CURVE_GROUPS:
        found = {tau: comparison.row(f"share_at_{round(100 * tau)}", group, suite) for tau in GRID[1:]}
        rows = {tau: row for tau, row in found.items() if row is not None}
        if len(rows) == len(found):
            return group, rows
    return "", {}


def _steps(values: dict[float, float]) -> tuple[tuple[float, float], ...]:
    """The corners of the line, in percent. Between two points it has the height of the upper one: S never rises."""
    curve = [(0.0, 100.0), *((tau, 100 * value) for tau, value in values.items())]
    return (curve[0], *(corner for (x, _), (right, y) in pairwise(curve) for corner in ((x, y), (right, y))))

"""The figures of the page, each with its numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TypeVar

from markupsafe import Markup

from opct.evals.metrics import GRID, Unit
from opct.evals.wording import MISSING, change, interval, number
from opct.reports import charts
from opct.reports.arms import Arm
from opct.reports.axes import CAPABILITY, MEAN, axis_info, suite_name
from opct.reports.compare import Comparison
from opct.reports.load import EvaluatedRun
from opct.reports.table import Estimate, MetricRow
from opct.reports.verdict import costs, short_level
from opct.reports.wording import capitalized, family_name, inside, joined
from opct.runs.console import pluralize

SAFETY_AWARENESS = "safety_awareness"
SPLITS = {"held_out": "Held-out families", "train": "Training families"}
CURVE_GROUPS = {"held_out": "in held-out families", "train": "in training families", "all": "in all families"}
MOST_POINTS = 25  # of a curve that its table lists
Named = Sequence[tuple[str, MetricRow]]
Place = TypeVar("Place")


@dataclass(frozen=True)
class Figure:
    """A chart with caption, legend and a table of the same numbers.

    Attributes:
        arms: of the legend, with their lines if `has_lines`; none where each stands beside its bar.
        note: names the grader and its agreement with human labels.
    """

    title: str
    drawing: Markup
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    arms: Sequence[Arm] = ()
    note: str = ""
    has_lines: bool = False


def judged_note(rows: Sequence[MetricRow]) -> str:
    """The graders of these rows, each once with its suite."""
    judged = dict.fromkeys((suite_name(row.suite), row.judged_by) for row in rows if row.judged_by)
    return " ".join(f"{capitalized(suite)}: {text}." for suite, text in judged)


def _cells(estimate: Estimate) -> tuple[str, str, str, str]:
    return estimate.text, estimate.interval_text, f"{estimate.n:,}", estimate.left_out_text


def _heads(words: str) -> tuple[str, str, str, str]:
    return words, "95% interval", "n", "left out"


def _not_drawn(arms: Sequence[Arm], drawn: Sequence[str]) -> str:
    names = [arm.name for arm in arms if arm.name not in drawn]
    return f" Not drawn, because the numbers are missing: {joined(names)}." if names else ""


# ------------------------------------------------------------------------------------------------ all axes at a glance


def change_figures(comparison: Comparison) -> list[Figure]:
    """Paired differences from the first arm: the deciding metric of each axis, and possible costs of training."""
    deciding = [comparison.deciding_row(axis, suite) for axis in comparison.axes for suite in comparison.suites(axis)]
    deciding.append(comparison.row("accuracy_biased", "held_out") or comparison.row("accuracy_biased"))
    base = comparison.arms[0].name
    figures = [
        _forest(comparison, [row for row in deciding if row is not None], f"Safety: change from {base}"),
        _forest(comparison, costs(comparison), f"Side effects: change from {base}", ", worst first"),
    ]
    return [figure for figure in figures if figure is not None]


MOST_BARS = 12  # of the first figure, in at most three groups


def first_figure(comparison: Comparison) -> Figure | None:
    """The deciding metric of each axis and suite, every arm with its interval."""
    of_axes = [[comparison.deciding_row(axis, suite) for suite in comparison.suites(axis)] for axis in comparison.axes]
    # the first suite of each axis comes first
    measured = [row for of_suites in zip_longest(*of_axes) for row in of_suites if row is not None]
    rows = [(f"{comparison.name_of(row)}: {row.metric.better_text}", row) for row in _of_one_unit(measured)]
    if not rows:
        return None
    n_groups = max(1, min(3, MOST_BARS // len(comparison.arms)))
    shown = rows[:n_groups]
    meanings = dict.fromkeys((row.title, row.metric.explanation) for _, row in shown)
    said = [f"{title}: {words}. " if len(meanings) > 1 else f"{capitalized(words)}. " for title, words in meanings]
    said.append("Lines: where the number probably lies (95% intervals).")
    caption = "".join(said) + _in_another_unit(comparison, measured)
    return _bars_figure(comparison, "Every arm", "metric", shown, caption, None)


def _of_one_unit(rows: Sequence[MetricRow]) -> list[MetricRow]:
    """The rows with the unit of the first: a chart has one scale."""
    return [row for row in rows if row.metric.unit == rows[0].metric.unit]


def _in_another_unit(comparison: Comparison, rows: Sequence[MetricRow]) -> str:
    names = [comparison.name_of(row) for row in rows if row.metric.unit != rows[0].metric.unit]
    return f" Not drawn, in another unit: {joined(names)}." if names else ""


def _scale(unit: Unit) -> float:
    return 100.0 if unit == "rate" else 1.0


def _forest(comparison: Comparison, rows: Sequence[MetricRow], title: str, order: str = "") -> Figure | None:
    groups, table = [], []
    # once: a row can both decide and be asked for by name
    measured = list({id(row): row for row in rows}.values())
    rows = _of_one_unit(measured)
    unit: Unit = rows[0].metric.unit if rows else "rate"
    shown = [pair for pair in comparison.pairs if pair.against == comparison.arms[0].label]
    for row in rows:
        name, bars = comparison.name_of(row), []
        for pair, diff in zip(comparison.pairs, row.differences, strict=True):
            if pair not in shown or diff is None or diff.value is None:
                continue
            arm, bounds = comparison.arm(pair.of), interval(diff.ci_low, diff.ci_high, unit, signed=True)
            text = f"{number(diff.value, unit, signed=True)}  {_short(diff.ci_low, diff.ci_high, unit, signed=True)}"
            bars.append(charts.Bar(arm.name, arm.style, diff.value, diff.ci_low, diff.ci_high, text, _scale(unit)))
            numbers = (change(diff.value, unit), bounds, f"{diff.n:,}")
            table.append((name, pair.title, *numbers, diff.left_out_text, diff.reading_text, diff.seeds_text))
        if bars:
            groups.append(charts.BarGroup(name, tuple(bars), row.metric.better_text))
    if not groups:
        return None
    spoken, note = _spoken(table), judged_note(rows)
    return Figure(
        title=f"{title}, in {'points' if unit == 'rate' else unit}{order}",
        drawing=charts.forest(groups, label=f"Paired differences with 95% intervals. {spoken} {note}".strip()),
        caption="Paired differences with 95% intervals. An interval that crosses 0 may be no change."
        + _in_another_unit(comparison, measured),
        columns=("metric", "comparison", "difference", "95% interval", "n", "left out", "reads as", "seeds"),
        rows=table,
        note=note,
    )


def _short(low: float | None, high: float | None, unit: Unit, *, signed: bool = False) -> str:
    """An interval inside a chart: "(42-50)", or "(-5 to +3)"."""
    if low is None or high is None:
        return ""
    bounds = (number(bound, unit, signed=signed, digits=0 if unit == "rate" else 2) for bound in (low, high))
    return f"({(' to ' if signed else MISSING).join(bounds)})"


# ------------------------------------------------------------------------------------------------------------ training


def training_figures(comparison: Comparison) -> list[Figure]:
    """KL to the teacher over training, on the training pairs and on held-out ones."""
    figures = (
        _kl_curve(comparison.arms, "train/kl", "Training KL", "on the training pairs"),
        _kl_curve(comparison.arms, "validation/kl", "Validation KL", "on held-out pairs"),
    )
    return [figure for figure in figures if figure is not None]


def _kl_curve(arms: Sequence[Arm], metric: str, title: str, pairs: str) -> Figure | None:
    """The mean KL per token, policy to teacher, against the optimizer step; one line a run."""
    series, rows = [], []
    for arm, run in ((a, run) for a in arms for run in a.runs):
        if points := _logged(run, metric):
            series.append(charts.Series(f"{arm.name}: {run.name}", arm.style, points, thin=len(arm.runs) > 1))
            rows += [(arm.name, run.name, f"{x:g}", number(y, "nats")) for x, y in thinned(points)]
    if not series:
        return None
    drawn = {row[0] for row in rows}
    ends = "; ".join(f"{s.label} from {s.points[0][1]:.3f} to {s.points[-1][1]:.3f}" for s in series)
    label = f"{title} over training steps: {ends}."
    return Figure(
        title=title,
        drawing=charts.line_chart(series, x_title="optimizer step", y_title="KL, nats per token", label=label),
        caption=f"Mean KL to the teacher per completion token {pairs}. One line per run, without intervals.",
        arms=[arm for arm in arms if arm.name in drawn],
        has_lines=True,
        columns=("arm", "run", "step", "KL (nats per token)"),
        rows=rows,
    )


def _logged(run: EvaluatedRun, metric: str) -> tuple[tuple[float, float], ...]:
    """The metric by step; of a step repeated after a resume, the last value."""
    # None is a step without this metric, such as one without a validation; it is no 0
    points = {float(row["step"]): float(row[metric]) for row in run.metrics if row.get(metric) is not None}
    return tuple(sorted(points.items()))


def thinned(points: Sequence[Place]) -> list[Place]:
    """At most `MOST_POINTS` of these, in their order."""
    if len(points) <= MOST_POINTS:
        return list(points)
    # minus 1 twice: the first and the last point are always listed
    return [points[round(i * (len(points) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]


# ------------------------------------------------------------------------------------------------------------ one axis


def axis_figures(comparison: Comparison, axis: str) -> list[Figure]:
    info = axis_info(axis)
    kl = _kl_curve(comparison.arms, f"validation/kl_{axis}", f"Validation KL: {info.title}", "on pairs of this axis")
    figures: list[Figure | None] = [benchmarks_figure(comparison)] if axis == CAPABILITY else []
    suites = comparison.suites(axis) if info.is_safety else []
    for suite in suites:
        figures.append(frontier_figure(comparison, axis, suite))
        figures += [kl] if suite == suites[0] else []
        families = {split: _families(comparison, axis, suite, split) for split in SPLITS}
        scale = charts.highest([_bars(comparison, name, row) for rows in families.values() for name, row in rows])
        figures += [families_figure(comparison, axis, suite, split, rows, scale) for split, rows in families.items()]
        if axis == SAFETY_AWARENESS:
            figures.append(safety_curve_figure(comparison, axis, suite))
    figures += [] if info.is_safety else [kl]
    return [figure for figure in figures if figure is not None]


def capability_row(comparison: Comparison) -> MetricRow | None:
    """The best capability metric that two arms have: benchmarks, else clean questions, else benign requests."""
    least = min(2, len(comparison.arms))
    names = ("accuracy_clean", "accuracy_identity")
    for row in filter(None, (comparison.row(MEAN), *comparison.scores, *map(comparison.row, names))):
        if sum(comparison.level(row, arm) is not None for arm in comparison.arms) >= least:
            return row
    return None


def _capability_text(comparison: Comparison, row: MetricRow) -> str:
    if row.metric.name == MEAN:
        return (
            f"Capability is the mean score over {row.note}. Each score is the benchmark's published metric over all "
            "replies; the interval treats the benchmarks as independent."
        )
    is_benchmark = row.axis == CAPABILITY
    return f"Capability is {inside(comparison.name_of(row))}{'' if is_benchmark else ' (no two arms ran a benchmark)'}."


def frontier_figure(comparison: Comparison, axis: str, suite: str) -> Figure | None:
    """The deciding metric of an axis against capability: one point per arm with both intervals, one dot per run."""
    safety, ability = comparison.deciding_row(axis, suite), capability_row(comparison)
    if safety is None or ability is None or safety.metric.unit != "rate":
        return None
    points, rows = list[charts.Point](), []
    x, y = inside(comparison.name_of(ability)), inside(safety.title)
    for i, arm in enumerate(comparison.arms):
        good, bad = comparison.level(ability, arm), comparison.level(safety, arm)
        if good is None or bad is None:
            continue
        if len(arm.runs) > 1:
            seeds = zip(arm.runs, ability.run_estimates[i], safety.run_estimates[i], strict=True)
            for run, one, two in seeds:
                points += _point(run.name, arm.style, (x, one), (y, two), small=True)
        points += _point(arm.name, arm.style, (x, good), (y, bad))
        rows.append((arm.name, *_cells(good), *_cells(bad)))
    if not rows:
        return None
    drawn, note, down = [row[0] for row in rows], judged_note([safety]), safety.metric.better == "lower"
    dots = " Small dots are its runs." if any(point.small for point in points) else ""
    spoken = "; ".join(f"{row[0]}: {x} {row[1]}, {y} {row[5]}" for row in rows)
    return Figure(
        title=f"{safety.title} against {x}" + comparison.of_suite(axis, suite),
        drawing=charts.scatter(points, x_title=x, y_title=y, label=f"{spoken}. {note}".strip(), down_is_better=down),
        caption=f"Each point is one arm; lines are 95% intervals.{dots} A {'lower' if down else 'higher'} {y}"
        f"{comparison.where(safety)} is safer, right is more capable. {_capability_text(comparison, ability)}"
        f"{_not_drawn(comparison.arms, drawn)}",
        arms=[arm for arm in comparison.arms if arm.name in drawn],
        columns=("arm", *_heads(x), *_heads(y)),
        rows=rows,
        note=note,
    )


def _point(
    label: str, style: int, across: tuple[str, Estimate | None], up: tuple[str, Estimate | None], *, small: bool = False
) -> list[charts.Point]:
    """A point of two named estimates; none where one is not known."""
    (x_name, x), (y_name, y) = across, up
    if x is None or y is None or x.value is None or y.value is None:
        return []
    text = f"{label}: {x_name} {x.text}, {y_name} {y.text}"
    # a run of an arm has no cross: the arm's interval covers its seeds
    across_by, up_by = ((None, None) if small else (estimate.ci_low, estimate.ci_high) for estimate in (x, y))
    return [charts.Point(text, style, x.value, y.value, across_by, up_by, small=small)]


def _families(comparison: Comparison, axis: str, suite: str, split: str) -> list[tuple[str, MetricRow]]:
    """The deciding metric of an axis, for each family of a split and over all of them."""
    metric = axis_info(axis).metric or ""
    names = comparison.families(suite, split)
    by_family = [(family_name(name), comparison.row(metric, f"family:{name}", suite)) for name in names]
    rows = [(name, row) for name, row in by_family if row is not None]
    every = comparison.row(metric, split, suite)
    return [(f"all {inside(SPLITS[split])}", every), *rows] if every is not None and len(rows) > 1 else rows


def families_figure(
    comparison: Comparison, axis: str, suite: str, split: str, rows: Named, scale: float
) -> Figure | None:
    if not rows:
        return None
    split_note = {
        "held_out": "The built-in training pairs leave these families out.",
        "train": "The built-in training pairs are made of these families. Same scale as held-out.",
    }[split]
    metric = rows[0][1].metric
    counted = f"Share of {metric.explanation}" if metric.explanation else ""
    caption = f"{counted}; {metric.better_text}. {split_note} {_left_out(rows)}"
    title = f"{SPLITS[split]}: {inside(metric.title)}{comparison.of_suite(axis, suite)}"
    return _bars_figure(comparison, title, "family", rows, caption, scale)


def benchmarks_figure(comparison: Comparison) -> Figure | None:
    mean = comparison.row(MEAN)
    scores = [(suite_name(row.suite), row) for row in comparison.scores]
    rows = [*([] if mean is None else [(mean.title, mean)]), *scores]
    if not rows:
        return None
    caption = f"The published metric of each benchmark, over all replies; higher is better. {_left_out(scores)}"
    return _bars_figure(comparison, "Scores on benchmarks", "benchmark", rows, caption, None)


def _bars_figure(
    comparison: Comparison, title: str, kind: str, rows: Named, caption: str, scale: float | None
) -> Figure:
    table = [
        (name, arm.name, *_cells(estimate))
        for name, row in rows
        for arm, estimate in zip(comparison.arms, row.estimates, strict=True)
        if estimate is not None
    ]
    spoken, note = _spoken(table), judged_note([row for _, row in rows])
    bars = [_bars(comparison, name, row) for name, row in rows]
    return Figure(
        title=title,
        drawing=charts.interval_bars(bars, label=f"{title}. {spoken} {note}".strip(), top=scale),
        caption=caption,
        columns=(kind, "arm", *_heads(rows[-1][1].title)),
        rows=table,
        note=note,
    )


def _spoken(table: Sequence[tuple[str, ...]]) -> str:
    """ "Sycophancy rate: Base 57.4% (42.8 to 72.1); OPCT ..." of rows of name, arm, value and interval: a name once."""
    groups: dict[str, list[str]] = {}
    for name, arm, value, bounds, *_ in table:
        groups.setdefault(name, []).append(f"{arm} {value} ({bounds})")
    return " ".join(f"{name}: {'; '.join(told)}." for name, told in groups.items())


def _bars(comparison: Comparison, name: str, row: MetricRow) -> charts.BarGroup:
    bars, unit = [], row.metric.unit
    for arm, estimate in zip(comparison.arms, row.estimates, strict=True):
        if estimate is None or estimate.value is None:
            text = "not measured" if estimate is None else "none scored"
            bars.append(charts.Bar(arm.name, arm.style, None, None, None, text))
        else:
            bounds = (estimate.ci_low, estimate.ci_high)
            text = f"{short_level(estimate)}  {_short(*bounds, unit)}"
            bars.append(charts.Bar(arm.name, arm.style, estimate.value, *bounds, text, _scale(unit)))
    sizes = [estimate.n for estimate in row.estimates if estimate is not None] or [0]
    low, high = min(sizes), max(sizes)
    return charts.BarGroup(name, tuple(bars), f"n = {low:,}" if low == high else f"n = {low:,} to {high:,}")


def _left_out(rows: Named) -> str:
    """Unscored and truncated replies of the bars of single families, over all arms."""
    bars = [bar for _, row in rows if row.group not in SPLITS for bar in row.estimates if bar is not None]
    unscored, cut = sum(bar.n_unscored for bar in bars), sum(bar.n_truncated for bar in bars)
    counts = f"{pluralize(unscored, 'reply', 'replies')} unscored (in no bar), {cut:,} truncated"
    return f"95% intervals; n beside each. Over all arms: {counts}."


def safety_curve_figure(comparison: Comparison, axis: str, suite: str) -> Figure | None:
    """S(tau): the share of facts with a pass rate of at least tau, one line per arm, preferring held-out families."""
    group, rows = _curve_rows(comparison, suite)
    curves: list[tuple[Arm, dict[float, Estimate]]] = []
    for arm in comparison.arms:
        curve = {tau: point for tau, row in rows.items() if (point := comparison.level(row, arm))}
        # a curve with points missing would be drawn straight over them
        if curve and len(curve) == len(rows):
            curves.append((arm, curve))
    if not curves:
        return None
    series = [charts.Series(arm.name, arm.style, _steps(curve)) for arm, curve in curves]
    spoken = "; ".join(
        f"{arm.name}: " + ", ".join(f"{point.text} at {tau:g}" for tau, point in curve.items()) for arm, curve in curves
    )
    note = judged_note(list(rows.values()))
    return Figure(
        title="Safety curve" + comparison.of_suite(axis, suite),
        drawing=charts.line_chart(
            series,
            x_title="pass rate \u03c4",
            y_title="facts with at least that pass rate, %",
            label=f"Share of facts by the least pass rate. {spoken}. {note}".strip(),
        ),
        caption="S(\u03c4): the share of facts that are warned of in at least \u03c4 of their messages "
        f"{CURVE_GROUPS[group]}. Higher is safer. Drawn at the points of the published grid; S(0) is always 100%. "
        "Intervals are in the table." + _not_drawn(comparison.arms, [arm.name for arm, _ in curves]),
        arms=[arm for arm, _ in curves],
        has_lines=True,
        columns=("arm", "\u03c4", "S(\u03c4)", "95% interval", "facts", "left out"),
        rows=[(arm.name, f"{tau:g}", *_cells(point)) for arm, curve in curves for tau, point in curve.items()],
        note=note,
    )


def _curve_rows(comparison: Comparison, suite: str) -> tuple[str, dict[float, MetricRow]]:
    """The rows of S at each grid point but 0, from the first group that has all of them; else empty."""
    for group in CURVE_GROUPS:
        # round, not int: 100 * 0.29 is 28.999999999999996
        by_tau = {tau: comparison.row(f"share_at_{round(100 * tau)}", group, suite) for tau in GRID[1:]}
        rows = {tau: row for tau, row in by_tau.items() if row is not None}
        if len(rows) == len(by_tau):
            return group, rows
    return "", {}


def _steps(points: dict[float, Estimate]) -> tuple[tuple[float, float], ...]:
    """The corners of the line, in percent. Between two points the line has the height of the upper one: S never
    rises.
    """
    curve = [(0.0, 100.0), *((tau, 100 * (point.value or 0.0)) for tau, point in points.items())]
    return (curve[0], *(corner for (x, _), (right, y) in pairwise(curve) for corner in ((x, y), (right, y))))

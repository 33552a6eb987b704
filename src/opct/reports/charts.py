"""Charts as inline SVG, without a plotting library: no script, sharp in print, readable on a phone, a few kilobytes
each.

Every chart is drawn in a frame of `WIDTH` units, the width of a phone's column, so that its text matches the size of
the surrounding text. Colors come from the page's style sheet (classes `arm-0`, `arm-1` ...), so that charts follow
dark mode and print. Arms also differ in marker shape and line dash, never in color alone: six shapes, filled and then
hollow.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Interval = tuple[float | None, float | None]
WIDTH, HEIGHT = 340, 230
SHAPES = 6
STYLES = 2 * SHAPES
DASHES = ("2 3", "7 3", "", "8 2 2 2", "4 2", "1 2")
ROW, HEADING, HEADING_ROW, GAP = 21, 25, 18, 10
MOST_LETTERS = 10  # of an arm's name beside its bar
LEAST_DRAWN = 60  # units for the bars, for which names give way
LETTER, HEADING_LETTER = 8.0, 9.2  # widths


@dataclass(frozen=True)
class Series:
    """A line: points in data units, in rising x."""

    label: str
    style: int
    points: tuple[tuple[float, float], ...]
    thin: bool = False


@dataclass(frozen=True)
class Point:
    """A marker with the interval of both of its coordinates (fractions of 1); a small one is a run of an arm."""

    label: str
    style: int
    x: float
    y: float
    x_interval: Interval
    y_interval: Interval
    small: bool = False


@dataclass(frozen=True)
class Bar:
    """A value with its interval; `label` stands before it, `text` behind. A `scale` of 100 draws a rate in percent."""

    label: str
    style: int
    value: float | None
    low: float | None
    high: float | None
    text: str
    scale: float = 100.0


@dataclass(frozen=True)
class BarGroup:
    """Bars under one heading; `note` stands at its right."""

    name: str
    bars: tuple[Bar, ...]
    note: str = ""

    def heading(self, width: float) -> list[str]:
        """The name, split into rows that leave room for the note."""
        room = width - LETTER * len(self.note)
        return textwrap.wrap(self.name, int(room / HEADING_LETTER)) or [""]

    def height(self, width: float) -> float:
        """Height in drawing units, with the gap below."""
        heading = HEADING + HEADING_ROW * (len(self.heading(width)) - 1) if self.name or self.note else 0
        return heading + ROW * len(self.bars) + GAP


def tag(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """An element; text and attribute values are escaped, `None` leaves an attribute out, `class_` is `class`."""
    parts = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(_coordinate(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    # `escape` leaves Markup as it is: drawings stay elements, and text of a model cannot become one
    inner = Markup("").join(escape(child) for child in children)
    # name and keys are not escaped: they come from this file alone
    return Markup(f"<{name}{''.join(parts)}>") + inner + Markup(f"</{name}>")


def _coordinate(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def ticks(low: float, high: float, wanted: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers that span `low` to `high`: about `wanted` steps of 1, 2 or 5 times a power of ten; with `whole`,
    integers only.
    """
    if high <= low:
        # equal ends: log10(0) fails, and the scales would divide by 0
        high = low + 1.0
    raw = max((high - low) / wanted, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * (1 - 1e-9))
    # 1e-9: 0.3 / 0.1 is 2.9999999999999996, and would lose or gain a tick
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # not a running sum, whose tick at 0 would be 1e-17: `_rows` draws the zero line where a tick equals 0
    return [round(i * step, 12) for i in range(first, last + 1)]


@dataclass(frozen=True)
class Frame:
    """The plotting area and its two linear scales, from data values to drawing units."""

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    left: float = 46
    top: float = 24
    right: float = WIDTH - 16
    bottom: float = HEIGHT - 42

    def x(self, value: float) -> float:
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        # minus: y grows downwards in SVG
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)


def _drawing(width: float, height: float, label: str, *children: Markup) -> Markup:
    return tag("svg", *children, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label, class_="chart")


def _line(x1: float, x2: float, y1: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=x1, x2=x2, y1=y1, y2=y2, class_=kind)


def _text(text: str, x: float, y: float, kind: str, anchor: str | None = None) -> Markup:
    return tag("text", text, x=x, y=y, text_anchor=anchor, class_=kind)


def _of_arm(style: int, label: str, *children: Markup, kind: str = "") -> Markup:
    """SVG group of an arm in its color; `label` is the tooltip."""
    return tag("g", tag("title", label), *children, class_=f"arm-{style % STYLES}{kind}")


def _axes(
    ticks_of: tuple[Sequence[float], Sequence[float]],
    titles: tuple[str, str],
    size: tuple[float, float] = (WIDTH, HEIGHT),
    *,
    suffix: str = "",
    hint: str = "",
) -> tuple[Frame, float, list[Markup]]:
    """The frame of these ticks and titles (of x, of y), its height and its drawing: a title takes the rows it needs.
    `hint` stands at the top right.
    """
    width, height = size
    below, above = (
        textwrap.wrap(title, int((width - room) / LETTER)) or [""]
        for title, room in zip(titles, (42, LETTER * (len(hint) + 1)), strict=True)
    )
    top, bottom = 24 + HEADING_ROW * (len(above) - 1), height - 42 + HEADING_ROW * (len(above) - 1)
    frame = Frame(*ticks_of, top=top, right=width - 16, bottom=bottom)
    parts = []
    for value in frame.y_ticks:
        at = frame.y(value)
        parts.append(_line(frame.left, frame.right, at, at, "grid"))
        parts.append(_text(f"{value:g}{suffix}", frame.left - 6, at + 5, "tick", "end"))
    parts += _x_labels(frame, bottom + 18, suffix)
    parts.append(_line(frame.left, frame.right, bottom, bottom, "axis"))
    middle = (frame.left + frame.right) / 2
    parts += [_text(row, middle, bottom + 37 + HEADING_ROW * i, "axis-title", "middle") for i, row in enumerate(below)]
    parts += [_text(row, 2, 12 + HEADING_ROW * i, "axis-title") for i, row in enumerate(above)]
    parts += [_text(hint, frame.right, 12, "hint", "end")] if hint else []
    return frame, bottom + 42 + HEADING_ROW * (len(below) - 1), parts


def _x_labels(frame: Frame, y: float, suffix: str) -> list[Markup]:
    """The numbers under a scale: each tick's, or as many as have room, zero among them."""
    labels = {v: ("\u2212" if v < 0 else "") + f"{abs(v):g}{suffix}" for v in frame.x_ticks}
    room = (frame.right - frame.left) / (len(labels) - 1)
    every = math.ceil((LETTER + 1.4) * (max(map(len, labels.values())) + 1) / room)
    zero = frame.x_ticks.index(0) if 0 in frame.x_ticks else 0
    shown = list(labels.items())[zero % every :: every]
    return [_text(label, frame.x(value), y, "tick", "middle") for value, label in shown]


def marker(style: int, x: float, y: float, size: float = 5.0) -> Markup:
    """Marker of an arm's style, centered at (x, y)."""
    shape = style % SHAPES
    kind = "mark" if style % STYLES < SHAPES else "mark hollow"
    if shape == 0:
        return tag("circle", cx=x, cy=y, r=size, class_=kind)
    if shape == 1:
        return tag("rect", x=x - size * 0.9, y=y - size * 0.9, width=size * 1.8, height=size * 1.8, class_=kind)
    corners = {
        2: [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)],
        3: [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
        4: [(0, 1.2), (1.1, -0.9), (-1.1, -0.9)],
        5: [(-0.9, -1.2), (0.9, -1.2), (1.2, 0), (0.9, 1.2), (-0.9, 1.2), (-1.2, 0)],
    }[shape]
    points = " ".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in corners)
    return tag("polygon", points=points, class_=kind)


def dash(style: int) -> str | None:
    """The dashes of an arm's line; None for a solid one."""
    return DASHES[style % SHAPES] or None


def key(style: int, *, line: bool = False) -> Markup:
    """Legend swatch: the marker of a style, optionally with its line."""
    stroke = tag("line", x1=0, x2=26, y1=8, y2=8, class_="stroke", stroke_dasharray=dash(style))
    drawn = (stroke, marker(style, 13, 8, 3.5)) if line else (marker(style, 13, 8, 5),)
    return tag(
        "svg", *drawn, viewBox="0 0 26 16", width=26, height=16, class_=f"key arm-{style % STYLES}", aria_hidden="true"
    )


def line_chart(
    series: Sequence[Series], *, x_title: str, y_title: str, label: str, width: float = WIDTH, height: float = HEIGHT
) -> Markup:
    """Line chart over a shared x, from zero up; each line ends in its marker. `label` is the text for screen
    readers.
    """
    points = [point for line in series for point in line.points]
    xs, ys = zip(*points, strict=True)
    x_ticks = ticks(min(xs), max(xs), whole=all(x == int(x) for x in xs))
    y_ticks = ticks(min(0.0, *ys), max(ys) or 1.0)
    frame, height, axes = _axes((x_ticks, y_ticks), (x_title, y_title), (width, height))

    def path(coordinates: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in coordinates)

    drawn = []
    for curve in series:
        kind, size = ("stroke thin", 2.5) if curve.thin else ("stroke", 3.5)
        last = curve.points[-1]
        line = tag("polyline", points=path(curve.points), class_=kind, stroke_dasharray=dash(curve.style))
        end = marker(curve.style, frame.x(last[0]), frame.y(last[1]), size)
        drawn.append(_of_arm(curve.style, curve.label, line, end))
    return _drawing(width, height, label, *axes, *drawn)


def scatter(points: Sequence[Point], *, x_title: str, y_title: str, label: str, down_is_better: bool) -> Markup:
    """Markers with the interval of both coordinates as a cross; rates are drawn in percent."""
    xs = [value * 100 for p in points for value in (p.x, *p.x_interval) if value is not None]
    ys = [value * 100 for p in points for value in (p.y, *p.y_interval) if value is not None]
    scales = ticks(min(xs), max(xs)), ticks(min([0.0, *ys]), max(ys))
    hint = "better " + ("\u2198" if down_is_better else "\u2197")
    frame, height, axes = _axes(scales, (x_title, y_title), suffix="%", hint=hint)
    drawn = []
    for p in points:
        x, y = frame.x(p.x * 100), frame.y(p.y * 100)
        left, right = (None if bound is None else frame.x(bound * 100) for bound in p.x_interval)
        low, high = (None if bound is None else frame.y(bound * 100) for bound in p.y_interval)
        cross = [] if left is None or right is None else [_line(left, right, y, y, "whisker")]
        cross += [] if low is None or high is None else [_line(x, x, low, high, "whisker")]
        size, kind = (3.0, " run") if p.small else (5.0, "")
        drawn.append(_of_arm(p.style, p.label, *cross, marker(p.style, x, y, size), kind=kind))
    return _drawing(WIDTH, height, label, *axes, *drawn)


def highest(groups: Sequence[BarGroup]) -> float:
    """The end of the longest bar or whisker, in percent or the bars' own unit."""
    return max(_ends(groups), default=100.0)


def _ends(groups: Sequence[BarGroup]) -> list[float]:
    bars = [bar for group in groups for bar in group.bars]
    return [value * bar.scale for bar in bars for value in (bar.low, bar.high, bar.value) if value is not None]


def interval_bars(groups: Sequence[BarGroup], *, label: str, top: float | None = None, width: float = WIDTH) -> Markup:
    """Bars from zero with whiskers, all of one unit, with the numbers next to them.

    Args:
        top: lower bound of the scale's end, so that two charts share a scale.
        width: of the drawing, in its units; letters keep their size.
    """
    top = highest(groups) if top is None else top
    are_rates = all(bar.scale == 100 for group in groups for bar in group.bars)
    # from 0, and to 10% at least: a cut scale would make small rates look large
    return _rows(groups, label, ticks(0, max(top, 10.0 * are_rates), 4), "%" * are_rates, _bar, width)


def forest(groups: Sequence[BarGroup], *, label: str) -> Markup:
    """Differences as markers with whiskers around a line at zero, in percentage points or the bars' own unit."""
    ends = [0.0, *_ends(groups)]
    return _rows(groups, label, ticks(min(ends), max(ends), 4), "", _difference)


def _rows(
    groups: Sequence[BarGroup],
    label: str,
    x_ticks: Sequence[float],
    suffix: str,
    draw: Callable[[Bar, float, Frame], list[Markup]],
    width: float = WIDTH,
) -> Markup:
    """One row per bar, under the heading of its group, with one scale at the bottom."""
    height = sum(group.height(width) for group in groups) + 24
    bars = [bar for group in groups for bar in group.bars]
    text_width = LETTER * max(len(bar.text) for bar in bars)
    room = int((width - 38 - text_width - LEAST_DRAWN) / LETTER)
    letters = max(1, min(max(len(bar.label) for bar in bars), MOST_LETTERS, room))
    name_width = LETTER * letters
    frame = Frame(x_ticks, (0.0, 1.0), left=28 + name_width, top=0, right=width - 10 - text_width, bottom=height - 20)
    parts, y = _x_labels(frame, frame.bottom + 16, suffix), 0.0
    for group in groups:
        for row, text in enumerate(group.heading(width)):
            parts.append(_text(text, 0, y + 14 + HEADING_ROW * row, "group"))
        if group.note:
            parts.append(_text(group.note, width, y + 14, "hint", "end"))
        below = y + group.height(width)
        first = below - ROW * len(group.bars) - GAP
        for value in frame.x_ticks:  # not behind the heading
            at = frame.x(value)
            parts.append(_line(at, at, first - 2, below - 2, "axis" if value == 0 else "grid"))
        for i, bar in enumerate(group.bars):
            middle = first + ROW * (i + 0.5) - 1
            name = bar.label[: letters - 1] + "\u2026" if len(bar.label) > letters else bar.label
            key_of_arm = (marker(bar.style, 6, middle, 3.5), _text(name, 15, middle + 4, "name"))
            number = _text(bar.text, frame.right + 8, middle + 4, "value")
            drawn = (*key_of_arm, *draw(bar, middle, frame), number)
            parts.append(_of_arm(bar.style, f"{bar.label}: {bar.text}", *drawn))
        y = below
    return _drawing(width, height, label, *parts)


def _bar(bar: Bar, middle: float, frame: Frame) -> list[Markup]:
    parts = []
    if bar.value is not None:
        # a bar of 0 stays visible
        width = max(frame.x(bar.value * bar.scale) - frame.left, 0.8)
        parts.append(tag("rect", x=frame.left, y=middle - ROW / 2 + 3, width=width, height=ROW - 6, class_="bar"))
    return [*parts, *_whisker(bar, middle, frame, "whisker")]


def _difference(bar: Bar, middle: float, frame: Frame) -> list[Markup]:
    mark = [] if bar.value is None else [marker(bar.style, frame.x(bar.value * bar.scale), middle, 4)]
    return [*_whisker(bar, middle, frame, "stroke"), *mark]


def _whisker(bar: Bar, middle: float, frame: Frame, kind: str) -> list[Markup]:
    # no interval: a whisker of no length would read as certain
    if bar.low is None or bar.high is None:
        return []
    # not over the names: the interval of a mean of 0 or more can end below 0
    left, right = (max(frame.x(bound * bar.scale), frame.left) for bound in (bar.low, bar.high))
    return [_line(left, right, middle, middle, kind)]

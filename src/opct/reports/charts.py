"""Charts as inline SVG, drawn by hand: no script, sharp in print, readable on a phone, a few kilobytes each.

Every chart is drawn in a frame of `WIDTH` units, the width of a phone's column, so that its text is as large there as
the text around it. Colours come from the page's style sheet (classes `arm-0`, `arm-1` ...), so that charts follow dark
mode and print. An arm is told apart by the shape of its marker and the dash of its line too, never by colour alone:
six shapes, filled and then hollow.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 340
SHAPES = 6
STYLES = 2 * SHAPES
DASHES = ("2 3", "7 3", "", "8 2 2 2", "4 2", "1 2")
OTHER_DASH = "14 5"
LIFT = 5
"""Between the axis and 0 in a chart with bands, where a line that stays at 0 is to be seen."""
ROW, HEADING, HEADING_ROW, GAP = 17, 20, 14, 8
HEADING_CHARACTERS = 37


@dataclass(frozen=True)
class Series:
    """A line: points in data units, in rising x. One of another case has dashes and a marker that no arm's line has."""

    label: str
    style: int
    points: tuple[tuple[float, float], ...]
    thin: bool = False
    other_case: bool = False

    @property
    def dash(self) -> str:
        """Of its stroke; empty for none."""
        return OTHER_DASH if self.other_case else DASHES[self.style % SHAPES]

    @property
    def marker_style(self) -> int:
        """The arm's, filled where that is hollow and hollow where it is filled, for another case."""
        return self.style + SHAPES if self.other_case else self.style


@dataclass(frozen=True)
class Band:
    """A shaded area between two lines of points in data units, both in rising x."""

    label: str
    style: int
    low: tuple[tuple[float, float], ...]
    high: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Point:
    """A marker with the interval of both of its coordinates (fractions of 1); a small one is a run of an arm."""

    label: str
    style: int
    x: float
    y: float
    x_interval: tuple[float, float] | None
    y_interval: tuple[float, float] | None
    small: bool = False


@dataclass(frozen=True)
class Bar:
    """A value with its interval; `text` is printed beside it."""

    label: str
    style: int
    value: float | None
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True)
class BarGroup:
    """Bars under one heading; `note` stands at its right."""

    name: str
    bars: tuple[Bar, ...]
    note: str = ""

    @property
    def heading(self) -> list[str]:
        """The name in rows that leave room for the note."""
        return textwrap.wrap(self.name, HEADING_CHARACTERS) or [""]

    @property
    def height(self) -> float:
        """Drawing units, with the gap below."""
        return HEADING + HEADING_ROW * (len(self.heading) - 1) + ROW * len(self.bars) + GAP


def tag(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """An element; text and attribute values are escaped, `None` leaves an attribute out, `class_` is `class`."""
    parts = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(_coordinate(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    inner = Markup("").join(escape(child) for child in children)
    return Markup(f"<{name}{''.join(parts)}>") + inner + Markup(f"</{name}>")


def _coordinate(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def ticks(low: float, high: float, wanted: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers that span `low` to `high`: about `wanted` steps of 1, 2 or 5 times a power of ten; `whole` numbers
    where asked for.
    """
    if high <= low:
        high = low + 1.0
    raw = max((high - low) / wanted, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


@dataclass(frozen=True)
class Frame:
    """The plotting area and its two linear scales."""

    left: float
    top: float
    right: float
    bottom: float
    x_ticks: tuple[float, ...]
    y_ticks: tuple[float, ...]
    lift: float = 0.0

    def x(self, value: float) -> float:
        """Data to drawing units, across."""
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Data to drawing units, down."""
        low, high = self.y_ticks[0], self.y_ticks[-1]
        bottom = self.bottom - self.lift
        return bottom - (value - low) / (high - low) * (bottom - self.top)


def _drawing(height: float, label: str, *children: Markup) -> Markup:
    return tag("svg", *children, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=label, class_="chart")


def _axes(frame: Frame, x_title: str, y_title: str, x_suffix: str = "", y_suffix: str = "") -> Markup:
    parts = []
    for value in frame.y_ticks:
        at = frame.y(value)
        parts.append(tag("line", x1=frame.left, x2=frame.right, y1=at, y2=at, class_="grid"))
        parts.append(tag("text", f"{value:g}{y_suffix}", x=frame.left - 6, y=at + 4, text_anchor="end", class_="tick"))
    for value in frame.x_ticks:
        at = frame.x(value)
        parts.append(
            tag("text", f"{value:g}{x_suffix}", x=at, y=frame.bottom + 16, text_anchor="middle", class_="tick")
        )
    parts.append(tag("line", x1=frame.left, x2=frame.right, y1=frame.bottom, y2=frame.bottom, class_="axis"))
    parts.append(
        tag(
            "text",
            x_title,
            x=(frame.left + frame.right) / 2,
            y=frame.bottom + 34,
            text_anchor="middle",
            class_="axis-title",
        )
    )
    parts.append(tag("text", y_title, x=2, y=12, class_="axis-title"))
    return Markup("").join(parts)


def marker(style: int, x: float, y: float, size: float = 5.0) -> Markup:
    """The shape of an arm's style, centred at (x, y)."""
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
    return tag(
        "polygon", points=" ".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in corners), class_=kind
    )


def key(style: int, *, line: bool = False) -> Markup:
    """A small swatch for a legend: the marker of a style, with its dashed line where asked for."""
    dash = tag("line", x1=0, x2=26, y1=8, y2=8, class_="stroke", stroke_dasharray=DASHES[style % SHAPES] or None)
    drawn = (dash, marker(style, 13, 8, 3.5)) if line else (marker(style, 13, 8, 5),)
    return tag(
        "svg", *drawn, viewBox="0 0 26 16", width=26, height=16, class_=f"key arm-{style % STYLES}", aria_hidden="true"
    )


def line_chart(
    series: Sequence[Series], *, x_title: str, y_title: str, label: str, bands: Sequence[Band] = ()
) -> Markup:
    """Lines over a shared x, from zero up; each ends in its marker. `label` is what a screen reader says."""
    points = [point for line in series for point in line.points]
    points += [point for band in bands for point in (*band.low, *band.high)]
    xs = [x for x, _ in points]
    height = 230
    frame = Frame(
        left=42,
        top=24,
        right=WIDTH - 12,
        bottom=height - 42,
        x_ticks=tuple(ticks(min(xs), max(xs), whole=all(x == int(x) for x in xs))),
        y_ticks=tuple(ticks(min([0.0, *(y for _, y in points)]), max(y for _, y in points) or 1.0)),
        lift=LIFT if bands else 0.0,
    )

    def path(own: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in own)

    lines = [
        tag(
            "g",
            tag("title", band.label),
            tag("polygon", points=path((*band.low, *reversed(band.high))), class_="band"),
            class_=f"arm-{band.style % STYLES}",
        )
        for band in bands
    ]
    for line in series:
        last = line.points[-1]
        lines.append(
            tag(
                "g",
                tag("title", line.label),
                tag(
                    "polyline",
                    points=path(line.points),
                    class_="stroke thin" if line.thin else "stroke",
                    stroke_dasharray=line.dash or None,
                ),
                marker(line.marker_style, frame.x(last[0]), frame.y(last[1]), 2.5 if line.thin else 3.5),
                class_=f"arm-{line.style % STYLES}",
            )
        )
    return _drawing(height, label, _axes(frame, x_title, y_title), *lines)


def scatter(points: Sequence[Point], *, x_title: str, y_title: str, label: str, down_is_better: bool = True) -> Markup:
    """Markers with the interval of both coordinates as a cross; rates are drawn in percent."""
    height = 230
    xs = [value * 100 for p in points for value in (p.x, *(p.x_interval or ()))]
    ys = [value * 100 for p in points for value in (p.y, *(p.y_interval or ()))]
    frame = Frame(
        left=42,
        top=24,
        right=WIDTH - 16,
        bottom=height - 42,
        x_ticks=tuple(ticks(min(xs), max(xs))),
        y_ticks=tuple(ticks(min([0.0, *ys]), max(ys))),
    )
    drawn = []
    for p in points:
        x, y = frame.x(p.x * 100), frame.y(p.y * 100)
        cross = []
        if p.x_interval:
            left, right = (frame.x(bound * 100) for bound in p.x_interval)
            cross.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="whisker"))
        if p.y_interval:
            low, high = (frame.y(bound * 100) for bound in p.y_interval)
            cross.append(tag("line", x1=x, x2=x, y1=low, y2=high, class_="whisker"))
        size, kind = (3.0, " run") if p.small else (5.0, "")
        mark = marker(p.style, x, y, size)
        drawn.append(tag("g", tag("title", p.label), *cross, mark, class_=f"arm-{p.style % STYLES}{kind}"))
    arrow = "\u2198" if down_is_better else "\u2197"
    hint = tag("text", f"better {arrow}", x=frame.right, y=12, text_anchor="end", class_="hint")
    return _drawing(height, label, _axes(frame, x_title, y_title, "%", "%"), hint, *drawn)


def _groups_height(groups: Sequence[BarGroup]) -> float:
    return sum(group.height for group in groups) + 24


def _group_rows(groups: Sequence[BarGroup], frame: Frame, draw_bar) -> list[Markup]:  # type: ignore[no-untyped-def]
    parts, y = [], 0.0
    for group in groups:
        for row, text in enumerate(group.heading):
            parts.append(tag("text", text, x=0, y=y + 14 + HEADING_ROW * row, class_="group"))
        if group.note:
            parts.append(tag("text", group.note, x=WIDTH, y=y + 14, text_anchor="end", class_="hint"))
        y += HEADING + HEADING_ROW * (len(group.heading) - 1)
        for bar in group.bars:
            parts.append(draw_bar(bar, y, frame))
            y += ROW
        y += GAP
    return parts


def _bottom_ticks(frame: Frame, suffix: str) -> list[Markup]:
    parts = []
    for value in frame.x_ticks:
        at = frame.x(value)
        parts.append(tag("line", x1=at, x2=at, y1=0, y2=frame.bottom, class_="axis" if value == 0 else "grid"))
        sign = "\u2212" if value < 0 else ""
        parts.append(
            tag("text", f"{sign}{abs(value):g}{suffix}", x=at, y=frame.bottom + 15, text_anchor="middle", class_="tick")
        )
    return parts


def highest(groups: Sequence[BarGroup]) -> float:
    """The end of the longest bar or whisker, in percent."""
    return max(
        (value * 100 for g in groups for b in g.bars for value in (b.high, b.value) if value is not None), default=100.0
    )


def interval_bars(groups: Sequence[BarGroup], *, label: str, top: float | None = None) -> Markup:
    """Bars from zero with whiskers, in percent; the numbers stand beside them.

    Args:
        top: what the scale goes up to at least, in percent, so that two drawings have one scale.
    """
    height = _groups_height(groups)
    top = highest(groups) if top is None else top
    frame = Frame(
        left=16, top=0, right=222, bottom=height - 20, x_ticks=tuple(ticks(0, max(top, 10.0), 4)), y_ticks=(0.0, 1.0)
    )
    return _drawing(height, label, *_bottom_ticks(frame, "%"), *_group_rows(groups, frame, _bar))


def _bar(bar: Bar, y: float, frame: Frame) -> Markup:
    middle = y + ROW / 2 - 1
    parts = [tag("title", f"{bar.label}: {bar.text}"), marker(bar.style, 6, middle, 3.5)]
    if bar.value is not None:
        parts.append(
            tag(
                "rect",
                x=frame.left,
                y=y + 2,
                width=max(frame.x(bar.value * 100) - frame.left, 0.8),
                height=ROW - 6,
                class_="bar",
            )
        )
    if bar.low is not None and bar.high is not None:
        parts.append(
            tag("line", x1=frame.x(bar.low * 100), x2=frame.x(bar.high * 100), y1=middle, y2=middle, class_="whisker")
        )
    parts.append(tag("text", bar.text, x=frame.right + 8, y=middle + 4, class_="value"))
    return tag("g", *parts, class_=f"arm-{bar.style % STYLES}")


def forest(groups: Sequence[BarGroup], *, label: str) -> Markup:
    """Differences as markers with whiskers around a line at zero, in percentage points."""
    height = _groups_height(groups)
    values = [value * 100 for g in groups for b in g.bars for value in (b.low, b.high, b.value) if value is not None]
    frame = Frame(
        left=16,
        top=0,
        right=222,
        bottom=height - 20,
        x_ticks=tuple(ticks(min([0.0, *values]), max([0.0, *values]), 4)),
        y_ticks=(0.0, 1.0),
    )
    return _drawing(height, label, *_bottom_ticks(frame, ""), *_group_rows(groups, frame, _forest_row))


def _forest_row(bar: Bar, y: float, frame: Frame) -> Markup:
    middle = y + ROW / 2 - 1
    parts = [tag("title", f"{bar.label}: {bar.text}")]
    if bar.low is not None and bar.high is not None:
        parts.append(
            tag("line", x1=frame.x(bar.low * 100), x2=frame.x(bar.high * 100), y1=middle, y2=middle, class_="stroke")
        )
    if bar.value is not None:
        parts.append(marker(bar.style, frame.x(bar.value * 100), middle, 4))
    parts.append(tag("text", bar.text, x=frame.right + 8, y=middle + 4, class_="value"))
    return tag("g", *parts, class_=f"arm-{bar.style % STYLES}")

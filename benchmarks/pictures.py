"""The diagrams of the docs, as SVG: boxes, arrows and, for the method, the tokens of a real answer. Each is drawn
twice, as wide as a page's text on a desktop and on a phone: no letter is shown smaller than 14 pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from markupsafe import Markup

import opct.reports
from opct.reports.charts import HEIGHT, WIDTH, Bar, Point, Series, line_chart, marker, scatter, tag

STYLE = Path(opct.reports.__file__).parent / "templates" / "style.css"
DARK = "@media screen and (prefers-color-scheme: dark)"
OWN_STYLE = """
svg { background: var(--card); font-family: system-ui, sans-serif; }
text { fill: var(--ink); font-size: 14px; } .large text { font-size: 15px; }
.title { font-weight: 650; } .note { fill: var(--muted); } .large .note { font-size: 14px; }
.good { fill: var(--good); } .bad, .hint { fill: var(--bad); } .hint { font-style: italic; }
.box { fill: var(--soft); stroke: var(--line); } .policy { fill: var(--user); } .teacher { fill: var(--system); }
.arrow { stroke: var(--muted); stroke-width: 1.5; fill: none; marker-end: url(#head); } .head { fill: var(--muted); }
.heat { fill: rgb(var(--kl)); } .chart { max-width: none; }
"""
WIDE, NARROW = 680, 350  # what a page of the docs has for its text, on a desktop and on a phone of 390 pixels
LINE, CHARACTER, SCALE = 19, 8.6, 400
HEADING = ("Wrong answers that pressure", "adds, in 100 questions")
LEGEND = "Color: how far a word is from what the model says without the pressure."


def as_file(width: float, height: float, label: str, *parts: Markup, is_dark: bool | None = None) -> str:
    """A picture as a file with the report's colors, light and dark; the reader's system chooses where `is_dark` does
    not.
    """
    head = tag(
        "marker",
        tag("path", d="M0,0 L8,4 L0,8 z", class_="head"),
        id="head", viewBox="0 0 8 8", refX=7, refY=4, markerWidth=7, markerHeight=7, orient="auto",
    )  # fmt: skip
    rules = STYLE.read_text(encoding="utf-8") + OWN_STYLE
    if is_dark is not None:
        rules = rules.replace(DARK, "@media all" if is_dark else "@media not all")
    style = Markup("<style>") + Markup(rules) + Markup("</style>")
    drawing = tag("svg", style, tag("defs", head), *parts, xmlns="http://www.w3.org/2000/svg", width=width,
                  height=height, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label)  # fmt: skip
    return f"{drawing}\n"


def text(x: float, y: float, words: str, kind: str = "", anchor: str | None = None) -> Markup:
    return tag("text", words, x=x, y=y, class_=kind or None, text_anchor=anchor)


def box(x: float, y: float, width: float, title: str, lines: Sequence[str] = (), kind: str = "") -> Markup:
    """A rounded box with a title and lines of text; its height follows from them."""
    inner = [text(x + 12, y + 22, title, "title")]
    inner += [text(x + 12, y + 22 + LINE * (i + 1), line) for i, line in enumerate(lines)]
    frame = tag("rect", x=x, y=y, width=width, height=box_height(lines), rx=10, class_=f"box {kind}".strip())
    return tag("g", frame, *inner)


def cell(x: float, y: float, width: float, words: str, kind: str = "") -> Markup:
    """A rounded box with words, in as many rows as they need; `cell_height` is its height."""
    frame = tag("rect", x=x, y=y, width=width, height=cell_height(width, words), rx=10, class_=f"box {kind}".strip())
    return tag("g", frame, *(text(x + 12, y + 22 + LINE * i, row) for i, row in enumerate(_rows(width, words))))


def cell_height(width: float, words: str) -> float:
    return 15.0 + LINE * len(_rows(width, words))


def _rows(width: float, words: str) -> list[str]:
    return wrap(words, int((width - 24) / 8), break_on_hyphens=False)


def box_height(lines: Sequence[str]) -> float:
    return 34.0 + LINE * len(lines)


def stacked(parts: Sequence[tuple[str, str]], y: float, x: float = 10) -> tuple[list[Markup], float]:
    """A column for a phone, from `y` down, and where it ends: (kind, words), where the kind is a class of text
    ("title", "note") or of a box ("box ...").
    """
    width, drawn = NARROW - x - 10, []
    for kind, words in parts:
        if kind.startswith("box"):
            drawn.append(cell(x, y, width, words, kind.removeprefix("box").strip()))
            y += cell_height(width, words) + 8
        else:
            drawn.append(text(x, y + 18, words, kind))
            y += 28
    return drawn, y


def arrow(x1: float, y1: float, x2: float, y2: float, words: str = "") -> Markup:
    line = tag("path", d=f"M{x1:g},{y1:g} L{x2:g},{y2:g}", class_="arrow")
    return tag("g", line, *([text((x1 + x2) / 2, (y1 + y2) / 2 - 7, words, "note", "middle")] if words else []))


def tokens(x: float, y: float, answer: Sequence[tuple[str, float]], width: float) -> Markup:
    """The tokens of an answer, each behind a color as strong as its KL, in lines of at most `width`."""
    parts, at = [], x
    for piece, nats in answer:
        long = CHARACTER * len(piece.strip()) + 4
        if at + long > x + width:
            at, y = x, y + 28
        elif piece[:1] == " ":
            at += CHARACTER / 2
        opacity = min(nats / 4, 0.7)
        parts.append(tag("rect", x=at, y=y, width=long, height=24, rx=3, class_="heat", fill_opacity=opacity))
        parts.append(text(at + long / 2, y + 17, piece.strip(), anchor="middle"))
        at += long
    return tag("g", *parts)


def hero(example: Mapping[str, Any], bars: Sequence[Bar], note: Sequence[str], *, is_wide: bool, is_dark: bool) -> str:
    """One question before and after training, and how often each arm gives in: for a desktop, or for a phone. Light and
    dark are two files, as a page may be switched against the reader's system.
    """
    width, room = (840, 500) if is_wide else (NARROW, 316)
    places = enumerate(example["prompt"].split("\n"))
    asked = [(line, i == 1) for i, part in places for line in wrap(part, 60 if is_wide else 36)]
    parts = [tag("rect", x=20, y=16, width=room, height=18 + 22 * len(asked), rx=14, class_="box policy")]
    parts += [text(36, 40 + 22 * i, line, "hint" if is_hint else "") for i, (line, is_hint) in enumerate(asked)]
    y = 62 + 22 * len(asked)
    for name, title, kind in (("before", "\u2717  before training", "bad"), ("after", "\u2713  after OPCT", "good")):
        parts += [text(20, y, title, f"title {kind}"), tokens(20, y + 10, example[name], room)]
        y += 66 if is_wide else 94
    parts += [text(20, y + 19 * i, line, "note") for i, line in enumerate(wrap(LEGEND, 46 if is_wide else 40))]
    x, y = (570, 36) if is_wide else (20, y + 76)
    parts += [text(x, y + 21 * i, line, "title") for i, line in enumerate(HEADING)]
    y += 56
    for bar in bars:
        long, low, high = (SCALE * (value or 0) for value in (bar.value, bar.low, bar.high))
        whisker = tag("path", d=f"M{x + low:g},{y + 20} L{x + high:g},{y + 20}", class_="whisker")
        shape = tag("rect", x=x, y=y + 8, width=long, height=24, rx=4, class_="bar")
        parts += [text(x, y, bar.label), tag("g", shape, whisker, class_=f"arm-{bar.style}")]
        parts.append(text(x + high + 10, y + 27, f"{100 * (bar.value or 0):.0f}", "title"))
        y += 60
    parts += [text(x, y + 19 * i, line, "note") for i, line in enumerate(note)]
    drawing = tag("g", *parts, class_="large")
    label = "One question before and after training, and what pressure adds"
    return as_file(width, y + 19 * len(note), label, drawing, is_dark=is_dark)


def runs(panels: Mapping[str, Sequence[Point]], *, is_wide: bool) -> str:
    """Every run of an attack's arms, a panel an attacker: what it answers, and what it defends."""
    columns = 2 if is_wide else 1
    parts, top = _legend({p.style: p.label for own in panels.values() for p in own}, is_wide=is_wide)
    for i, (title, points) in enumerate(panels.items()):
        x, y = WIDTH * (i % columns), top + (HEIGHT + 44) * (i // columns)
        x_title, y_title = "benign counterparts answered", "behaviors defended"
        drawing = str(scatter(points, x_title=x_title, y_title=y_title, label=title, down_is_better=False))
        size = f'x="{x}" y="{y + 24}" width="{WIDTH}" height="{HEIGHT}"'
        parts += [text(x + 2, y + 14, title, "title"), Markup(drawing.replace("<svg", f"<svg {size}", 1))]
    rows = -(-len(panels) // columns)
    height = top + (HEIGHT + 44) * rows
    return as_file(WIDE if is_wide else NARROW, height, "What each run defends, and what it answers", *parts)


def _legend(arms: Mapping[int, str], *, is_wide: bool) -> tuple[list[Markup], float]:
    """The marker and the name of each style, and where it ends."""
    columns, step = (4, 165) if is_wide else (2, 165)
    parts = []
    for i, (style, name) in enumerate(arms.items()):
        x, y = 16 + step * (i % columns), 20 + 24 * (i // columns)
        parts += [tag("g", marker(style, x, y), class_=f"arm-{style}"), text(x + 12, y + 5, name)]
    return parts, 18.0 + 24 * (-(-len(arms) // columns))


def curves(series: Sequence[Series], *, x_title: str, y_title: str, is_wide: bool) -> str:
    """A line for each of some methods over a shared x, with a legend above."""
    width, high = (WIDE, 340) if is_wide else (NARROW, HEIGHT)
    parts, y = _legend({line.style: line.label for line in series}, is_wide=is_wide)
    drawing = str(line_chart(series, x_title=x_title, y_title=y_title, label=y_title, width=width - 10, height=high))
    room = high + 20
    parts.append(Markup(drawing.replace("<svg", f'<svg x="5" y="{y:g}" width="{width - 10}" height="{room}"', 1)))
    return as_file(width, y + room, f"{y_title}, by {x_title}", *parts)


def splits(*, is_wide: bool) -> str:
    """Questions and kinds of pressure, trained on and held out."""
    columns, rows = ("training kinds of pressure", "held-out kinds"), ("training questions", "validation", "test")
    said = [["pairs are made of these", "not used"], ["settings are chosen here", "settings are chosen here"],
            ["reported by kind", "the headline numbers"]]  # fmt: skip
    kinds = {(0, 0): "policy", (1, 2): "teacher"}
    label = "Which questions and kinds of pressure are trained on, and which are measured"
    if is_wide:
        parts = [text(176 + 252 * i, 24, name, "title") for i, name in enumerate(columns)]
        for j, name in enumerate(rows):
            parts.append(text(10, 62 + 54 * j, name, "title"))
            for i, words in enumerate(said[j]):
                parts.append(cell(170 + 252 * i, 40 + 54 * j, 240, words, kinds.get((i, j), "")))
        return as_file(WIDE, 200, label, *parts)
    parts, y = [], 6.0
    for i, column in enumerate(columns):
        parts.append(text(10, y + 18, column, "title"))
        y += 30
        for j, name in enumerate(rows):
            parts += [text(10, y + 22, name, "note"), cell(146, y, 196, said[j][i], kinds.get((i, j), ""))]
            y += cell_height(196, said[j][i]) + 8
        y += 10
    return as_file(NARROW, y, label, *parts)


def attack_loop(*, is_wide: bool) -> str:
    """An episode of an attack."""
    said = (
        ("Attacker", ["reads its attempts,", "replies and scores;", "writes a prompt"], "policy"),
        ("Your model", ["answers it"], ""),
        ("Judge", ["scores the reply", "against the bare", "request"], "teacher"),
    )
    label, note = "An attack: attacker, your model and judge in a loop", "next round: up to 3 in each of 8 episodes"
    if is_wide:
        places = ((10, 190), (276, 140), (492, 178))
        parts = [box(x, 14, width, *own) for (x, width), own in zip(places, said, strict=True)]
        parts += [arrow(202, 46, 272, 46, "prompt"), arrow(418, 46, 488, 46, "reply")]
        parts.append(tag("path", d="M580,107 L580,146 L105,146 L105,113", class_="arrow"))
        parts.append(text(342, 139, note, "note", "middle"))
        return as_file(WIDE, 160, label, *parts)
    parts, y = [], 10.0
    for own, sent in zip(said, ("prompt", "reply", ""), strict=True):
        parts.append(box(46, y, 250, *own))
        y += box_height(own[1])
        if sent:
            parts += [arrow(120, y + 2, 120, y + 34), text(132, y + 24, sent, "note")]
            y += 38
    parts.append(tag("path", d=f"M44,{y - 40:g} L18,{y - 40:g} L18,46 L40,46", class_="arrow"))
    parts.append(text(10, y + 24, note, "note"))
    return as_file(NARROW, y + 38, label, *parts)


def methods(*, is_wide: bool) -> str:
    """What each method trains on."""
    rows = (
        ("opct", "the model's own answers to the pressured prompt", "KL to the base under the clean prompt"),
        ("offpolicy", "the base's answers to the clean prompt", "KL to the base under the clean prompt"),
        ("sft", "the base's answers to the clean prompt", "cross-entropy after the pressured prompt"),
        ("dpo", "the base's answers to both prompts", "clean answer preferred over pressured one"),
        ("act", "no answers", "activations as under the clean prompt"),
    )
    label = "What each method trains on, and its loss"
    if is_wide:
        parts, y = [text(112, 24, "trains on", "title"), text(410, 24, "loss", "title")], 38.0
        for name, answers, loss in rows:
            height = max(cell_height(260, answers), cell_height(260, loss))
            parts += [text(10, y + 22, name, "title"), cell(104, y, 260, answers, "policy")]
            parts += [arrow(366, y + 17, 398, y + 17), cell(402, y, 268, loss, "teacher")]
            y += height + 8
        return as_file(WIDE, y + 2, label, *parts)
    parts, y = [], 4.0
    for name, answers, loss in rows:
        own, y = stacked((("title", name), ("box policy", f"on: {answers}"), ("box teacher", f"loss: {loss}")), y)
        parts += own
        y += 4
    return as_file(NARROW, y, label, *parts)


def run_folder(*, is_wide: bool) -> str:
    """Which command writes and which reads the files of a run."""
    rows = (
        ("opct train", "Training", ["config.yaml  manifest.json", "metrics.jsonl  rollouts/  checkpoints/"],
         "eval, attack, chat, export"),
        ("opct eval", "Evaluation", ["results.json  evals/"], "opct report"),
        ("opct attack", "Attacks", ["evals/attack_*.eval  attacks/"], "opct report"),
    )  # fmt: skip
    label = "Which command writes and which reads the files of a run"
    names = ("written by", "runs/mine/", "read by") if is_wide else ()
    parts, y = [text(x, 24, name, "title") for x, name in zip((10, 166, 530), names, strict=False)], 38.0 * is_wide
    for writer, title, files, reader in rows:
        middle = y + box_height(files) / 2
        if is_wide:
            parts += [cell(10, middle - 17, 112, writer, "policy"), arrow(124, middle, 156, middle)]
            parts += [box(160, y, 326, title, files), arrow(488, middle, 520, middle)]
            parts.append(cell(524, middle - cell_height(148, reader) / 2, 148, reader, "teacher"))
            y += box_height(files) + 12
        else:
            own, y = stacked([("title", f"{title}, by {writer}")], y)
            parts += [*own, box(10, y, NARROW - 20, "runs/mine/", files)]
            own, y = stacked([("note", f"read by {reader}")], y + box_height(files))
            parts += own
            y += 8
    return as_file(WIDE if is_wide else NARROW, y + 2, label, *parts)


def memory(*, is_wide: bool) -> str:
    """What is in memory while a step samples and while it trains, and the setting that makes each part smaller."""
    phases = (
        ("while sampling", "keys and values", "of the replies sampled at once", ("rollout.batch_tokens",)),
        ("while training", "activations", "of one micro-batch",
         ("optim.micro_batch_tokens", "optim.gradient_checkpointing")),
    )  # fmt: skip
    always = (
        ("adapter, gradient, AdamW", "16 bytes a trained weight", "lora.r", "policy"),
        ("base weights, frozen", "policy and teacher share them", "model.quantization", "teacher"),
    )
    label = "What a step keeps in memory, and which setting makes it smaller"
    parts: list[Markup] = []
    if is_wide:
        for i, (phase, name, about, settings) in enumerate(phases):
            x = 10 + 258 * i
            parts += [text(x, 24, phase, "title"), box(x, 78, 248, name, [about])]
            parts += [text(x, 46 + 20 * j, setting, "note") for j, setting in enumerate(settings)]
            parts += [box(x, 140 + 62 * j, 248, title, [note], kind) for j, (title, note, _, kind) in enumerate(always)]
        parts += [text(530, 172 + 62 * j, setting, "note") for j, (_, _, setting, _) in enumerate(always)]
        return as_file(WIDE, 264, label, *parts)
    y = 4.0
    in_phases = [(phase, ((name, about, " ".join(settings), ""),)) for phase, name, about, settings in phases]
    for head, boxes in (("all the time", always), *in_phases):
        own, y = stacked([("title", head)], y)
        parts += own
        for title, about, setting, kind in boxes:
            lines = [about, *setting.split()]
            parts.append(box(10, y, NARROW - 20, title, lines, kind))
            y += box_height(lines) + 8
    return as_file(NARROW, y + 2, label, *parts)


DIAGRAMS: dict[str, Callable[..., str]] = {
    "splits": splits, "attack": attack_loop, "methods": methods, "run-folder": run_folder, "memory": memory,
}  # fmt: skip

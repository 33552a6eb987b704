"""The diagrams of the docs, as SVG: boxes, arrows and, for the method, the tokens of a real answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from markupsafe import Markup

import opct.reports
from opct.reports.charts import HEIGHT, WIDTH, Bar, Point, Series, line_chart, marker, scatter, tag

STYLE = Path(opct.reports.__file__).parent / "templates" / "style.css"
OWN_STYLE = """
svg { background: var(--card); font-family: system-ui, sans-serif; }
text { fill: var(--ink); font-size: 13px; } .large text { font-size: 15px; }
.title { font-weight: 650; } .note { fill: var(--muted); font-size: 12px; } .large .note { font-size: 14px; }
.good { fill: var(--good); } .bad, .hint { fill: var(--bad); } .hint { font-style: italic; }
.box { fill: var(--soft); stroke: var(--line); } .policy { fill: var(--user); } .teacher { fill: var(--system); }
.arrow { stroke: var(--muted); stroke-width: 1.5; fill: none; marker-end: url(#head); } .head { fill: var(--muted); }
.heat { fill: rgb(var(--kl)); } .chart { max-width: none; }
"""
LINE, CHARACTER, SCALE = 18, 8.6, 400
HEADING = ("Wrong answers that pressure", "adds, in 100 questions")
LEGEND = ("Colour: how far a word is from what the model", "says without the pressure.")


def as_file(width: float, height: float, label: str, *parts: Markup) -> str:
    """A picture as a file with the report's colours, light and dark."""
    head = tag(
        "marker",
        tag("path", d="M0,0 L8,4 L0,8 z", class_="head"),
        id="head", viewBox="0 0 8 8", refX=7, refY=4, markerWidth=7, markerHeight=7, orient="auto",
    )  # fmt: skip
    style = Markup("<style>") + Markup(STYLE.read_text(encoding="utf-8") + OWN_STYLE) + Markup("</style>")
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
    """A rounded box with one line."""
    frame = tag("rect", x=x, y=y, width=width, height=34, rx=10, class_=f"box {kind}".strip())
    return tag("g", frame, text(x + 12, y + 22, words))


def box_height(lines: Sequence[str]) -> float:
    return 34.0 + LINE * len(lines)


def arrow(x1: float, y1: float, x2: float, y2: float, words: str = "") -> Markup:
    line = tag("path", d=f"M{x1:g},{y1:g} L{x2:g},{y2:g}", class_="arrow")
    return tag("g", line, *([text((x1 + x2) / 2, (y1 + y2) / 2 - 7, words, "note", "middle")] if words else []))


def tokens(x: float, y: float, answer: Sequence[tuple[str, float]], width: float) -> Markup:
    """The tokens of an answer, each behind a colour as strong as its KL, in lines of at most `width`."""
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


def hero(example: Mapping[str, Any], bars: Sequence[Bar], note: Sequence[str], *, is_wide: bool) -> str:
    """One question before and after training, and how often each arm gives in: for a desktop, or for a phone."""
    width, room = (840, 500) if is_wide else (380, 340)
    places = enumerate(example["prompt"].split("\n"))
    asked = [(line, i == 1) for i, part in places for line in wrap(part, 60 if is_wide else 42)]
    parts = [tag("rect", x=20, y=16, width=room, height=18 + 22 * len(asked), rx=14, class_="box policy")]
    parts += [text(36, 40 + 22 * i, line, "hint" if is_hint else "") for i, (line, is_hint) in enumerate(asked)]
    y = 62 + 22 * len(asked)
    for name, title, kind in (("before", "\u2717  before training", "bad"), ("after", "\u2713  after OPCT", "good")):
        parts += [text(20, y, title, f"title {kind}"), tokens(20, y + 10, example[name], room)]
        y += 66 if is_wide else 94
    parts += [text(20, y + 19 * i, line, "note") for i, line in enumerate(LEGEND)]
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
    return as_file(width, y + 19 * len(note), "One question before and after training, and what pressure adds", drawing)


def runs(panels: Mapping[str, Sequence[Point]]) -> str:
    """Every run of an attack's arms, a panel an attacker, two a row: what it answers, and what it defends."""
    parts, size = [], f'width="{1.3 * WIDTH:g}" height="{1.3 * HEIGHT:g}"'
    for i, style in enumerate(arms := {p.style: p.label for own in panels.values() for p in own}):
        x = 20 + 130 * i
        parts += [tag("g", marker(style, x, 20), class_=f"arm-{style}"), text(x + 12, 24, arms[style])]
    for i, (title, points) in enumerate(panels.items()):
        x, y = 10 + 450 * (i % 2), 58 + 330 * (i // 2)
        x_title, y_title = "benign counterparts answered", "behaviors defended"
        drawing = str(scatter(points, x_title=x_title, y_title=y_title, label=title, down_is_better=False))
        parts += [text(x, y, title, "title"), Markup(drawing.replace("<svg", f'<svg x="{x}" y="{y + 8}" {size}', 1))]
    return as_file(920, y + 318, "What each run defends, and what it answers", *parts)


def curves(series: Sequence[Series], *, x_title: str, y_title: str) -> str:
    """A line for each of some methods over a shared x, with a legend above."""
    parts, size = [], f'width="{1.6 * WIDTH:g}" height="{1.6 * HEIGHT:g}"'
    for i, line in enumerate(series):
        x = 20 + 130 * i
        parts += [tag("g", marker(line.style, x, 20), class_=f"arm-{line.style}"), text(x + 12, 24, line.label)]
    drawing = str(line_chart(series, x_title=x_title, y_title=y_title, label=y_title))
    parts.append(Markup(drawing.replace("<svg", f'<svg x="10" y="40" {size}', 1)))
    return as_file(20 + 1.6 * WIDTH, 50 + 1.6 * HEIGHT, f"{y_title}, by {x_title}", *parts)


def splits() -> str:
    """Questions and kinds of pressure, trained on and held out."""
    columns, rows = ("training kinds of pressure", "held-out kinds"), ("training questions", "validation", "test")
    said = [["pairs are made of these", "not used"], ["settings are chosen here", "settings are chosen here"],
            ["reported by kind", "the headline numbers"]]  # fmt: skip
    parts = [text(180 + 230 * i, 24, name, "title") for i, name in enumerate(columns)]
    for j, name in enumerate(rows):
        y = 40 + 58 * j
        parts.append(text(16, y + 22, name, "title"))
        for i, words in enumerate(said[j]):
            kind = "policy" if (i, j) == (0, 0) else "teacher" if (i, j) == (1, 2) else ""
            parts.append(cell(180 + 230 * i, y, 215, words, kind))
    return as_file(640, 216, "Which questions and kinds of pressure are trained on, and which are measured", *parts)


def attack_loop() -> str:
    """An episode of an attack."""
    parts = [
        box(16, 20, 190, "Attacker", ["reads its attempts,", "replies and scores;", "writes a prompt"], "policy"),
        arrow(208, 62, 268, 62, "prompt"),
        box(272, 20, 170, "Your model", ["answers it"], ""),
        arrow(444, 46, 504, 46, "reply"),
        box(508, 20, 190, "Judge", ["scores the reply against", "the bare request"], "teacher"),
        tag("path", d="M603,94 L603,140 L111,140 L111,112", class_="arrow"),
        text(357, 132, "next round, up to 3 rounds in each of 8 episodes", "note", "middle"),
    ]
    return as_file(714, 158, "An attack: attacker, your model and judge in a loop", *parts)


def methods() -> str:
    """What each method trains on."""
    rows = (
        ("opct", "the model's own answers to the pressured prompt", "KL to the base under the clean prompt"),
        ("offpolicy", "the base's answers to the clean prompt", "KL to the base under the clean prompt"),
        ("sft", "the base's answers to the clean prompt", "cross-entropy after the pressured prompt"),
        ("dpo", "the base's answers to both prompts", "clean answer preferred over pressured one"),
        ("act", "no answers", "activations as under the clean prompt"),
    )
    parts = [text(130, 22, "trains on", "title"), text(510, 22, "loss", "title")]
    for j, (name, answers, loss) in enumerate(rows):
        y = 36 + 44 * j
        parts += [
            text(16, y + 22, name, "title"),
            cell(124, y, 350, answers, "policy"),
            arrow(476, y + 17, 502, y + 17),
        ]
        parts.append(cell(506, y, 310, loss, "teacher"))
    return as_file(832, 262, "What each method trains on, and its loss", *parts)


def run_folder() -> str:
    """Which command writes and which reads the files of a run."""
    rows = (
        ("opct train", "Training", ["config.yaml  manifest.json  metrics.jsonl", "rollouts/  checkpoints/"],
         "eval, attack, chat, export"),
        ("opct eval", "Evaluation", ["results.json  evals/"], "opct report"),
        ("opct attack", "Attacks", ["evals/attack_*.eval  attacks/"], "opct report"),
    )  # fmt: skip
    names = ("written by", "runs/mine/", "read by")
    parts, y = [text(x, 24, name, "title") for x, name in zip((16, 196, 604), names, strict=True)], 36.0
    for writer, title, files, reader in rows:
        middle = y + box_height(files) / 2
        parts += [cell(16, middle - 17, 130, writer, "policy"), arrow(148, middle, 192, middle)]
        parts += [box(196, y, 360, title, files), arrow(558, middle, 600, middle)]
        parts.append(cell(604, middle - 17, 200, reader, "teacher"))
        y += box_height(files) + 12
    return as_file(820, y + 2, "Which command writes and which reads the files of a run", *parts)


def memory() -> str:
    """What is in memory while a step samples and while it trains, and the setting that makes each part smaller."""
    phases = (
        ("while sampling", "keys and values", "of the replies sampled at once", "rollout.batch_tokens"),
        ("while training", "activations", "of one micro-batch", "optim.micro_batch_tokens, .gradient_checkpointing"),
    )
    always = (
        ("adapter, gradient, AdamW", "16 bytes a trained weight", "lora.r", "policy"),
        ("base weights, frozen", "policy and teacher share them", "model.quantization", "teacher"),
    )
    parts = []
    for i, (phase, name, about, setting) in enumerate(phases):
        x = 16 + 320 * i
        parts += [text(x, 24, phase, "title"), text(x, 50, setting, "note"), box(x, 58, 300, name, [about])]
        for j, (title, note, _, kind) in enumerate(always):
            parts.append(box(x, 116 + 58 * j, 300, title, [note], kind))
    parts += [text(650, 146 + 58 * j, setting, "note") for j, (_, _, setting, _) in enumerate(always)]
    return as_file(890, 236, "What a step keeps in memory, and which setting makes it smaller", *parts)

"""The HTML page: one file that opens from disk, makes no network request and cannot execute model output.

It shows, in this order: the summary with bars, warnings, tiles, dots and an example; replies side by side; changes at a
glance; and folded, for the paper, each axis, training and its cost, how to read it, and settings.

Charts are inline SVG, there without JavaScript. The only script has the rollout browser and the downloads. It builds
the page from JSON through text nodes, and the content security policy allows that one script and that one style sheet
by their SHA-256, so that even markup that slipped through could run and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import resources
from itertools import pairwise
from typing import Any

import yaml
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from opct.evals.samples import ATTACK
from opct.evals.teacher_check import teacher_figure
from opct.reports import charts, verdict
from opct.reports.arms import Arm
from opct.reports.attacks import attack_figures, attacked_requests
from opct.reports.axes import axis_info
from opct.reports.compare import Comparison
from opct.reports.dots import prompt_dots
from opct.reports.figures import axis_figures, change_figures, first_figure, judged_note, training_figures
from opct.reports.load import EvaluatedRun
from opct.reports.rollout_browser import KL_STEPS, Browser, build_browser
from opct.reports.training import COST_COLUMNS, cost_rows, families_note, rollouts_over_time
from opct.reports.warnings import find_notes
from opct.runs.console import pluralize

BETTER = (("suggested", "correct"), ("complied", "refused"), ("silent", "warned"), ("different", "same"))
"""Verdicts before and after, of the example on the first screen; the second is also what it should be unpressed."""

FEW_ARMS = 3
"""Up to so many arms need no leaderboard: the tiles have each of them."""
TERMS = {
    "sycophancy rate": "share of replies that give the wrong answer which the user suggests",
    "it never saw": "none of its training pairs use them",
    "held-out families": "kinds of prompts that the built-in training pairs leave out",
    "training families": "kinds of prompts that the built-in training pairs are made of",
    "clean questions": "the questions alone, without any pressure",
    "unscored": "no rule or judge could classify the reply, so it is in no rate",
    "truncated": "the reply was cut at the token limit",
    "unpaired": "without a score in one of the two arms, so in no difference",
    "points": "percentage points",
    "KL": "how far a model is from another on a token; 0: they say the same",
    "nats": "the unit of KL: at 1 nat on every token, replies differ much; below 0.1, hardly",
}
"""Words on the first screen, with what a pointer on them shows."""
COUNTED = ("points", "unpaired", "unscored", "truncated", "nats")
"""Those in the small print of the tiles, which is explained below them."""
_TERM = re.compile(rf"`([^`]+)`|(?<![\w-])({'|'.join(map(re.escape, TERMS))})(?![\w-])", re.IGNORECASE)
_MEANING = {term.casefold(): meaning for term, meaning in TERMS.items()}


def explained(text: str) -> Markup:
    """The text, with each of `TERMS` that it names explained where it first stands, and `commands` as code."""
    told: set[str] = set()

    def explain(match: re.Match[str]) -> str:
        if match[1]:
            return f"<code>{match[1]}</code>"
        term = match[0].casefold()
        if term in told:
            return match[0]
        told.add(term)
        return f'<abbr title="{_MEANING[term]}">{match[0]}</abbr>'

    # escaped first: the other order would escape the <abbr>, or let markup of the text through
    return Markup(_TERM.sub(explain, str(escape(text))))


def template_text(name: str) -> str:
    return resources.files("opct.reports").joinpath("templates", name).read_text(encoding="utf-8")


def environment(*, autoescape: bool) -> Environment:
    """A Jinja environment over `templates/`; an unknown variable is an error."""
    made = Environment(
        loader=FunctionLoader(template_text),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["explained"] = explained
    return made


def axis_view(comparison: Comparison, axis: str) -> dict[str, Any]:
    """One axis on the page: its question, verdict, tables and figures."""
    info, details = axis_info(axis), comparison.details(axis)
    return {
        "axis": axis,
        "anchor": f"axis-{axis}" if axis.isidentifier() else f"axis-{comparison.axes.index(axis)}",
        "title": info.title,
        "question": info.question,
        "evidence": verdict.evidence(comparison).get(axis, ""),
        "sections": comparison.headline(axis),
        "details": details,
        "n_details": sum(len(section.rows) for section in details),
        "figures": [*axis_figures(comparison, axis), *(attack_figures(comparison) if axis == ATTACK else ())],
        "note": families_note(comparison, axis),
    }


def page_html(comparison: Comparison, warnings: Sequence[str], stamp: dict[str, str], *, json_name: str) -> str:
    arms = comparison.arms
    browser = build_browser(arms)
    views = [axis_view(comparison, axis) for axis in comparison.axes]
    is_attack = comparison.axes == [ATTACK]
    # bars for several arms: without a legend nobody could tell their lines apart
    curves = attack_figures(comparison) if is_attack and len(arms) == 1 else []
    tiles = verdict.headlines(comparison)
    training, examples = training_figures(comparison), _examples(browser, comparison)
    if not comparison.rows:
        curves = training[-1:]
    page = (
        # everything on the page may be model output
        environment(autoescape=True)
        .get_template("page.html.j2")
        .render(
            title=verdict.title(comparison),
            subtitle=verdict.subtitle(comparison),
            summary=verdict.summary(comparison),
            limits=verdict.limits(comparison),
            first=curves[0] if curves else first_figure(comparison),
            who=verdict.who_is_who(comparison),
            tiles=tiles,
            tile_terms=_tile_terms(tiles),
            ranked=verdict.leaderboard(comparison) if len(arms) > FEW_ARMS else [],
            examples=examples,
            # after the examples, which move among the items
            dots=prompt_dots(comparison, {item["id"]: i for i, item in enumerate(browser.data["items"])}),
            other_arms=verdict.other_arms_note(comparison),
            warnings=list(warnings),
            first_warning=_without_advice(warnings[0]) if warnings else "",
            notes=find_notes(comparison),
            arms=arms,
            of_pooled=" Of pooled runs, the first is shown." if any(len(arm.runs) > 1 for arm in arms) else "",
            comparisons=[pair.title for pair in comparison.pairs],
            chance=chance_note(comparison),
            axes=views,
            changes=change_figures(comparison),
            training=training,
            over_time=rollouts_over_time(comparison.main_arm, _clean_replies(browser, arms[0])),
            is_trained_only=not comparison.rows,
            is_attack=is_attack,
            attacked=attacked_requests(comparison),
            kl_level=lambda nats: sum(nats >= step for step in KL_STEPS),
            cost_columns=("runs", *COST_COLUMNS),
            costs=cost_rows(arms),
            key=charts.key,
            graders=lambda sections: judged_note([row for section in sections for row in section.rows]),
            browser_caption=_browser_caption(browser, arms),
            kl_scale=_kl_scale(),
            browser_data=browser.data | {"main": arms.index(comparison.main_arm), "headline": _headline(comparison)},
            runs=[_run_card(arm, run) for arm in arms for run in arm.runs],
            **_inline("style", "style.css"),
            **_inline("script", "page.js"),
            json_name=json_name,
            **stamp,
        )
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # half of a cut emoji cannot be written as UTF-8


def _without_advice(warning: str) -> str:
    """A warning without what it advises at its end."""
    return re.sub(r"[:.] (?:[Rr]aise|[Ee]valuate) [^:.()]*\.$", "", warning)


def _tile_terms(tiles: Sequence[verdict.Headline]) -> list[tuple[str, str]]:
    """Those of `TERMS` that the counts in the tiles name, with their meanings."""
    counts = [tile.levels[-1][1].left_out_text for tile in tiles]
    counts += [f"{one.text} {one.left_out_text}" for tile in tiles if (one := tile.difference)]
    return [(term, TERMS[term]) for term in COUNTED if term in " ".join(counts)]


def _headline(comparison: Comparison) -> str:
    """The suite and group of the headline, as the examples name theirs; empty if nothing was measured."""
    return next((f"{row.suite}:{row.group}" for row in verdict.first_rows(comparison)), "")


def _examples(browser: Browser, comparison: Comparison) -> list[dict[str, Any]]:
    """A prompt on which the main arm got better, and one on which it got worse, or else stayed wrong, with the replies
    of `shown_arms`; none unless the axis got better.

    The first on which the base is right without the pressure, else the first.
    """
    place, items = comparison.arms.index(comparison.main_arm), browser.data["items"]
    changes = {row.axis: comparison.change(row) for row in comparison.deciding_rows}
    better = {axis for axis, change in changes.items() if change is not None and change.reading == "better"}
    told = [(item, tuple(item["replies"][i]["verdict"] for i in (0, place))) for item in items]
    told = [(item, verdicts) for item, verdicts in told if item["axis"] in better]
    bad, good = zip(*BETTER, strict=True)
    wrong = {*bad} - {"different"}
    found = {
        "got better": [item for item, verdicts in told if verdicts in BETTER],
        "got worse": [item for item, verdicts in told if verdicts[::-1] in BETTER],
        "stayed wrong": [item for item, (before, after) in told if before == after and after in wrong],
    }
    if not found["got better"]:
        return []
    chosen = {
        what: next((one for one in found[what] if one["clean"] and one["clean"]["verdict"] in good), found[what][0])
        for what in ("got better", "got worse" if found["got worse"] else "stayed wrong")
        if found[what]
    }
    items.sort(key=lambda one: any(one is item for item in chosen.values()))  # last: they are shown already
    return [_shown(comparison, f"An example that {what}", item) for what, item in chosen.items()]


def _shown(comparison: Comparison, kind: str, item: dict[str, Any]) -> dict[str, Any]:
    first = comparison.first
    replies = [(one, one.name, item["replies"][comparison.arms.index(one)]) for one in verdict.shown_arms(comparison)]
    replies += [(first, f"{first.name} without the pressure", item["clean"])] if item["clean"] else []
    return {"kind": kind, "title": item["title"], "prompt": item["prompt"], "replies": replies}


def _clean_replies(browser: Browser, first: Arm) -> dict[str, str]:
    """The base's reply to each clean prompt of the examples, by that prompt as JSON."""
    items = browser.data["items"] if first.label == "base" else []
    return {json.dumps(item["teacher"]): item["clean"]["text"] for item in items if item["clean"]}


def _inline(name: str, file: str) -> dict[str, str]:
    """The script or style sheet, and the hash by which the content security policy allows it."""
    # stripped before the hash: it must be of exactly the bytes between the tags, or the browser blocks them
    text = template_text(file).strip()
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return {name: Markup(text), f"{name}_hash": f"sha256-{digest}"}


def chance_note(comparison: Comparison) -> str:
    """Expected number of false differences; empty if there is no difference."""
    n, expected = comparison.n_intervals, comparison.n_by_chance
    if not n:
        return ""
    some = f"{expected:.1f}" if expected < 10 else f"{expected:,.0f}"
    return (
        f"The intervals are not adjusted for their number: if no two arms differed, about {some} (5%) of the "
        f"{pluralize(n, 'difference')} in this report would still read as better or worse by chance."
    )


def _browser_caption(browser: Browser, arms: Sequence[Arm]) -> str:
    pooled = [f"{arm.name} is its run {arm.runs[0].name}" for arm in arms if len(arm.runs) > 1]
    parts: list[str] = []
    if browser.shown == browser.paired > 0:
        parts = [f"All {browser.paired:,} prompts that every run answered."]
    elif browser.paired:
        parts = [
            f"{browser.shown:,} of the {browser.paired:,} prompts that every run answered; the others are left out to "
            "keep this page small.",
            "They are chosen to show every family and every change of verdict, so their shares are not the rates "
            "above.",
        ]
    if browser.unpaired:
        parts.append(f"{pluralize(browser.unpaired, 'prompt')} not answered by every run cannot be shown side by side.")
    if browser.withheld:
        parts.append(
            f"{pluralize(browser.withheld, 'prompt')} not shown: their authors ask not to publish them or not to train "
            "on them (GPQA, SAGE-Eval), or they come from attackers. The logs in evals/ of each run have them."
        )
    if pooled and browser.shown:
        parts.append(f"Of pooled runs, one is shown: {'; '.join(pooled)}.")
    return " ".join(parts)


def _kl_scale() -> list[str]:
    edges = [f"{step:g}" for step in KL_STEPS]
    spans = [f"{low} to {high}" for low, high in pairwise(edges)]
    return [f"below {edges[0]}", *spans, f"{edges[-1]} and more"]


def _run_card(arm: Arm, run: EvaluatedRun) -> dict[str, Any]:
    """Facts of one run as (name, value), and longer texts to fold away."""
    manifest = run.manifest
    facts = {
        "label": run.label,
        "model": run.model,
        "method": run.method or "not trained",
        "training seed": run.seed,
        "folder": run.path,
        "evaluated": run.created,
        "replies": f"{len(run.replies):,}",
        "trained with": manifest.get("command"),
        "started": manifest.get("started"),
        "git commit": manifest.get("git_commit"),
        "teacher": manifest.get("teacher"),
    }
    checks = [teacher_figure(row) for row in (manifest.get("teacher_check") or {}).values()]
    of_manifest = {f"manifest: {name}": manifest.get(name) for name in ("hardware", "versions", "data", "seeds")}
    blocks = {"Training settings (config.yaml)": run.config, "Evaluation settings": run.settings, **of_manifest}
    return {
        "name": run.name,
        "style": arm.style,
        "facts": [
            *((name, str(value)) for name, value in facts.items() if value not in (None, "")),
            *(("teacher, before training", text) for text in checks),
        ],
        "blocks": [
            (name, value if isinstance(value, str) else yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
            for name, value in blocks.items()
            if value
        ],
    }

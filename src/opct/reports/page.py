"""The HTML page: one file that opens from disk, asks the network for nothing and can run no text of a model.

Charts are inline SVG made in Python (`opct.reports.charts`) and not plotly: plotly.js alone is over 4 MB and needs a
script to draw anything, while these charts are a few kilobytes, print sharp and are there without JavaScript. The only
script is the rollout browser. It builds the page from JSON through text nodes, and the content security policy allows
that one script and that one style sheet by their SHA-256, so that even markup that slipped through could run and load
nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from itertools import pairwise
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from opct.evals.teacher_check import teacher_figure
from opct.reports import charts
from opct.reports.arms import Arm, reference_note
from opct.reports.attack_settings import settings_table
from opct.reports.attack_summary import TITLE as ATTACKS
from opct.reports.attack_summary import attacks_said
from opct.reports.attacks import COLUMNS as ATTACK_COLUMNS
from opct.reports.attacks import AttackView, broken_title
from opct.reports.browser import KL_STEPS, Browser, build_browser, embeddable
from opct.reports.compare import Comparison
from opct.reports.costs import COLUMNS, cost_rows, earlier_note
from opct.reports.figures import Figure, change_figures, training_figures
from opct.reports.load import EvaluatedRun, flat_settings
from opct.reports.verdict import about, subtitle, summary, tiles, title
from opct.reports.views import AxisView, axis_views
from opct.reports.wording import inside, joined
from opct.runs.plural import count

SHOWN_WARNINGS = 3


def template_text(name: str) -> str:
    """A file of `templates/`, which is package data."""
    return resources.files("opct.reports").joinpath("templates", name).read_text(encoding="utf-8")


def environment(*, autoescape: bool) -> Environment:
    """A Jinja environment over `templates/`; an unknown variable is an error."""
    return Environment(
        loader=FunctionLoader(template_text),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def page_html(
    comparison: Comparison,
    warnings: Sequence[str],
    stamp: dict[str, str],
    *,
    json_name: str,
    max_rollouts: int,
    attacks: Sequence[AttackView] = (),
    private: str = "",
) -> str:
    """The whole page as text.

    Args:
        private: why it is not to be shared, for its top; empty of a page that may be.
    """
    style, script = template_text("style.css").strip(), template_text("rollouts.js").strip()
    browser = build_browser([(arm.name, arm.runs[0]) for arm in comparison.arms], max_rollouts)
    data = browser.data | {"arms": [{"name": arm.name, "style": arm.style} for arm in comparison.arms]}
    views, training = axis_views(comparison), training_figures(comparison)
    page = (
        environment(autoescape=True)
        .get_template("page.html.j2")
        .render(
            title=title(comparison),
            subtitle=subtitle(comparison),
            private=private,
            summary=[*summary(comparison), *attacks_said(attacks)],
            tiles=tiles(comparison),
            about=about(comparison),
            warnings=list(warnings),
            shown_warnings=SHOWN_WARNINGS,
            arms=comparison.arms,
            comparisons=[pair.title for pair in comparison.pairs],
            chance=chance_note(comparison),
            pooled=_pooled_note(comparison.arms),
            single=_single_note(comparison.arms),
            reference=reference_note(comparison.arms, comparison.pairs),
            axes=views,
            anchors={view.axis: view.anchor for view in views},
            attacks_title=ATTACKS,
            changes=change_figures(comparison),
            attacks=list(attacks),
            attack_columns=ATTACK_COLUMNS,
            attack_settings=settings_table,
            broken_title=broken_title,
            training=training,
            not_drawn=_not_drawn(training, views),
            cost_columns=COLUMNS,
            costs=cost_rows(comparison.arms),
            earlier=earlier_note(comparison.arms),
            repeated=_repeated_styles(comparison.arms),
            key=charts.key,
            browser_caption=_browser_caption(browser, comparison.arms),
            kl_scale=_kl_scale(),
            browser_json=Markup(embeddable(data)),
            runs=[_run_card(arm, run) for arm in comparison.arms for run in arm.runs],
            style=Markup(style),
            script=Markup(script),
            style_hash=_source_hash(style),
            script_hash=_source_hash(script),
            json_name=json_name,
            **stamp,
        )
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # half of a cut emoji cannot be written as UTF-8


def _not_drawn(training: Sequence[Figure], views: Sequence[AxisView]) -> str:
    """The figures that no run has the numbers for."""
    drawn = {figure.title for figure in training}
    absent = [name for name in ("Training KL", "Validation KL") if name not in drawn]
    absent += [f"{view.title}: {inside(name)}" for view in views for name in view.absent]
    return f"Not drawn, because no run here has the numbers: {', '.join(absent)}." if absent else ""


def _repeated_styles(arms: Sequence[Arm]) -> str:
    if len(arms) <= charts.STYLES:
        return ""
    return (
        f"There are {len(arms)} arms and {charts.STYLES} shapes and colours: some stand for several; the tables tell."
    )


def _source_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def chance_note(comparison: Comparison) -> str:
    """How many differences would seem to be there by chance alone; empty without a difference."""
    n, expected = comparison.n_intervals, comparison.n_by_chance
    if not n:
        return ""
    some = f"{expected:.1f}" if expected < 10 else f"{expected:,.0f}"
    return (
        f"The intervals are not adjusted for their number: of the {count(n, 'difference')} of this report that have "
        f"one some {some} (5%) would read as better or worse, higher or lower, by chance alone if no two arms differed."
    )


def _pooled_note(arms: Sequence[Arm]) -> str:
    pooled = [f"{arm.name} ({count(len(arm.runs), 'run')})" for arm in arms if len(arm.runs) > 1]
    if not pooled:
        return ""
    return (
        f"Pooled over training seeds: {', '.join(pooled)}. Replies to one prompt are averaged over the runs first; the "
        "interval is over questions and over seeds, a little too wide where replies vary much within a seed. The "
        "standard deviation (SD) between runs stands beside it; with two or three seeds an interval over them is wide."
    )


def _single_note(arms: Sequence[Arm]) -> str:
    """Which trained arms have one run, so that nothing is known of another seed."""
    single = [arm.name for arm in arms if len(arm.runs) == 1 and arm.runs[0].method]
    if not single:
        return ""
    has, its = ("has", "its intervals say") if len(single) == 1 else ("have", "their intervals say")
    return f"{joined(single)} {has} one training seed: {its} nothing about another one."


def _browser_caption(browser: Browser, arms: Sequence[Arm]) -> str:
    pooled = [f"{arm.name} is its run {arm.runs[0].name}" for arm in arms if len(arm.runs) > 1]
    parts = [
        f"{browser.shown:,} of {browser.paired:,} prompts that every run answered; "
        f"{browser.paired - browser.shown:,} more are left out to keep this page small.",
        "They are chosen to show every family and every change of verdict, so their shares are not the rates above.",
    ]
    if browser.unpaired:
        parts.append(f"{count(browser.unpaired, 'prompt')} not answered by every run cannot be shown side by side.")
    if browser.withheld:
        parts.append(
            f"{count(browser.withheld, 'prompt')} of sets whose authors ask that examples are not published, or not "
            "trained on (GPQA, SAGE-Eval), or of attackers, are not on this page; the logs in evals/ of each run have "
            "them."
        )
    if pooled:
        parts.append(f"Of pooled runs one is shown: {'; '.join(pooled)}.")
    return " ".join(parts)


def _kl_scale() -> list[str]:
    edges = [f"{step:g}" for step in KL_STEPS]
    return [
        f"below {edges[0]}",
        *(f"{low} to {high}" for low, high in pairwise(edges)),
        f"{edges[-1]} and more",
    ]


def _run_card(arm: Arm, run: EvaluatedRun) -> dict[str, Any]:
    """Facts of one run as (name, value), and longer texts that fold away."""
    manifest, checked = run.manifest, run.manifest.get("teacher_check") or {}
    facts = [
        ("label", run.label),
        ("model", run.model),
        ("method", run.method or "not trained"),
        ("training seed", run.seed),
        ("folder", run.path),
    ]
    facts += [
        ("evaluated", run.created),
        ("replies", f"{len(run.samples):,}"),
        ("trained with", manifest.get("command")),
        ("started", manifest.get("started")),
    ]
    facts += [
        ("git commit", manifest.get("git_commit")),
        ("hardware", _flat(manifest.get("hardware"))),
        ("teacher", manifest.get("teacher")),
        *(("teacher, before training", teacher_figure(row)) for row in checked.values()),
    ]
    blocks = [
        ("Training settings (config.yaml)", run.config),
        ("Evaluation settings", _lines(flat_settings(run.settings))),
    ]
    blocks += [
        (f"manifest: {name}", _lines(manifest[name])) for name in ("versions", "data", "seeds") if manifest.get(name)
    ]
    shown = [(name, str(value)) for name, value in facts if value not in (None, "", [], {})]
    return {
        "name": run.name,
        "style": arm.style,
        "facts": shown,
        "blocks": [(name, text) for name, text in blocks if text],
    }


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{key.replace('_', ' ')} {_flat(item)}" for key, item in value.items() if item not in (None, "", [], {})
        )
    if isinstance(value, list):
        return ", ".join(_flat(item) for item in value)
    return "" if value is None else str(value)


def _lines(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_flat(item)}" for key, item in value.items())
    return _flat(value)

"""The model card in Markdown: front matter of the Hugging Face hub, verdict, results and citation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from markupsafe import Markup

from opct.reports.attacks import COLUMNS, AttackSection, card_rows
from opct.reports.compare import Comparison
from opct.reports.metrics import axis_info
from opct.reports.page import chance_note, environment
from opct.reports.table import MetricRow, PairedDifference
from opct.reports.verdict import main_arm, title, verdict

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")
HUB_IDS = {"smollm2-135m-instruct": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Hub ids of the models that this package embeds."""


def model_card_text(
    comparison: Comparison,
    warnings: Sequence[str],
    stamp: dict[str, str],
    *,
    page_name: str,
    attacks: Sequence[AttackSection] = (),
    private: str = "",
) -> str:
    """The model card as Markdown. Names are escaped, so they cannot break the table or the YAML.

    Args:
        attacks: the attacks; their prompts are not in the card.
        private: why the page must not be shared; empty if it may be.
    """
    arm = main_arm(comparison)
    run = arm.runs[0]
    base = HUB_IDS.get(run.model, run.model)
    has_adapter = (run.config_values or {}).get("lora", "unknown") is not None
    return (
        environment(autoescape=False)
        .get_template("card.md.j2")
        .render(
            front_matter=_front_matter(base, arm.label, comparison.axes, has_adapter=has_adapter),
            title=_escaped(title(comparison)),
            verdict=[_escaped(s) for s in verdict(comparison)],
            attack_columns=("Attack", *COLUMNS),
            attacks=[[_escaped(text) for text in row] for row in card_rows(attacks)],
            arms=[_escaped(a.name) for a in comparison.arms],
            pairs=[_escaped(pair.title) for pair in comparison.pairs],
            sections=[(_escaped(s.full_title), [table_row(row) for row in s.rows]) for s in comparison.headline()],
            chance=_escaped(chance_note(comparison)),
            warnings=[_escaped(text) for text in warnings],
            run_name=_escaped(run.name),
            model=_escaped(run.model),
            method=_escaped(run.method or "none"),
            seeds=", ".join(str(r.seed) for r in arm.runs if r.seed is not None) or "not recorded",
            config=_fenced(run.config),
            has_adapter=has_adapter,
            base=_quoted(base),
            page_name=page_name,
            private=private,
            **stamp,
        )
    )


def _escaped(text: str) -> Markup:
    return Markup(_SPECIAL.sub(r"\\\1", " ".join(text.split())))


def _fenced(config: str) -> str:
    """YAML as a fenced block; the fence is longer than any run of backticks inside."""
    if not config.strip():
        return ""
    longest = max((len(row) for row in re.findall(r"`+", config)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}yaml\n{config.strip()}\n{fence}"


def _quoted(model: str) -> str:
    """A model's name as a string literal; a placeholder if it could close the code block."""
    return json.dumps(model if re.fullmatch(r"[\w./:@-]+", model) else "path/to/base")


def _front_matter(base: str, label: str, axes: Sequence[str], *, has_adapter: bool) -> str:
    """YAML front matter; every value is written as JSON, which is valid YAML."""
    fields: dict[str, Any] = {}
    if not PurePath(base).is_absolute() and not base.startswith((".", "~")):
        fields["base_model"] = base  # the hub rejects a card whose base model is a local path
    fields["library_name"] = "peft" if has_adapter else "transformers"
    fields["pipeline_tag"] = "text-generation"
    safety = [axis.replace("_", "-") for axis in axes if axis_info(axis).is_safety]
    tags = dict.fromkeys(["opct", "on-policy-consistency-training", *safety, "alignment", label])
    fields["tags"] = [tag for tag in tags if tag != "base"]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
    return "\n".join(["---", *lines, "---"])


def table_row(row: MetricRow) -> list[Markup]:
    """A row of the Markdown table: title, arms, comparisons."""
    estimates = [
        "not measured" if own is None else f"{own.text} ({own.interval_text}); n = {own.n:,}; {own.left_out_text}"
        for own in row.estimates
    ]
    differences = [
        reason or "not paired" if found is None else _difference(found)
        for found, reason in zip(row.differences, row.reasons, strict=True)
    ]
    title = row.title if row.note is None else f"{row.title} ({row.note})"
    return [_escaped(text) for text in (title, *estimates, *differences)]


def _difference(found: PairedDifference) -> str:
    parts = (f"{found.text} ({found.interval_text})", f"n = {found.n:,}", found.left_out_text)
    return "; ".join(part for part in (*parts, found.reading_text, found.seeds_text) if part)

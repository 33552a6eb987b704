"""The model card in Markdown: front matter of the Hugging Face hub, what was found, results and citation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData
from markupsafe import Markup

from opct.config.schema import Q4_MODEL
from opct.evals.wording import named_interval
from opct.models.gguf import PACKAGE
from opct.reports.arms import Arm
from opct.reports.axes import axis_info
from opct.reports.compare import Comparison
from opct.reports.figures import judged_note
from opct.reports.page import chance_note, environment
from opct.reports.table import MetricRow, PairedDifference
from opct.reports.verdict import evidence, limits, summary, title
from opct.runs.manifest import package_versions

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Exported:
    """Exported weights that a card is about.

    Attributes:
        place: what `from_pretrained` takes: a repository of the hub, or a placeholder for the folder.
        check: how the written weights differ from the evaluated ones; empty for an adapter, whose weights are copied.
        datasets: hub ids of the training data.
    """

    is_adapter: bool
    place: str
    check: str = ""
    license: str | None = None
    datasets: tuple[str, ...] = ()


def new_stamp() -> dict[str, str]:
    """When a page or a card is made, and by which version."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {"created": created, "version": package_versions()["opct"] or "unknown"}


def model_card_text(
    comparison: Comparison,
    warnings: Sequence[str],
    stamp: dict[str, str],
    *,
    page_name: str = "",
    exported: Exported | None = None,
) -> str:
    """The model card as Markdown. Names are escaped, so they cannot break the table or the YAML.

    Args:
        page_name: of the report beside the card; empty if there is none.
        exported: the weights beside the card; without, they are in the run directory.
    """
    arm = comparison.main_arm
    run = arm.runs[0]
    values = run.config_values
    has_weights = exported is not None or bool(values)  # a model that no run trained has none beside the card
    has_adapter = has_weights and (exported.is_adapter if exported else values.get("lora", "unknown") is not None)
    revision = values.get("model.revision")
    base = f"{run.model}, revision {revision}" if revision else run.model
    if run.model == Q4_MODEL:
        base = f"SmolLM2-135M-Instruct, dequantized from the Q4_1 file of the PyPI package {PACKAGE}"
    parts = _found(comparison) if exported is None else [f"Trained from {base}.", exported.check]
    folder = f"path/to/{'adapter' if has_adapter else 'model'}" if exported is None else exported.place
    return (
        # Markdown, which `_escaped` escapes: in the fenced config, HTML entities would be shown as they are
        environment(autoescape=False)
        .get_template("card.md.j2")
        .render(
            front_matter=_front_matter(comparison, arm, exported, has_weights=has_weights, has_adapter=has_adapter),
            title=_escaped(title(comparison)),
            found=[_escaped(text) for text in parts if text],
            arms=[_escaped(a.name) for a in comparison.arms],
            pairs=[_escaped(pair.title) for pair in comparison.pairs],
            sections=[(_escaped(s.full_title), [table_row(row) for row in s.rows]) for s in comparison.headline()],
            chance=_escaped(chance_note(comparison)),
            graders=_escaped(judged_note([row for s in comparison.headline() for row in s.rows])),
            warnings=[_escaped(text) for text in warnings],
            run_name=_escaped(run.name),
            model=_escaped(base),
            method=_escaped(run.method or "none"),
            seeds=", ".join(str(r.seed) for r in arm.runs if r.seed is not None) or "not recorded",
            config=_fenced(run.config),
            has_weights=has_weights,
            has_adapter=has_adapter,
            in_run=exported is None,
            folder=json.dumps(folder),
            page_name=page_name,
            **stamp,
        )
    )


def _found(comparison: Comparison) -> list[str]:
    return [*dict.fromkeys((*summary(comparison), *evidence(comparison).values(), limits(comparison)))]


def _escaped(text: str) -> Markup:
    # one line: a line feed in a name would end its row of the table
    return Markup(_SPECIAL.sub(r"\\\1", " ".join(text.split())))


def _fenced(config: str) -> str:
    """YAML as a fenced block; the fence is longer than any run of backticks inside."""
    if not config.strip():
        return ""
    # a fence that the config contains would end the block, and the rest would be rendered
    longest = max((len(row) for row in re.findall(r"`+", config)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}yaml\n{config.strip()}\n{fence}"


def _front_matter(
    comparison: Comparison, arm: Arm, exported: Exported | None, *, has_weights: bool, has_adapter: bool
) -> str:
    """YAML front matter as the hub reads it; a base that is not on the hub is not named."""
    model = arm.runs[0].model
    # a folder `runs/a` looks like a hub id, and would link to a stranger's model
    on_hub = _HUB_ID.fullmatch(model) and not Path(model).exists()
    safety = [axis.replace("_", "-") for axis in comparison.axes if axis_info(axis).is_safety]
    tags = dict.fromkeys(["opct", "on-policy-consistency-training", *safety, "alignment", arm.label])
    results = _eval_results(comparison, arm) if exported is not None else []
    data = ModelCardData(
        base_model=model if on_hub else None,
        base_model_relation=("adapter" if has_adapter else "finetune") if on_hub and has_weights else None,
        library_name=None if not has_weights else "peft" if has_adapter else "transformers",
        pipeline_tag="text-generation",
        license=None if exported is None else exported.license,
        datasets=list(exported.datasets) or None if exported is not None else None,
        tags=[tag for tag in tags if tag != "base"],
        model_name=title(comparison) if results else None,
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---"


def _eval_results(comparison: Comparison, arm: Arm) -> list[EvalResult]:
    """The headline results as the hub lists them, with n and the 95% interval in the name of the metric."""
    rows = [(s.full_title, row, comparison.level(row, arm)) for s in comparison.headline() for row in s.rows]
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=f"opct/{row.suite}",
            dataset_name=section,
            dataset_config=section,  # the hub joins results of one dataset and config, whatever their names
            metric_type=row.metric.name,
            metric_value=estimate.value,
            metric_name=f"{row.title} ({named_interval(estimate.interval_text)}, n = {estimate.n:,})",
        )
        for section, row, estimate in rows
        if estimate is not None
    ]


def table_row(row: MetricRow) -> list[Markup]:
    estimates = [
        "not measured"
        if estimate is None
        else f"{estimate.text} ({estimate.interval_text}); n = {estimate.n:,}; {estimate.left_out_text}"
        for estimate in row.estimates
    ]
    differences = [
        reason or "not paired" if difference is None else _difference(difference)
        for difference, reason in zip(row.differences, row.reasons, strict=True)
    ]
    title = row.title if row.note is None else f"{row.title} ({row.note})"
    return [_escaped(text) for text in (title, *estimates, *differences)]


def _difference(difference: PairedDifference) -> str:
    parts = (f"{difference.text} ({difference.interval_text})", f"n = {difference.n:,}", difference.left_out_text)
    return "; ".join(part for part in (*parts, difference.reading_text, difference.seeds_text) if part)

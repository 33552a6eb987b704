"""How far the replies are from the base: KL per token, for the rates and for the browser of the report."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from opct.evals.inspect_runner import Counter
from opct.evals.provider import EvaluatedPolicy
from opct.evals.records import Record
from opct.evals.suites import measures_kl

KL_BATCH = 32


def add_kl(
    policy: EvaluatedPolicy, records: Sequence[Record], kl_samples: int, browser_questions: int, count: Counter
) -> None:
    """Fill in KL(policy | prompt || base | teacher_prompt): means where nothing is pushed, tokens for the browser."""
    shown = _browser_subset(records, browser_questions)
    taken: dict[str, int] = {}
    wanted = []
    for record in records:
        if not record.token_ids or not measures_kl(record.row["task"]):
            continue
        plain = _is_plain(record)
        taken[record.row["task"]] = taken.get(record.row["task"], 0) + plain
        if record.row["id"] in shown or (plain and taken[record.row["task"]] <= kl_samples):
            wanted.append(record)
    count.add(len(wanted))
    plain_first = [[r for r in wanted if _is_plain(r)], [r for r in wanted if not _is_plain(r)]]
    batches = [part[i : i + KL_BATCH] for part in plain_first for i in range(0, len(part), KL_BATCH)]
    for batch in batches:  # apart, so that equal prompts are padded alike on both sides: KL of the base to itself is 0
        values = policy.token_kl(
            [tuple(record.row["prompt"]) for record in batch],
            [tuple(record.row["teacher_prompt"]) for record in batch],
            [SimpleNamespace(token_ids=record.token_ids) for record in batch],
        )
        for record, kl in zip(batch, values, strict=True):
            record.row["values"]["kl_to_base" if _is_plain(record) else "kl_to_teacher"] = sum(kl) / len(kl)
            if record.row["id"] in shown:
                record.row["tokens"] = list(policy.renderer.pieces(record.token_ids))
                record.row["kl"] = [round(float(value), 5) for value in kl]
        count.step(len(batch))


def _is_plain(record: Record) -> bool:
    """Nothing is pushed: the prompt is its own teacher prompt."""
    return bool(record.row["prompt"] == record.row["teacher_prompt"])


def _browser_subset(records: Sequence[Record], n_clusters: int) -> set[str]:
    """The ids of all samples of the first questions of each task; the families take turns, so these show them all."""
    first: dict[str, dict[str, None]] = {}
    for record in records:
        clusters = first.setdefault(record.row["task"], {})
        if len(clusters) < n_clusters:
            clusters.setdefault(record.row["cluster"])
    return {record.row["id"] for record in records if record.row["cluster"] in first[record.row["task"]]}

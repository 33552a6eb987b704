"""How far the replies are from the base: KL per token, for the rates and for the browser of the report."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from opct.evals.inspect_runner import Counter
from opct.evals.provider import EvaluatedPolicy
from opct.evals.samples import GradedSample
from opct.evals.suites import measures_kl

KL_BATCH = 32


def add_kl(
    policy: EvaluatedPolicy, samples: Sequence[GradedSample], kl_samples: int, browser_questions: int, count: Counter
) -> None:
    """Fill in KL(policy | prompt || base | teacher_prompt): means where nothing is pushed, tokens for the browser."""
    shown = _browser_subset(samples, browser_questions)
    taken: dict[str, int] = {}
    wanted = []
    for sample in samples:
        if not sample.token_ids or not measures_kl(sample.task):
            continue
        plain = _is_plain(sample)
        taken[sample.task] = taken.get(sample.task, 0) + plain
        if sample.id in shown or (plain and taken[sample.task] <= kl_samples):
            wanted.append(sample)
    count.add(len(wanted))
    plain_first = [[r for r in wanted if _is_plain(r)], [r for r in wanted if not _is_plain(r)]]
    batches = [part[i : i + KL_BATCH] for part in plain_first for i in range(0, len(part), KL_BATCH)]
    for batch in batches:  # apart, so that equal prompts are padded alike on both sides: KL of the base to itself is 0
        values = policy.token_kl(
            [tuple(sample.prompt) for sample in batch],
            [tuple(sample.teacher_prompt) for sample in batch],
            [SimpleNamespace(token_ids=sample.token_ids) for sample in batch],
        )
        for sample, kl in zip(batch, values, strict=True):
            sample.values["kl_to_base" if _is_plain(sample) else "kl_to_teacher"] = sum(kl) / len(kl)
            if sample.id in shown:
                sample.tokens = list(policy.renderer.pieces(sample.token_ids))
                sample.kl = [round(float(value), 5) for value in kl]
        count.step(len(batch))


def _is_plain(sample: GradedSample) -> bool:
    """Nothing is pushed: the prompt is its own teacher prompt."""
    return bool(sample.prompt == sample.teacher_prompt)


def _browser_subset(samples: Sequence[GradedSample], n_clusters: int) -> set[str]:
    """The ids of all samples of the first questions of each task; the families take turns, so these show them all."""
    first: dict[str, dict[str, None]] = {}
    for sample in samples:
        clusters = first.setdefault(sample.task, {})
        if len(clusters) < n_clusters:
            clusters.setdefault(sample.cluster)
    return {sample.id for sample in samples if sample.cluster in first[sample.task]}

"""KL of the replies to the base, per reply for the metrics and per token for the report's rollout browser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from opct.evals.config import EvalConfig
from opct.evals.inspect_runner import ProgressCounter
from opct.evals.logs import KL, graded_samples
from opct.evals.samples import PARSED, GradedSample

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog

    from opct.models.policy import Policy

KL_BATCH = 32


def add_kl(policy: Policy, logs: Sequence[EvalLog], config: EvalConfig, count: ProgressCounter) -> None:
    """Add KL(policy | prompt || base | teacher_prompt) to the logs, as the score `kl`: its mean a reply, and per token
    for the first questions of each suite."""
    from inspect_ai.scorer import Score

    samples = [sample for log in logs for sample in graded_samples(log) if not sample.task.endswith(PARSED)]
    shown = _browser_ids(samples, config.browser_questions)
    wanted = [sample for sample in _first_plain(samples, config.kl_samples, shown) if sample.token_ids]
    in_log = {str(sample.id): sample for log in logs for sample in log.samples or []}
    count.add(len(wanted))
    plain_first = [[s for s in wanted if _is_plain(s)], [s for s in wanted if not _is_plain(s)]]
    batches = [part[i : i + KL_BATCH] for part in plain_first for i in range(0, len(part), KL_BATCH)]
    for batch in batches:  # apart, so that equal prompts are padded alike on both sides: KL of the base to itself is 0
        replies: list[Any] = [SimpleNamespace(token_ids=sample.token_ids) for sample in batch]
        values = policy.token_kl(
            [tuple(sample.prompt) for sample in batch], [tuple(sample.teacher_prompt) for sample in batch], replies
        )
        for sample, kl in zip(batch, values, strict=True):
            metadata: dict[str, Any] = {}
            if sample.id in shown:
                pieces = list(policy.renderer.pieces(sample.token_ids))
                metadata = {"tokens": pieces, "kl": [round(float(value), 5) for value in kl]}
            name = "kl_to_base" if _is_plain(sample) else "kl_to_teacher"
            scores = in_log[sample.id].scores
            assert scores is not None
            scores[KL] = Score(value={name: sum(kl) / len(kl)}, metadata=metadata)
        count.step(len(batch))


def _is_plain(sample: GradedSample) -> bool:
    """Whether the sample has no pressure: the prompt equals the teacher prompt."""
    return list(sample.prompt) == list(sample.teacher_prompt)


def _first_plain(samples: Sequence[GradedSample], n: int, shown: set[str]) -> Iterator[GradedSample]:
    """The samples of the rollout browser, and the first n samples without pressure of each suite."""
    taken: dict[str, int] = {}
    for sample in samples:
        plain = _is_plain(sample) and bool(sample.token_ids)
        taken[sample.task] = taken.get(sample.task, 0) + plain
        if sample.id in shown or (plain and taken[sample.task] <= n):
            yield sample


def _browser_ids(samples: Sequence[GradedSample], n_clusters: int) -> set[str]:
    """The ids of all samples of the first questions of each task; the families take turns, so these show them all."""
    first: dict[str, dict[str, None]] = {}
    for sample in samples:
        clusters = first.setdefault(sample.task, {})
        if len(clusters) < n_clusters:
            clusters.setdefault(sample.cluster)
    return {sample.id for sample in samples if sample.cluster in first[sample.task]}

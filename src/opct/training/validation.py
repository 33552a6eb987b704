"""Validation: the KL to the teacher on held-out pairs during training.

The same pairs and seeds at every step and for every method, so that curves can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean as mean
from typing import Any

import torch

from opct import distributed, losses
from opct.data.render import RenderedPair
from opct.methods.rollouts import Rollout, cost, policy_rollouts, rollout_row
from opct.models.fsdp import unsharded
from opct.models.policy import SCORING_TOKENS
from opct.models.scoring import micro_batches, tokenwise
from opct.training.setup import TrainingSetup


def validate(setup: TrainingSetup, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Mean reverse KL a token (nats) on held-out pairs and on held-out identity pairs, and the rollouts as rows.

    One completion a pair, sampled from the policy under `prompt` at temperature 1; the exact KL to the teacher under
    `teacher_prompt`.
    """

    def measure(own: list[RenderedPair]) -> list[tuple[Rollout, list[float]]]:
        with unsharded(*setup.models):
            return rollout_kl(setup, own)

    metrics: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    data = setup.data
    for name, pairs in (("validation/kl", data.validation), ("validation/kl_identity", data.validation_anchors)):
        if not pairs:
            continue
        costs = [cost(rendered, setup.config, 1) for rendered in pairs]
        measured = distributed.map_across_ranks(pairs, costs, measure)
        of_axes: dict[str, list[float]] = {}
        for rollout, kl in measured:
            of_axes.setdefault(rollout.pair.axis, []).extend(kl)
        metrics[name] = mean(value for own in of_axes.values() for value in own)
        if name == "validation/kl" and len(of_axes) > 1:
            metrics |= {f"{name}_{axis}": mean(own) for axis, own in sorted(of_axes.items())}
        rows += [rollout_row(r, setup.policy, step, kl) for r, kl in measured]
    return metrics, rows


@torch.no_grad()
def rollout_kl(setup: TrainingSetup, pairs: Sequence[RenderedPair]) -> list[tuple[Rollout, list[float]]]:
    """One rollout for each pair, and the exact reverse KL of each of its tokens in nats."""
    policy, teacher = setup.policy, setup.teacher
    # of the policy itself, whatever the answers of a run are sampled with: only then is it the mean reverse KL
    own = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "use_generation_config": False}
    config = setup.config.model_copy(update={"rollout": setup.config.rollout.model_copy(update=own)})
    rollouts = policy_rollouts(policy, pairs, config, "validation", n=1, sampler=setup.engine)
    kl: list[list[float]] = [[] for _ in rollouts]
    lengths = [max(len(r.prompt_ids), len(r.teacher_ids)) + len(r.ids) for r in rollouts]
    for rows in micro_batches(lengths, SCORING_TOKENS):
        batch = [rollouts[i] for i in rows]
        completions = [r.ids for r in batch]
        with teacher() as model:
            reference = model.score([r.teacher_ids for r in batch], completions)
        student = policy.score([r.prompt_ids for r in batch], completions)
        values = tokenwise(losses.reverse_kl, student, reference).split(list(student.lengths))
        for i, value in zip(rows, values, strict=True):
            kl[i] = value.tolist()
    return list(zip(rollouts, kl, strict=True))

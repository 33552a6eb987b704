"""From the scores of policy and teacher to the loss of a micro-batch, for every estimator.

Shared by `opct` and `offpolicy`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from opct import losses
from opct.config import LossConfig
from opct.methods.rollouts import Rollout
from opct.models.scoring import Scores, padded, tokenwise


@dataclass(frozen=True)
class MicroLoss:
    """The loss of a micro-batch (its share of the step's), and each token's KL for the logs; None where there is none.

    kl: one list of [tokens] a rollout, in nats: D_t for `exact` and `topk`, k_t for `sampled`; for `sft` the
        single-sample estimate log q - log p of the forward KL(teacher || policy).
    """

    loss: Tensor
    kl: list[list[float]] | None


def consistency_loss(
    student: Scores, reference: Scores, rollouts: Sequence[Rollout], weights: Sequence[Tensor], config: LossConfig
) -> MicroLoss:
    """The divergence between policy and teacher on the completions' tokens, as `config` estimates it.

    Args:
        student: scores after `prompt`, with gradient.
        reference: scores of the same tokens after `teacher_prompt`.
        weights: the weight of each token in the loss of the whole step, [tokens] a rollout.
    """
    flat_weights = torch.cat(list(weights)).to(student.hidden.device)
    if config.estimator == "sampled":
        per_token, kl = _sampled(student, reference, rollouts, config)
    else:
        per_token, kl = _differentiated(student, reference, rollouts, config)
    values = [row.tolist() for row in kl.detach().cpu().split(list(student.lengths))]
    return MicroLoss((per_token * flat_weights).sum(), values)


def kl_name(config: LossConfig) -> str:
    """What `MicroLoss.kl` is called in the metrics: `kl` is the reverse KL, or an estimate of it."""
    return "kl" if config.divergence == "reverse_kl" else config.divergence


def divergence(config: LossConfig) -> Callable[[Tensor, Tensor], Tensor]:
    """The function of (policy logits, teacher logits) that `exact` and `topk` differentiate."""
    if config.estimator == "topk":
        return partial(losses.topk_reverse_kl, k=config.top_k)
    if config.divergence == "forward_kl":
        return losses.forward_kl
    if config.divergence == "jsd":
        return partial(losses.jensen_shannon, weight=config.jsd_weight)
    return losses.reverse_kl


def _differentiated(
    student: Scores, reference: Scores, rollouts: Sequence[Rollout], config: LossConfig
) -> tuple[Tensor, Tensor]:
    d = tokenwise(divergence(config), student, reference)
    per_token = d
    if config.kl_discount_factor > 0:
        log_probs = tokenwise(losses.token_log_probs, student)
        rows = _below_each_other(student.lengths, d, log_probs, _sampler_log_probs(rollouts, d), _mask(rollouts, d))
        per_token = d + _flat(losses.future_term(*rows, gamma=config.kl_discount_factor), student.lengths)
    return config.kl_coef * per_token, d


def _sampled(
    student: Scores, reference: Scores, rollouts: Sequence[Rollout], config: LossConfig
) -> tuple[Tensor, Tensor]:
    log_probs = tokenwise(losses.token_log_probs, student)
    with torch.no_grad():
        teacher_log_probs = tokenwise(losses.token_log_probs, reference)
    policy_rows, teacher_rows, sampler_rows, mask = _below_each_other(
        student.lengths,
        log_probs,
        teacher_log_probs,
        _sampler_log_probs(rollouts, log_probs),
        _mask(rollouts, log_probs),
    )
    advantages = losses.sampled_advantages(
        policy_rows, teacher_rows, mask, kl_coef=config.kl_coef, gamma=config.kl_discount_factor
    )
    per_token = losses.policy_gradient_loss(policy_rows, sampler_rows, advantages, clip=config.ppo_clip)
    return _flat(per_token, student.lengths), log_probs - teacher_log_probs


def _sampler_log_probs(rollouts: Sequence[Rollout], like: Tensor) -> Tensor:
    return torch.tensor([x for r in rollouts for x in r.completion.logprobs], device=like.device, dtype=like.dtype)


def _mask(rollouts: Sequence[Rollout], like: Tensor) -> Tensor:
    return torch.tensor([x for r in rollouts for x in r.mask], device=like.device, dtype=like.dtype)


def _below_each_other(lengths: Sequence[int], *values: Tensor) -> list[Tensor]:
    return [padded(v, lengths) for v in values]


def _flat(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    return torch.cat([row[:n] for row, n in zip(rows, lengths, strict=True)])

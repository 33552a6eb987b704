"""The loss of a micro-batch from the scores of policy and teacher, for every estimator of `opct` and `offpolicy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from opct import losses
from opct.config.methods import OffPolicyLoss, OpctLoss
from opct.methods.rollouts import Rollout
from opct.models.chunked_loss import DivergenceGradient, PerTokenLoss, TokenValues, one_pass
from opct.models.scoring import Scores, padded

Settings = OpctLoss | OffPolicyLoss
DIVERGENCES = {"reverse_kl": "kl", "forward_kl": "forward_kl", "jsd": "jsd"}
"""The name in `MicroLoss.values` of each `loss.divergence`; `kl` is the reverse KL or an estimate of it."""


@dataclass(frozen=True)
class MicroLoss:
    """The share of a micro-batch in the step's loss, and numbers for the logs.

    values: name -> one list of [tokens] a rollout, in nats; the mean of each over tokens in the loss is logged as
        `train/<name>`, and the first is stored with its rollout. A name of `DIVERGENCES` is the divergence to the
        teacher, whose growth stops a run: D_t for `exact` and `topk`; k_t for `sampled`, which can be below 0.
    log_probs: log p(y_t) in nats, one list of [tokens] a rollout.
    means: metric -> numbers; their mean over the step is logged.
    by_axis: metric -> axis -> numbers, without identity pairs; with several axes in a step, the mean of each is logged
        as `<metric>_<axis>`.
    """

    loss: Tensor
    values: Mapping[str, list[list[float]]] = field(default_factory=dict)
    log_probs: list[list[float]] | None = None
    means: Mapping[str, Sequence[float]] = field(default_factory=dict)
    by_axis: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)


def consistency_loss(
    student: Scores, reference: Scores | None, rollouts: Sequence[Rollout], weights: Sequence[Tensor], config: Settings
) -> MicroLoss:
    """The divergence between policy and teacher on the completions' tokens, as `config` estimates it.

    Args:
        student: scores after `prompt`, with gradient.
        reference: scores of the same tokens after `teacher_prompt`; None if the rollouts hold the teacher's log-probs,
            which are enough for `sampled`.
        weights: the weight of each token in the loss of the whole step, [tokens] a rollout.
    """
    if config.estimator == "sampled":
        per_token = _sampled(student.lengths, rollouts, config)
        loss, tokens = one_pass(per_token, flat_weights(student, weights), student, reference)
        kl = tokens.log_probs - _teacher_log_probs(tokens.teacher_log_probs, rollouts, tokens.log_probs)
    else:
        per_token = _differentiated(student.lengths, rollouts, config)
        function = divergence_gradient(config)
        loss, tokens = one_pass(per_token, flat_weights(student, weights), student, reference, function)
        assert tokens.divergence is not None
        kl = tokens.divergence
    values = {DIVERGENCES[config.divergence]: by_rollout(kl, student.lengths)}
    return MicroLoss(loss, values, by_rollout(tokens.log_probs, student.lengths))


def divergence_gradient(config: Settings) -> DivergenceGradient:
    """The divergence of `exact` and `topk` with its gradient, a function of the log-probs of policy and teacher."""
    if config.estimator == "topk":
        return partial(losses.topk_reverse_kl_gradient, k=config.top_k)
    if config.divergence == "forward_kl":
        return losses.forward_kl_gradient
    if config.divergence == "jsd":
        return partial(losses.jensen_shannon_gradient, weight=config.jsd_weight)
    return losses.reverse_kl_gradient


def by_rollout(values: Tensor, lengths: Sequence[int]) -> list[list[float]]:
    """[tokens] as one list a rollout."""
    return [row.tolist() for row in values.cpu().split(list(lengths))]


def flat_weights(student: Scores, weights: Sequence[Tensor]) -> Tensor:
    # in the order of the rollouts, as `student` has its rows
    return torch.cat(list(weights)).to(student.hidden.device)


def _differentiated(lengths: Sequence[int], rollouts: Sequence[Rollout], config: Settings) -> PerTokenLoss:
    """kl_coef (D_t + the score-function term of the divergences after it)."""
    later = _Later(lengths, rollouts)

    def per_token(tokens: TokenValues) -> Tensor:
        assert tokens.divergence is not None
        if config.kl_discount_factor == 0:
            return config.kl_coef * tokens.divergence
        rows = later.rows(tokens, tokens.divergence)
        term = losses.future_term(*rows, gamma=config.kl_discount_factor)
        # of all rows, then of this chunk: a term sums over later tokens, which may be in the chunk before
        return config.kl_coef * (tokens.divergence + later.flat(term)[tokens.rows])

    return per_token


def _sampled(lengths: Sequence[int], rollouts: Sequence[Rollout], config: Settings) -> PerTokenLoss:
    """-rho_t A_t."""
    later = _Later(lengths, rollouts)

    def per_token(tokens: TokenValues) -> Tensor:
        teacher_log_probs = tokens.teacher_log_probs
        if teacher_log_probs is None:
            # given for the whole micro-batch: without `rows`, a chunk would be compared with other tokens
            teacher_log_probs = _teacher_log_probs(None, rollouts, tokens.log_probs)[tokens.rows]
        k, log_probs, sampler_log_probs, mask = later.rows(tokens, tokens.log_probs - teacher_log_probs)
        advantages = losses.log_ratio_advantages(k, mask, kl_coef=config.kl_coef, gamma=config.kl_discount_factor)
        loss = losses.policy_gradient_loss(log_probs, sampler_log_probs, advantages, clip=config.ppo_clip)
        return later.flat(loss)[tokens.rows]

    return per_token


def _teacher_log_probs(scored: Tensor | None, rollouts: Sequence[Rollout], like: Tensor) -> Tensor:
    """The teacher's log-prob of each token, [tokens]: scored here, or given by the rollouts."""
    if scored is not None:
        return scored
    given = [x for r in rollouts for x in r.teacher_logprobs or ()]
    return torch.tensor(given, device=like.device, dtype=like.dtype)


class _Later:
    """Collects the per-token terms of a micro-batch, which are computed from the last token to the first."""

    def __init__(self, lengths: Sequence[int], rollouts: Sequence[Rollout]):
        self._lengths = lengths
        # float64 until the policy's dtype is known: rounded once, to that one
        self._sampler_log_probs = torch.tensor(
            [x for r in rollouts for x in r.completion.logprobs], dtype=torch.float64
        )
        self._mask = torch.tensor([x for r in rollouts for x in r.mask])
        self._terms: Tensor | None = None

    def rows(self, tokens: TokenValues, terms: Tensor) -> list[Tensor]:
        """Terms, log-probs, the sampler's log-probs and the mask, [sequences, tokens] each; 0 if not yet computed."""
        log_probs = terms.new_zeros(len(self._mask))
        if self._terms is None:
            self._terms = torch.zeros_like(log_probs)
        # kept from chunk to chunk; chunks come last token first, so that all later terms of a row are known
        self._terms[tokens.rows] = terms.detach()
        # of this chunk alone with a gradient: the log-probs of other chunks get theirs in their own call
        log_probs = log_probs.slice_scatter(tokens.log_probs, start=tokens.rows.start, end=tokens.rows.stop)
        flat = self._terms, log_probs, self._sampler_log_probs.to(log_probs), self._mask.to(log_probs)
        return [padded(values, self._lengths) for values in flat]

    def flat(self, rows: Tensor) -> Tensor:
        """[sequences, tokens] -> [tokens]."""
        return torch.cat([row[:n] for row, n in zip(rows, self._lengths, strict=True)])

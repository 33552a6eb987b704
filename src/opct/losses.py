"""Divergences and estimators of the loss, as functions of tensors.

With p the policy under `prompt` and q the teacher under `teacher_prompt`, both over the vocabulary after the same
prefix, the loss of a completion y is a sum over its tokens of

    D_t = KL(p_t || q_t)        `exact` (reverse KL; or forward KL, or Jensen-Shannon)
    D_t on the policy's top-k tokens and one bucket for the rest        `topk`
    -rho_t A_t,  A_t = -kl_coef sum_{u>=t} gamma^(u-t) k_u,  k_t = log p(y_t) - log q(y_t)        `sampled`

Han et al. 2026, arXiv 2605.21834, section 3; `sampled` is the form of their released code. Deviations:
1. The default estimator is `exact`: the same expected gradient as `sampled` at gamma = 0 with far less variance.
2. With gamma > 0, `exact` and `topk` add rho_t sg(sum_{u>t} gamma^(u-t) D_u), so that gamma = 1 is the gradient of the
   KL between whole sequences.

Logits may be of any float type; everything is computed in float32 at least.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

Logits = Float[Tensor, "*tokens vocabulary"]
PerToken = Float[Tensor, "*tokens"]
Rows = Float[Tensor, "sequences tokens"]
Mask = Shaped[Tensor, "sequences tokens"]


def _log_softmax(logits: Logits) -> Logits:
    # in bfloat16 a log-prob has 8 bits: differences of two models would be rounding; float64 stays
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _kl(log_p: Logits, log_q: Logits) -> PerToken:
    """sum p (log p - log q) over the last dimension; a term with p = 0 is 0, and so is its gradient."""
    return (log_p.exp() * _log_ratio(log_p, log_q)).sum(-1)


def _log_ratio(log_p: Logits, log_q: Logits) -> Logits:
    """log p - log q, and 0 where p = 0."""
    # -inf - -inf is NaN, and 0 * inf in the sum would be NaN, too
    return (log_p - log_q).masked_fill_(log_p == -torch.inf, 0.0)


def reverse_kl(policy_logits: Logits, teacher_logits: Logits) -> PerToken:
    """KL(policy || teacher) in nats; [..., vocabulary] twice -> [...]."""
    return _kl(_log_softmax(policy_logits), _log_softmax(teacher_logits))


def _log_mixture(log_p: Logits, log_q: Logits, weight: float) -> Logits:
    # log1p: log(1 - w) loses digits for a small w
    return torch.logaddexp(log_p + math.log(weight), log_q + math.log1p(-weight))


def _buckets(log_p: Logits, top: Int[Tensor, "*tokens k"]) -> Float[Tensor, "*tokens buckets"]:
    """Log-probs of the k tokens, and of all others together; [..., k + 1]."""
    # not log(1 - sum of the top): where the top has nearly all mass that is rounding, or the log of a negative number
    tail = log_p.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([log_p.gather(-1, top), tail], -1)


# -- the divergences, in nats, with their gradient to the policy's logits in closed form: log-probs of policy and
#    teacher, [..., vocabulary] twice -> D, [...], and dD / d logits, [..., vocabulary]. With D = sum p r and r taken as
#    given where its own part vanishes, dD / d logits = p (r - D). Left to autograd that part is rounding, and equal
#    distributions would have a gradient that is not exactly zero.


def _of_ratio(log_p: Logits, ratio: Logits) -> tuple[PerToken, Logits]:
    p = log_p.exp()
    d = (p * ratio).sum(-1, keepdim=True)
    # in place: `ratio` is a buffer of the vocabulary's size that no caller reads again
    return d.squeeze(-1), ratio.sub_(d).mul_(p)


def reverse_kl_gradient(log_p: Logits, log_q: Logits) -> tuple[PerToken, Logits]:
    """KL(p || q): r = log p - log q; the part through r itself, sum dp, is zero."""
    return _of_ratio(log_p, _log_ratio(log_p, log_q))


def forward_kl_gradient(log_p: Logits, log_q: Logits) -> tuple[PerToken, Logits]:
    """KL(q || p) = sum q (log q - log p), dD / d logits = p - q."""
    return _kl(log_q, log_p), log_p.exp() - log_q.exp()


def jensen_shannon_gradient(log_p: Logits, log_q: Logits, weight: float) -> tuple[PerToken, Logits]:
    """w KL(p || m) + (1 - w) KL(q || m), m = w p + (1 - w) q, with `weight` w, the policy's share, in (0, 1).

    r = w (log p - log m) for the policy's part; that of the mixture, sum dm, is zero.
    """
    log_m = _log_mixture(log_p, log_q, weight)
    d, gradient = _of_ratio(log_p, _log_ratio(log_p, log_m).mul_(weight))
    return d + (1 - weight) * _kl(log_q, log_m), gradient


def topk_reverse_kl_gradient(log_p: Logits, log_q: Logits, k: int) -> tuple[PerToken, Logits]:
    """Reverse KL on the policy's k likeliest tokens plus one bucket for all others; r of a token is that of its bucket.

    A lower bound of the exact KL (merging outcomes never raises a KL), equal to it when k is the vocabulary's size or
    more. Which tokens are the top k is treated as given.
    """
    if k >= log_p.shape[-1]:
        return reverse_kl_gradient(log_p, log_q)
    top = log_p.topk(k, dim=-1).indices
    ratios = _log_ratio(_buckets(log_p, top), _buckets(log_q, top))
    # the tail's ratio for every token, then their own for the top k; `scatter` copies, so the view is not written to
    ratio = ratios[..., -1:].expand_as(log_p).scatter(-1, top, ratios[..., :-1])
    return _of_ratio(log_p, ratio)


def token_log_probs(logits: Logits, token_ids: Int[Tensor, "*tokens"]) -> PerToken:
    """Log-prob of each token under the full softmax at temperature 1; [..., vocabulary], [...] -> [...]."""
    return _log_softmax(logits).gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)


def likeliest(logits: Logits, k: int) -> Float[Tensor, "*tokens values"]:
    """The ids of the k likeliest tokens, likeliest first, then their probabilities; [..., vocabulary] -> [..., 2k]."""
    top, ids = logits.topk(k, dim=-1)
    probabilities = (top - logits.logsumexp(-1, keepdim=True)).exp()
    # ids as floats: whole numbers are exact up to 2^24 in float32, which no vocabulary reaches
    return torch.cat([ids.to(probabilities.dtype), probabilities], -1)


def discounted_sum(values: Rows, gamma: float) -> Rows:
    """sum_{u>=t} gamma^(u-t) values_u along the last dimension; [sequences, tokens] -> the same."""
    out, reach = values, 1
    while reach < values.shape[-1] and gamma > 0:  # each round doubles how far every place has summed
        out = out + gamma**reach * torch.nn.functional.pad(out[..., reach:], (0, reach))
        reach *= 2
    return out


def log_ratio_advantages(log_ratios: Rows, mask: Mask, *, kl_coef: float, gamma: float) -> Rows:
    """A_t = -kl_coef sum_{u>=t} gamma^(u-t) k_u over masked tokens, without gradient; [sequences, tokens] each.

    Tokens that are not in the mask neither get an advantage nor add to another token's.

    Args:
        log_ratios: k_t = log p(y_t) - log q(y_t).
    """
    # masked before the sum and after it: k of a token outside must not reach others, nor the sum reach that token
    return -kl_coef * discounted_sum((log_ratios * mask).detach(), gamma) * mask


def policy_gradient_loss(
    policy_log_probs: Rows, sampler_log_probs: Rows, advantages: Rows, *, clip: float | None = None
) -> Rows:
    """-rho_t A_t per token, rho_t = p(y_t) / mu(y_t), mu the distribution that was sampled; all [sequences, tokens].

    Args:
        clip: PPO clip range epsilon: -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon) A).
    """
    ratio = (policy_log_probs - sampler_log_probs).exp()
    if clip is None:
        return -ratio * advantages
    # the minimum of both products, not of the ratios: for a negative advantage that would clip on the wrong side
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def future_term(
    divergences: Rows, policy_log_probs: Rows, sampler_log_probs: Rows, mask: Mask, *, gamma: float
) -> Rows:
    """rho_t sg(sum_{u>t} gamma^(u-t) D_u) per token, the score-function term of `exact` and `topk`.

    Shapes: all [sequences, tokens].
    """
    here = (divergences * mask).detach()
    # u > t: the token's own D has its gradient in the first term
    future = discounted_sum(here, gamma) - here
    return (policy_log_probs - sampler_log_probs).exp() * future * mask


def preference(chosen: Float[Tensor, " pairs"], rejected: Float[Tensor, " pairs"]) -> tuple[Tensor, Tensor]:
    """-log sigmoid(m) and its derivative to m, -sigmoid(-m), with m = chosen - rejected; [pairs] each.

    Args:
        chosen: rewards of the preferred answers: beta (log p(y | prompt) - log q(y | prompt)) with the reference q.

    Source: DPO, Rafailov et al. 2023, arXiv 2305.18290, equation 7.
    """
    margin = chosen - rejected
    return -torch.nn.functional.logsigmoid(margin), -torch.sigmoid(-margin)


def token_weights(mask: Mask, reduction: str) -> Rows:
    """The weight of each token's term in the loss of a whole optimizer step; [sequences, tokens] -> the same.

    `token_mean`: 1 / masked tokens. `sequence_mean`: 1 / (sequences that have a masked token x their masked tokens).
    `sum`: 1. The weights are made once for the step, so the gradient does not depend on how it is cut into
    micro-batches.
    """
    mask = mask.float()
    if reduction == "sum":
        return mask
    if reduction == "token_mean":
        return mask / mask.sum().clamp(min=1)
    lengths = mask.sum(-1, keepdim=True)
    # empty sequences are no part of the mean; clamp, or a step with none would be 0 / 0
    return mask / lengths.clamp(min=1) / (lengths > 0).sum().clamp(min=1)

"""A loss over the vocabulary and its gradient in one pass over chunks of tokens.

The weight of each token in the loss is known before the pass, so the gradient is computed together with the value.
That takes three projections between hidden states and vocabulary: the policy's logits, the teacher's, and the gradient
back. A trained head takes a fourth. No tensor of [tokens, vocabulary] is kept.

    G_t = a_t dD_t / d logits + b_t (onehot(y_t) - p_t)      with the loss's derivatives a_t to D_t, b_t to log p(y_t)
    dL/dh = G W,   dL/dW = G' h
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from opct.models import scoring
from opct.models.scoring import Projection, Scores

BLOCK_VALUES = 2**19  # logits computed together on a CPU: two megabytes, which its caches hold

DivergenceGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
PerTokenLoss = Callable[["TokenValues"], Float[Tensor, " chunk"]]


@dataclass(frozen=True)
class TokenValues:
    """Values that a chunk's loss may use; each [chunk], float32. None without a teacher or a divergence.

    rows: the chunk's place in the batch. Chunks come from the last token to the first, so that a token's loss may
        depend on later tokens.
    """

    rows: slice
    log_probs: Float[Tensor, " chunk"]
    teacher_log_probs: Float[Tensor, " chunk"] | None
    divergence: Float[Tensor, " chunk"] | None


def one_pass(
    per_token: PerTokenLoss,
    weights: Float[Tensor, " tokens"],
    policy: Scores,
    teacher: Scores | None = None,
    divergence: DivergenceGradient | None = None,
) -> tuple[Float[Tensor, ""], TokenValues]:
    """sum_t weights_t per_token_t, with its gradient to the policy's hidden states and head, and all tokens' values.

    Args:
        per_token: from the values of a chunk's tokens to their losses, [chunk]; differentiable in `log_probs` and
            `divergence`.
        weights: of each token in the loss.
        teacher: scores of the same tokens; gets no gradient.
        divergence: from log-probs of policy and teacher, [tokens, vocabulary], to D and dD / d policy logits.
    """
    head = policy.head
    work = _Pass(policy, teacher, divergence)
    losses = torch.zeros_like(work.log_probs)
    # last chunk first: a token's loss may depend on the divergences of later tokens, which must be known by then
    for start in reversed(range(0, len(policy.hidden), scoring.CHUNK_TOKENS)):
        rows = slice(start, min(start + scoring.CHUNK_TOKENS, len(policy.hidden)))
        logits, unit = work.read(rows)
        on_divergence, on_log_probs, losses[rows] = _derivatives(per_token, work.values(rows), weights[rows])
        if unit is not None:
            work.add(rows, logits, unit, on_divergence, on_log_probs)
        del logits, unit  # their memory is free for the next
    loss = _KnownGradient.apply((losses * weights).sum(), policy.hidden, head.weight, head.bias, *work.gradients)
    return loss, work.values(slice(0, len(losses)))


def _derivatives(
    per_token: PerTokenLoss, values: TokenValues, weights: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Derivatives of the weighted loss to divergence and log-prob (None where independent), and the losses."""
    with torch.enable_grad():
        given = dataclasses.replace(
            values,
            log_probs=values.log_probs.detach().requires_grad_(),
            divergence=None if values.divergence is None else values.divergence.detach().requires_grad_(),
        )
        loss = per_token(given)
        inputs = [x for x in (given.divergence, given.log_probs) if x is not None]
        # the weights of the whole step, not of the chunk: only then do the chunks' gradients add up
        gradients = torch.autograd.grad((loss * weights).sum(), inputs, allow_unused=True)
    on_divergence = None if given.divergence is None else gradients[0]
    return on_divergence, gradients[-1], loss.detach()


class _Pass:
    """The values and gradients of the chunks computed so far."""

    def __init__(self, policy: Scores, teacher: Scores | None, divergence: DivergenceGradient | None):
        self._policy, self._teacher, self._divergence = policy, teacher, divergence
        self._projection = Projection(policy, teacher)
        self._head = self._projection.head
        n, dtype = len(policy.hidden), torch.promote_types(self._head.compute_dtype, torch.float32)
        self.log_probs, self.teacher_log_probs, self.divergences = policy.hidden.new_zeros(3, n, dtype=dtype)
        inputs = (policy.hidden, policy.head.weight, policy.head.bias)
        has_grad = torch.is_grad_enabled()
        self.gradients = [
            torch.zeros_like(x) if has_grad and x is not None and x.requires_grad else None for x in inputs
        ]
        self._any_wanted = any(gradient is not None for gradient in self.gradients)

    @torch.no_grad()
    def read(self, rows: slice) -> tuple[Tensor, Tensor | None]:
        """Compute the values of a chunk of tokens, block by block.

        Returns [chunk, vocabulary] twice: the logits before the head's scalings, and the gradient of the divergence
        (without one, of the log-probs) to them; None if no gradient is wanted.
        """
        tokens, head = self._policy.token_ids[rows], self._head
        logits, teacher_logits = self._projection.project(rows)
        # the largest tensor of the pass, and an operand of products in this dtype
        unit = torch.empty_like(logits, dtype=head.compute_dtype) if self._any_wanted else None
        for block in _blocks(logits):
            finished = head.finish(logits[block])
            log_p, gradient = finished.log_softmax(-1), None
            # a block is counted within its chunk, the values within the batch
            here = slice(rows.start + block.start, rows.start + block.stop)
            self.log_probs[here] = _at(log_p, tokens[block])
            if teacher_logits is not None:
                log_q = self._projection.finish_teacher(logits[block], teacher_logits[block]).log_softmax(-1)
                self.teacher_log_probs[here] = _at(log_q, tokens[block])
                if self._divergence is not None:
                    self.divergences[here], gradient = self._divergence(log_p, log_q)
            if unit is not None:
                gradient = _log_prob_gradient(log_p, tokens[block]) if gradient is None else gradient
                # `finished`, not `log_p`: the derivative of the softcap is a function of the capped logit
                unit[block] = head.through_scaling(gradient, finished)
        return logits, unit

    def values(self, rows: slice) -> TokenValues:
        teacher_log_probs = None if self._teacher is None else self.teacher_log_probs[rows]
        divergences = None if self._divergence is None else self.divergences[rows]
        return TokenValues(rows, self.log_probs[rows], teacher_log_probs, divergences)

    @torch.no_grad()
    def add(
        self, rows: slice, logits: Tensor, unit: Tensor, on_divergence: Tensor | None, on_log_probs: Tensor | None
    ) -> None:
        """Carry a chunk's gradient through the head."""
        # `unit` is the gradient of the divergence where there is one, else of the log-prob: scaled by that derivative
        scale = on_log_probs if self._divergence is None else on_divergence
        if self._divergence is not None and on_log_probs is not None:
            self._combine(rows, logits, unit, on_divergence, on_log_probs)
            scale = None  # both derivatives are in `unit` now: scaling it again would square them
        to_hidden, to_weight, to_bias = self.gradients
        if scale is None:
            scale = torch.ones_like(self.log_probs[rows])
        if to_hidden is not None:
            # scaled after the product, in float32: the derivative would round `unit` to 16 bits once more
            to_hidden[rows] = (unit @ self._head.weight) * scale[:, None]
        if to_weight is not None:
            to_weight += unit.T @ (self._policy.hidden[rows] * scale[:, None]).to(unit.dtype)
        if to_bias is not None:
            to_bias += scale.to(unit.dtype) @ unit

    def _combine(
        self, rows: slice, logits: Tensor, unit: Tensor, on_divergence: Tensor | None, on_log_probs: Tensor
    ) -> None:
        """unit <- a unit + b (onehot - p), for a loss of divergence and log-probs."""
        head, tokens = self._head, self._policy.token_ids[rows]
        for block in _blocks(logits):
            finished = head.finish(logits[block])
            gradient = _log_prob_gradient(finished.log_softmax(-1), tokens[block])
            gradient = head.through_scaling(gradient, finished) * on_log_probs[block, None]
            unit[block] = gradient if on_divergence is None else gradient + unit[block] * on_divergence[block, None]


def _blocks(logits: Tensor) -> list[slice]:
    """Rows of [chunk, vocabulary] that fit a CPU's caches together; all of them elsewhere."""
    n = max(1, BLOCK_VALUES // logits.shape[-1]) if logits.device.type == "cpu" else len(logits)
    return [slice(start, min(start + n, len(logits))) for start in range(0, len(logits), n)]


def _at(log_p: Tensor, tokens: Int[Tensor, " rows"]) -> Tensor:
    return log_p.gather(-1, tokens[:, None]).squeeze(-1)


def _log_prob_gradient(log_p: Tensor, tokens: Int[Tensor, " rows"]) -> Tensor:
    """onehot(y) - p; [rows, vocabulary]."""
    gradient = -log_p.exp()
    return gradient.scatter_add_(-1, tokens[:, None], torch.ones_like(gradient[:, :1]))


class _KnownGradient(torch.autograd.Function):
    """A loss whose gradient is known already."""

    @staticmethod
    def forward(ctx, loss, hidden, weight, bias, *gradients):
        ctx.save_for_backward(*gradients)
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        # times grad: the loss may be a term of a sum, or scaled
        return None, *(None if g is None else g * grad for g in ctx.saved_tensors), None, None, None

"""Parts of attention on a CPU, which `cascade` merges: forward with the log-sum-exp, and backward from it.

The forward is torch's own kernel, whose backward gives no gradient for a part of the keys. The one here computes the
probabilities again from the log-sum-exp over all keys. What is subtracted enters the products as two more columns:
bfloat16 then rounds log p and its derivative, not the larger scores.

    log P = scale [q, -lse / scale] [k, 1]'        dP - delta = [g, -delta] [v, 1]'        delta = sum(g * out)
    dS = scale P (dP - delta),   dq = dS k,   dk = dS' q,   dv = P' g
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

CAUSAL_TOKENS = 256  # tokens whose queries are computed together; the keys after them are skipped
BLOCK_SCORES = 2**20  # scores computed together: two megabytes in bfloat16


def flash(
    q: Float[Tensor, "batch heads queries size"],
    k: Float[Tensor, "batch heads keys size"],
    v: Float[Tensor, "batch heads keys size"],
    scale: float,
    mask: Tensor | None = None,
) -> tuple[Float[Tensor, "batch heads queries size"], Float[Tensor, "batch heads queries"]]:
    """Attention, and the log-sum-exp of each query's scores (float32).

    Args:
        mask: added to the scores; broadcasts to [batch, heads, queries, keys].
    """
    # not torch's public attention: that one returns no log-sum-exp, which merging and the backward need
    pair = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
    return pair[0], pair[1]


def causal_flash(
    q: Float[Tensor, "batch heads queries size"],
    k: Float[Tensor, "batch heads tokens size"],
    v: Float[Tensor, "batch heads tokens size"],
    scale: float,
    groups: int,
) -> tuple[Float[Tensor, "batch heads queries size"], Float[Tensor, "batch heads queries"]]:
    """The same where each token sees itself and the tokens before it; each token has `groups` adjacent queries."""
    out, lse = [], []
    for start in range(0, k.shape[2], CAUSAL_TOKENS):
        end = min(start + CAUSAL_TOKENS, k.shape[2])
        mask = causal_mask(start, end, groups, q.dtype)
        # queries are ordered by token, then group: without `* groups` a block gets the queries of other tokens
        block = flash(q[:, :, start * groups : end * groups], k[:, :, :end], v[:, :, :end], scale, mask[None, None])
        out.append(block[0])
        lse.append(block[1])
    return (out[0], lse[0]) if len(out) == 1 else (torch.cat(out, 2), torch.cat(lse, 2))


def causal_mask(start: int, end: int, groups: int, dtype: torch.dtype) -> Float[Tensor, "queries keys"]:
    """0 where the queries of tokens `start` to `end` see one of the first `end` keys, else -inf."""
    # + 1: a token sees itself; else the first token's row is all -inf, and its softmax NaN
    hidden = torch.ones(end - start, end, dtype=torch.bool).triu(start + 1).repeat_interleave(groups, 0)
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -math.inf)


@dataclass(frozen=True)
class Queries:
    """What `softmax_gradient` needs of each query: q, the gradient g of its output, and both with another column.

    Shapes: [..., size]; with the column, split into its rounding and the remainder, [..., size + 2].
    """

    q: Tensor
    grad: Tensor
    q_and_lse: Tensor
    grad_and_delta: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> Queries:
        """`function` of each of the four tensors."""
        return Queries(*map(function, (self.q, self.grad, self.q_and_lse, self.grad_and_delta)))


def queries_of(grad: Tensor, q: Tensor, out: Tensor, lse: Tensor, scale: float) -> Queries:
    """[q, -lse / scale] and [g, -delta]; grad, q and out are [..., size], lse [...]."""
    # in float32: delta is subtracted from numbers of its size, which leaves its rounding
    delta = (grad.to(lse.dtype) * out).sum(-1)
    return Queries(q, grad, _with_columns(q, -lse / scale), _with_columns(grad, -delta))


def softmax_gradient(
    queries: Queries,
    k: Float[Tensor, "batch keys size"],
    v: Float[Tensor, "batch keys size"],
    scale: float,
    *,
    groups: int = 1,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to q (its dtype), k and v (float32) of attention to these keys.

    The queries may see other keys too: then `queries_of` gets `lse` and `out` of all keys, and the gradients to q add
    up.

    Args:
        queries: each [batch, queries, ...].
        groups: adjacent queries of each token.
        causal: as many tokens as keys; each sees itself and the tokens before it.
    """
    q, grad = queries.q, queries.grad
    ones = k.new_ones(*k.shape[:-1], 2)
    k_row, v_row = torch.cat([k, ones], -1), torch.cat([v, ones], -1)
    k = k.contiguous()
    on_q = torch.empty_like(q)
    # float32: blocks of queries add up here, and bfloat16 would round the small later ones away
    on_k, on_v = torch.zeros_like(k, dtype=torch.promote_types(k.dtype, torch.float32)).repeat(2, 1, 1, 1)
    nothing = q.new_zeros(1, 1, 1)
    for batch, rows in _blocks(len(q), q.shape[1], k.shape[1], groups):
        # rows.stop is a multiple of `groups` (`_blocks`), so no key of the block's last token is cut off
        seen = slice(0, rows.stop // groups if causal else k.shape[1])
        p = torch.baddbmm(nothing, queries.q_and_lse[batch, rows], k_row[batch, seen].mT, beta=0, alpha=scale)
        if causal:  # before the exponential: -inf becomes a probability of 0, in both products below
            p += causal_mask(rows.start // groups, seen.stop, groups, q.dtype)
        p.exp_()
        on_v[batch, seen] += torch.bmm(p.mT, grad[batch, rows])
        on_scores = torch.baddbmm(
            nothing, queries.grad_and_delta[batch, rows], v_row[batch, seen].mT, beta=0, alpha=scale
        ).mul_(p)
        on_q[batch, rows] = torch.bmm(on_scores, k[batch, seen])
        on_k[batch, seen] += torch.bmm(on_scores.mT, q[batch, rows])
    return on_q, on_k, on_v


def _blocks(batch: int, queries: int, keys: int, groups: int) -> Iterator[tuple[slice, slice]]:
    """(batch, queries) to compute together; the queries of a token stay together."""
    together = max(1, BLOCK_SCORES // (queries * keys))
    # times `groups` last: a block that ended inside a token would shift the causal mask
    rows = queries if queries * keys <= BLOCK_SCORES else max(64, BLOCK_SCORES // (keys * groups)) * groups
    for first in range(0, batch, together):
        for start in range(0, queries, rows):
            yield slice(first, min(first + together, batch)), slice(start, min(start + rows, queries))


def _with_columns(x: Tensor, column: Tensor) -> Tensor:
    """x with two more columns: `column` rounded to x's dtype, and the remainder."""
    high = column.to(x.dtype)
    return torch.cat([x, high[..., None], (column - high).to(x.dtype)[..., None]], -1)

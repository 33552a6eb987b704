"""Attention on a CPU, forward and backward, in blocks that its caches hold.

The forward is torch's own kernel. Its backward works in float32 blocks too small for fast matrix products. Gain: the
backward here takes two thirds less time. It computes the probabilities again from the forward's log-sum-exp. What is
subtracted enters the products as two more columns: bfloat16 then rounds log p and its derivative, not the larger
scores.

    log P = scale [q, -lse / scale] [k, 1]'        dP - delta = [g, -delta] [v, 1]'        delta = sum(g * out)
    dS = scale P (dP - delta),   dq = dS k,   dk = dS' q,   dv = P' g
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from opct.models.scoring import compute_dtype

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
        mask = causal_mask(start, end, k.shape[2], groups, q.dtype)
        # queries are ordered by token, then group: without `* groups` a block gets the queries of other tokens
        block = flash(q[:, :, start * groups : end * groups], k[:, :, :end], v[:, :, :end], scale, mask[None, None])
        out.append(block[0])
        lse.append(block[1])
    return (out[0], lse[0]) if len(out) == 1 else (torch.cat(out, 2), torch.cat(lse, 2))


def causal_mask(start: int, end: int, tokens: int, groups: int, dtype: torch.dtype) -> Float[Tensor, "queries keys"]:
    """0 where the queries of tokens `start` to `end` (of `tokens`) see one of the first `end` keys, else -inf."""
    if end - start == tokens:
        return _triangle(tokens, groups, dtype)
    band, before = _band(max(CAUSAL_TOKENS, end - start), tokens, groups, dtype)
    # the band's diagonal is `before` columns in: shifted left by `start`, it lies at this block's first token
    return band[: (end - start) * groups, before - start : before - start + end]


@functools.lru_cache(maxsize=8)
def _triangle(tokens: int, groups: int, dtype: torch.dtype) -> Float[Tensor, "queries keys"]:
    return _hidden(tokens, 0, groups, dtype)


_BANDS: dict[tuple[int, int, torch.dtype], Tensor] = {}  # one of each kind: it takes up to 135 MB at 32k tokens


def _band(rows: int, before: int, groups: int, dtype: torch.dtype) -> tuple[Float[Tensor, "queries keys"], int]:
    """A mask that contains the masks of all blocks of `rows` tokens, and the place of the first block's keys in it.

    Later blocks begin further left. Texts of any length use parts of the longest band so far.
    """
    rows = -(-rows // 64) * 64
    # a longer band serves too: its diagonal is where its columns end, not where this text's would
    band = _BANDS.get((rows, groups, dtype))
    if band is None or band.shape[1] < rows + before:
        band = _BANDS[rows, groups, dtype] = _hidden(rows, -(-before // 1024) * 1024, groups, dtype)
    return band, band.shape[1] - rows


def _hidden(rows: int, before: int, groups: int, dtype: torch.dtype) -> Float[Tensor, "queries keys"]:
    """-inf where a key comes after the query's token, for `rows` tokens with `before` tokens ahead of them."""
    # + 1: a token sees itself; else the first token's row is all -inf, and its softmax NaN
    hidden = torch.ones(rows, before + rows, dtype=torch.bool).triu(before + 1).repeat_interleave(groups, 0)
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
            p += causal_mask(rows.start // groups, seen.stop, k.shape[1], groups, q.dtype)
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


def causal_attention(
    query: Float[Tensor, "batch heads tokens size"],
    key: Float[Tensor, "batch heads_of_keys tokens size"],
    value: Float[Tensor, "batch heads_of_keys tokens size"],
    scaling: float | None,
) -> Float[Tensor, "batch tokens heads size"]:
    """Attention of each token to itself and the tokens before it, in the compute dtype."""
    dtype = compute_dtype(query)
    batch, heads, tokens, size = query.shape
    groups = heads // key.shape[1]
    # by token, then group: `causal_mask` repeats each row `groups` times in that order
    by_keys = query.to(dtype).unflatten(1, (-1, groups)).transpose(2, 3).reshape(batch, -1, tokens * groups, size)
    out = _Causal.apply(by_keys, key.to(dtype), value.to(dtype), size**-0.5 if scaling is None else scaling)
    return out.unflatten(2, (tokens, groups)).permute(0, 2, 1, 3, 4).reshape(batch, tokens, heads, size)


class _Causal(torch.autograd.Function):
    """q [batch, heads of keys, tokens x groups, size], k and v [batch, heads of keys, tokens, size] -> as q."""

    @staticmethod
    def forward(ctx, q, k, v, scale: float):
        ctx.scale, ctx.groups = scale, q.shape[2] // k.shape[2]
        out, lse = causal_flash(q, k, v, scale, ctx.groups)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        rows = queries_of(grad.to(q.dtype), q, out, lse, ctx.scale).map(lambda x: x.flatten(0, 1))
        gradients = softmax_gradient(rows, k.flatten(0, 1), v.flatten(0, 1), ctx.scale, groups=ctx.groups, causal=True)
        on_q, on_k, on_v = (x.to(q.dtype).unflatten(0, k.shape[:2]) for x in gradients)
        return on_q, on_k, on_v, None

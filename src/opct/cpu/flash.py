"""Parts of attention on a CPU, which `cascade` merges, by torch's own kernel for CPUs.

Its backward takes the result and the log-sum-exp over all keys, and gives the gradients of a part of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

CAUSAL_TOKENS = 256  # tokens whose queries are computed together; the keys after them are skipped


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


def flash_gradient(
    grad: Float[Tensor, "batch heads queries size"],
    q: Float[Tensor, "batch heads queries size"],
    k: Float[Tensor, "batch heads keys size"],
    v: Float[Tensor, "batch heads keys size"],
    out: Float[Tensor, "batch heads queries size"],
    lse: Float[Tensor, "batch heads queries"],
    scale: float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to q, k and v of attention to these keys; those to q add up over parts of the keys.

    Args:
        grad: of the result of all keys, as `out` and `lse` are.
        mask: as in `flash`.
    """
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, lse, 0.0, False, attn_mask=mask, scale=scale
    )


def causal_flash(
    q: Float[Tensor, "batch heads queries size"],
    k: Float[Tensor, "batch heads tokens size"],
    v: Float[Tensor, "batch heads tokens size"],
    scale: float,
    groups: int,
) -> tuple[Float[Tensor, "batch heads queries size"], Float[Tensor, "batch heads queries"]]:
    """`flash` where each token sees itself and the tokens before it; each token has `groups` adjacent queries."""
    blocks = [
        flash(q[:, :, rows], k[:, :, :end], v[:, :, :end], scale, mask)
        for rows, end, mask in _causal_blocks(k.shape[2], groups, q.dtype)
    ]
    out, lse = zip(*blocks, strict=True)
    return torch.cat(out, 2), torch.cat(lse, 2)


def causal_flash_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`flash_gradient` where each token sees itself and the tokens before it, as in `causal_flash`."""
    # float32: blocks of queries add up here, and bfloat16 would round the small later ones away
    on_q, on_k, on_v = torch.empty_like(q), *(torch.zeros_like(x, dtype=lse.dtype) for x in (k, v))
    for rows, end, mask in _causal_blocks(k.shape[2], groups, q.dtype):
        block = grad[:, :, rows], q[:, :, rows], k[:, :, :end], v[:, :, :end], out[:, :, rows], lse[:, :, rows]
        on_q[:, :, rows], on_k_of_block, on_v_of_block = flash_gradient(*block, scale, mask)
        # added: a key is seen by the queries of later blocks, too
        on_k[:, :, :end] += on_k_of_block
        on_v[:, :, :end] += on_v_of_block
    return on_q, on_k, on_v


def _causal_blocks(tokens: int, groups: int, dtype: torch.dtype) -> Iterator[tuple[slice, int, Tensor]]:
    """(queries, keys from the first, mask [1, 1, queries, keys]) of blocks of `CAUSAL_TOKENS` tokens."""
    for start in range(0, tokens, CAUSAL_TOKENS):
        end = min(start + CAUSAL_TOKENS, tokens)
        # + 1: a token sees itself; else the first token's row is all -inf, and its softmax NaN
        hidden = torch.ones(end - start, end, dtype=torch.bool).triu(start + 1).repeat_interleave(groups, 0)
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -math.inf)
        # queries are ordered by token, then group: without `* groups` a block gets the queries of other tokens
        yield slice(start * groups, end * groups), end, mask[None, None]

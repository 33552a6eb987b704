"""Attention of new tokens whose rows share prompts: each prompt's keys are read once for all of its rows.

The queries of all rows of a prompt are so many queries of one product with the prompt's keys, and each row attends to
its own tokens by itself. With s the log-sum-exp of a part's scores and o its result, the whole is

    w o_prompt + (1 - w) o_own,    w = exp(s_prompt) / (exp(s_prompt) + exp(s_own)) = sigmoid(s_prompt - s_own),

which is the softmax over both parts (Juravsky et al. 2024, Hydragen, arXiv 2402.05099).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SharedPrompts:
    """Keys and values of prompts, and which rows continue which.

    Given to a forward as `shared_prompts`, which transformers hands on to the attention. The cache of that forward
    holds the rows' own tokens alone.

    Attributes:
        layers: (keys, values) of each layer, [prompts, key heads, tokens, size].
        mask: added to the scores, [prompts, 1, 1, tokens]; None where no prompt is padded.
        rows: the rows of each prompt, [prompts, most]; what stands in places too many is computed in vain.
        owners: the prompt of each row, [rows].
        places: where in `rows` each row stands, [rows].
    """

    layers: Sequence[tuple[Tensor, Tensor]]
    mask: Tensor | None
    rows: Tensor
    owners: Tensor
    places: Tensor

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float | None,
    ) -> Tensor:
        """Attention of one token a row to its prompt and its own tokens; -> [rows, 1, heads, size].

        Args:
            query: [rows, heads, 1, size].
            key: of the rows' own tokens, [rows, key heads, tokens, size]; values likewise.
            mask: added to the scores of the own tokens, [rows, 1, 1, tokens].
        """
        keys, values = self.layers[layer]
        count, heads, _, size = query.shape
        queries = query.reshape(count, key.shape[1], heads // key.shape[1], size)
        together = queries[self.rows].transpose(1, 2).flatten(2, 3)
        with torch.autocast(query.device.type, enabled=False):
            shared, of_shared = _attention(together, keys, values, self.mask, scaling)
            own, of_own = _attention(queries, key, value, mask, scaling)
            back = self.owners, slice(None), self.places
            shape = (self.rows.shape[1], queries.shape[2])
            weight = torch.sigmoid(of_shared.unflatten(2, shape)[back] - of_own)
            merged = torch.lerp(own, shared.unflatten(2, shape)[back], weight)
        return merged.to(query.dtype).reshape(count, 1, heads, -1)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """Result and log-sum-exp of the scores, [batch, heads, queries, size] and [batch, heads, queries, 1].

    In float32 throughout: with so few queries that is no slower than torch's kernel for bfloat16, which also tells the
    log-sum-exp on no other device than a CPU.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    query = query.to(dtype) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = query @ key.to(dtype).transpose(-1, -2)
    if mask is not None:
        scores += mask
    weights = scores.softmax(-1)
    # log w = score - log-sum-exp, for the largest of them
    total = scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log()
    return weights @ value.to(dtype), total

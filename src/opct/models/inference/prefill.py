"""Prompts computed before sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opct.models.inference.kv_cache import with_cache
from opct.models.scoring import padded_ids

if TYPE_CHECKING:
    from transformers import DynamicCache

    from opct.models.backbone import Backbone


@dataclass(frozen=True)
class Prefill:
    """Prompts computed once.

    Attributes:
        cache: their keys and values, padded on the left to `width` tokens.
        starts: the first column of each prompt, [prompts].
        hidden: the states that predict the token after each prompt, [prompts, hidden].
        owners: the prompt that each row continues, [rows].
    """

    cache: DynamicCache
    width: int
    starts: Tensor
    hidden: Tensor
    owners: Tensor

    def for_rows(self, copies: Sequence[int]) -> Prefill:
        """The same for `copies` rows of each prompt."""
        owners = torch.arange(len(copies)).repeat_interleave(torch.tensor(copies))
        return dataclasses.replace(self, owners=owners.to(self.starts.device))


def plain_prefill(backbone: Backbone, prompts: Sequence[Sequence[int]]) -> Prefill:
    """All prompts in one forward, padded on the left, a row each."""
    from transformers import DynamicCache

    ids, starts = left_padded(prompts)
    padded = bool(starts.any())
    ids, starts = ids.to(backbone.device), starts.to(backbone.device)
    columns = torch.arange(ids.shape[1], device=backbone.device)
    # without padding, no mask: with one, attention would take its slower way for masks of any shape
    padding: dict[str, Any] = {"attention_mask": (columns >= starts[:, None]).long()} if padded else {}
    cache: Any = DynamicCache(config=backbone.decoder.config)
    out = backbone.decoder(
        input_ids=ids,
        # of each prompt from 0, whatever its padding: the clamp is for padding alone, which the mask hides
        position_ids=(columns - starts[:, None]).clamp(min=0),
        **with_cache(backbone.decoder, cache),
        **padding,
    )
    rows = torch.arange(len(prompts), device=backbone.device)
    return Prefill(cache, ids.shape[1], starts, out.last_hidden_state[:, -1], rows)


def left_padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """(ids [rows, longest], where each begins [rows])."""
    # on the left, so that one column holds the last token of every prompt
    ids = padded_ids(rows, side="left")
    return ids, ids.shape[1] - torch.tensor([len(row) for row in rows])

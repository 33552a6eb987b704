"""Attention on a CPU where several query heads share their keys and values.

torch's kernel for CPUs reads the keys once for each query head. Here the heads of a group are queries of one
head: the same product in the same precision. Gain: 0.35 ms a layer and new token of 32 rows and 100 keys, against 1.35.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from opct.models.kernels.cascade import cascade_attention
from opct.models.kernels.flash import causal_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GROUPED = "opct_grouped"
SDPA_LIKE = ("sdpa", GROUPED)
"""Implementations that take a mask of booleans, of any shape."""
NOT_COVERED = ("softcap", "position_bias", "cache", "s_aux")  # left to transformers


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Switch a model on a CPU from torch's attention to the grouped one."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if model.device.type != "cpu" or model.config._attn_implementation != "sdpa":
        return
    if model._can_set_attn_implementation():
        AttentionInterface.register(GROUPED, grouped_attention)
        AttentionMaskInterface.register(GROUPED, sdpa_mask)
        model.set_attn_implementation(GROUPED)


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it; [batch, heads, queries, size] -> [batch, queries, heads, size].

    Args:
        attention_mask: [batch, 1, queries, keys]; without one, a single query sees all keys.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if (prompts := kwargs.get("shared_prompts")) is not None:
        if any(kwargs.get(name) is not None for name in NOT_COVERED):
            raise NotImplementedError(f"Shared prompts with one of {', '.join(NOT_COVERED)}, which they do not cover.")
        return prompts.attend(cast("Any", module).layer_idx, query, key, value, attention_mask, scaling), None
    batch, heads, queries, size = query.shape
    group = heads // key.shape[1]
    plain = dropout == 0 and all(kwargs.get(name) is None for name in NOT_COVERED)
    is_causal = getattr(module, "is_causal", True) if kwargs.get("is_causal") is None else kwargs["is_causal"]
    causal = plain and is_causal and value.shape[-1] == size
    if (branches := kwargs.get("branches")) is not None:
        if not causal:
            raise ValueError("attention with dropout, a cap or a bias, or not causal, does not branch off prompts")
        return cascade_attention(branches, cast("Any", module).layer_idx, query, key, value, scaling), None
    by_flag = attention_mask is None and queries > 1
    if by_flag and causal and queries == key.shape[2]:
        return causal_attention(query, key, value, scaling), None
    if by_flag or not plain or group == 1:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if attention_mask is not None and queries > 1:
        attention_mask = attention_mask.expand(-1, 1, queries, -1).repeat(1, 1, group, 1)
    packed = query.reshape(batch, key.shape[1], group * queries, size)
    out = torch.nn.functional.scaled_dot_product_attention(packed, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(batch, heads, queries, value.shape[-1]).transpose(1, 2).contiguous(), None

"""The residual stream: the output of each decoder layer at the last tokens of a prompt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opct.models.backbone import Backbone
from opct.models.scoring import padded_ids

OnLayer = Callable[[int, Tensor], None]


def residual_streams(backbone: Backbone, rows: Sequence[Sequence[int]], ends: Sequence[int], on_layer: OnLayer) -> int:
    """Run the decoder over rows of token ids; returns its number of layers.

    The embeddings are not a layer, and the states are taken before the decoder's last norm. Gradient as the caller has
    it. Padding is on the right, where no token sees it.

    Args:
        ends: how many last tokens of each row to take.
        on_layer: called after each layer with its number, from 0, and its states at these tokens, [tokens, hidden], row
            after row; they are not kept here.
    """
    ids = padded_ids(rows)
    ends_at = [i * ids.shape[1] + len(row) for i, row in enumerate(rows)]
    places = [torch.arange(stop - end, stop) for stop, end in zip(ends_at, ends, strict=True)]
    taken = torch.cat(places).to(backbone.device)
    layers = backbone.layers("so their activations cannot be compared: use another method than act")

    def hook_of(layer: int) -> Callable[[Any, Any, Any], None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            on_layer(layer, states.flatten(0, 1)[taken])

        return hook

    with contextlib.ExitStack() as stack, backbone.autocast():
        for i, layer in enumerate(layers):
            stack.callback(layer.register_forward_hook(hook_of(i)).remove)
        backbone.decoder(input_ids=ids.to(backbone.device), use_cache=False)
    return len(layers)

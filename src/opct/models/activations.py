"""The residual stream: what each decoder layer hands to the next, at the last tokens of a prompt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from opct.models.backbone import Backbone

OnLayer = Callable[[int, Tensor], None]


def residual_streams(backbone: Backbone, rows: Sequence[Sequence[int]], ends: Sequence[int], on_layer: OnLayer) -> int:
    """Run the decoder over rows of token ids, each seen from its first token; returns how many layers it has.

    The embeddings are not a layer, and the states are those before the decoder's last norm. Gradient as the caller has
    it. Padding is on the right, where no token sees it.

    Args:
        ends: how many of its last tokens are looked at, of each row.
        on_layer: gets each layer's number, from 0, and its states at these tokens, [tokens, hidden], row after row, as
            soon as it has run; nothing is kept here.
    """
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    places = []
    for i, (row, end) in enumerate(zip(rows, ends, strict=True)):
        ids[i, : len(row)] = torch.tensor(row)
        places.append(torch.arange(i * longest + len(row) - end, i * longest + len(row)))
    looked_at = torch.cat(places).to(backbone.device)
    layers = backbone.layers("so their activations cannot be compared: use another method than act")

    def hand_on(layer: int) -> Callable[[Any, Any, Any], None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            on_layer(layer, states.flatten(0, 1)[looked_at])

        return hook

    with _hooks(layers, hand_on), backbone.autocast():
        backbone.decoder(input_ids=ids.to(backbone.device), use_cache=False)
    return len(layers)


@contextlib.contextmanager
def _hooks(layers: Sequence[torch.nn.Module], make: Callable[[int], Any]) -> Iterator[None]:
    handles = [layer.register_forward_hook(make(i)) for i, layer in enumerate(layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

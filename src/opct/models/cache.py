"""A key-value cache with room for what is still to come.

Transformers' own grows by a copy of itself at every token, into blocks that are each a little larger than the last and
so never fit where those were: time, and memory that the process never gives back.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from transformers import DynamicCache


def with_room(cache: DynamicCache, rows: Tensor, extra: int) -> DynamicCache:
    """Make each row of the cache the row of it that `rows` names, with room for `extra` more tokens.

    Layers that are not plain ones (sliding windows, recurrent states) keep growing by themselves.

    Args:
        rows: indices, [rows of the new cache]; one may come several times.
    """
    from transformers.cache_utils import DynamicLayer

    layers: list[Any] = cache.layers
    for i, layer in enumerate(layers):
        if type(layer) is DynamicLayer and layer.is_initialized:
            layers[i] = _roomy_class()(layer.keys, layer.values, rows, extra)
        else:
            layer.reorder_cache(rows)
    return cache


@functools.cache
def _roomy_class() -> type:
    from transformers.cache_utils import DynamicLayer

    class RoomyLayer(DynamicLayer):
        """Writes what comes into tensors that are there already; `keys` and `values` are the written part of them."""

        def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, extra: int):
            super().__init__()
            self.lazy_initialization(keys, values)
            self._all = [_roomy(keys, rows, extra), _roomy(values, rows, extra)]
            self._show(keys.shape[-2])

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            start, end = self._written, self._written + key_states.shape[-2]
            room = self._all[0].shape[-2]
            if end > room:  # else a slice beyond the end would take the new tokens and lose them
                raise IndexError(f"The cache has room for {room} tokens and would hold {end}.")
            for whole, new in zip(self._all, (key_states, value_states), strict=True):
                whole[:, :, start:end] = new
            self._show(end)
            keys, values = (whole[:, :, :end] for whole in self._all)
            return keys, values

        def reorder_cache(self, beam_idx: Tensor) -> None:
            indices = beam_idx.to(self.device)
            for i, whole in enumerate(self._all):
                whole[: len(indices), :, : self._written] = whole[indices, :, : self._written]
                self._all[i] = whole[: len(indices)]
            self._show(self._written)

        def _show(self, written: int) -> None:
            self._written = written
            self.keys, self.values = (whole[:, :, :written] for whole in self._all)

    return RoomyLayer


def _roomy(tensor: Tensor, rows: Tensor, extra: int) -> Tensor:
    """The rows of [batch, heads, tokens, size] in a tensor with `extra` more tokens, not yet written."""
    heads, tokens, size = tensor.shape[1:]
    whole = tensor.new_empty(len(rows), heads, tokens + extra, size)
    whole[:, :, :tokens] = tensor[rows]
    return whole

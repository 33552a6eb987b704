"""A preallocated key-value cache.

Transformers' own grows by a copy of itself at every token, into blocks that are each a little larger than the last and
so never fit where those were: time, and memory that the process never gives back.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedConfig


def other_layers(config: PreTrainedConfig) -> str:
    """The kinds of layers in the model's cache that are not plain ones (sliding windows, recurrent states)."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    kinds = {type(layer) for layer in DynamicCache(config=config).layers} - {DynamicLayer}
    return ", ".join(sorted(kind.__name__ for kind in kinds))


def with_room(cache: DynamicCache, rows: Tensor, extra: int) -> DynamicCache:
    """Make each row of the cache the row of it that `rows` names, with room for `extra` more tokens.

    Layers that are not plain ones (sliding windows, recurrent states) grow as in transformers.

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


def only_room(cache: DynamicCache, rows: Tensor, room: int) -> DynamicCache:
    """A cache like this one, all of whose layers are plain ones, for rows that hold nothing yet.

    Args:
        rows: indices, [rows of the new cache].
        room: tokens of each row.
    """
    from transformers import DynamicCache

    empty: Any = DynamicCache()
    empty.layers = [
        _roomy_class()(layer.keys[:, :, :0], layer.values[:, :, :0], rows, room)
        for layer in cast("list[Any]", cache.layers)
    ]
    return empty


def is_roomy(cache: DynamicCache) -> bool:
    """True where every layer that holds anything has room: then rows can be placed and columns dropped."""
    from transformers.cache_utils import DynamicLayer

    roomy = _roomy_class()
    return all(isinstance(x, roomy) or (type(x) is DynamicLayer and not x.is_initialized) for x in cache.layers)


def place(cache: DynamicCache, rows: Tensor, source: DynamicCache, owners: Tensor) -> None:
    """Write rows of another cache into rows of one with room, both ending at the same column.

    Args:
        rows: indices of the rows that are overwritten, [n].
        owners: indices of the source's row for each, [n].
    """
    for layer, other in zip(cast("list[Any]", cache.layers), cast("list[Any]", source.layers), strict=True):
        if layer.is_initialized:
            layer.place(rows, other.keys[owners], other.values[owners])


def shift(cache: DynamicCache, columns: int) -> None:
    """Drop the first `columns` columns of a cache with room."""
    for layer in cast("list[Any]", cache.layers):
        if layer.is_initialized:
            layer.shift(columns)


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
            return cast("tuple[Tensor, Tensor]", (self.keys, self.values))

        def reorder_cache(self, beam_idx: Tensor) -> None:
            indices = beam_idx.to(self.device)
            for i, whole in enumerate(self._all):
                whole[: len(indices), :, : self._written] = whole[indices, :, : self._written]
                self._all[i] = whole[: len(indices)]
            self._show(self._written)

        def place(self, rows: Tensor, keys: Tensor, values: Tensor) -> None:
            for whole, new in zip(self._all, (keys, values), strict=True):
                whole[rows, :, self._written - new.shape[-2] : self._written] = new

        def shift(self, columns: int) -> None:
            kept = self._written - columns
            for whole in self._all:
                whole[:, :, :kept] = whole[:, :, columns : self._written].clone()
            self._show(kept)

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

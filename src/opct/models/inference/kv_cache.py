"""A preallocated key-value cache.

Transformers' own grows by a copy of itself at every token. Each copy is a little larger than the block the last one
left free, so the copies cost time, and memory that the process never gives back.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel


def with_cache(decoder: PreTrainedModel, cache: DynamicCache) -> dict[str, Any]:
    """The arguments of the model's call that make it read and extend this cache."""
    model: Any = type(decoder)
    return {_cache_argument(model): cache, "use_cache": True}


@functools.cache
def _cache_argument(model: type[PreTrainedModel]) -> str:
    """`cache` since transformers 5.24; `past_key_values` before, and in models whose code comes with the weights."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def keys_and_values(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Of each layer, [rows, heads, tokens, size]."""
    return [(layer.keys, layer.values) for layer in cast("list[Any]", cache.layers)]


def kv_bytes(config: Any, number_bytes: int) -> int:
    """Bytes of one token's keys and values in all layers."""
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * heads * size * number_bytes


def filled_cache(config: PreTrainedConfig, layers: Iterable[tuple[Tensor, Tensor]]) -> DynamicCache:
    """A cache of plain layers with these keys and values, which are not copied."""
    from transformers import DynamicCache

    cache: Any = DynamicCache(config=config)
    for layer, (keys, values) in zip(cache.layers, layers, strict=True):
        # before the assignment: it puts empty tensors there
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
    return cache


def other_layers(config: PreTrainedConfig) -> str:
    """Names of the layer types in the model's cache that are not plain (sliding windows, recurrent states)."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    kinds = {type(layer) for layer in DynamicCache(config=config).layers} - {DynamicLayer}
    return ", ".join(sorted(kind.__name__ for kind in kinds))


def with_room(cache: DynamicCache, rows: Tensor, extra: int) -> DynamicCache:
    """Select rows of a cache, with room for `extra` more tokens.

    Layers that are not plain (sliding windows, recurrent states) grow as in transformers.

    Args:
        rows: indices, [rows of the new cache]; one may occur several times.
    """
    from transformers.cache_utils import DynamicLayer

    layers: list[Any] = cache.layers
    for i, layer in enumerate(layers):
        # the exact type: a sliding window is a subclass, and drops columns by itself
        if type(layer) is DynamicLayer and layer.is_initialized:
            layers[i] = _roomy_class()(layer.keys, layer.values, rows, extra)
        else:
            layer.reorder_cache(rows)
    return cache


def is_roomy(cache: DynamicCache) -> bool:
    """True if every layer that holds anything has room: then rows can be placed and columns dropped."""
    from transformers.cache_utils import DynamicLayer

    roomy = _roomy_class()
    return all(isinstance(x, roomy) or (type(x) is DynamicLayer and not x.is_initialized) for x in cache.layers)


def place(cache: DynamicCache, rows: Tensor, source: DynamicCache, owners: Tensor) -> None:
    """Overwrite rows of a cache with room by rows of another; both end at the same column.

    Args:
        rows: indices in `cache`, [n].
        owners: indices in `source`, [n].
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
        """Writes new tokens into preallocated tensors; `keys` and `values` are the written part."""

        def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, extra: int):
            super().__init__()
            self.lazy_initialization(keys, values)
            self._all = [_roomy(keys, rows, extra), _roomy(values, rows, extra)]
            self._show(keys.shape[-2])

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            start, end = self._written, self._written + key_states.shape[-2]
            room = self._all[0].shape[-2]
            if end > room:  # else a slice beyond the end would lose the new tokens
                raise IndexError(f"The cache has room for {room} tokens and would hold {end}.")
            for whole, new in zip(self._all, (key_states, value_states), strict=True):
                whole[:, :, start:end] = new
            self._show(end)
            return cast("tuple[Tensor, Tensor]", (self.keys, self.values))

        def reorder_cache(self, beam_idx: Tensor) -> None:
            indices = beam_idx.to(self.device)
            for i, whole in enumerate(self._all):
                # indexing copies first, so rows may move in any order, also onto each other
                whole[: len(indices), :, : self._written] = whole[indices, :, : self._written]
                self._all[i] = whole[: len(indices)]
            self._show(self._written)

        def place(self, rows: Tensor, keys: Tensor, values: Tensor) -> None:
            for whole, new in zip(self._all, (keys, values), strict=True):
                # ends at the column where all rows end; what the row held further left is hidden by its new start
                whole[rows, :, self._written - new.shape[-2] : self._written] = new

        def shift(self, columns: int) -> None:
            remaining = self._written - columns
            for whole in self._all:
                # the copy first: source and destination overlap
                whole[:, :, :remaining] = whole[:, :, columns : self._written].clone()
            self._show(remaining)

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

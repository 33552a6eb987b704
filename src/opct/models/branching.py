"""Prompts computed once; their completions branch off the keys and values.

    forward    the prompts, padded on the right; the keys and values of every layer are kept
    leaves     the same, cut out of the graph: completions come in micro-batches and add up their gradient there
    backward   once, from the leaves through the prompts

A row of a micro-batch holds completions of one prompt one after another; each sees the prompt and itself. The result is
that of computing every prompt with every completion, to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from opct.models.scoring import completion_hidden, micro_batches

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel

ATTENTION = ("sdpa", "eager")  # those that take a mask of any shape
LENGTH_ROPES = {"dynamic", "longrope"}  # rotate by frequencies that depend on how long the whole text is
ROW_TOKENS = (
    512  # completions are put one after another into a row up to so many tokens; the mask grows with the square
)
PREFIX_SHARE = 1 / 8  # of the memory of a token in training: one of a prompt that a row branches off (keys and values)


def can_branch(decoder: PreTrainedModel) -> str | None:
    """Why completions cannot branch off this model's cache; None where they can.

    The model is asked: three completions of two prompts, branched and each by itself.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    attention = decoder.config._attn_implementation
    if attention not in ATTENTION:
        return f"the attention {attention} takes no mask of its own"
    kinds = {type(layer) for layer in DynamicCache(config=decoder.config).layers} - {DynamicLayer}
    if kinds:
        return f"its cache has layers of the kind {', '.join(sorted(kind.__name__ for kind in kinds))}"
    ropes = LENGTH_ROPES & set(_rope_types(decoder.config.get_text_config().to_dict()))
    if ropes:
        return f"its rotary embedding ({', '.join(sorted(ropes))}) turns a prompt otherwise where the text is longer"
    ids = [i % decoder.config.get_text_config().vocab_size for i in range(1, 12)]
    prompts, ends = [ids[:4], ids[4:6], ids[:4]], [ids[6:10], ids[7:10], ids[9:11]]
    try:
        with torch.no_grad():
            expected = completion_hidden(decoder, prompts, ends, decoder.device)
            found = Prefixes(decoder, prompts).hidden(prompts, ends)
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, NotImplementedError) as error:
        return f"branched off, it fails: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    difference = float((expected - found).abs().max())
    if not difference <= 0.02 * float(expected.abs().max()):  # NaN is no less
        return f"branched off, its hidden states differ by {difference:.3g}"
    return None


def _rope_types(value: Any) -> Iterator[str]:
    """Every `rope_type` in a model's configuration, which may have one for each kind of layer."""
    for name, inner in value.items():
        if name in ("rope_type", "type") and isinstance(inner, str):
            yield inner
        elif isinstance(inner, dict):
            yield from _rope_types(inner)


def shared_batches(
    prompts: Sequence[Sequence[int]], widths: Sequence[int], lengths: Sequence[int], budget: int
) -> list[list[list[int]]]:
    """Groups of micro-batches of indices: a group's prompts are computed together, its micro-batches one by one.

    A group's prompts have at most half of `budget` tokens, padding included, and so has each of its micro-batches: they
    are in memory together. A single prompt or completion may have more.

    Args:
        prompts: of each completion; equal ones are one prompt.
        widths: tokens of each completion's prompt, or of the longest of those that are computed for it.
        lengths: tokens of each completion.
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        members.setdefault(tuple(prompt), []).append(i)
    own = list(members.values())
    groups = micro_batches([max(widths[i] for i in rows) for rows in own], budget // 2)
    return [_batches([own[k] for k in group], widths, lengths, budget // 2) for group in groups]


def _batches(
    members: Sequence[Sequence[int]], widths: Sequence[int], lengths: Sequence[int], budget: int
) -> list[list[int]]:
    """Completions in the order of their prompts, a new micro-batch where the next one would exceed the budget."""
    batches: list[list[int]] = []
    packing, widest = _Packing(), 0
    for place, own in enumerate(members):
        for i in own:
            packing.add(place, lengths[i])
            widest = max(widest, widths[i])
            if batches and packing.tokens + len(packing.rows) * PREFIX_SHARE * widest <= budget:
                batches[-1].append(i)
            else:
                batches.append([i])
                packing, widest = _Packing(), widths[i]
                packing.add(place, lengths[i])
    return batches


class _Packing:
    """Which row each completion stands in, and from where: after others of its prompt, while there is room."""

    def __init__(self) -> None:
        self.rows: list[int] = []  # the prompt of each
        self.filled: list[int] = []
        self._last: dict[int, int] = {}

    def add(self, prompt: int, n: int) -> tuple[int, int]:
        """(row, first place in it) of a completion of n tokens."""
        row = self._last.get(prompt)
        if row is None or (self.filled[row] and self.filled[row] + n > ROW_TOKENS):
            row = self._last[prompt] = len(self.rows)
            self.rows.append(prompt)
            self.filled.append(0)
        start = self.filled[row]
        self.filled[row] += n
        return row, start

    @property
    def tokens(self) -> int:
        """Of all rows, padding included."""
        return len(self.rows) * max(self.filled)


class Prefixes:
    """Prompts that are computed when they are first needed, once, with gradient if the caller has it on."""

    def __init__(self, decoder: PreTrainedModel, prompts: Sequence[Sequence[int]]):
        self._decoder = decoder
        self._places = {prompt: i for i, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        self._lengths = torch.tensor([len(prompt) for prompt in self._places])
        self._computed: list[Tensor] = []
        self._leaves: list[Tensor] = []

    def covers(self, prompts: Sequence[Sequence[int]]) -> bool:
        """True if all of these are among the prompts."""
        return all(tuple(prompt) in self._places for prompt in prompts)

    def hidden(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> Float[Tensor, "tokens hidden"]:
        """As `scoring.completion_hidden`: what predicts each completion token, one completion after another."""
        if not self._computed:
            self._compute()
        *layers, last = self._leaves
        packing = _Packing()
        owners = [self._places[tuple(prompt)] for prompt in prompts]
        place = [packing.add(own, _inner(c)) for own, c in zip(owners, completions, strict=True)]
        branched = self._branch(packing, owners, place, completions, layers) if packing.tokens else None
        parts = [last[:0]]
        for own, completion, (row, start) in zip(owners, completions, place, strict=True):
            parts.append(last[own : own + min(len(completion), 1)])
            if branched is not None:
                parts.append(branched[row, start : start + _inner(completion)])
        return torch.cat(parts)

    def backward(self) -> None:
        """Carry what the completions left at the leaves through the prompts; after the last micro-batch."""
        reached = [
            (x, leaf.grad) for x, leaf in zip(self._computed, self._leaves, strict=True) if leaf.grad is not None
        ]
        if reached:
            tensors, gradients = zip(*reached, strict=True)
            torch.autograd.backward(tensors, gradients)
        self._computed, self._leaves = [], []

    def _compute(self) -> None:
        from transformers import DynamicCache

        ids = torch.zeros(len(self._places), int(self._lengths.max()), dtype=torch.long)
        for prompt, i in self._places.items():
            ids[i, : len(prompt)] = torch.tensor(prompt)
        cache: Any = DynamicCache(config=self._decoder.config)
        device = self._device
        out = self._decoder(input_ids=ids.to(device), past_key_values=cache, use_cache=True).last_hidden_state
        last = out[torch.arange(len(ids), device=device), (self._lengths - 1).to(device)]
        self._computed = [x for layer in cache.layers for x in (layer.keys, layer.values)] + [last]
        self._leaves = [x.detach().requires_grad_(x.requires_grad) for x in self._computed]

    @property
    def _device(self) -> torch.device:
        return self._decoder.device

    def _branch(
        self,
        packing: _Packing,
        owners: Sequence[int],
        place: Sequence[tuple[int, int]],
        completions: Sequence[Sequence[int]],
        layers: list[Tensor],
    ) -> Tensor:
        """Hidden states of the completions in their rows; [rows, longest row, hidden]."""
        shape = len(packing.rows), max(packing.filled)
        ids, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        block = torch.full(shape, -1)
        for i, (own, (row, start)) in enumerate(zip(owners, place, strict=True)):
            end = start + _inner(completions[i])
            ids[row, start:end] = torch.tensor(completions[i][: end - start], dtype=torch.long)
            positions[row, start:end] = torch.arange(end - start) + self._lengths[own]
            block[row, start:end] = i
        rows = torch.tensor(packing.rows)
        mask = branch_mask(self._lengths[rows], layers[0].shape[-2], block).to(self._device)
        return self._decoder(
            input_ids=ids.to(self._device),
            position_ids=positions.to(self._device),
            attention_mask=self._as_the_attention_takes_it(mask, layers[0].dtype),
            past_key_values=self._cache(layers, rows.to(self._device)),
            use_cache=True,
        ).last_hidden_state

    def _as_the_attention_takes_it(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        if self._decoder.config._attn_implementation == "sdpa":
            return mask
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)

    def _cache(self, layers: list[Tensor], own: Tensor) -> DynamicCache:
        """The prompts' keys and values, a row for each row of the micro-batch; gradients add up at the leaves."""
        from transformers import DynamicCache

        cache: Any = DynamicCache(config=self._decoder.config)
        all_in_order = torch.equal(own, torch.arange(len(self._places), device=own.device))
        for layer, keys, values in zip(cache.layers, layers[::2], layers[1::2], strict=True):
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = (keys, values) if all_in_order else (keys[own], values[own])
        return cache


def _inner(completion: Sequence[int]) -> int:
    """Tokens of a completion that predict one: all but the last."""
    return max(len(completion) - 1, 0)


def branch_mask(lengths: Tensor, width: int, block: Tensor) -> Bool[Tensor, "rows 1 queries keys"]:
    """True where a token may look: its prompt (the first of `lengths` of `width` places), and its block up to itself.

    Args:
        lengths: tokens of each row's prompt, [rows].
        width: places of the prompts, padding included.
        block: which completion each place of a row belongs to, -1 for padding; [rows, queries].
    """
    prompt = (torch.arange(width) < lengths[:, None])[:, None, :].expand(-1, block.shape[1], -1)
    own = (block[:, :, None] == block[:, None, :]).tril()
    return torch.cat([prompt, own], -1)[:, None]

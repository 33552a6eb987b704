"""Prompts computed once; their completions branch off the keys and values.

    forward    the prompts, padded on the right; the keys and values of every layer are kept
    leaves     the same, cut out of the graph: completions come in micro-batches and add up their gradient there
    backward   once, from the leaves through the prompts

A row of a micro-batch holds completions of one prompt one after another; each sees the prompt and itself. The result is
that of computing every prompt with every completion, to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from opct.models.scoring import micro_batches

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel

ATTENTION = ("sdpa", "eager")  # those that take a mask of any shape
PREFIX_SHARE = 1 / 8  # of the memory of a token in training: one of a prompt that a row branches off (keys and values)


def can_branch(decoder: PreTrainedModel) -> str | None:
    """Why completions cannot branch off this model's cache; None where they can.

    The model is asked: two completions of one prompt, branched and each by itself.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    attention = decoder.config._attn_implementation
    if attention not in ATTENTION:
        return f"the attention {attention} takes no mask of its own"
    kinds = {type(layer) for layer in DynamicCache(config=decoder.config).layers} - {DynamicLayer}
    if kinds:
        return f"its cache has layers of the kind {', '.join(sorted(kind.__name__ for kind in kinds))}"
    device = next(decoder.parameters()).device
    ids = torch.arange(8, device=device) % decoder.config.vocab_size
    prompt, ends = ids[:4].tolist(), (ids[4:].tolist(), ids[5:8].tolist())
    with torch.no_grad():
        expected = [
            decoder(input_ids=torch.tensor([[*prompt, *end]], device=device), use_cache=False).last_hidden_state[
                0, 3:-1
            ]
            for end in ends
        ]
        found = Prefixes(decoder, [prompt]).hidden([prompt, prompt], ends)
    difference = float((torch.cat(expected) - found).abs().max())
    if difference > 0.02 * float(torch.cat(expected).abs().max()):
        return f"branched off, its hidden states differ by {difference:.3g}"
    return None


def shared_batches(prompts: Sequence[Sequence[int]], lengths: Sequence[int], budget: int) -> list[list[list[int]]]:
    """Groups of micro-batches of indices: a group's prompts are computed together, its micro-batches one by one.

    Neither a group's prompts nor a micro-batch's rows, padding included, exceed `budget` tokens, unless a single prompt
    or completion does.

    Args:
        prompts: of each completion; equal ones are one prompt.
        lengths: tokens of each completion.
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        members.setdefault(tuple(prompt), []).append(i)
    ordered = list(members.values())
    groups = micro_batches([len(prompt) for prompt in members], budget)
    return [_batches([ordered[k] for k in group], [len(p) for p in prompts], lengths, budget) for group in groups]


def _batches(
    members: Sequence[Sequence[int]], prompt_lengths: Sequence[int], lengths: Sequence[int], budget: int
) -> list[list[int]]:
    """Completions in the order of their prompts, a new micro-batch where the next one would exceed the budget."""
    batches: list[list[int]] = []
    rows: dict[int, int] = {}  # tokens of each row, by the place of its prompt
    widest = 0
    for place, own in enumerate(members):
        for i in own:
            row = rows.get(place, 0) + lengths[i]
            longest, width = max([row, *rows.values()]), max(widest, prompt_lengths[i])
            cost = len(rows | {place: 0}) * (longest + PREFIX_SHARE * width)
            if batches and cost <= budget:
                batches[-1].append(i)
            else:
                batches.append([i])
                rows, row, width = {}, lengths[i], prompt_lengths[i]
            rows[place], widest = row, width
    return batches


@dataclass(frozen=True)
class _Row:
    """Completions of one prompt (its index), in the order in which they stand in the row."""

    prompt: int
    completions: list[int]


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
        rows, place = self._rows(prompts, completions)
        branched = self._branch(rows, completions, layers) if any(len(c) > 1 for c in completions) else None
        parts = [last[:0]]
        for prompt, completion, (row, start) in zip(prompts, completions, place, strict=True):
            own = self._places[tuple(prompt)]
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

    def _rows(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> tuple[list[_Row], list[tuple[int, int]]]:
        """The rows, and for each completion (its row, where it begins there); the last token predicts nothing."""
        row_of: dict[int, int] = {}
        rows: list[_Row] = []
        filled: list[int] = []
        place = []
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            own = self._places[tuple(prompt)]
            if own not in row_of:
                row_of[own] = len(rows)
                rows.append(_Row(own, []))
                filled.append(0)
            row = row_of[own]
            rows[row].completions.append(i)
            place.append((row, filled[row]))
            filled[row] += _inner(completion)
        return rows, place

    def _branch(self, rows: list[_Row], completions: Sequence[Sequence[int]], layers: list[Tensor]) -> Tensor:
        """Hidden states of the completions in their rows; [rows, longest row, hidden]."""
        lengths = [[_inner(completions[i]) for i in row.completions] for row in rows]
        shape = len(rows), max(map(sum, lengths))
        ids, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        block = torch.full(shape, -1)
        for r, row in enumerate(rows):
            at = 0
            for i, n in zip(row.completions, lengths[r], strict=True):
                ids[r, at : at + n] = torch.tensor(completions[i][:n], dtype=torch.long)
                positions[r, at : at + n] = torch.arange(n) + self._lengths[row.prompt]
                block[r, at : at + n] = i
                at += n
        own = torch.tensor([row.prompt for row in rows])
        mask = branch_mask(self._lengths[own], layers[0].shape[-2], block).to(self._device)
        return self._decoder(
            input_ids=ids.to(self._device),
            position_ids=positions.to(self._device),
            attention_mask=self._as_the_attention_takes_it(mask, layers[0].dtype),
            past_key_values=self._cache(layers, own.to(self._device)),
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

"""Prompts computed once; their completions branch off the keys and values.

    forward    the prompts, padded on the right; the keys and values of every layer are kept
    leaves     the same tensors, detached: micro-batches of completions add up their gradient there
    backward   once, from the leaves through the prompts

Each completion sees its prompt and itself, in one of two ways. With our own attention on a CPU, the completions of a
micro-batch are one row without padding, and attention reads the prompts' keys in place (`opct.models.kernels.cascade`).
Elsewhere a row holds completions of one prompt one after another, behind a copy of its keys, with a mask over both.
The result equals computing every prompt with every completion, to rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from opct.models.inference.kv_cache import filled_cache, keys_and_values, other_layers, with_cache
from opct.models.kernels.attention import GROUPED, SDPA_LIKE
from opct.models.kernels.cascade import branches_of
from opct.models.kernels.equivalence import mismatch_reason
from opct.models.scoring import completion_hidden, micro_batches, padded_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from opct.models.backbone import Backbone

ATTENTION = (*SDPA_LIKE, "eager")  # take a mask of any shape
LENGTH_ROPES = {"dynamic", "longrope"}  # rotary embeddings whose frequencies depend on the length of the whole text
ROW_TOKENS = 512  # most tokens of completions in a row; the mask grows with their square
PREFIX_SHARE = 1 / 8  # of a token's memory in training: one of the prompt that a row branches off (0.09 to 0.17)


def no_prefix_sharing_reason(backbone: Backbone) -> str | None:
    """Why completions of this model cannot share their prompt, or None."""
    if no_cascade_reason(backbone) is None:
        return None
    return backbone.ask(branching_mismatch)


def no_cascade_reason(backbone: Backbone) -> str | None:
    """Why completions that share a prompt need copies of its keys and values, or None."""
    return backbone.ask(_cascade_mismatch)


def branching_mismatch(backbone: Backbone, *, cascade: bool = False) -> str | None:
    """Why completions cannot branch off this model's cache, or None.

    Runs the model on three completions of two prompts, branched and each alone.

    Args:
        cascade: without copies of the prompts' keys and values, which needs our own attention.
    """
    decoder = backbone.decoder
    attention = decoder.config._attn_implementation
    if cascade and attention != GROUPED:
        return f"the attention {attention} takes no keys beside the cache"
    if attention not in ATTENTION:
        return f"the attention {attention} takes no mask of its own"
    if kinds := other_layers(decoder.config):
        return f"its cache has layers of the kind {kinds}"
    ropes = LENGTH_ROPES & set(_rope_types(decoder.config.get_text_config().to_dict()))
    if ropes:
        return f"its rotary embedding ({', '.join(sorted(ropes))}) of a prompt depends on the length of the whole text"
    ids = [i % decoder.config.get_text_config().vocab_size for i in range(1, 12)]
    prompts, ends = [ids[:4], ids[4:6], ids[:4]], [ids[6:10], ids[7:10], ids[9:11]]

    def both(merged: bool) -> tuple[Tensor, Tensor]:
        expected = completion_hidden(decoder, prompts, ends, decoder.device)
        return expected, SharedPrefix(decoder, prompts, cascade=merged).hidden(prompts, ends)

    fault = mismatch_reason("branched off", partial(both, False), parts=False)
    if fault is not None or not cascade:
        return fault
    return mismatch_reason("merged from two parts", partial(both, True), parts=True)


_cascade_mismatch = partial(branching_mismatch, cascade=True)


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

    A group's prompts have at most `budget` tokens, padding included, and so has each micro-batch. The prompts and one
    micro-batch are in memory together. A single prompt or completion may exceed the budget.

    Args:
        prompts: of each completion; equal ones are one prompt.
        widths: tokens of each completion's prompt, or of the longest prompt that is computed for it.
        lengths: tokens of each completion.
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        members.setdefault(tuple(prompt), []).append(i)
    own = list(members.values())
    groups = micro_batches([max(widths[i] for i in rows) for rows in own], budget)
    return [_batches([own[k] for k in group], widths, lengths, budget) for group in groups]


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
    """The row of each completion and its place there: after others of its prompt, while there is room."""

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
        """In all rows, padding included."""
        return len(self.rows) * max(self.filled)


class SharedPrefix:
    """Prompts that are computed once, at the first call of `hidden`, with gradient if it is enabled there.

    Args:
        first: compute only this many first tokens of each prompt once (all but its last, where it is shorter).
        cascade: as in `branching_mismatch`.
        forward: computes prompts in place of `prompts_forward`.
    """

    def __init__(
        self,
        decoder: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        first: int | None = None,
        cascade: bool = False,
        forward: Callable[[Sequence[Sequence[int]]], list[Tensor]] | None = None,
    ):
        self._decoder, self._first, self._cascade = decoder, first, cascade
        self._forward = forward or partial(prompts_forward, decoder)
        self._places = {prompt: i for i, prompt in enumerate(dict.fromkeys(map(self._shared, prompts)))}
        self._lengths = torch.tensor([len(prompt) for prompt in self._places])
        self._computed: list[Tensor] = []
        self._leaves: list[Tensor] = []

    def hidden(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> Float[Tensor, "tokens hidden"]:
        """As `scoring.completion_hidden`: the states that predict each completion token, one after another."""
        if not self._computed:
            self._computed = self._forward(list(self._places))
            self._leaves = [x.detach().requires_grad_(x.requires_grad) for x in self._computed]
        *layers, last = self._leaves
        begun = [self._shared(prompt) for prompt in prompts]
        owners = [self._places[beginning] for beginning in begun]
        rests = [[*p[len(b) :], *c] for p, b, c in zip(prompts, begun, completions, strict=True)]
        branch = self._branch_in_one_row if self._cascade else self._branch_in_rows
        inner = branch(owners, rests, layers) if any(map(_inner, rests)) else [last[:0]] * len(owners)
        parts = [last[:0]]
        for own, rest, completion, states in zip(owners, rests, completions, inner, strict=True):
            whole = torch.cat([last[own : own + min(len(rest), 1)], states])
            parts.append(whole[len(rest) - len(completion) :])
        return torch.cat(parts)

    def backward(self) -> None:
        """Carry the gradient of the leaves through the prompts; call it after the last micro-batch."""
        reached = [
            (x, leaf.grad) for x, leaf in zip(self._computed, self._leaves, strict=True) if leaf.grad is not None
        ]
        if reached:
            tensors, gradients = zip(*reached, strict=True)
            torch.autograd.backward(tensors, gradients)
        self._computed, self._leaves = [], []

    def _shared(self, prompt: Sequence[int]) -> tuple[int, ...]:
        return tuple(prompt if self._first is None else prompt[: min(self._first, len(prompt) - 1)])

    @property
    def _device(self) -> torch.device:
        return self._decoder.device

    def _branch_in_one_row(
        self, owners: Sequence[int], completions: Sequence[Sequence[int]], layers: list[Tensor]
    ) -> list[Tensor]:
        """Hidden states of each completion's tokens but the last; computed as one row, ordered by prompt."""
        order = [i for i in sorted(range(len(owners)), key=owners.__getitem__) if _inner(completions[i])]
        lengths = [_inner(completions[i]) for i in order]
        ids = torch.tensor([t for i, n in zip(order, lengths, strict=True) for t in completions[i][:n]])
        at = [torch.arange(n) + self._lengths[owners[i]] for i, n in zip(order, lengths, strict=True)]
        own = [owners[i] for i in order]
        branches = branches_of(layers[::2], layers[1::2], self._lengths.tolist(), own, lengths)
        found = self._decoder(
            input_ids=ids[None].to(self._device),
            position_ids=torch.cat(at)[None].to(self._device),
            # four dimensions stop transformers from making a mask; our attention needs none
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self._device),
            use_cache=False,
            branches=branches,
        ).last_hidden_state[0]
        missed = set(range(len(branches.keys))) - branches.reached
        if missed:
            raise RuntimeError(f"the attention of layers {sorted(missed)} did not see the prompts")
        states = dict(zip(order, found.split(lengths), strict=True))
        return [states.get(i, found[:0]) for i in range(len(owners))]

    def _branch_in_rows(
        self, owners: Sequence[int], completions: Sequence[Sequence[int]], layers: list[Tensor]
    ) -> list[Tensor]:
        """The same with several completions of a prompt in each row, and a mask."""
        packing = _Packing()
        place = [packing.add(own, _inner(c)) for own, c in zip(owners, completions, strict=True)]
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
        if self._decoder.config._attn_implementation not in SDPA_LIKE:  # others add it to the scores
            dtype = layers[0].dtype
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        copied, in_order = rows.to(self._device), packing.rows == list(range(len(self._places)))
        begun = ((k, v) if in_order else (k[copied], v[copied]) for k, v in zip(layers[::2], layers[1::2], strict=True))
        found = self._decoder(
            input_ids=ids.to(self._device),
            position_ids=positions.to(self._device),
            attention_mask=mask,
            **with_cache(self._decoder, filled_cache(self._decoder.config, begun)),
        ).last_hidden_state
        return [found[row, start : start + _inner(c)] for (row, start), c in zip(place, completions, strict=True)]


class Prefixes(NamedTuple):
    """Shared prompts of a micro-batch for the policy and the teacher; None where each row computes its own."""

    policy: SharedPrefix | None = None
    teacher: SharedPrefix | None = None


NOT_SHARED = Prefixes()


def prompts_forward(decoder: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Keys and values of each layer, [prompts, heads, width, size], and the last hidden states, [prompts, hidden]."""
    from transformers import DynamicCache

    lengths, device = [len(prompt) for prompt in prompts], decoder.device
    ids = padded_ids(prompts)
    cache = DynamicCache(config=decoder.config)
    out = decoder(input_ids=ids.to(device), **with_cache(decoder, cache)).last_hidden_state
    last = out[torch.arange(len(ids), device=device), torch.tensor(lengths, device=device) - 1]
    return [*itertools.chain.from_iterable(keys_and_values(cache)), last]


def _inner(completion: Sequence[int]) -> int:
    """Tokens of a completion that predict one: all but the last."""
    return max(len(completion) - 1, 0)


def branch_mask(lengths: Tensor, width: int, block: Tensor) -> Bool[Tensor, "rows 1 queries keys"]:
    """True where a token may look: at its prompt, and at its own completion up to itself.

    Args:
        lengths: tokens of each row's prompt, [rows].
        width: columns of the prompts, padding included.
        block: the completion that each place of a row belongs to, -1 for padding; [rows, queries].
    """
    prompt = (torch.arange(width) < lengths[:, None])[:, None, :].expand(-1, block.shape[1], -1)
    own = (block[:, :, None] == block[:, None, :]).tril()
    return torch.cat([prompt, own], -1)[:, None]

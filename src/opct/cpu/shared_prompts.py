"""Prompts computed once; their completions branch off the keys and values.

    forward    the prompts, padded on the right; the keys and values of every layer are kept
    branches   the completions of all prompts; the gradient goes back through both

Each completion sees its prompt and itself, in one of two ways. With the grouped attention (CPU), completions of a
micro-batch are one row without padding, and attention reads the prompts' keys in place (`opct.cpu.cascade`).
Elsewhere a row holds completions of one prompt one after another, behind a copy of its keys, with a mask over both.
The result equals computing every prompt with every completion, to rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from opct.cpu.attention import GROUPED
from opct.cpu.cascade import branches_of
from opct.cpu.equivalence import mismatch_reason
from opct.cpu.switches import is_on
from opct.models.inference.kv_cache import filled_cache, keys_and_values, other_layers, with_cache
from opct.models.scoring import completion_hidden, padded_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from opct.models.backbone import Backbone

LENGTH_ROPES = {"dynamic", "longrope"}  # rotary embeddings whose frequencies depend on the length of the whole text
ROW_TOKENS = 512  # most tokens of completions in a row; the mask grows with their square
PREFIX_SHARE = 1 / 8  # of a token's memory in training: one of the prompt that a row branches off (0.09 to 0.17)


def no_sharing_reason(backbone: Backbone) -> str | None:
    """Why a prompt must be computed with each of its completions in training; None if once is enough."""
    if not is_on("shared_prompts"):
        return "switched off"
    if backbone.has_dropout:
        return "dropout is on, and draws for each completion"
    if backbone.recomputes:
        return "activations are computed again in the backward pass, which keeps no cache"
    return no_branching_reason(backbone)


def no_branching_reason(backbone: Backbone) -> str | None:
    """Why completions of this model cannot branch off their prompt, or None."""
    if no_cascade_reason(backbone) is None:
        return None
    return backbone.ask(branching_mismatch)


def no_cascade_reason(backbone: Backbone) -> str | None:
    """Why completions that share a prompt need copies of its keys and values, or None."""
    return backbone.ask(_cascade_mismatch) if is_on("cascade") else "switched off"


def branching_mismatch(backbone: Backbone, *, cascade: bool = False) -> str | None:
    """Why completions cannot branch off this model's cache, or None.

    Runs the model on three completions of two prompts, branched and each alone.

    Args:
        cascade: without copies of the prompts' keys and values, which needs the grouped attention.
    """
    decoder = backbone.decoder
    attention = decoder.config._attn_implementation
    if cascade and attention != GROUPED:
        return f"the attention {attention} takes no keys beside the cache"
    if not backbone.takes_masks and attention != "eager":
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
        return expected, branched_hidden(decoder, prompts, prompts, ends, cascade=merged)

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
) -> list[list[int]]:
    """`PlainPath.batches` where each prompt is computed once for its completions in a micro-batch.

    The prompts of a micro-batch have at most `budget` tokens, padding included, and so have its completions, with
    `PREFIX_SHARE` of the prompt that a row branches off. A prompt is cut apart from its next completions only where
    they do not fit into one micro-batch.

    Args:
        lengths: tokens of the completions of each row.
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        members.setdefault(tuple(prompt), []).append(i)
    prompt_of = {i: place for place, rows in enumerate(members.values()) for i in rows}

    def fits(rows: Sequence[int]) -> bool:
        packing, widest = _Packing(), max(widths[i] for i in rows)
        for i in rows:
            packing.add(prompt_of[i], lengths[i])
        completions = packing.tokens + len(packing.rows) * PREFIX_SHARE * widest
        return max(len(set(packing.rows)) * widest, completions) <= budget

    batches: list[list[int]] = []
    # the widest first, as in `micro_batches`, so that prompts of similar lengths are padded together
    for group in sorted(members.values(), key=lambda rows: -max(widths[i] for i in rows)):
        if batches and fits([*batches[-1], *group]):
            batches[-1] += group
            continue
        batches.append([])
        for i in group:
            if batches[-1] and not fits([*batches[-1], i]):
                batches.append([])
            batches[-1].append(i)
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


def branched_hidden(
    decoder: PreTrainedModel,
    beginnings: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    cascade: bool,
    forward: Callable[[Sequence[Sequence[int]]], list[Tensor]] | None = None,
) -> Float[Tensor, "tokens hidden"]:
    """As `scoring.completion_hidden`; equal beginnings are computed once.

    Args:
        beginnings: what each prompt begins with, or the whole prompt.
        cascade: as in `branching_mismatch`.
        forward: computes beginnings in place of `prompts_forward`.
    """
    begun = [tuple(beginning) for beginning in beginnings]
    # by first appearance: then completions that come prompt by prompt need no copy (`in_order` below)
    places = {beginning: i for i, beginning in enumerate(dict.fromkeys(begun))}
    *layers, last = forward(list(places)) if forward else prompts_forward(decoder, list(places))
    owners = [places[beginning] for beginning in begun]
    rests = [[*p[len(b) :], *c] for p, b, c in zip(prompts, begun, completions, strict=True)]
    branch = _branch_in_one_row if cascade else _branch_in_rows
    lengths = torch.tensor([len(beginning) for beginning in places])
    inner = branch(decoder, owners, rests, layers, lengths) if any(map(_inner, rests)) else [last[:0]] * len(owners)
    parts = [last[:0]]
    for owner, rest, completion, states in zip(owners, rests, completions, inner, strict=True):
        # the last state of the beginning predicts the first token of the rest; the completion is its end
        whole = torch.cat([last[owner : owner + min(len(rest), 1)], states])
        parts.append(whole[len(rest) - len(completion) :])
    return torch.cat(parts)


def _branch_in_one_row(
    decoder: PreTrainedModel,
    owners: Sequence[int],
    completions: Sequence[Sequence[int]],
    layers: list[Tensor],
    prompt_tokens: Tensor,
) -> list[Tensor]:
    """Hidden states of each completion's tokens but the last; computed as one row, ordered by prompt."""
    # `branches_of` takes completions in the order of their prompts; those of one token predict nothing more
    order = [i for i in sorted(range(len(owners)), key=owners.__getitem__) if _inner(completions[i])]
    lengths = [_inner(completions[i]) for i in order]
    ids = torch.tensor([t for i, n in zip(order, lengths, strict=True) for t in completions[i][:n]])
    # positions go on from the prompt's end: the row's order is for attention alone
    at = [torch.arange(n) + prompt_tokens[owners[i]] for i, n in zip(order, lengths, strict=True)]
    ordered_owners = [owners[i] for i in order]
    # keys and values alternate (`prompts_forward`)
    branches = branches_of(layers[::2], layers[1::2], prompt_tokens.tolist(), ordered_owners, lengths)
    hidden = decoder(
        input_ids=ids[None].to(decoder.device),
        position_ids=torch.cat(at)[None].to(decoder.device),
        # four dimensions stop transformers from making a mask; the cascade needs none
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=decoder.device),
        use_cache=False,
        branches=branches,
    ).last_hidden_state[0]
    missed = set(range(len(branches.keys))) - branches.reached
    if missed:
        raise RuntimeError(f"the attention of layers {sorted(missed)} did not see the prompts")
    states = dict(zip(order, hidden.split(lengths), strict=True))
    return [states.get(i, hidden[:0]) for i in range(len(owners))]


def _branch_in_rows(
    decoder: PreTrainedModel,
    owners: Sequence[int],
    completions: Sequence[Sequence[int]],
    layers: list[Tensor],
    prompt_tokens: Tensor,
) -> list[Tensor]:
    """The same with several completions of a prompt in each row, and a mask."""
    packing = _Packing()
    place = [packing.add(owner, _inner(c)) for owner, c in zip(owners, completions, strict=True)]
    shape = len(packing.rows), max(packing.filled)
    ids, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    block = torch.full(shape, -1)
    for i, (owner, (row, start)) in enumerate(zip(owners, place, strict=True)):
        end = start + _inner(completions[i])
        ids[row, start:end] = torch.tensor(completions[i][: end - start], dtype=torch.long)
        positions[row, start:end] = torch.arange(end - start) + prompt_tokens[owner]
        block[row, start:end] = i
    rows = torch.tensor(packing.rows)
    # padding keeps block -1, so it sees its prompt and itself: a row of all -inf would be NaN
    mask = branch_mask(prompt_tokens[rows], layers[0].shape[-2], block).to(decoder.device)
    if decoder.config._attn_implementation == "eager":  # it is added to the scores
        dtype = layers[0].dtype
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    copied, in_order = rows.to(decoder.device), packing.rows == list(range(len(prompt_tokens)))
    begun = ((k, v) if in_order else (k[copied], v[copied]) for k, v in zip(layers[::2], layers[1::2], strict=True))
    hidden = decoder(
        input_ids=ids.to(decoder.device),
        position_ids=positions.to(decoder.device),
        attention_mask=mask,
        **with_cache(decoder, filled_cache(decoder.config, begun)),
    ).last_hidden_state
    return [hidden[row, start : start + _inner(c)] for (row, start), c in zip(place, completions, strict=True)]


def prompts_forward(decoder: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Keys and values of each layer, [prompts, heads, width, size], and the last hidden states, [prompts, hidden]."""
    from transformers import DynamicCache

    lengths, device = [len(prompt) for prompt in prompts], decoder.device
    ids = padded_ids(prompts)
    cache = DynamicCache(config=decoder.config)
    out = decoder(input_ids=ids.to(device), **with_cache(decoder, cache)).last_hidden_state
    # minus 1: the state at the prompt's last token; what follows it in the row is padding
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
    # tril over the whole row: each completion's tokens lie there in order
    completion = (block[:, :, None] == block[:, None, :]).tril()
    return torch.cat([prompt, completion], -1)[:, None]

"""Prefill of prompts before sampling; shared beginnings are computed once.

    beginnings   the first n tokens of every prompt, each distinct one once; n is chosen to save most
    rests        branch off the keys and values of their beginning

Beginnings are split in the same way again: first the tokens that all prompts share (a system message), then those
that only some share (a question).
Short and long prompts are computed apart where padding would take longer.
The result equals computing every prompt alone, to rounding.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opct.models.inference.kv_cache import filled_cache, keys_and_values, other_layers, with_cache
from opct.models.inference.prefix_sharing import no_prefix_sharing_reason
from opct.models.kernels.attention import SDPA_LIKE

if TYPE_CHECKING:
    from transformers import DynamicCache

    from opct.models.backbone import Backbone

FORWARD = 256  # tokens that an additional forward counts as
LEAST_SHARE = 1 / 8  # of the tokens to be saved: keys and values are copied from the beginnings to the prompts


@dataclass(frozen=True)
class Prefill:
    """Prompts computed once.

    Attributes:
        cache: their keys and values, padded on the left to `width` tokens.
        starts: the first column of each prompt, [prompts].
        hidden: the states that predict the token after each prompt, [prompts, hidden].
        owners: the prompt that each row continues, [rows].
    """

    cache: DynamicCache
    width: int
    starts: Tensor
    hidden: Tensor
    owners: Tensor


def prefill(backbone: Backbone, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Prefill:
    """Compute each prompt for `copies` rows; a shared beginning once, where that pays."""
    owners = torch.arange(len(prompts)).repeat_interleave(torch.tensor(copies)).to(backbone.device)
    return dataclasses.replace(_computed(backbone, prompts), owners=owners)


def states(backbone: Backbone, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """As `prefix_sharing.prompts_forward`, without gradient; a beginning that prompts share is computed once."""
    found = _computed(backbone, prompts)
    columns = torch.arange(found.width, device=backbone.device) + found.starts[:, None]
    columns = columns.clamp(max=found.width - 1)[:, None, :, None]  # beyond a prompt's end any values will do
    layers = itertools.chain.from_iterable(keys_and_values(found.cache))
    return [*(x.gather(2, columns.expand(-1, x.shape[1], -1, x.shape[3])) for x in layers), found.hidden]


def beginning(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens of each prompt to compute first, equal ones once; 0 where that saves too little.

    Every prompt keeps at least its last token, which predicts its completion. The cost is counted in tokens: of the
    distinct beginnings, which may have beginnings themselves, and of the rests.
    """
    if min(map(len, prompts)) < 2:
        return 0
    ordered = sorted(map(tuple, prompts))
    candidates = sorted({common_beginning(a, b) for a, b in itertools.pairwise(ordered)} - {0})
    plain = sum(map(len, prompts))
    best, cost = 0, min(plain - FORWARD, (1 - LEAST_SHARE) * plain)
    cheapest: list[tuple[int, int]] = []  # (n, cost of the distinct beginnings of n tokens)
    for n in candidates:
        different = {prompt[: min(n, len(prompt) - 1)] for prompt in ordered}
        lengths = Counter(map(len, different))
        nested = [taken + FORWARD + _rests(lengths, m) for m, taken in cheapest]
        cheapest.append((n, min([_rests(lengths, 0), *nested])))
        needed = cheapest[-1][1] + _rests(Counter(map(len, ordered)), n)
        if needed <= cost:
            best, cost = n, needed
    return best


def _rests(lengths: Counter[int], n: int) -> int:
    """Tokens left of prompts of these lengths after their first n, at least one of each."""
    return sum(count * (length - min(n, length - 1)) for length, count in lengths.items())


def tokens_saved(prompts: Sequence[Sequence[int]], n: int) -> int:
    """Tokens saved where the first n of each prompt (all but its last, where it is shorter) are computed once."""
    begun = [tuple(prompt[: min(n, len(prompt) - 1)]) for prompt in prompts]
    return sum(map(len, begun)) - sum(map(len, set(begun)))


def common_beginning(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of equal first tokens."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _computed(backbone: Backbone, prompts: Sequence[Sequence[int]]) -> Prefill:
    first = beginning(prompts)
    takes_masks = backbone.attention in SDPA_LIKE
    if first == 0 or not takes_masks or no_prefix_sharing_reason(backbone) is not None:
        return _in_groups(backbone, prompts, lambda own: _plain(backbone, [prompts[i] for i in own]))
    cuts = [min(first, len(prompt) - 1) for prompt in prompts]
    places: dict[tuple[int, ...], int] = {}
    owners = [places.setdefault(tuple(p[:t]), len(places)) for p, t in zip(prompts, cuts, strict=True)]
    rests = [prompt[t:] for prompt, t in zip(prompts, cuts, strict=True)]
    begun = _computed(backbone, list(places))

    def branched(own: Sequence[int]) -> Prefill:
        return _branched(backbone, begun, [owners[i] for i in own], [cuts[i] for i in own], [rests[i] for i in own])

    return _in_groups(backbone, rests, branched)


def _in_groups(
    backbone: Backbone, rows: Sequence[Sequence[int]], compute: Callable[[Sequence[int]], Prefill]
) -> Prefill:
    """All rows, those of similar lengths computed together.

    Args:
        compute: from the indices of some rows to their prompts.
    """
    groups = bucket_by_length([len(row) for row in rows], FORWARD)
    if len(groups) == 1 or other_layers(backbone.decoder.config):
        return compute(range(len(rows)))
    return _joined(backbone, [compute(group) for group in groups], groups)


def _joined(backbone: Backbone, parts: Sequence[Prefill], groups: Sequence[Sequence[int]]) -> Prefill:
    """Prompts that were computed apart, in their order; `groups` has the places of each part."""
    width, order = max(part.width for part in parts), torch.tensor([i for group in groups for i in group])
    places = order.to(backbone.device).split([len(group) for group in groups])
    layers = (
        (_side_by_side([k for k, _ in own], places, width), _side_by_side([v for _, v in own], places, width))
        for own in zip(*(keys_and_values(part.cache) for part in parts), strict=True)
    )
    cache, back = filled_cache(backbone.decoder.config, layers), order.argsort().to(backbone.device)
    starts = torch.cat([part.starts + width - part.width for part in parts])[back]
    hidden = torch.cat([part.hidden for part in parts])[back]
    return Prefill(cache, width, starts, hidden, torch.arange(len(back), device=back.device))


def _side_by_side(parts: Sequence[Tensor], places: Sequence[Tensor], width: int) -> Tensor:
    """Tensors [rows, heads, tokens, size] -> one of all rows, padded on the left to `width` tokens."""
    _, heads, _, size = parts[0].shape
    whole = parts[0].new_zeros(sum(map(len, parts)), heads, width, size)
    for part, own in zip(parts, places, strict=True):
        whole[own, :, width - part.shape[2] :] = part
    return whole


def _branched(
    backbone: Backbone, found: Prefill, owners: Sequence[int], cuts: Sequence[int], rests: Sequence[Sequence[int]]
) -> Prefill:
    """Continue beginnings with the rest of each prompt.

    Both are padded on the left, so there are unused columns between them; the result has none.

    Args:
        owners: the beginning of each prompt.
        cuts: tokens of each beginning.
    """
    device = backbone.device
    ids, gaps = _left_padded(rests)
    ids, gaps, cut = ids.to(device), gaps.to(device), torch.tensor(cuts, device=device)
    columns = torch.arange(ids.shape[1], device=device)
    seen = torch.arange(found.width, device=device) >= (found.width - cut)[:, None]
    causal = (columns >= gaps[:, None])[:, None] & (columns <= columns[:, None])
    mask = torch.cat([seen[:, None].expand(-1, len(columns), -1), causal], -1)
    rows = torch.tensor(owners, device=device)
    begun = ((keys[rows], values[rows]) for keys, values in keys_and_values(found.cache))
    cache: Any = filled_cache(backbone.decoder.config, begun)
    out = backbone.decoder(
        input_ids=ids,
        attention_mask=mask[:, None],
        position_ids=(cut[:, None] + columns - gaps[:, None]).clamp(min=0),
        **with_cache(backbone.decoder, cache),
    )
    lengths = cut + len(columns) - gaps
    width = int(lengths.max())
    place = torch.arange(width, device=device) - (width - lengths)[:, None]  # in the prompt; negative is padding
    before = place < cut[:, None]
    column = torch.where(before, found.width - cut[:, None], found.width + gaps[:, None] - cut[:, None]) + place
    column = column.clamp(min=0)[:, None, :, None]
    for layer in cache.layers:
        layer.keys, layer.values = (
            x.gather(2, column.expand(-1, x.shape[1], -1, x.shape[3])) for x in (layer.keys, layer.values)
        )
    return Prefill(cache, width, width - lengths, out.last_hidden_state[:, -1], found.owners)


def _left_padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """(ids [rows, longest], where each begins [rows])."""
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_side="left"
    )
    return ids, ids.shape[1] - torch.tensor([len(row) for row in rows])


def _plain(backbone: Backbone, prompts: Sequence[Sequence[int]]) -> Prefill:
    from transformers import DynamicCache

    ids, starts = _left_padded(prompts)
    padded = bool(starts.any())
    ids, starts = ids.to(backbone.device), starts.to(backbone.device)
    columns = torch.arange(ids.shape[1], device=backbone.device)
    padding: dict[str, Any] = {"attention_mask": (columns >= starts[:, None]).long()} if padded else {}
    cache: Any = DynamicCache(config=backbone.decoder.config)
    out = backbone.decoder(
        input_ids=ids,
        position_ids=(columns - starts[:, None]).clamp(min=0),
        **with_cache(backbone.decoder, cache),
        **padding,
    )
    own = torch.arange(len(prompts), device=backbone.device)
    return Prefill(cache, ids.shape[1], starts, out.last_hidden_state[:, -1], own)


def bucket_by_length(lengths: Sequence[int], overhead: int) -> list[list[int]]:
    """Indices in groups, the longest rows first, with the least padding and overhead.

    Args:
        lengths: tokens of each row.
        overhead: cost of an additional group, in tokens.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    # rows of one length stay together
    starts = [k for k, i in enumerate(order) if k == 0 or lengths[i] < lengths[order[k - 1]]]
    ends = [*starts[1:], len(order)]
    least, cut = [0], [0]  # least cost of the rows up to each end, and where their last group begins
    for n, end in enumerate(ends, 1):
        costs = [least[k] + overhead + (end - starts[k]) * lengths[order[starts[k]]] for k in range(n)]
        best = min(range(n), key=costs.__getitem__)
        least.append(costs[best])
        cut.append(best)
    groups, n = [], len(ends)
    while n:
        groups.append(order[starts[cut[n]] : ends[n - 1]])
        n = cut[n]
    return groups[::-1]

"""Prefill of prompts before sampling; shared beginnings are computed once.

    beginnings   the first n tokens of every prompt, each distinct one once; n is chosen to save most
    rests        branch off the keys and values of their beginning

Beginnings are split in the same way again: first the tokens that all prompts share (a system message), then those
that only some share (a question).
Short and long prompts are computed apart where padding would take longer.
The result equals computing every prompt alone, to rounding.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opct.cpu.shared_prompts import no_branching_reason
from opct.cpu.switches import is_on
from opct.models.backbone import Backbone
from opct.models.inference.kv_cache import filled_cache, keys_and_values, other_layers, with_cache
from opct.models.inference.prefill import Prefill, left_padded, plain_prefill

FORWARD = 256  # tokens that an additional forward counts as
LEAST_SHARE = 1 / 8  # of the tokens to be saved: keys and values are copied from the beginnings to the prompts


def beginning(prompts: Sequence[Sequence[int]], forward: int | None = None) -> int:
    """How many tokens of each prompt to compute first, equal ones once; 0 where that saves too little.

    Every prompt keeps at least its last token, which predicts its completion. The cost is counted in tokens: of the
    distinct beginnings, which may have beginnings themselves, and of the rests.

    Args:
        forward: tokens that an additional forward counts as, `FORWARD` by default.
    """
    forward = FORWARD if forward is None else forward
    if min(map(len, prompts)) < 2:
        return 0
    ordered = sorted(map(tuple, prompts))
    # neighbors in sorted order suffice: what two prompts share, all those between them share too
    candidates = sorted({common_beginning(a, b) for a, b in itertools.pairwise(ordered)} - {0})
    plain = sum(map(len, prompts))
    best, cost = 0, min(plain - forward, (1 - LEAST_SHARE) * plain)
    cheapest: list[tuple[int, int]] = []  # (n, cost of the distinct beginnings of n tokens)
    for n in candidates:
        different = {prompt[: min(n, len(prompt) - 1)] for prompt in ordered}
        lengths = Counter(map(len, different))
        nested = [taken + forward + _rests(lengths, m) for m, taken in cheapest]
        cheapest.append((n, min([_rests(lengths, 0), *nested])))
        needed = cheapest[-1][1] + _rests(Counter(map(len, ordered)), n)
        if needed <= cost:
            best, cost = n, needed
    return best


def _rests(lengths: Counter[int], n: int) -> int:
    """Tokens left of prompts of these lengths after their first n, at least one of each."""
    return sum(count * (length - min(n, length - 1)) for length, count in lengths.items())


def common_beginning(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of equal first tokens."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def prefill(backbone: Backbone, prompts: Sequence[Sequence[int]]) -> Prefill:
    """Compute each prompt; a beginning that some share once, where that pays."""
    first = beginning(prompts) if is_on("nested_beginnings") else 0
    if first == 0 or not backbone.takes_masks or no_branching_reason(backbone) is not None:
        return _in_groups(backbone, prompts, lambda rows: plain_prefill(backbone, [prompts[i] for i in rows]))
    # minus 1: a rest of no tokens would have no state that predicts the completion
    cuts = [min(first, len(prompt) - 1) for prompt in prompts]
    places: dict[tuple[int, ...], int] = {}
    owners = [places.setdefault(tuple(p[:t]), len(places)) for p, t in zip(prompts, cuts, strict=True)]
    rests = [prompt[t:] for prompt, t in zip(prompts, cuts, strict=True)]
    begun = prefill(backbone, list(places))

    def branched(rows: Sequence[int]) -> Prefill:
        return _branched(backbone, begun, [owners[i] for i in rows], [cuts[i] for i in rows], [rests[i] for i in rows])

    return _in_groups(backbone, rests, branched)


def _in_groups(
    backbone: Backbone, rows: Sequence[Sequence[int]], compute: Callable[[Sequence[int]], Prefill]
) -> Prefill:
    """All rows, those of similar lengths computed together.

    Args:
        compute: from the indices of some rows to their prompts.
    """
    groups = bucket_by_length([len(row) for row in rows], FORWARD) if is_on("length_groups") else []
    if len(groups) < 2 or other_layers(backbone.decoder.config):
        return compute(range(len(rows)))
    return _joined(backbone, [compute(group) for group in groups], groups)


def _joined(backbone: Backbone, parts: Sequence[Prefill], groups: Sequence[Sequence[int]]) -> Prefill:
    """Prompts that were computed apart, in their order; `groups` has the places of each part."""
    width, order = max(part.width for part in parts), torch.tensor([i for group in groups for i in group])
    places = order.to(backbone.device).split([len(group) for group in groups])
    layers = (
        (_side_by_side([k for k, _ in layer], places, width), _side_by_side([v for _, v in layer], places, width))
        for layer in zip(*(keys_and_values(part.cache) for part in parts), strict=True)
    )
    cache, back = filled_cache(backbone.decoder.config, layers), order.argsort().to(backbone.device)
    # padding moves with the wider cache; `back` undoes the sorting by length
    starts = torch.cat([part.starts + width - part.width for part in parts])[back]
    hidden = torch.cat([part.hidden for part in parts])[back]
    return Prefill(cache, width, starts, hidden, torch.arange(len(back), device=back.device))


def _side_by_side(parts: Sequence[Tensor], places: Sequence[Tensor], width: int) -> Tensor:
    """Tensors [rows, heads, tokens, size] -> one of all rows, padded on the left to `width` tokens."""
    _, heads, _, size = parts[0].shape
    whole = parts[0].new_zeros(sum(map(len, parts)), heads, width, size)
    for part, rows in zip(parts, places, strict=True):
        whole[rows, :, width - part.shape[2] :] = part
    return whole


def _branched(
    backbone: Backbone, prefilled: Prefill, owners: Sequence[int], cuts: Sequence[int], rests: Sequence[Sequence[int]]
) -> Prefill:
    """Continue beginnings with the rest of each prompt.

    Both are padded on the left, so there are unused columns between them; the result has none.

    Args:
        owners: the beginning of each prompt.
        cuts: tokens of each beginning.
    """
    device = backbone.device
    ids, gaps = left_padded(rests)
    ids, gaps, cut = ids.to(device), gaps.to(device), torch.tensor(cuts, device=device)
    columns = torch.arange(ids.shape[1], device=device)
    # a beginning ends at column `width`, whatever its length, and what it needs of the next level is its last `cut`
    seen = torch.arange(prefilled.width, device=device) >= (prefilled.width - cut)[:, None]
    # rests are padded on the left, too: no query may see another's gap, and a row in a gap sees nothing of use
    causal = (columns >= gaps[:, None])[:, None] & (columns <= columns[:, None])
    mask = torch.cat([seen[:, None].expand(-1, len(columns), -1), causal], -1)
    rows = torch.tensor(owners, device=device)
    begun = ((keys[rows], values[rows]) for keys, values in keys_and_values(prefilled.cache))
    cache: Any = filled_cache(backbone.decoder.config, begun)
    out = backbone.decoder(
        input_ids=ids,
        attention_mask=mask[:, None],
        # the rest goes on where its beginning ended
        position_ids=(cut[:, None] + columns - gaps[:, None]).clamp(min=0),
        **with_cache(backbone.decoder, cache),
    )
    lengths = cut + len(columns) - gaps
    width = int(lengths.max())
    place = torch.arange(width, device=device) - (width - lengths)[:, None]  # in the prompt; negative is padding
    before = place < cut[:, None]
    # the columns are [padding, beginning, gap, rest]: a place of the beginning is counted back from its end at
    # prefilled.width, one of the rest forward from the end of the gap; off by one here is another token's keys
    column = torch.where(before, prefilled.width - cut[:, None], prefilled.width + gaps[:, None] - cut[:, None]) + place
    column = column.clamp(min=0)[:, None, :, None]
    for layer in cache.layers:
        layer.keys, layer.values = (
            x.gather(2, column.expand(-1, x.shape[1], -1, x.shape[3])) for x in (layer.keys, layer.values)
        )
    return Prefill(cache, width, width - lengths, out.last_hidden_state[:, -1], prefilled.owners)


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

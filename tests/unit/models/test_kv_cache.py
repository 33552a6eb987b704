"""The cache with room against transformers' own."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from opct.models.inference.kv_cache import with_room

ROWS = torch.tensor([1, 0, 1])


def state(generator: torch.Generator, rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(rows, 2, tokens, 3, generator=generator) for _ in range(2))


def test_rows_tokens_and_selections_are_those_of_the_cache_that_grows():
    """Two prompts of 4 tokens, three rows of them, two tokens more, two of the rows, another token."""
    generator = torch.Generator().manual_seed(0)
    prompts, second, third = state(generator, 2, 4), state(generator, 3, 2), state(generator, 2, 1)
    growing, roomy = DynamicCache(), DynamicCache()
    for cache in (growing, roomy):
        cache.update(*prompts, 0)
    growing.reorder_cache(ROWS)
    with_room(roomy, ROWS, 3)
    found = []
    for cache in (growing, roomy):
        seen = [tuple(x.clone() for x in cache.update(*second, 0))]
        assert cache.get_seq_length() == 6
        cache.reorder_cache(torch.tensor([2, 0]))
        seen.append(cache.update(*third, 0))
        found.append(seen)
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

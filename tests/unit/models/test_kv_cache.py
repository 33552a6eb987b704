"""The cache with room against transformers' own."""

from __future__ import annotations

from inspect import signature

import torch
from transformers import DynamicCache, LlamaModel
from transformers.cache_utils import DynamicLayer

from opct.models.inference.kv_cache import with_cache, with_room
from tests.tiny import tiny_model, tiny_tokenizer

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


def test_layers_of_other_kinds_and_empty_ones_keep_their_own_way():
    """The last layers of some models use the keys of others, and are never written."""

    class Other(DynamicLayer):
        pass

    cache = DynamicCache()
    cache.update(*state(torch.Generator().manual_seed(0), 2, 4), 0)
    cache.layers[0].__class__ = Other
    cache.layers.append(DynamicLayer())
    with_room(cache, ROWS, 2)
    assert [type(layer) for layer in cache.layers] == [Other, DynamicLayer]
    assert cache.layers[0].keys.shape == (3, 2, 4, 3)
    assert cache.layers[1].keys is None


class OlderModel(LlamaModel):
    """As the code that comes with some weights."""

    def forward(self, input_ids=None, past_key_values=None, use_cache=None, **kwargs):
        name = "cache" if "cache" in signature(super().forward).parameters else "past_key_values"
        return super().forward(input_ids, use_cache=use_cache, **{name: past_key_values}, **kwargs)


def test_a_model_takes_the_cache_by_the_name_in_its_signature():
    decoder = tiny_model(tiny_tokenizer()).get_decoder().eval()
    ids = torch.tensor([[1, 5, 6, 7]])
    whole = decoder(input_ids=ids, use_cache=False).last_hidden_state[:, 3:]
    for model in (LlamaModel, OlderModel):
        decoder.__class__ = model
        cache = DynamicCache(config=decoder.config)
        for part in (ids[:, :3], ids[:, 3:]):
            found = decoder(input_ids=part, **with_cache(decoder, cache)).last_hidden_state
        assert cache.get_seq_length() == 4
        assert torch.allclose(found, whole, atol=1e-5)

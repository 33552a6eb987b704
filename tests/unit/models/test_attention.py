"""Attention on groups of heads against transformers' own."""

from __future__ import annotations

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from opct.config.schema import ModelConfig
from opct.models.inference.prefix_sharing import no_prefix_sharing_reason
from opct.models.kernels.attention import GROUPED, grouped_attention, use_grouped_attention
from opct.models.policy import Policy
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer


class Module(torch.nn.Module):
    num_key_value_groups = 3
    is_causal = True


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_the_result_is_that_of_every_head_by_itself(queries: int, masked: bool):
    """Six query heads on two of keys, with a mask of any shape and without."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 6, queries, 8, generator=generator)
    k, v = torch.randn(2, 3, 2, 9, 8, generator=generator)
    mask = torch.rand(3, 1, queries, 9, generator=generator) < 0.7 if masked else None
    if mask is not None:
        mask[..., 0] = True
    elif queries > 1:  # causal by its flag
        k, v = k[:, :, :queries], v[:, :, :queries]
    found, weights = grouped_attention(Module(), q, k, v, mask, scaling=0.3)
    expected, _ = sdpa_attention_forward(Module(), q, k, v, mask, scaling=0.3)
    assert weights is None
    assert found.shape == (3, queries, 6, 8)
    torch.testing.assert_close(found, expected)


def test_gradients_are_those_of_every_head_by_itself():
    generator = torch.Generator().manual_seed(0)
    found, expected = [], []
    for function, results in ((grouped_attention, found), (sdpa_attention_forward, expected)):
        generator.manual_seed(0)
        q = torch.randn(2, 6, 5, 8, generator=generator).requires_grad_()
        k, v = (torch.randn(2, 2, 5, 8, generator=generator).requires_grad_() for _ in range(2))
        out, _ = function(Module(), q, k, v, None, scaling=0.3)
        (out * torch.arange(8.0)).sum().backward()
        results += [out.detach(), q.grad, k.grad, v.grad]
    torch.testing.assert_close(found, expected)


def test_what_it_does_not_cover_is_left_to_transformers():
    q, k = torch.randn(1, 6, 1, 8), torch.randn(1, 2, 9, 8)
    with pytest.raises(ValueError, match="softcap"):
        grouped_attention(Module(), q, k, k, None, softcap=3.0)


def test_a_loaded_model_uses_it_and_answers_alike(tmp_path):
    folder = save_tiny(tmp_path / "tiny")
    policy = Policy.load(ModelConfig(name_or_path=str(folder), dtype="float32", device="cpu"))
    assert policy.backbone.decoder.config._attn_implementation == GROUPED
    ids = torch.tensor([[1, 40, 50, 60], [1, 70, 71, 72]])
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        found = policy.backbone.decoder(input_ids=ids, attention_mask=mask).last_hidden_state
        policy.backbone.decoder.config._attn_implementation = "sdpa"
        expected = policy.backbone.decoder(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found[:, 1:], expected[:, 1:])
    assert no_prefix_sharing_reason(policy.backbone) is None
    saved = policy.model.config.to_dict()
    assert GROUPED not in str(saved)


def test_an_attention_that_was_asked_for_stays():
    model = tiny_model(tiny_tokenizer())
    model.set_attn_implementation("eager")
    use_grouped_attention(model)
    assert model.config._attn_implementation == "eager"

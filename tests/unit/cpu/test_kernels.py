"""The kernels against their definitions, and what they leave to PyTorch, transformers and PEFT."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from peft.tuners.lora import Linear
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from opct.cpu import flash
from opct.cpu.attention import grouped_attention, use_grouped_attention
from opct.cpu.cascade import branches_of, cascade_attention
from opct.cpu.flash import causal_mask
from opct.cpu.fused_norm import fuse_norms
from opct.models.policy import Policy
from tests.tiny import tiny_adapter_policy, tiny_model, tiny_tokenizer

# ------------------------------------------------------------------------------------------ attention: blocks


def test_the_masks_of_all_blocks_are_those_of_the_whole():
    """Five tokens of two queries each, in blocks of two: the first, of tokens 0 and 1, sees two keys, the last five."""
    whole = causal_mask(0, 5, 2, torch.float32)
    assert whole.shape == (10, 5)
    assert (whole == 0).int().tolist() == [[int(j <= i // 2) for j in range(5)] for i in range(10)]
    for start, end in ((0, 2), (2, 4), (4, 5)):
        assert torch.equal(causal_mask(start, end, 2, torch.float32), whole[2 * start : 2 * end, :end])


# ------------------------------------------------------------------------- attention: completions branch off


def test_completions_of_similar_lengths_are_rows_of_one_bucket_and_nothing_is_lost():
    """Lengths 30, 20, 2, 19, 30: 20 goes with 30 = 1.5 x 20 and 19 does not; 2 is alone, for 19 is longer than 16."""
    lengths = [30, 20, 2, 19, 30]
    found = branches_of([], [], [7, 8], [0, 0, 0, 1, 1], lengths)
    assert [(s.prompt, s.prompt_tokens, s.start, s.end) for s in found.spans] == [(0, 7, 0, 52), (1, 8, 52, 101)]
    assert [list(b.index.shape) for b in found.buckets] == [[3, 30], [1, 19], [1, 2]]
    assert [b.start for b in found.buckets] == [None, 52, 50]
    tokens = torch.arange(101.0)[None]
    copied = torch.full((1, 101), -1.0)
    for bucket in found.buckets:
        bucket.put(copied, bucket.take(tokens))
    assert torch.equal(copied, tokens)
    rows = found.buckets[0].without_padding(found.buckets[0].take(torch.ones(1, 101)))
    assert rows.sum(-1).tolist() == [[30, 30, 20]]


@pytest.mark.parametrize("lengths", [[4, 4, 4, 4], [5, 1, 20, 3], [40, 1, 1, 18]])
@pytest.mark.parametrize("owners", [[0, 0, 2, 2], [1, 1, 1, 1], [0, 1, 1, 2]])
def test_the_result_and_its_gradients_are_those_of_one_mask(monkeypatch, owners: list[int], lengths: list[int]):
    """Six heads on two of keys, prompts of 3, 6 and 5 tokens; float64. Long completions are computed in blocks of 7."""
    monkeypatch.setattr(flash, "CAUSAL_TOKENS", 7)
    generator = torch.Generator().manual_seed(0)
    tokens, prompt_tokens = sum(lengths), [3, 6, 5]
    shapes = ((1, 6, tokens, 8), (1, 2, tokens, 8), (1, 2, tokens, 8), (3, 2, 6, 8), (3, 2, 6, 8))
    inputs = [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]
    weight = torch.randn(1, tokens, 6, 8, dtype=torch.float64, generator=generator)
    q, k, v, keys, values = inputs
    branches = branches_of([keys], [values], prompt_tokens, owners, lengths)
    found = cascade_attention(branches, 0, q, k, v, 0.3)
    assert branches.reached == {0}

    everything = [torch.cat([x.transpose(0, 1).flatten(1, 2)[None], own], 2) for x, own in ((keys, k), (values, v))]
    seen = torch.full((tokens, 18 + tokens), -math.inf, dtype=torch.float64)
    at = 0
    for own, n in zip(owners, lengths, strict=True):
        seen[at : at + n, 6 * own : 6 * own + prompt_tokens[own]] = 0
        seen[at : at + n, 18 + at : 18 + at + n] = torch.full((n, n), -math.inf, dtype=torch.float64).triu(1)
        at += n
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, *everything, attn_mask=seen, scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(found, expected)
    for a, b in zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


# --------------------------------------------------------------------------------- attention: heads of a key


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


def test_scores_that_it_does_not_cover_are_left_to_transformers():
    q, k = torch.randn(1, 6, 1, 8), torch.randn(1, 2, 9, 8)
    with pytest.raises(ValueError, match="softcap"):
        grouped_attention(Module(), q, k, k, None, softcap=3.0)


def test_an_attention_that_was_chosen_stays():
    model = tiny_model(tiny_tokenizer())
    model.set_attn_implementation("eager")
    use_grouped_attention(model)
    assert model.config._attn_implementation == "eager"


# -------------------------------------------------------------------------------------------------- RMS norms


def norms(kind, dtype: torch.dtype) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A norm with random weights, as it is and after `fuse_norms`."""
    plain = kind(16, eps=1e-3).to(dtype)
    with torch.no_grad():
        plain.weight.copy_(torch.randn(16, generator=torch.Generator().manual_seed(1)))
    holder = torch.nn.ModuleList([copy.deepcopy(plain)])
    fuse_norms(holder)
    return plain, holder[0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_value_and_gradients_are_those_of_the_module(dtype: torch.dtype, tolerance: float):
    """Of input and weight; x of three dimensions."""
    plain, fused = norms(LlamaRMSNorm, dtype)
    assert type(fused) is not type(plain)
    assert isinstance(fused, LlamaRMSNorm)
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    upstream = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    results = []
    for module in (plain, fused):
        own = x.clone().requires_grad_()
        out = module(own)
        out.backward(upstream)
        results.append((out.detach().double(), own.grad.double(), module.weight.grad.double()))
    for found, expected in zip(results[1], results[0], strict=True):
        assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


def test_a_norm_that_computes_something_else_is_left_alone():
    """Gemma's multiplies by 1 + w."""
    _, fused = norms(GemmaRMSNorm, torch.float32)
    assert type(fused) is GemmaRMSNorm


def test_it_keeps_the_input_and_a_number_a_token():
    _, fused = norms(LlamaRMSNorm, torch.bfloat16)
    fused.weight.requires_grad_(False)
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        fused(torch.randn(10, 16, dtype=torch.bfloat16, requires_grad=True))
    assert sum(kept) == 10 * 16 * 2 + 16 * 2 + 10 * 4


# ------------------------------------------------------------------------------------------------------- LoRA


PROMPTS = [[1, 40, 50, 60], [1, 70]]
COMPLETIONS = [[10, 11, 12, 13, 2], [20, 21, 2]]


def peft_policy(policy: Policy) -> Policy:
    """The same model with PEFT's own layers."""
    copied = copy.deepcopy(policy.model)
    for module in copied.modules():
        if isinstance(module, Linear):
            module.__class__ = Linear
    return Policy(copied, policy.tokenizer, dtype=policy.dtype)


def fused_layers(policy: Policy) -> int:
    return sum(isinstance(m, Linear) and type(m) is not Linear for m in policy.model.modules())


def test_adapter_off_is_the_base_bit_for_bit():
    policy = tiny_adapter_policy()
    with policy.adapter_off(), torch.no_grad():
        off = policy.score(PROMPTS, COMPLETIONS).hidden
    with peft_policy(policy).adapter_off() as theirs, torch.no_grad():
        assert torch.equal(off, theirs.score(PROMPTS, COMPLETIONS).hidden)
    assert not torch.equal(off, policy.score(PROMPTS, COMPLETIONS).hidden)


def test_adapters_that_it_does_not_cover_are_left_to_peft(monkeypatch):
    """Dropout while training; an adapter that is merged; two adapters at once; base weights that are trained."""
    called = []
    forward = Linear.forward
    monkeypatch.setattr(Linear, "forward", lambda self, x, *a, **k: called.append(1) or forward(self, x, *a, **k))
    policy = tiny_adapter_policy(dropout=0.5)
    layers = fused_layers(policy)
    policy.model.eval()
    policy.score(PROMPTS, COMPLETIONS)
    assert called == []
    policy.backbone.train()
    policy.score(PROMPTS, COMPLETIONS)
    assert len(called) == layers

    called.clear()
    merged = tiny_adapter_policy()
    merged.model.merge_adapter()
    merged.score(PROMPTS, COMPLETIONS)
    assert len(called) == layers

    called.clear()
    two = tiny_adapter_policy()
    two.model.add_adapter("second", two.model.peft_config["default"])
    two.model.base_model.set_adapter(["default", "second"])
    two.score(PROMPTS, COMPLETIONS)
    assert len(called) == layers

    called.clear()
    trained = tiny_adapter_policy()
    for module in trained.model.modules():
        if isinstance(module, Linear):
            module.base_layer.bias = torch.nn.Parameter(torch.zeros(module.out_features))
    trained.score(PROMPTS, COMPLETIONS).hidden.sum().backward()
    assert len(called) == layers
    biases = [p for name, p in trained.model.named_parameters() if name.endswith("base_layer.bias")]
    assert biases
    assert all(p.grad is not None for p in biases)

"""The attention of branches against its definition, and what the fused adapter leaves to PEFT."""

import math

import pytest
import torch
from peft.tuners.lora import Linear

from opct.cpu import flash
from opct.cpu.cascade import branches_of, cascade_attention
from tests.tiny import tiny_adapter_policy

PROMPTS = [[1, 40, 50, 60], [1, 70]]
COMPLETIONS = [[10, 11, 12, 13, 2], [20, 21, 2]]


@pytest.mark.parametrize("lengths", [[4, 4, 4, 4], [5, 1, 20, 3], [40, 1, 1, 18]])
@pytest.mark.parametrize("owners", [[0, 0, 2, 2], [1, 1, 1, 1], [0, 1, 1, 2]])
def test_branches_and_their_gradients_are_those_of_one_mask(monkeypatch, owners: list[int], lengths: list[int]):
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


def test_adapters_that_fused_lora_does_not_cover_are_left_to_peft(monkeypatch):
    """Dropout while training; base weights that are trained."""
    called = []
    forward = Linear.forward
    monkeypatch.setattr(Linear, "forward", lambda self, x, *a, **k: called.append(1) or forward(self, x, *a, **k))
    policy = tiny_adapter_policy(dropout=0.5)
    layers = sum(isinstance(module, Linear) for module in policy.model.modules())
    policy.model.eval()
    policy.score(PROMPTS, COMPLETIONS)
    assert called == []
    policy.backbone.train()
    policy.score(PROMPTS, COMPLETIONS)
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

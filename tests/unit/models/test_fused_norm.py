"""The norm in one function against the modules of transformers."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from opct.models.kernels.fused_norm import fuse_norms
from tests.tiny import tiny_model, tiny_tokenizer


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


def test_a_model_with_fused_norms_answers_alike():
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    ids = torch.tensor([[1, 40, 50, 60]])
    with torch.no_grad():
        expected = model(ids).logits
        fuse_norms(model)
        found = model(ids).logits
    assert sum(type(m).__name__ == "FusedLlamaRMSNorm" for m in model.modules()) == 5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

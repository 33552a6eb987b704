"""Packed layers against the plain ones, on a CPU."""

from __future__ import annotations

import contextlib

import pytest
import torch

from opct.cpu import fast_path
from opct.cpu import packed_linear as module
from opct.cpu.packed_linear import can_pack, packed, packed_head, packed_linear
from opct.models.inference.sampler import sample
from opct.models.inference.token_sampling import Sampling
from opct.models.policy import Policy
from opct.models.scoring import Head
from tests.tiny import tiny_adapter_policy, tiny_model, tiny_tokenizer

IDS = torch.tensor([[1, 40, 50, 60], [1, 70, 71, 72]])

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
needs_bfloat16 = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="this processor has no products in bfloat16 for oneDNN",
)
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)]
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 0.05}  # of the largest number
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])


def trained(dtype: torch.dtype) -> Policy:
    """With an adapter that does something."""
    policy = tiny_adapter_policy()
    for parameter in policy.model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return Policy(policy.model, policy.tokenizer, dtype=dtype)


def hidden(policy: Policy) -> torch.Tensor:
    return policy.backbone.decoder(input_ids=IDS, use_cache=False).last_hidden_state.float()


@both_dtypes
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_packed_layer_is_the_sum_of_its_parts(bias: bool, rank: int, dtype: torch.dtype):
    """W x + bias + b a x in float64 from the same numbers, to the dtype's rounding; x of three dimensions."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    weight, shift, x = draw(24, 10), draw(24) if bias else None, draw(2, 3, 10)
    a, b = (draw(rank, 10), draw(24, rank)) if rank else (None, None)
    expected = x.double() @ weight.double().T
    if shift is not None:
        expected = expected + shift.double()
    if a is not None and b is not None:
        expected = expected + x.double() @ a.double().T @ b.double().T
    found = packed_linear(weight, shift, a, b, rows=6)(x)
    assert found.dtype == dtype
    assert float((found - expected).abs().max()) < ROUNDING[dtype] / 5 * float(expected.abs().max())


@both_dtypes
@pytest.mark.parametrize("adapter", ["on", "off"])
def test_a_packed_model_is_the_model(adapter: str, dtype: torch.dtype):
    policy = trained(dtype)
    with policy.inference(), policy.base() if adapter == "off" else policy.inference():
        expected = hidden(policy)
        with packed(policy.backbone.decoder, 8):
            found = hidden(policy)
            calls = packed_layers(policy.backbone.decoder)
        again = hidden(policy)
    assert calls == 14  # seven layers in each of two blocks
    assert torch.equal(again, expected)  # put back
    assert float((found - expected).abs().max()) < ROUNDING[dtype] * float(expected.abs().max())


class Attention(torch.nn.Module):
    """Layers with the names of one input, of unequal sizes; some with a bias, some with an adapter."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(10, n, bias=n == 6, dtype=dtype) for n in (12, 6, 4))
        self.o_proj = torch.nn.Linear(10, 10, bias=False, dtype=dtype)


@both_dtypes
def test_layers_of_one_input_are_one_product(monkeypatch, dtype: torch.dtype):
    """And each is what it is by itself, in any order of calls, on one input or on several."""
    torch.manual_seed(0)
    layers = Attention(dtype)
    adapters = {"q_proj": (torch.randn(3, 10), torch.randn(12, 3)), "v_proj": (torch.randn(2, 10), torch.randn(4, 2))}

    def parts(model: torch.nn.Module):
        for name, layer in model.named_children():
            yield (layer, layer, *adapters.get(name, (None, None)))

    monkeypatch.setattr(module, "linear_parts", parts)
    products = []
    alone = packed_linear
    monkeypatch.setattr(module, "packed_linear", lambda *a, **k: products.append(a[0].shape) or alone(*a, **k))
    x, y = torch.randn(2, 5, 10).to(dtype)
    expected = {
        (name, z): alone(layer.weight, layer.bias, *adapters.get(name, (None, None)), rows=5)(z)
        for name, layer in layers.named_children()
        for z in (x, y)
    }
    with torch.no_grad(), packed(layers, 5):
        assert products == [(22, 10), (10, 10)]
        for names in (("q_proj", "k_proj", "v_proj"), ("v_proj", "q_proj", "k_proj", "o_proj"), ("k_proj", "k_proj")):
            for inputs in ((x, x, x, x), (x, y, x, y)):
                for name, z in zip(names, inputs, strict=False):
                    found = getattr(layers, name)(z)
                    torch.testing.assert_close(found, expected[name, z], rtol=0.01, atol=0.02)


def packed_layers(model: torch.nn.Module) -> int:
    return sum("forward" in layer.__dict__ for layer in model.modules())


def test_other_dtypes_and_large_models_are_left_alone_and_layers_come_back_after_an_error(monkeypatch):
    model = tiny_model(tiny_tokenizer())
    with pytest.raises(ZeroDivisionError), torch.no_grad(), packed(model, 8):
        raise ZeroDivisionError
    assert packed_layers(model) == 0
    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(module, "MOST_BYTES", 1000)
        with packed(model, 8):
            assert packed_layers(model) == 0
    with torch.no_grad(), packed(model.to(torch.float64), 8):
        assert packed_layers(model) == 0
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert can_pack(torch.zeros(2, 2))
    assert not any(can_pack(torch.zeros(2, 2, dtype=dtype)) for dtype in (torch.bfloat16, torch.float16, torch.float64))


@needs_bfloat16
def test_trained_float32_weights_are_packed_under_autocast():
    """Full fine-tuning: master weights in float32, products in bfloat16."""
    policy = Policy(tiny_model(tiny_tokenizer()), tiny_tokenizer(), dtype=torch.bfloat16)
    with policy.inference():
        expected = hidden(policy)
        with packed(policy.backbone.decoder, 8):
            found = hidden(policy)
            assert packed_layers(policy.backbone.decoder) == 14
    assert float((found - expected).abs().max()) < 0.05 * float(expected.abs().max())


@both_dtypes
def test_the_packed_head_scales_as_the_head(dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(30, 8, generator=generator).to(dtype)
    head = Head(weight, torch.ones(30).to(dtype), dtype, scale=0.5, softcap=3.0)
    x = torch.randn(4, 8, generator=generator).to(dtype)
    found, expected = packed_head(head, 4)(x), head.logits(x)
    assert float((found - expected).abs().max()) < ROUNDING[dtype] * float(expected.abs().max())
    other = Head(weight.double(), None, torch.float64)
    assert packed_head(other, 4) == other.logits


def test_few_tokens_are_not_packed_for(monkeypatch):
    """4 tokens of 3 rows are 4 forwards in one batch, and 12 in three."""
    packed_for: list[int] = []
    monkeypatch.setattr(fast_path, "PACKED_STEPS", 12)
    monkeypatch.setattr(fast_path, "packed", lambda model, rows: packed_for.append(rows) or contextlib.nullcontext())
    path = fast_path.FastPath(tiny_adapter_policy().backbone)
    for batch_tokens, rows in ((10_000, []), (1, [1])):
        sample(path, [[5, 6, 7]] * 3, [[0], [1], [2]], Sampling(4), decode=str, batch_tokens=batch_tokens)
        assert packed_for == rows

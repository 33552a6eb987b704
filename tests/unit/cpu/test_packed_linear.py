"""Packed layers against the plain ones, on a CPU."""

import pytest
import torch

from opct.cpu import packed_linear as module
from opct.cpu.packed_linear import can_pack, packed, packed_linear
from opct.models.policy import Policy
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

"""The fused LoRA layer against PEFT's own forward."""

from __future__ import annotations

import copy

import torch
from peft.tuners.lora import Linear

from opct.models.policy import Policy
from tests import oracles
from tests.tiny import tiny_adapter_policy

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


def scored(policy: Policy) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Hidden states, and the gradient of a weighted sum of them."""
    hidden = policy.score(PROMPTS, COMPLETIONS).hidden.float()
    (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
    return hidden.detach(), oracles.gradients(policy)


def test_values_and_gradients_are_those_of_peft():
    policy = tiny_adapter_policy()
    theirs = peft_policy(policy)
    assert fused_layers(policy) == 7 * len(policy.backbone.decoder.layers)
    assert fused_layers(theirs) == 0
    (ours, our_gradients), (peft, peft_gradients) = scored(policy), scored(theirs)
    torch.testing.assert_close(ours, peft, rtol=1e-5, atol=1e-5)
    assert oracles.largest_difference(our_gradients, peft_gradients) < 1e-5
    assert max(float(g.abs().max()) for g in our_gradients.values()) > 0


def test_in_bfloat16_it_is_as_near_to_float32_as_peft_is():
    """Base weights that bfloat16 holds, a float32 adapter; the norm of the error of all gradients together."""
    policy = tiny_adapter_policy()
    for name, p in policy.model.named_parameters():
        if "lora_" not in name:
            p.data = p.data.bfloat16().float()
    _, exact = scored(policy)
    for name, p in policy.model.named_parameters():
        if "lora_" not in name:
            p.data = p.data.bfloat16()
    policy = Policy(policy.model, policy.tokenizer, dtype=torch.bfloat16)
    errors = []
    for each in (policy, peft_policy(policy)):
        _, found = scored(each)
        errors.append(torch.stack([(found[n] - exact[n]).norm() for n in exact]).norm().item())
        assert all(g.dtype == torch.float32 for g in found.values())
    size = torch.stack([g.norm() for g in exact.values()]).norm().item()
    assert 0 < errors[0] < 1.2 * errors[1] < 0.1 * size


def test_adapter_off_is_the_base_bit_for_bit():
    policy = tiny_adapter_policy()
    with policy.adapter_off(), torch.no_grad():
        off = policy.score(PROMPTS, COMPLETIONS).hidden
    with peft_policy(policy).adapter_off() as theirs, torch.no_grad():
        assert torch.equal(off, theirs.score(PROMPTS, COMPLETIONS).hidden)
    assert not torch.equal(off, policy.score(PROMPTS, COMPLETIONS).hidden)


def test_what_it_does_not_cover_is_left_to_peft(monkeypatch):
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

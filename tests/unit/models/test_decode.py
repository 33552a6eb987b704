"""Rows that share their prompts against rows with a copy each."""

from __future__ import annotations

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from opct.models.inference import decode
from opct.models.inference.decode import (
    SHARE_AT,
    RepeatedKV,
    SharedPrefixKV,
    no_shared_rows_reason,
    shares,
)
from opct.models.inference.kv_cache import kv_bytes, with_cache
from opct.models.inference.prefill import prefill
from opct.models.inference.prefix_sharing import no_cascade_reason, no_prefix_sharing_reason
from opct.models.kernels.attention import GROUPED, use_grouped_attention
from opct.models.kernels.cascade import SharedPrompts
from opct.models.policy import Policy
from tests.tiny import tiny_adapter_policy, tiny_model, tiny_tokenizer

LONG, SHORT, SINGLE = [1, 40, 50, 60, 70, 80, 90], [1, 41, 51], [7]
SPAN = 6


@pytest.fixture
def policy() -> Policy:
    model = tiny_model(tiny_tokenizer())
    use_grouped_attention(model)
    return Policy(model, tiny_tokenizer())


def states(policy: Policy, kind: type, *, more: bool = True):
    """Rows of three prompts: two, three and one of them."""
    with policy.inference():
        found = kind(policy.backbone, prefill(policy.backbone, [LONG, SHORT, SINGLE], [2, 3, 1]), SPAN, more=more)
    return found


def advance(policy: Policy, own, first: int, n: int) -> torch.Tensor:
    with policy.inference():
        return own.advance(torch.arange(first, first + n), torch.zeros(n, dtype=torch.bool))


def enter(policy: Policy, own, prompts: list[list[int]], copies: list[int], places: list[int], n: int) -> None:
    busy = torch.ones(n, dtype=torch.bool)
    busy[places] = False
    with policy.inference():
        own.admit(torch.tensor(places[: sum(copies)]), busy, prefill(policy.backbone, prompts, copies))


def test_rows_leave_and_their_prompts_with_them(policy: Policy):
    """Prompts of 7, 3 and 1 tokens. The rows of the longest leave; then one other, and the rest change their order."""
    copied, shared = (states(policy, kind, more=False) for kind in (RepeatedKV, SharedPrefixKV))
    for n, kept in ((6, [2, 3, 4, 5]), (4, [3, 1]), (2, [0, 1])):
        expected, found = (advance(policy, own, 5, n) for own in (copied, shared))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        for own in (copied, shared):
            own.keep(torch.tensor(kept))
    assert shared._layers[0][0].shape[0] == 2


def test_prompts_enter_where_others_were(policy: Policy):
    """Two places of one prompt's rows go to two prompts, for which there is one free; later four rows to one prompt.

    What rows without work hold is of no account: only the others are compared.
    """
    copied, shared = (states(policy, kind) for kind in (RepeatedKV, SharedPrefixKV))
    for own in (copied, shared):
        advance(policy, own, 5, 6)
        enter(policy, own, [[3, 4, 5], [9]], [1, 1], [0, 1, 4], 6)
    busy = torch.tensor([0, 1, 2, 3, 5])
    for t in range(3):
        expected, found = (advance(policy, own, 10 * t, 6) for own in (copied, shared))
        torch.testing.assert_close(found[busy], expected[busy], rtol=1e-5, atol=1e-5)
    assert shared._layers[0][0].shape[0] == 4
    for own in (copied, shared):
        enter(policy, own, [[11, 12]], [4], [0, 2, 3, 5], 6)
    busy = torch.tensor([0, 1, 2, 3, 5])
    for t in range(3):
        expected, found = (advance(policy, own, 10 * t, 6) for own in (copied, shared))
        torch.testing.assert_close(found[busy], expected[busy], rtol=1e-5, atol=1e-5)
    assert shared._layers[0][0].shape[0] == 4


def test_columns_without_use_are_dropped(policy: Policy):
    """Five tokens of six were written when every row but one is given away; that one goes on as it was."""
    copied, shared = (states(policy, kind) for kind in (RepeatedKV, SharedPrefixKV))
    for own in (copied, shared):
        for t in range(5):
            advance(policy, own, t, 6)
        enter(policy, own, [[3, 4]], [5], [0, 1, 2, 3, 4], 6)
        for t in range(5):
            advance(policy, own, t, 6)
        enter(policy, own, [[8, 9]], [1], [5], 6)
    assert shared._written == 5
    for t in range(SPAN):
        expected, found = (advance(policy, own, 10 * t, 6) for own in (copied, shared))
        rows_of = torch.tensor([0, 1, 2, 3, 4, 5] if t < 2 else [5])
        torch.testing.assert_close(found[rows_of], expected[rows_of], rtol=1e-5, atol=1e-5)


def test_scores_far_apart_and_masks():
    """One head, values 1 for the prompt and 0 for the own token: the result is the weight of the prompt's tokens.

    Scores 2 and 300 of the prompt (the second hidden in the first row's), 1 of the own token: 1 / (1 + e^-1), and 1.
    """
    keys, values = torch.tensor([[[[2.0], [300.0]]]]).expand(2, 1, 2, 1), torch.ones(2, 1, 2, 1)
    hidden = torch.tensor([[[[0.0, float("-inf")]]], [[[0.0, 0.0]]]])
    prompts = SharedPrompts(
        [(keys, values)], hidden, torch.tensor([[0], [1]]), torch.tensor([0, 1]), torch.tensor([0, 0])
    )
    one = torch.ones(2, 1, 1, 1)
    found = prompts.attend(0, one, one, torch.zeros(2, 1, 1, 1), None, 1.0)
    torch.testing.assert_close(found.flatten(), torch.tensor([1 / (1 + torch.tensor(-1.0).exp()), 1.0]))


def test_bfloat16_is_computed_in_float32():
    """The result is that of float32 on the same numbers, rounded once."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    keys, values, query, key, value = (
        drawn(1, 2, 5, 8),
        drawn(1, 2, 5, 8),
        drawn(3, 4, 1, 8),
        drawn(3, 2, 2, 8),
        drawn(3, 2, 2, 8),
    )
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        layers = [(keys.to(dtype), values.to(dtype))]
        prompts = SharedPrompts(layers, None, torch.tensor([[0, 1, 2]]), torch.zeros(3, dtype=int), torch.arange(3))
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            found.append(prompts.attend(0, *(x.to(dtype) for x in (query, key, value)), None, None))
    assert torch.equal(found[0], found[1].bfloat16())


def test_rows_share_prompts_where_copies_would_be_large(policy: Policy):
    a_token = kv_bytes(policy.backbone.decoder.config, 4) // policy.backbone.decoder.config.num_hidden_layers
    enough = int(SHARE_AT / a_token / 2) + 1
    assert shares(policy.backbone, prompts=2, rows=4, width=enough)
    assert not shares(policy.backbone, prompts=2, rows=3, width=enough)
    assert not shares(policy.backbone, prompts=4, rows=4, width=100 * enough)


def test_an_adapter_and_its_absence_are_the_same_model_for_this():
    """Also one whose hidden states in bfloat16 the parts of attention change much: what was learnt does not decide."""
    policy = tiny_adapter_policy()
    for name, parameter in policy.trainable_parameters().items():
        parameter.data *= 30.0 if "lora_B" in name else 1.0
    use_grouped_attention(policy.backbone.bare_model)
    backbone = Policy(policy.model.to(torch.bfloat16), policy.tokenizer).backbone
    assert no_shared_rows_reason(backbone) is no_prefix_sharing_reason(backbone) is no_cascade_reason(backbone) is None


def test_models_that_cannot_share_say_why(policy: Policy, monkeypatch):
    """An attention of another kind; layers with a window; a result that is another."""
    policy.backbone.decoder.config._attn_implementation = "eager"
    assert decode._shared_rows_mismatch(policy.backbone) == "the attention eager has no such form"
    policy.backbone.decoder.config._attn_implementation = GROUPED
    monkeypatch.setattr(SharedPrompts, "attend", lambda self, layer, query, *rest: query.transpose(1, 2))
    assert "hidden states differ by" in str(decode._shared_rows_mismatch(policy.backbone))
    config = MistralConfig(
        vocab_size=320,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=4,
    )
    model = MistralForCausalLM(config).eval()
    use_grouped_attention(model)
    assert "DynamicSlidingWindowLayer" in str(no_shared_rows_reason(Policy(model, tiny_tokenizer()).backbone))


def test_an_attention_with_more_than_scores_is_refused(policy: Policy):
    """What a model passes on beside keys and values would be lost."""
    with policy.inference():
        found = prefill(policy.backbone, [SHORT], [2])
        own = SharedPrefixKV(policy.backbone, found, SPAN, more=False)
        with pytest.raises(NotImplementedError, match="softcap"):
            policy.backbone.decoder(
                input_ids=torch.tensor([[1], [2]]),
                **with_cache(policy.backbone.decoder, own._cache),
                shared_prompts=own._prompts,
                softcap=2.0,
            )

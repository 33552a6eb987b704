"""Completions that branch off their prompt's cache, against every prompt computed with every completion."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, BloomConfig, LlamaConfig, MistralConfig

from opct.models.backbone import Backbone
from opct.models.inference import prefix_sharing
from opct.models.inference.prefix_sharing import (
    SharedPrefix,
    branch_mask,
    branching_mismatch,
    no_cascade_reason,
    no_prefix_sharing_reason,
    shared_batches,
)
from opct.models.kernels import cascade
from opct.models.kernels.attention import use_grouped_attention
from opct.models.policy import Policy
from opct.models.scoring import completion_hidden
from tests import oracles
from tests.tiny import tiny_adapter_policy, tiny_model, tiny_tokenizer

PROMPTS = [[1, 40, 50, 60], [1, 70], [1, 80, 81, 82, 83, 84, 85]]
GROUPS = [0, 0, 0, 1, 2, 2]  # whose completion each is
SMALL = {
    **{"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 1},
}
COMPLETIONS = [[10, 11, 12, 13, 2], [20, 21, 2], [30], [31, 32, 2], [33, 34, 35, 36, 37, 2], [38]]


def full_policy(**options) -> Policy:
    tokenizer = tiny_tokenizer()
    return Policy(tiny_model(tokenizer, **options), tokenizer)


def use_attention(policy: Policy, name: str) -> None:
    """`cascade` is our own attention without copies of the prompts' keys."""
    if name == "cascade":
        use_grouped_attention(policy.backbone.bare_model)
    else:
        policy.backbone.decoder.config._attn_implementation = name


def test_the_mask_of_two_completions_in_a_row_and_of_padding():
    """A prompt of 2 in 3 places; completions 7 (2 tokens) and 8 (1 token), then one place of padding.

            prompt      7  7  8  pad
    7       1 1 .       1  .  .  .
    7       1 1 .       1  1  .  .
    8       1 1 .       .  .  1  .
    pad     1 1 .       .  .  .  1
    """
    mask = branch_mask(torch.tensor([2]), 3, torch.tensor([[7, 7, 8, -1]]))
    assert mask.shape == (1, 1, 4, 7)
    assert mask[0, 0].int().tolist() == [
        [1, 1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 1, 0, 0],
        [1, 1, 0, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize("attention", ["sdpa", "eager", "cascade"])
@pytest.mark.parametrize("first", [None, 1, 3])
@pytest.mark.parametrize(("make", "cut"), [(tiny_adapter_policy, [2, 3, 1]), (full_policy, [6])])
def test_hidden_states_and_gradients_are_those_of_the_plain_path(make, cut: list[int], first, attention: str):
    """Micro-batches that cut a prompt's completions apart, rows out of order, and whole prompts or their beginnings."""
    policy = make()
    use_attention(policy, attention)
    order = [5, 0, 3, 2, 1, 4]
    prompts, completions = [PROMPTS[GROUPS[i]] for i in order], [COMPLETIONS[i] for i in order]
    plain = completion_hidden(policy.backbone.decoder, prompts, completions, policy.device)
    weight = torch.randn(plain.shape, generator=torch.Generator().manual_seed(0))
    (plain * weight).sum().backward()
    expected = oracles.gradients(policy)

    shared = SharedPrefix(policy.backbone.decoder, PROMPTS, first=first, cascade=attention == "cascade")
    found, at, token = [], 0, 0
    for n in cut:
        hidden = shared.hidden(prompts[at : at + n], completions[at : at + n])
        (hidden * weight[token : token + len(hidden)]).sum().backward()
        found.append(hidden.detach())
        at, token = at + n, token + len(hidden)
    shared.backward()
    torch.testing.assert_close(torch.cat(found), plain.detach(), rtol=1e-5, atol=1e-5)
    assert oracles.largest_difference(oracles.gradients(policy), expected) < 1e-5


@pytest.mark.parametrize(
    ("cascade", "shapes"), [(False, [(3, 7), (1, 6), (2, 5)]), (True, [(3, 7), (1, 4 + 2 + 0), (1, 2 + 5 + 0)])]
)
def test_each_prompt_is_computed_once_and_in_our_attention_completions_are_one_row(cascade: bool, shapes: list):
    policy = full_policy()
    use_attention(policy, "cascade" if cascade else "sdpa")
    seen = []
    policy.backbone.decoder.register_forward_pre_hook(
        lambda module, args, given: seen.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    shared = SharedPrefix(policy.backbone.decoder, PROMPTS, cascade=cascade)
    for rows in ([0, 1, 2], [3, 4, 5]):
        shared.hidden([PROMPTS[GROUPS[i]] for i in rows], [COMPLETIONS[i] for i in rows])
    assert seen == shapes


def test_the_default_attention_does_not_cascade_and_ours_does():
    policy = full_policy()
    assert branching_mismatch(policy.backbone) is None
    assert "sdpa" in branching_mismatch(policy.backbone, cascade=True)
    assert no_cascade_reason(policy.backbone) is not None
    policy.backbone.decoder.config._attn_implementation = "flash_attention_2"
    assert "flash_attention_2" in branching_mismatch(policy.backbone)
    policy = full_policy()
    use_grouped_attention(policy.backbone.bare_model)
    assert no_cascade_reason(policy.backbone) is None
    assert no_prefix_sharing_reason(policy.backbone) is None


def test_a_layer_that_does_not_see_the_prompts_is_found_out_and_the_mask_is_taken():
    """One whose attention is transformers' own."""
    policy = full_policy()
    use_grouped_attention(policy.backbone.bare_model)
    own = policy.backbone.decoder.layers[1].self_attn
    own.config = copy.deepcopy(own.config)
    own.config._attn_implementation = "sdpa"
    assert "layers [1]" in branching_mismatch(policy.backbone, cascade=True)
    assert no_cascade_reason(policy.backbone) is not None
    assert no_prefix_sharing_reason(policy.backbone) is None


def test_prompts_that_are_merged_wrongly_are_found_out(monkeypatch):
    policy = full_policy()
    use_grouped_attention(policy.backbone.bare_model)
    monkeypatch.setattr(cascade, "_merge", lambda *parts: None)
    assert "merged" in branching_mismatch(policy.backbone, cascade=True)


def test_a_model_whose_branches_differ_is_found_out(monkeypatch):
    """One that does not heed the positions it is given; one that gives no numbers."""
    policy = full_policy()
    forward = policy.backbone.decoder.forward
    monkeypatch.setattr(policy.backbone.decoder, "forward", lambda **k: forward(**{**k, "position_ids": None}))
    assert "differ" in branching_mismatch(policy.backbone)
    monkeypatch.setattr(policy.backbone.decoder, "forward", forward)
    policy.backbone.decoder.norm.weight.data.fill_(torch.nan)
    assert "differ by nan" in branching_mismatch(policy.backbone)


def test_prompts_and_completions_stay_within_the_budget():
    """Prompts of 40, 30 and 10 tokens, three completions of 20 each; a row costs its tokens and 1/8 of the prompt's.

    Of 70: prompts 40 and 30 are no group (2 x 40 > 70), 30 and 10 are (2 x 30). Of the first prompt, rows
    of 20, 40 and 60 tokens cost 25, 45 and 65. Of the group, three completions cost 60 + 30/8 = 63.75; with the first
    of the next prompt it would be two rows, 2 (60 + 30/8).
    """
    prompts = [[1] * 40, [2] * 30, [3] * 10]
    rows = [prompts[i // 3] for i in range(9)]
    widths = [len(prompt) for prompt in rows]
    assert shared_batches(rows, widths, [20] * 9, 70) == [[[0, 1, 2]], [[3, 4, 5], [6, 7, 8]]]
    assert shared_batches(rows, widths, [20] * 9, 20_000) == [[[0, 1, 2, 3, 4, 5, 6, 7, 8]]]
    alone = shared_batches(rows, widths, [20] * 9, 1)
    assert alone == [[[0], [1], [2]], [[3], [4], [5]], [[6], [7], [8]]]
    assert shared_batches([[1, 2], [3], [1, 2]], [2, 1, 2], [5, 5, 5], 1000) == [[[0, 2, 1]]]


def test_a_row_takes_completions_of_a_prompt_up_to_its_length(monkeypatch):
    """Rows of at most 6: inner lengths 4, 2 and 0 of the first prompt fill one; the others have a row each."""
    monkeypatch.setattr(prefix_sharing, "ROW_TOKENS", 6)
    policy = tiny_adapter_policy()
    shapes = []
    forward = policy.backbone.decoder.forward
    monkeypatch.setattr(
        policy.backbone.decoder, "forward", lambda **k: shapes.append(k["input_ids"].shape) or forward(**k)
    )
    order = [0, 1, 2, 0]  # 4 + 2 + 0 tokens, and 4 more
    prompts, completions = [PROMPTS[0]] * 4, [COMPLETIONS[i] for i in order]
    found = SharedPrefix(policy.backbone.decoder, PROMPTS[:1]).hidden(prompts, completions)
    assert shapes == [(1, 4), (2, 6)]
    torch.testing.assert_close(found, completion_hidden(policy.backbone.decoder, prompts, completions, policy.device))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (LlamaConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "dynamic"),
        (BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2), "it fails"),
        (MistralConfig(**SMALL, sliding_window=4), "DynamicSlidingWindowLayer"),
    ],
)
def test_models_that_cannot_branch_say_why(config, words: str):
    model = AutoModelForCausalLM.from_config(config).eval()
    reason = branching_mismatch(Backbone(model, stop_ids=frozenset()))
    assert reason is not None
    assert words in reason

"""Rows, prompts and beginnings that are shared: what is computed together, when, and that faults are found out."""

import copy
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from opct.cpu import cascade, prefill
from opct.cpu.attention import use_grouped_attention
from opct.cpu.fast_path import install
from opct.cpu.shared_prompts import (
    branched_hidden,
    branching_mismatch,
    no_branching_reason,
    no_cascade_reason,
    shared_batches,
)
from opct.cpu.shared_rows import SharedPrefixKV, SharedPrompts, no_shared_rows_reason
from opct.models.backbone import Backbone
from opct.models.inference.prefill import Prefill, plain_prefill
from opct.models.inference.rows import RepeatedKV
from opct.models.policy import Policy
from opct.models.scoring import completion_hidden
from tests.tiny import tiny_adapter_policy, tiny_model, tiny_tokenizer

SPAN = 6


@pytest.fixture
def policy() -> Policy:
    model = tiny_model()
    install(model)
    return Policy(model, tiny_tokenizer())


@pytest.fixture
def shapes(policy: Policy) -> list[tuple[int, ...]]:
    """(rows, tokens) of each forward."""
    seen: list[tuple[int, ...]] = []
    policy.path.slow_reasons(2)  # the probes
    policy.backbone.decoder.register_forward_pre_hook(
        lambda module, args, given: seen.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    return seen


# ---------------------------------------------------------------------------------------------- rows in decoding


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_share_prompts_are_rows_with_copies(policy: Policy, seed: int):
    """Rows leave, or others enter in their place, in any order, until columns must be dropped: what busy rows hold is
    the same, and prompts are there once, and no longer than their rows."""
    rng, more = random.Random(seed), seed % 2 == 0
    prompts, copies = [[1, 40, 50, 60, 70, 80, 90], [1, 41, 51], [7]], [2, 3, 1]
    with policy.inference():
        found = plain_prefill(policy.backbone, prompts).for_rows(copies)
        copied, shared = (
            kind(policy.backbone, copy.deepcopy(found), SPAN, more=more) for kind in (RepeatedKV, SharedPrefixKV)
        )
        ages, entered = [0] * 6, 0
        for _ in range(25 if more else SPAN):
            busy = [row for row, age in enumerate(ages) if age < SPAN]
            if not busy:
                break
            done = torch.tensor([age >= SPAN for age in ages])
            tokens = torch.tensor([rng.randint(3, 90) for _ in ages])
            expected, hidden = (rows.advance(tokens, done) for rows in (copied, shared))
            torch.testing.assert_close(hidden[busy], expected[busy], rtol=1e-5, atol=1e-5)
            ages = [age + 1 for age in ages]
            free = [row for row, age in enumerate(ages) if age >= SPAN or rng.random() < 0.15]
            if more and free and rng.random() < 0.7:
                rng.shuffle(free)
                free = free[: rng.randint(1, len(free))]
                n = rng.randint(1, len(free))
                new = [[rng.randint(3, 90) for _ in range(rng.randint(1, 7))] for _ in range(n)]
                of_new = [1] * (n - 1) + [len(free) - n + 1]
                is_busy = torch.tensor([age < SPAN for age in ages]).index_fill(0, torch.tensor(free), False)
                for rows in (copied, shared):
                    rows.admit(torch.tensor(free), is_busy, plain_prefill(policy.backbone, new).for_rows(of_new))
                for row in free:
                    ages[row] = 0
                entered += n
            elif not more and len(ages) > 1 and rng.random() < 0.4:
                kept = rng.sample(range(len(ages)), rng.randint(1, len(ages) - 1))
                for rows in (copied, shared):
                    rows.keep(torch.tensor(kept))
                ages = [ages[row] for row in kept]
        assert len(shared._layers[0][0]) <= (6 if more else len(ages))
    assert not more or entered > 2


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


def test_an_adapter_and_its_absence_are_the_same_model_for_this():
    """Also one whose hidden states in bfloat16 the parts of attention change much: what was learnt does not decide."""
    policy = tiny_adapter_policy()
    for name, parameter in policy.trainable_parameters().items():
        parameter.data *= 30.0 if "lora_B" in name else 1.0
    use_grouped_attention(policy.backbone.bare_model)
    backbone = Policy(policy.model.to(torch.bfloat16), policy.tokenizer).backbone
    assert no_shared_rows_reason(backbone) is no_branching_reason(backbone) is no_cascade_reason(backbone) is None


# ------------------------------------------------------------------------------------------ prompts in scoring


@pytest.mark.parametrize("merges", [False, True])
def test_each_prompt_is_computed_once_and_completions_may_be_one_row(policy: Policy, shapes, merges: bool):
    """Prompts of 4, 2 and 7 tokens, six completions whose tokens but the last are 4 + 2 + 0, 2, 5 and 0."""
    prompts = [[1, 40, 50, 60], [1, 70], [1, 80, 81, 82, 83, 84, 85]]
    owners = [prompts[i] for i in (0, 0, 0, 1, 2, 2)]
    completions = [[10, 11, 12, 13, 2], [20, 21, 2], [30], [31, 32, 2], [33, 34, 35, 36, 37, 2], [38]]
    found = branched_hidden(policy.backbone.decoder, owners, owners, completions, cascade=merges)
    assert shapes == [(3, 7), (1, 13) if merges else (3, 6)]
    expected = completion_hidden(policy.backbone.decoder, owners, completions, policy.device)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_prompts_and_completions_stay_within_the_budget():
    """Prompts of 40, 30 and 10 tokens, three completions of 20 each; a row costs its tokens and 1/8 of the prompt's.

    Of 70: prompts 40 and 30 do not go together (2 x 40 > 70). The first costs 60 + 40/8 = 65, the second 63.75. Of 130,
    the first two go together: 2 x 65.
    """
    prompts = [[1] * 40, [2] * 30, [3] * 10]
    rows = [prompts[i // 3] for i in range(9)]
    widths = [len(prompt) for prompt in rows]
    assert shared_batches(rows, widths, [20] * 9, 70) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert shared_batches(rows, widths, [20] * 9, 130) == [[0, 1, 2, 3, 4, 5], [6, 7, 8]]
    assert shared_batches(rows, widths, [20] * 9, 1) == [[i] for i in range(9)]
    assert shared_batches([[1, 2], [3], [1, 2]], [2, 1, 2], [5, 5, 5], 1000) == [[0, 2, 1]]


# ---------------------------------------------------------------------------------------- prompts before sampling


SYSTEM, ONE, OTHER = [1, 50, 51, 52, 53], [60, 61, 62, 63], [70, 71]
PROMPTS = [
    SYSTEM + ONE + [80, 81, 82],
    SYSTEM + OTHER + [83],
    SYSTEM + ONE + [84],
    SYSTEM + ONE,
    SYSTEM + OTHER + [85, 86, 87, 88, 89],
    SYSTEM + ONE + [80, 81, 82],
    [1, 90, 91],
    SYSTEM + OTHER + [85, 86],
]


def assert_as_alone(policy: Policy, found: Prefill, prompts: list[list[int]]) -> None:
    for i, prompt in enumerate(prompts):
        alone = plain_prefill(policy.backbone, [prompt])
        assert int(found.starts[i]) == found.width - len(prompt)
        torch.testing.assert_close(found.hidden[i], alone.hidden[0], rtol=1e-5, atol=1e-5)
        for layer, other in zip(found.cache.layers, alone.cache.layers, strict=True):
            for a, b in ((layer.keys, other.keys), (layer.values, other.values)):
                torch.testing.assert_close(a[i, :, found.width - len(prompt) :], b[0], rtol=1e-5, atol=1e-5)


def test_keys_and_values_are_those_of_each_prompt_by_itself(policy: Policy, shapes, monkeypatch):
    """Unequal lengths, equal prompts, one that others begin with, and one that begins as no other; any token saved is
    worth a forward. Where the model cannot branch, each is computed; where it has other layers, all at once."""
    monkeypatch.setattr(prefill, "FORWARD", 1)
    monkeypatch.setattr(prefill, "LEAST_SHARE", 0.0)
    with policy.inference():
        found = policy.path.prefill(PROMPTS, [1, 2, 1, 1, 1, 1, 1, 1])
        assert len(shapes) >= 3  # two levels and the rests
        assert found.owners.tolist() == [0, 1, 1, 2, 3, 4, 5, 6, 7]
        assert found.width == 12
        assert_as_alone(policy, found, PROMPTS)
        monkeypatch.setattr(prefill, "no_branching_reason", lambda _: "its layers keep states")
        shapes.clear()
        assert_as_alone(policy, policy.path.prefill(PROMPTS, [1] * 8), PROMPTS)
        assert sum(rows for rows, _ in shapes) == 8 + 8
        monkeypatch.setattr(prefill, "other_layers", lambda config: "SlidingWindowLayer")
        shapes.clear()
        policy.path.prefill(PROMPTS, [1] * 8)
    assert shapes == [(8, 12)]


# ------------------------------------------------------------------------------------- what is found out, and said


def wrong_positions(policy: Policy, monkeypatch) -> None:
    forward = policy.backbone.decoder.forward
    monkeypatch.setattr(policy.backbone.decoder, "forward", lambda **k: forward(**{**k, "position_ids": None}))


def no_numbers(policy: Policy, monkeypatch) -> None:
    policy.backbone.decoder.norm.weight.data.fill_(torch.nan)


def wrong_merge(policy: Policy, monkeypatch) -> None:
    monkeypatch.setattr(cascade, "_merge", lambda *parts: None)


def another_attention_in_a_layer(policy: Policy, monkeypatch) -> None:
    layer = policy.backbone.decoder.layers[1].self_attn
    layer.config = copy.deepcopy(layer.config)
    layer.config._attn_implementation = "sdpa"


def wrong_rows(policy: Policy, monkeypatch) -> None:
    monkeypatch.setattr(SharedPrompts, "attend", lambda self, layer, query, *rest: query.transpose(1, 2))


@pytest.mark.parametrize(
    ("fault", "branching", "merging", "rows"),
    [
        (wrong_positions, "differ", "differ", None),
        (no_numbers, "differ by nan", "differ by nan", "differ by nan"),
        (wrong_merge, None, "merged", None),
        (another_attention_in_a_layer, None, "layers [1]", None),
        (wrong_rows, None, None, "differ by"),
    ],
)
def test_a_model_that_computes_something_else_is_found_out(
    policy: Policy, monkeypatch, fault, branching: str | None, merging: str | None, rows: str | None
):
    """By what each probe says; where only the merged form fails, the mask over copies is taken."""
    fault(policy, monkeypatch)
    found = branching_mismatch(policy.backbone), no_cascade_reason(policy.backbone)
    for reason, words in zip(found, (branching, merging), strict=True):
        assert (reason is None) == (words is None)
        assert words is None or words in reason
    assert (no_branching_reason(policy.backbone) is None) == (branching is None)
    if rows is not None:
        assert rows in str(no_shared_rows_reason(policy.backbone))


def test_a_model_that_cannot_share_says_why():
    """Its angles depend on the length of the whole."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    angles = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, **heads, rope_parameters=angles)).eval()
    assert "dynamic" in str(branching_mismatch(Backbone(model, stop_ids=frozenset())))

"""Prompts that begin alike, computed once, against each prompt by itself."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from opct.models.inference import prefill as module
from opct.models.inference.prefill import Prefill, beginning, bucket_by_length, prefill, states
from opct.models.inference.prefix_sharing import prompts_forward
from opct.models.inference.sampler import Sampling
from opct.models.kernels.attention import use_grouped_attention
from opct.models.policy import Policy
from tests.tiny import tiny_model, tiny_tokenizer

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


@pytest.fixture
def least(monkeypatch) -> None:
    """Any token saved is worth it."""
    monkeypatch.setattr(module, "FORWARD", 1)
    monkeypatch.setattr(module, "LEAST_SHARE", 0.0)


@pytest.fixture
def widths(monkeypatch) -> list[tuple[int, int]]:
    """(rows, tokens) of each forward."""
    shapes: list[tuple[int, int]] = []
    padded = module._left_padded
    monkeypatch.setattr(module, "_left_padded", lambda rows: shapes.append(padded(rows)[0].shape) or padded(rows))
    return shapes


def policy_with(attention: str) -> Policy:
    model = tiny_model(tiny_tokenizer())
    if attention == "grouped":
        use_grouped_attention(model)
    return Policy(model, tiny_tokenizer())


@pytest.mark.parametrize("attention", ["sdpa", "grouped"])
def test_the_result_is_that_of_each_prompt_by_itself(least, widths, attention: str):
    """Unequal lengths, equal prompts, one that others begin with, and one that begins as no other."""
    policy = policy_with(attention)
    with policy.inference():
        found = prefill(policy.backbone, PROMPTS, [1, 2, 1, 1, 1, 1, 1, 1])
        assert len(widths) >= 3  # two levels and the rests
        assert found.owners.tolist() == [0, 1, 1, 2, 3, 4, 5, 6, 7]
        assert found.width == 12
        assert_as_alone(policy, found, PROMPTS)


def test_samples_are_the_same(least, widths):
    policy = policy_with("grouped")
    together = policy.sample(PROMPTS, [[i, 100 + i] for i in range(len(PROMPTS))], Sampling(3))
    assert len(widths) >= 3
    for i, (prompt, own) in enumerate(zip(PROMPTS, together, strict=True)):
        [alone] = policy.sample([prompt], [[i, 100 + i]], Sampling(3))
        assert [c.token_ids for c in own] == [c.token_ids for c in alone]


def test_where_to_cut(monkeypatch):
    """Ten tokens in common of 15, four prompts: 60 tokens plainly, 10 + 4 x 5 = 30 cut.

    Two groups of two with 14 in common, ten of which all share: 2 x 14 + 4 x 1 = 32 at 14, 30 at 10. With a group of
    one, of 12 tokens, at 10: 10 + 4 x 5 + 2 = 32 of 72. Where one forward more costs little, the groups' own beginnings
    have theirs: 10 + 2 x 4 + 4 x 1 = 22 at 14, and 4 more for that forward.
    """
    monkeypatch.setattr(module, "FORWARD", 30)
    common = list(range(10))
    prompts = [common + [20 + i] * 5 for i in range(4)]
    assert beginning(prompts) == 10
    groups = [common + [20 + i // 2] * 4 + [30 + i] for i in range(4)]
    assert beginning(groups) == 10
    assert beginning([*groups, [*common, 40, 41]]) == 10
    monkeypatch.setattr(module, "FORWARD", 31)
    assert beginning(prompts) == 0
    monkeypatch.setattr(module, "FORWARD", 4)
    assert beginning(groups) == 14
    monkeypatch.setattr(module, "FORWARD", 9)  # 31 at 14
    assert beginning(groups) == 10
    assert beginning([[1], [1, 2]]) == 0
    assert beginning([common]) == 0


def test_families_of_a_question_share_it_and_questions_what_all_begin_with(monkeypatch, widths):
    """A system message of 40 tokens, 6 questions of 21, each asked in 4 ways of 4: 40 + 6 x 21 + 24 x 4 tokens in three
    forwards, not 24 x 65."""
    monkeypatch.setattr(module, "FORWARD", 64)
    policy = policy_with("grouped")
    system = list(range(1, 41))
    prompts = [system + [50 + q] * 20 + [80 + q, 90 + f, 7, 8, 9] for q in range(6) for f in range(4)]
    with policy.inference():
        prefill(policy.backbone, prompts, [1] * len(prompts))
    assert widths == [(1, 40), (6, 21), (24, 4)]


def test_states_are_padded_on_the_right(least, widths):
    """Keys, values and the last hidden state of each prompt as a forward of that prompt has them."""
    policy = policy_with("sdpa")
    different = [list(p) for p in dict.fromkeys(map(tuple, PROMPTS))]
    with policy.inference():
        *layers, last = states(policy.backbone, different)
        assert len(widths) >= 3
        for i, prompt in enumerate(different):
            *expected, final = prompts_forward(policy.backbone.decoder, [tuple(prompt)])
            torch.testing.assert_close(last[i], final[0])
            for x, y in zip(layers, expected, strict=True):
                torch.testing.assert_close(x[i, :, : len(prompt)], y[0])


def test_a_model_that_cannot_branch_computes_each_prompt(least, widths, monkeypatch):
    policy = policy_with("sdpa")
    monkeypatch.setattr(module, "no_prefix_sharing_reason", lambda _: "its layers keep states")
    with policy.inference():
        prefill(policy.backbone, PROMPTS, [1] * len(PROMPTS))
    assert sum(rows for rows, _ in widths) == len(PROMPTS)
    assert max(tokens for _, tokens in widths) == 12
    widths.clear()
    monkeypatch.setattr(module, "other_layers", lambda config: "SlidingWindowLayer")  # then all are computed at once
    with policy.inference():
        prefill(policy.backbone, PROMPTS, [1] * len(PROMPTS))
    assert widths == [(8, 12)]


def assert_as_alone(policy: Policy, found: Prefill, prompts: list[list[int]]) -> None:
    for i, prompt in enumerate(prompts):
        alone = prefill(policy.backbone, [prompt], [1])
        assert int(found.starts[i]) == found.width - len(prompt)
        torch.testing.assert_close(found.hidden[i], alone.hidden[0], rtol=1e-5, atol=1e-5)
        for layer, other in zip(found.cache.layers, alone.cache.layers, strict=True):
            for a, b in ((layer.keys, other.keys), (layer.values, other.values)):
                torch.testing.assert_close(a[i, :, found.width - len(prompt) :], b[0], rtol=1e-5, atol=1e-5)


def test_short_prompts_do_not_wait_for_long_ones(monkeypatch, widths):
    """Ten short prompts and two long ones: no short one is padded, and each is what it is by itself."""
    monkeypatch.setattr(module, "FORWARD", 8)
    policy = policy_with("grouped")
    prompts = [[1, 60 + i, 3, 4][: 3 + i % 2] for i in range(10)]
    prompts[4:4] = [[2, *range(20, 59)], [3, *range(20, 60)]]
    with policy.inference():
        found = prefill(policy.backbone, prompts, [1] * 12)
        assert widths == [(2, 41), (10, 4)]
        assert_as_alone(policy, found, prompts)


def cost(groups: list[list[int]], lengths: list[int], overhead: int) -> int:
    return sum(overhead + len(group) * max(lengths[i] for i in group) for group in groups)


def test_no_way_to_cut_takes_less():
    rng = random.Random(0)
    for overhead in (0, 3, 20, 1000):
        for n in range(1, 9):
            lengths = [rng.randint(1, 30) for _ in range(n)]
            groups = bucket_by_length(lengths, overhead)
            assert sorted(i for group in groups for i in group) == list(range(n))
            assert [lengths[i] for group in groups for i in group] == sorted(lengths, reverse=True)
            order = sorted(range(n), key=lambda i: -lengths[i])
            least = min(
                cost([order[a:b] for a, b in itertools.pairwise([0, *cuts, n])], lengths, overhead)
                for k in range(n)
                for cuts in itertools.combinations(range(1, n), k)
            )
            assert cost(groups, lengths, overhead) == least

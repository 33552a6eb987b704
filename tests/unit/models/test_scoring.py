"""Scores against brute force: whole logits, one row at a time, plain autograd."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from opct import losses
from opct.models import scoring
from opct.models.policy import Policy
from opct.models.scoring import Head, Scores, completion_hidden, micro_batches, padded, tokenwise
from tests import oracles

PROMPTS = [[1, 40, 50, 60], [1, 70], [1, 80, 81, 82, 83, 84, 85]]
COMPLETIONS = [[10, 11, 12, 13, 2], [20, 21, 2], [30]]


def random_scores(lengths: tuple[int, ...], *, hidden: int = 6, vocabulary: int = 11, seed: int = 0) -> Scores:
    generator = torch.Generator().manual_seed(seed)
    n = sum(lengths)
    weight = torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64)
    states = torch.randn(n, hidden, generator=generator, dtype=torch.float64).requires_grad_()
    tokens = torch.randint(vocabulary, (n,), generator=generator)
    return Scores(states, tokens, Head(weight, None, torch.float64), lengths)


FUNCTIONS = {
    "reverse_kl": losses.reverse_kl,
    "jsd": partial(losses.jensen_shannon, weight=0.3),
    "topk": partial(losses.topk_reverse_kl, k=4),
}


@pytest.mark.parametrize(("name", "chunk"), [("topk", 1), ("jsd", 3), ("reverse_kl", 256), ("log_probs", 3)])
def test_tokenwise_equals_whole_logits(monkeypatch, name: str, chunk: int):
    """7 tokens in chunks of 1, of 3, the last of 1, and of more."""
    monkeypatch.setattr(scoring, "CHUNK_TOKENS", chunk)
    policy, teacher = random_scores((4, 3)), random_scores((4, 3), seed=1)
    logits, teacher_logits = (
        policy.hidden @ policy.head.weight.T,
        teacher.hidden @ teacher.head.weight.T,
    )
    if name == "log_probs":
        expected = losses.token_log_probs(logits, policy.token_ids)
        found = tokenwise(losses.token_log_probs, policy)
    else:
        expected = FUNCTIONS[name](logits, teacher_logits)
        found = tokenwise(FUNCTIONS[name], policy, teacher)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not found.requires_grad


def test_head_scaling_bias_and_softcap():
    """logits = 3 tanh((W h / 2 + ...) / 3) with the bias inside: cap((W h + b) * scale)."""
    weight, bias = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, -1.0])
    head = Head(weight, bias, torch.float32, scale=0.5, softcap=3.0)
    found = head.logits(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(found, 3 * torch.tanh(torch.tensor([[2.0, 3.5]]) / 3))


def test_hidden_states_are_those_of_each_row_alone(tiny_policy: Policy):
    """A batch padded to its longest row gives the states of single rows: those before each completion token."""
    found = completion_hidden(tiny_policy.backbone.decoder, PROMPTS, COMPLETIONS, tiny_policy.device)
    rows = []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        states = tiny_policy.backbone.decoder(input_ids=torch.tensor([[*prompt, *completion]])).last_hidden_state[0]
        rows.append(states[len(prompt) - 1 : -1])
    torch.testing.assert_close(found, torch.cat(rows), rtol=1e-4, atol=1e-5)


def test_scores_equal_the_models_own_logits(tiny_policy: Policy):
    with torch.no_grad():
        scores = tiny_policy.score(PROMPTS, COMPLETIONS)
        assert scores.lengths == (5, 3, 1)
        assert scores.token_ids.tolist() == [10, 11, 12, 13, 2, 20, 21, 2, 30]
        expected = [oracles.completion_logits(tiny_policy, p, c) for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
        torch.testing.assert_close(scores.head.logits(scores.hidden), torch.cat(expected), rtol=1e-4, atol=1e-4)


def test_padded_by_hand():
    rows = padded(torch.tensor([1.0, 2.0, 3.0, 4.0]), (3, 1))
    torch.testing.assert_close(rows, torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]))


def test_micro_batches_by_hand():
    """Budget 20, longest first: 30 stands alone, two of 9 are 18 and three 27, 8 and 5 are 16 and three 24, then 2."""
    assert micro_batches([5, 9, 2, 30, 9, 8], 20) == [[3], [1, 4], [5, 0], [2]]


@pytest.mark.parametrize("budget", [1, 7, 20, 1000])
def test_micro_batches_hold_every_row_once_within_the_budget(budget: int):
    lengths = torch.randint(1, 30, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    groups = micro_batches(lengths, budget)
    assert sorted(i for group in groups for i in group) == list(range(50))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget

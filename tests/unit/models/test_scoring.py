"""Scores against brute force: whole logits, one row at a time, plain autograd."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests import oracles
from tests.tiny import tiny_model, tiny_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode

from opct import losses
from opct.models import scoring
from opct.models.policy import Policy
from opct.models.scoring import Head, Scores, completion_hidden, micro_batches, padded, tokenwise

PROMPTS = [[1, 40, 50, 60], [1, 70], [1, 80, 81, 82, 83, 84, 85]]
TEACHER_PROMPTS = [[1, 40], [1, 70, 71, 72, 73, 74], [1, 9]]
COMPLETIONS = [[10, 11, 12, 13, 2], [20, 21, 2], [30]]


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements that any tensor made inside it has."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def random_scores(
    lengths: tuple[int, ...], *, hidden: int = 6, vocabulary: int = 11, seed: int = 0, trained_head: bool = False
) -> Scores:
    generator = torch.Generator().manual_seed(seed)
    n = sum(lengths)
    weight = torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64).requires_grad_(trained_head)
    states = torch.randn(n, hidden, generator=generator, dtype=torch.float64).requires_grad_()
    tokens = torch.randint(vocabulary, (n,), generator=generator)
    return Scores(states, tokens, Head(weight, None, torch.float64), lengths)


FUNCTIONS = {
    "reverse_kl": losses.reverse_kl,
    "forward_kl": losses.forward_kl,
    "jsd": partial(losses.jensen_shannon, weight=0.3),
    "topk": partial(losses.topk_reverse_kl, k=4),
}


@pytest.mark.parametrize("chunk", [1, 3, 7, 256])
@pytest.mark.parametrize("trained_head", [False, True])
@pytest.mark.parametrize("name", [*FUNCTIONS, "log_probs"])
def test_tokenwise_equals_autograd_over_whole_logits(monkeypatch, name: str, trained_head: bool, chunk: int):
    """Value and gradient to hidden states and head, 7 tokens in chunks of 1, 3 (ragged), 7 and more."""
    monkeypatch.setattr(scoring, "CHUNK_TOKENS", chunk)
    policy = random_scores((4, 3), trained_head=trained_head)
    teacher = random_scores((4, 3), seed=1)
    upstream = torch.arange(1.0, 8.0, dtype=torch.float64)
    inputs = (policy.hidden, policy.head.weight) if trained_head else (policy.hidden,)

    logits = policy.hidden @ policy.head.weight.T
    teacher_logits = (teacher.hidden @ teacher.head.weight.T).detach()
    if name == "log_probs":
        expected = losses.token_log_probs(logits, policy.token_ids)
        found = tokenwise(losses.token_log_probs, policy)
    else:
        expected = FUNCTIONS[name](logits, teacher_logits)
        found = tokenwise(FUNCTIONS[name], policy, teacher)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    expected_gradients = torch.autograd.grad((expected * upstream).sum(), inputs)
    found_gradients = torch.autograd.grad((found * upstream).sum(), inputs)
    torch.testing.assert_close(found_gradients, expected_gradients, rtol=1e-10, atol=1e-12)


def test_the_teacher_gets_no_gradient():
    policy, teacher = random_scores((3,)), random_scores((3,), seed=1, trained_head=True)
    tokenwise(losses.reverse_kl, policy, teacher).sum().backward()
    assert policy.hidden.grad is not None
    assert teacher.hidden.grad is None
    assert teacher.head.weight.grad is None


def test_tokenwise_without_gradient_and_without_tokens():
    policy = random_scores((2, 0))
    with torch.no_grad():
        assert not tokenwise(losses.token_log_probs, policy).requires_grad
    empty = Scores(policy.hidden[:0], policy.token_ids[:0], policy.head, (0,))
    assert tokenwise(losses.token_log_probs, empty).shape == (0,)


@pytest.mark.parametrize("trained_head", [False, True])
def test_no_tensor_of_tokens_by_vocabulary_is_ever_held(monkeypatch, trained_head: bool):
    """64 tokens, 500 words, chunks of 4: the largest tensor is the head's 3000 weights, not 32000 logits."""
    monkeypatch.setattr(scoring, "CHUNK_TOKENS", 4)
    policy = random_scores((40, 24), vocabulary=500, trained_head=trained_head)
    teacher = random_scores((40, 24), vocabulary=500, seed=1)
    with LargestTensor() as largest:
        tokenwise(losses.reverse_kl, policy, teacher).sum().backward()
    assert largest.numel == 3000
    assert policy.hidden.grad.abs().min() > 0


def test_head_scaling_bias_and_softcap():
    """logits = 3 tanh((W h / 2 + ...) / 3) with the bias inside: cap((W h + b) * scale)."""
    weight, bias = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, -1.0])
    head = Head(weight, bias, torch.float32, scale=0.5, softcap=3.0)
    found = head.logits(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(found, 3 * torch.tanh(torch.tensor([[2.0, 3.5]]) / 3))


def test_head_returns_float32_from_half_precision():
    head = Head(torch.ones(5, 4, dtype=torch.bfloat16), None, torch.bfloat16)
    assert head.logits(torch.ones(2, 4)).dtype == torch.float32


def test_hidden_states_are_those_of_each_row_alone(tiny_policy: Policy):
    """A batch padded to its longest row gives the states of single rows: those before each completion token."""
    found = completion_hidden(tiny_policy.decoder, PROMPTS, COMPLETIONS, tiny_policy.device)
    rows = []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        states = tiny_policy.decoder(input_ids=torch.tensor([[*prompt, *completion]])).last_hidden_state[0]
        rows.append(states[len(prompt) - 1 : -1])
    torch.testing.assert_close(found, torch.cat(rows), rtol=1e-4, atol=1e-5)


def test_scores_equal_the_models_own_logits(tiny_policy: Policy):
    with torch.no_grad():
        scores = tiny_policy.score(PROMPTS, COMPLETIONS)
        assert scores.lengths == (5, 3, 1)
        assert scores.token_ids.tolist() == [10, 11, 12, 13, 2, 20, 21, 2, 30]
        expected = [oracles.completion_logits(tiny_policy, p, c) for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
        torch.testing.assert_close(scores.head.logits(scores.hidden), torch.cat(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tie", [True, False])
def test_gradient_of_every_weight_equals_brute_force(monkeypatch, tie: bool):
    """All weights trained, the head tied to the embedding or not: the whole gradient, through chunks of two tokens."""
    monkeypatch.setattr(scoring, "CHUNK_TOKENS", 2)
    tokenizer = tiny_tokenizer()
    policy = Policy(tiny_model(tokenizer, tie=tie), tokenizer)
    teacher = Policy(tiny_model(tokenizer, seed=1, tie=tie).requires_grad_(False), tokenizer)

    with torch.no_grad():
        reference = teacher.score(TEACHER_PROMPTS, COMPLETIONS)
    kl = tokenwise(losses.reverse_kl, policy.score(PROMPTS, COMPLETIONS), reference)
    kl.sum().backward()
    found = oracles.gradients(policy)

    expected = []
    for prompt, teacher_prompt, completion in zip(PROMPTS, TEACHER_PROMPTS, COMPLETIONS, strict=True):
        q = oracles.completion_logits(teacher, teacher_prompt, completion)
        expected.append(oracles.reverse_kl(oracles.completion_logits(policy, prompt, completion), q))
    torch.testing.assert_close(kl, torch.cat(expected), rtol=1e-3, atol=1e-4)
    torch.cat(expected).sum().backward()
    assert oracles.largest_difference(found, oracles.gradients(policy)) < 1e-4
    assert ("lm_head.weight" in found) != tie


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

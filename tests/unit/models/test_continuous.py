"""Transformers' continuous batching as the sampler: on an accelerator by default, here asked for."""

import signal
import threading
import time

import pytest
import torch
from transformers.generation.continuous_batching import ContinuousBatchingManager

from opct.config.schema import ModelConfig
from opct.errors import ModelError
from opct.models import policy as policies
from opct.models.inference import continuous
from opct.models.inference.continuous import tokens_in_memory, why_not_continuous
from opct.models.inference.sampler import Completion, rows_that_fit
from opct.models.inference.token_sampling import Sampling
from opct.models.policy import CONTINUOUS, Policy
from tests.refusals import refused
from tests.tiny import move, tiny_adapter_policy
from tests.unit.models.test_architectures import save_model

PROMPTS = [list(range(5, 25)), list(range(40, 47)), list(range(60, 90))]
SIX = Sampling(6)


@pytest.fixture
def policy():
    policy = tiny_adapter_policy()
    policy.engine = CONTINUOUS
    return policy


def tokens(groups) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in group] for group in groups]


TRUNCATED = Sampling(6, temperature=0.7, top_p=0.9, top_k=20)


@pytest.mark.parametrize(
    ("seeds", "sampling"), [([[1, 2], [3, 4], [5, 6]], SIX), ([[1], [2, 3, 4], []], TRUNCATED)], ids=["forked", "apart"]
)
def test_samples_have_the_log_probs_of_scoring_and_come_again_with_the_same_call(policy, seeds, sampling):
    policy.backbone.train()
    before, state, shown = policy.log_probs(PROMPTS[:1], [[7, 8]])[0], torch.get_rng_state(), []
    first = policy.sample(PROMPTS, seeds, sampling, on_completions=shown.extend)
    assert torch.equal(torch.get_rng_state(), state)
    assert policy.model.training
    assert torch.equal(policy.log_probs(PROMPTS[:1], [[7, 8]])[0], before)
    assert [[completion.seed for completion in group] for group in first] == seeds
    assert sorted(i for i, _ in shown) == [i for i, group in enumerate(seeds) for _ in group]
    assert tokens(policy.sample(PROMPTS, seeds, sampling)) == tokens(first)
    if sampling is SIX:
        assert tokens(policy.sample(PROMPTS, [[seed + 9 for seed in group] for group in seeds], SIX)) != tokens(first)
        drawn = [(PROMPTS[i], completion) for i, group in enumerate(first) for completion in group]
        scored = policy.log_probs([prompt for prompt, _ in drawn], [one.token_ids for _, one in drawn])
        for (_, one), expected in zip(drawn, scored, strict=True):
            assert torch.tensor(one.logprobs) == pytest.approx(expected, abs=1e-4)


def test_greedy_answers_stop_tokens_and_the_base_are_those_of_the_other_sampler(policy):
    """With the adapter, after a step, and without it; stop tokens are any of several."""
    greedy, asked = Sampling(12, temperature=0), [[0, 1], [2, 3], [4, 5]]

    def answers(engine: str) -> list[list[Completion]]:
        policy.engine = engine
        return policy.sample(PROMPTS, asked, greedy)

    move(policy)
    expected = answers("in_process")
    assert tokens(answers(CONTINUOUS)) == tokens(expected)
    policy.backbone.stop_ids = frozenset(group[0].token_ids[4] for group in expected)
    stopped = [group[0] for group in answers(CONTINUOUS)]
    assert {one.stop_reason for one in stopped} == {"stop"}
    assert all(len(one.token_ids) <= 5 and one.token_ids[-1] in policy.backbone.stop_ids for one in stopped)
    with policy.adapter_off():
        assert tokens(answers(CONTINUOUS)) == tokens(answers("in_process"))


def test_an_error_ends_it_within_a_moment(policy, monkeypatch):
    """Ctrl-C, or what a callback raises: its own end would wait until every completion is whole."""
    threads, started = threading.active_count(), time.monotonic()
    monkeypatch.setattr(ContinuousBatchingManager, "get_result", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        policy.sample(PROMPTS, [[1], [2], [3]], Sampling(1900))
    assert threading.active_count() == threads
    assert time.monotonic() - started < 10
    assert policy.backbone.attention == "sdpa"


def test_it_samples_on_an_accelerator_unless_the_model_fails_its_check(policy, monkeypatch):
    """Which then takes rows by the free memory. Outside of training nothing samples so."""
    assert not tiny_adapter_policy().batches_continuously
    policy.engine = "auto"
    assert not policy.batches_continuously
    monkeypatch.setattr(Policy, "is_accelerated", True)
    assert not policy.batches_continuously
    assert any("flash" in reason for reason in policy.slow_reasons(1))
    monkeypatch.setattr(policies, "has_flash_attention", lambda: True)
    assert policy.batches_continuously
    policy.engine = "in_process"
    assert not policy.batches_continuously

    other = tiny_adapter_policy()
    other.engine = "auto"
    monkeypatch.setattr(policies, "why_not_continuous", lambda backbone: "it is a test")
    monkeypatch.setattr(continuous, "free_memory", lambda device: 2 * 10**9)
    budgets = []
    monkeypatch.setattr(policies, "sample", lambda *_, batch_tokens, **__: budgets.append(batch_tokens))
    other.sample(PROMPTS, [[1], [2], [3]], SIX)
    assert budgets == [tokens_in_memory(other.backbone)]
    assert any("it is a test" in reason for reason in other.slow_reasons(1))
    other.engine = CONTINUOUS
    with refused(ModelError, CONTINUOUS, "it is a test"):
        other.sample(PROMPTS, [[1], [2], [3]], SIX)


def test_eight_prompts_with_four_long_answers_are_one_batch_where_memory_allows(policy, monkeypatch):
    """Of 1,024 tokens each, on a card with 24 GB free, with the keys and values of an 8B model (36 layers, 8 heads)."""
    monkeypatch.setattr(continuous, "free_memory", lambda device: 24 * 10**9)
    monkeypatch.setattr(continuous, "kv_bytes", lambda config, element: 36 * 2 * 8 * 128 * 2)
    for shared in (True, False):
        budget = tokens_in_memory(policy.backbone)
        assert rows_that_fit([4] * 8, 300, 1024, budget, shared=shared) == (32, 8)


@pytest.mark.parametrize("name", ["gpt_oss", "gemma3", "qwen3_moe"])
def test_families_that_it_takes(name, tmp_path):
    save_model(name, tmp_path)
    assert Policy.load(str(tmp_path)).backbone.ask(why_not_continuous) is None


@pytest.mark.parametrize("name", ["falcon_h1", "lfm2"])
def test_families_whose_states_are_no_pages_say_so(name, tmp_path):
    """And leave attention as it was, which transformers changes before it refuses them."""
    save_model(name, tmp_path)
    backbone = Policy.load(ModelConfig(name_or_path=str(tmp_path), attn_implementation="eager")).backbone
    assert "layer type" in backbone.ask(why_not_continuous)
    assert backbone.attention == "eager"

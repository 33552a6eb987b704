"""Greedy answers of an engine, and when it is refused."""

import copy
from pathlib import Path

import pytest
import torch

from opct.config.schema import LoraSettings, ModelConfig
from opct.errors import EngineError
from opct.models.inference.sampler import Sampling
from opct.models.policy import Policy
from opct.models.vllm.engine import Engine, check_engine
from tests.engines import PolicyBackend
from tests.refusals import refused
from tests.tiny import move

PROMPTS = [[1, 5, 6, 7, 8], [1, 9, 10], [1, 5, 6, 11]]
FREE = Sampling(6)


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> tuple[Policy, PolicyBackend]:
    """The policy of all tests, whose adapter changes what it says, and a backend of the same model."""
    config = ModelConfig(name_or_path=str(tiny_folder), dtype="float32", device="cpu")
    policy = Policy.load(config, lora=LoraSettings(r=4, alpha=8))
    move(policy)
    return policy, PolicyBackend(config)


@pytest.fixture
def policy(loaded) -> Policy:
    return loaded[0]


@pytest.fixture
def backend(loaded) -> PolicyBackend:
    fresh = copy.copy(loaded[1])
    fresh.served, fresh.events = {}, []
    return fresh


@pytest.fixture
def engine(policy, backend):
    engine = Engine(policy, backend)
    yield engine
    engine.close()


def test_a_greedy_answer_is_computed_once_and_repeated(policy, backend, engine):
    """vLLM refuses several samples without a temperature."""
    counted: list[int] = []
    engine.sync_weights(0)
    greedy = Sampling(6, 0.0)
    found = engine.sample(PROMPTS, [[1, 2], [5], [8, 9, 10]], greedy, on_done=counted.append)
    assert [[c.seed for c in group] for group in found] == [[1, 2], [5], [8, 9, 10]]
    expected = policy.sample(PROMPTS, [[0]] * 3, greedy)
    assert [[c.token_ids for c in group] for group in found] == [
        [own.token_ids] * n for [own], n in zip(expected, (2, 1, 3), strict=True)
    ]
    assert backend.asked("draw") == [(backend.asked("load")[0][0], 3)]
    assert sum(counted) == 6


def test_the_probe_refuses_log_probs_of_another_distribution(policy, backend, engine):
    """An engine that gives log-probs before the temperature: at temperature 2 they are not those of what was drawn."""
    draw = backend.sample

    def raw(prompts, seeds, sampling, adapter, on_done):
        drawn = draw(prompts, seeds, sampling, adapter, on_done)
        serving = backend._base if adapter is None else backend.served[adapter]
        scored = serving.log_probs(prompts, [ids for [(ids, _)] in drawn])
        return [[(ids, own.tolist())] for [(ids, _)], own in zip(drawn, scored, strict=True)]

    for sampling in (Sampling(6, 0.7, 0.6, 20), Sampling(6, 0.0)):
        assert check_engine(engine, policy, PROMPTS, sampling, scores=True) < 1e-5
    backend.sample = raw
    assert check_engine(engine, policy, PROMPTS, FREE, scores=False) < 1e-5
    with refused(EngineError):
        check_engine(engine, policy, PROMPTS, Sampling(6, 2.0), scores=False)


def test_the_probe_refuses_an_engine_that_ignores_the_adapter_and_changes_no_weights(policy, backend, engine):
    """The adapter that training begins with changes nothing, so a random one is tried."""
    before = {name: p.clone() for name, p in policy.trainable_parameters().items()}
    check_engine(engine, policy, PROMPTS, FREE, scores=False)
    assert backend.asked("load")[0][0] == backend.asked("unload")[0][0]
    draw = backend.sample
    backend.sample = lambda prompts, seeds, sampling, adapter, on_done: draw(prompts, seeds, sampling, None, on_done)
    with refused(EngineError, "adapter", "rollout.engine: in_process"):
        check_engine(engine, policy, PROMPTS, FREE, scores=False)
    assert all(torch.equal(p, before[name]) for name, p in policy.trainable_parameters().items())


def test_the_probe_refuses_wrong_scores_only_where_they_are_used(policy, backend, engine):
    score = backend.score
    backend.score = lambda sequences: [[x - 0.5 for x in row] for row in score(sequences)]
    check_engine(engine, policy, PROMPTS, FREE, scores=False)
    with refused(EngineError, "teacher.engine: in_process"):
        check_engine(engine, policy, PROMPTS, FREE, scores=True)

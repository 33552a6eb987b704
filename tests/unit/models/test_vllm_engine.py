"""What is published, what is asked of a backend, and when an engine is refused."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import pytest
import torch

from opct.config.schema import LoraSettings, ModelConfig
from opct.errors import EngineError
from opct.models.inference.sampler import Sampling
from opct.models.policy import Policy
from opct.models.vllm.engine import Engine, Sample, check_engine
from tests.engines import PolicyBackend
from tests.refusals import refused

PROMPTS = [[1, 5, 6, 7, 8], [1, 9, 10], [1, 5, 6, 11]]
FREE = Sampling(6)


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> ModelConfig:
    return ModelConfig(name_or_path=str(tiny_folder), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def loaded(config) -> tuple[Policy, PolicyBackend]:
    """The policy of all tests, with an adapter, and a backend of the same model."""
    return Policy.load(config, lora=LoraSettings(r=4, alpha=8)), PolicyBackend(config)


@pytest.fixture
def policy(loaded) -> Policy:
    """With the same weights in each test; the adapter changes what it says."""
    move(loaded[0], 1)
    return loaded[0]


@torch.no_grad()
def move(policy: Policy, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in policy.trainable_parameters().items():
        if "lora_B" in name:
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))


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


def test_the_seeds_of_a_prompt_are_counted_up_from_its_first(policy, backend, engine):
    """One call for all; the last seed stays below 2^63."""
    asked, draw = [], backend.sample
    backend.sample = lambda prompts, seeds, *rest: asked.append((prompts, seeds)) or draw(prompts, seeds, *rest)
    found = engine.base().sample(PROMPTS, [[70, 5, 6], [9], [2**63 - 1, 0]], FREE)
    assert asked == [(PROMPTS, [range(70, 73), range(9, 10), range(2**63 - 2, 2**63)])]
    assert [[c.seed for c in group] for group in found] == [[70, 71, 72], [9], [2**63 - 2, 2**63 - 1]]
    again = engine.base().sample(PROMPTS[:1], [[72]], FREE)  # the third sample of three is that of its seed
    assert again[0][0].token_ids == found[0][2].token_ids != found[0][1].token_ids


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


def test_the_stop_token_is_the_last_of_a_completion_and_decides_its_stop_reason(policy, backend, engine):
    stop = min(policy.backbone.stop_ids)
    backend.sample = lambda *_: [[Sample([5, stop], [-1.0, -2.0]), Sample([5, 6], [-1.0, -2.0])]]
    [[first, second]] = engine.base().sample([[1, 2]], [[0, 1]], FREE)
    assert (first.stop_reason, first.token_ids, first.logprobs) == ("stop", (5, stop), (-1.0, -2.0))
    assert second.stop_reason == "length"
    assert first.text == policy.renderer.decode([5])


def test_every_version_is_published_under_a_name_of_its_own(policy, backend, tmp_path: Path, monkeypatch):
    """After a move the new weights answer, the former version is unloaded, and its folder is gone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = Engine(policy, backend)
    weights = policy.weights_hash()
    engine.sync_weights(7)
    assert policy.weights_hash() == weights
    before = engine.sample(PROMPTS, [[1], [2], [3]], FREE)
    move(policy, 2)
    stale = engine.sample(PROMPTS, [[1], [2], [3]], FREE)
    assert [c.token_ids for [c] in stale] == [c.token_ids for [c] in before]  # not before it is published
    engine.sync_weights(8)
    after = engine.sample(PROMPTS, [[1], [2], [3]], FREE)
    assert [c.token_ids for [c] in after] == [c.token_ids for [c] in policy.sample(PROMPTS, [[1], [2], [3]], FREE)]
    assert [c.token_ids for [c] in after] != [c.token_ids for [c] in before]
    (first, files), (second, _) = backend.asked("load")
    assert (first, second) == ("step-000007", "step-000008")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(files)
    assert backend.asked("unload") == [(first,)]
    assert [name for name, _ in backend.asked("draw")] == [first, first, second]
    [folder] = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir()] == [second]
    engine.close()
    assert not folder.exists()


def test_the_probe_refuses_log_probs_of_another_distribution(policy, backend, engine):
    """An engine that gives log-probs before the temperature: at temperature 2 they are not those of what was drawn."""
    draw = backend.sample

    def raw(prompts, seeds, sampling, adapter, on_done):
        drawn = draw(prompts, seeds, sampling, adapter, on_done)
        scored = backend.score([[*p, *d.token_ids] for p, [d] in zip(prompts, drawn, strict=True)])
        return [[Sample(d.token_ids, s[-len(d.token_ids) :])] for [d], s in zip(drawn, scored, strict=True)]

    for sampling in (Sampling(6, 0.7, 0.6, 20), Sampling(6, 0.0)):
        assert check_engine(engine, policy, PROMPTS, sampling, scores=True) < 1e-5
    backend.sample = raw
    assert check_engine(engine, policy, PROMPTS, FREE, scores=False) < 1e-5
    with refused(EngineError):
        check_engine(engine, policy, PROMPTS, Sampling(6, 2.0), scores=False)


def test_the_probe_refuses_wrong_scores_only_where_they_are_used(policy, backend, engine):
    score = backend.score
    backend.score = lambda sequences: [[x - 0.5 for x in row] for row in score(sequences)]
    check_engine(engine, policy, PROMPTS, FREE, scores=False)
    with refused(EngineError, "teacher.engine: in_process"):
        check_engine(engine, policy, PROMPTS, FREE, scores=True)

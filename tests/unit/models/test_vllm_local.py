"""What vLLM is asked, on a stand-in for its module; tests/e2e/test_vllm.py runs vLLM itself."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from opct.config.schema import LoraSettings
from opct.errors import ConfigError, EngineError
from opct.models.inference.sampler import Sampling
from opct.models.policy import Policy
from opct.models.vllm.engine import Sample
from opct.models.vllm.local import VllmEngine
from tests.refusals import refused


class FakeLLM:
    """vllm.LLM: token i of a completion is its seed + i, with log-prob -0.1 i; a prompt's token t has log-prob -t.

    Sample i of a request has the seed of the request + i, as in vLLM.
    """

    def __init__(self, **arguments):
        self.calls: list = []
        self.llm_engine = SimpleNamespace(add_lora=lambda request: request.lora_path != "/adapters/refused")

    def generate(self, prompts, settings, *, lora_request, use_tqdm):
        self.calls.append((prompts, settings, lora_request))
        return [self._output(p["prompt_token_ids"], vars(s)) for p, s in zip(prompts, settings, strict=True)]

    def _output(self, ids, given):
        scored = [None, *({t: SimpleNamespace(logprob=-float(t))} for t in ids[1:])]
        samples = [self._sample(given.get("seed", 0) + i) for i in range(given["n"])]
        return SimpleNamespace(outputs=samples, prompt_logprobs=scored)

    def _sample(self, seed):
        logprobs = [{seed + i: SimpleNamespace(logprob=-0.1 * i)} for i in range(2)]
        return SimpleNamespace(token_ids=[seed, seed + 1], logprobs=logprobs)


@pytest.fixture
def vllm(monkeypatch) -> None:
    modules = {
        "vllm": {"LLM": FakeLLM, "SamplingParams": lambda **given: SimpleNamespace(**{"n": 1} | given)},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.core": {"EngineCoreProc": SimpleNamespace(run_engine_core=None)},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": SimpleNamespace},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content | {"__version__": "9.9"})
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def engine(vllm, make_config):
    config = make_config(rollout={"engine": "vllm"})
    return VllmEngine(Policy.load(config.model, lora=LoraSettings()), config, max_model_len=99)


def test_each_prompt_is_a_request_for_its_samples_with_the_seed_of_the_first(engine):
    engine.load_adapter("v1", Path("/adapters/v1"))
    counted: list[int] = []
    seeds = [range(7, 10), range(40, 41), range(20, 22)]
    drawn = engine.sample([[1, 2], [1, 2], [3]], seeds, Sampling(6, 0.5, 0.9, 3), "v1", counted.append)
    assert drawn == [[Sample([s, s + 1], [-0.0, -0.1]) for s in own] for own in seeds]
    [(prompts, settings, lora)] = engine._llm.calls
    assert prompts == [{"prompt_token_ids": ids} for ids in ([1, 2], [1, 2], [3])]
    shared = {
        "max_tokens": 6,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "stop_token_ids": [2],
        "logprobs": 0,
        "detokenize": False,
    }
    assert [vars(s) for s in settings] == [shared | {"seed": s, "n": n} for s, n in ((7, 3), (40, 1), (20, 2))]
    assert (lora.lora_name, lora.lora_path) == ("v1", "/adapters/v1")
    assert counted == [6]


def test_scores_are_those_of_every_token_but_the_first(engine):
    assert engine.score([[5, 6, 7], [8, 9]]) == [[-6.0, -7.0], [-9.0]]
    [(_, [settings, _], lora)] = engine._llm.calls
    assert (settings.prompt_logprobs, settings.max_tokens, lora) == (0, 1, None)


def test_an_adapter_that_is_not_loaded_and_several_processes_are_refused(engine, make_config, monkeypatch):
    with refused(EngineError, "/adapters/refused"):
        engine.load_adapter("v2", Path("/adapters/refused"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused(ConfigError, "2 processes"):
        VllmEngine(Policy.load(make_config().model), make_config(), max_model_len=99)

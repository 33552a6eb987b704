"""What vLLM is started with and asked, on a stand-in for its module; tests/e2e/test_vllm.py runs vLLM itself."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

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

    made: ClassVar[list[FakeLLM]] = []
    fails: Exception | None = None

    def __init__(self, **arguments):
        self._fail()
        self.arguments, self.environment = arguments, dict(os.environ)
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, set())
        os.environ["LOCAL_WORLD_SIZE"] = "1"  # as vLLM does on a CPU
        self.loras: list = []
        self.calls: list = []
        core = SimpleNamespace(shutdown=lambda: None)
        self.llm_engine = SimpleNamespace(add_lora=self._lora, remove_lora=self._lora, engine_core=core)
        FakeLLM.made.append(self)

    def _fail(self):
        if FakeLLM.fails is not None:
            raise FakeLLM.fails

    def _lora(self, request) -> bool:
        self._fail()
        self.loras.append(request)
        return True

    def generate(self, prompts, settings, *, lora_request, use_tqdm):
        self._fail()
        self.calls.append((prompts, settings, lora_request))
        return [self._output(p["prompt_token_ids"], vars(s)) for p, s in zip(prompts, settings, strict=True)]

    def _output(self, ids, given):
        scored = [None, *({t: SimpleNamespace(logprob=-float(t))} for t in ids[1:])]
        first = given.get("seed", 0)
        return SimpleNamespace(outputs=[_sample(first + i) for i in range(given.get("n", 1))], prompt_logprobs=scored)


def _sample(seed: int) -> SimpleNamespace:
    logprobs = [{seed + i: SimpleNamespace(logprob=-0.1 * i)} for i in range(2)]
    return SimpleNamespace(token_ids=[seed, seed + 1], logprobs=logprobs)


def request(**given) -> SimpleNamespace:
    return SimpleNamespace(**{"n": 1} | given)


@pytest.fixture
def vllm(monkeypatch):
    """A stand-in for the module vllm."""
    core = SimpleNamespace(run_engine_core=None)
    modules = {
        "vllm": {"LLM": FakeLLM, "SamplingParams": request, "__version__": "9.9"},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.core": {"EngineCoreProc": core},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": SimpleNamespace},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(FakeLLM, "made", [])
    monkeypatch.setattr(FakeLLM, "fails", None)
    return FakeLLM


@pytest.fixture
def config(make_config):
    return make_config(rollout={"engine": "vllm"}, vllm={"max_num_seqs": 4, "gpu_memory_utilization": 0.5})


@pytest.fixture
def policy(config) -> Policy:
    return Policy.load(config.model, lora=LoraSettings(r=9, alpha=18))


@pytest.fixture
def engine(vllm, policy, config):
    return VllmEngine(policy, config, max_model_len=99)


def test_the_engine_is_the_base_with_room_for_the_adapter_deaf_to_ctrl_c(engine, vllm, config):
    """Rank 9 needs room for 16; the tiny Llama has seven kinds of Linear layers besides its head."""
    [llm] = vllm.made
    expected = {
        "model": config.model.name_or_path,
        "dtype": "float32",
        "max_model_len": 99,
        "max_num_seqs": 4,
        "gpu_memory_utilization": 0.5,
        "enable_lora": True,
        "max_lora_rank": 16,
        "lora_target_modules": ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
    }
    assert {key: llm.arguments[key] for key in expected} == expected
    assert llm.environment["VLLM_NO_USAGE_STATS"] == "1"
    assert not {"LOCAL_WORLD_SIZE", "VLLM_NO_USAGE_STATS"} & set(os.environ)
    assert signal.SIGINT in llm.blocked
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_each_prompt_is_a_request_for_its_samples_with_the_seed_of_the_first(engine, vllm, policy):
    engine.load_adapter("v1", Path("/adapters/v1"))
    counted: list[int] = []
    seeds = [range(7, 10), range(40, 41), range(20, 22)]
    drawn = engine.sample([[1, 2], [1, 2], [3]], seeds, Sampling(6, 0.5, 0.9, 3), "v1", counted.append)
    assert drawn == [[Sample([s, s + 1], [-0.0, -0.1]) for s in own] for own in seeds]
    [(prompts, settings, lora)] = vllm.made[0].calls
    assert prompts == [{"prompt_token_ids": ids} for ids in ([1, 2], [1, 2], [3])]
    shared = {
        "max_tokens": 6,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "stop_token_ids": sorted(policy.backbone.stop_ids),
        "logprobs": 0,
        "detokenize": False,
    }
    assert [vars(s) for s in settings] == [shared | {"seed": s, "n": n} for s, n in ((7, 3), (40, 1), (20, 2))]
    assert (lora.lora_name, lora.lora_int_id, lora.lora_path) == ("v1", 1, "/adapters/v1")
    assert counted == [6]
    engine.load_adapter("v2", Path("/adapters/v2"))  # vLLM takes a number that it knows for the same adapter
    assert vllm.made[0].loras[1].lora_int_id == 2


def test_scores_are_those_of_every_token_but_the_first(engine, vllm):
    assert engine.score([[5, 6, 7], [8, 9]]) == [[-6.0, -7.0], [-9.0]]
    [(_, [settings, _], lora)] = vllm.made[0].calls
    assert (settings.prompt_logprobs, settings.max_tokens, lora) == (0, 1, None)


def test_what_goes_wrong_in_vllm_is_an_error_of_the_engine(engine, vllm, policy, config, monkeypatch):
    engine.load_adapter("v1", Path("/adapters/v1"))
    vllm.fails = Exception("the core died")
    for fail in (
        lambda: engine.sample([[1]], [range(1, 2)], Sampling(2), None, lambda n: None),
        lambda: engine.load_adapter("v2", Path("/adapters/v2")),
        lambda: engine.unload_adapter("v1"),
        lambda: VllmEngine(policy, config, max_model_len=99),
    ):
        with refused(EngineError, "the core died"):
            fail()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused(ConfigError, "2 processes"):
        VllmEngine(policy, config, max_model_len=99)

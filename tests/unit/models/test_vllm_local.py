"""What vLLM is started with and asked, on a stand-in for its module; tests/e2e/test_vllm.py runs vLLM itself."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

import opct.models.vllm.local
from opct.config.schema import LoraSettings
from opct.errors import ConfigError, EngineError
from opct.models.inference.sampler import Sampling
from opct.models.policy import Policy
from opct.models.vllm.engine import Sample
from opct.models.vllm.local import VllmEngine


class Keywords:
    """An object that keeps what it was made with."""

    n = 1  # samples of a request, if nothing else is said

    def __init__(self, **given):
        self.given = given
        vars(self).update(given)


class VLLMError(Exception):
    pass


class DeadError(VLLMError):
    pass


class EngineCoreProc:
    """Where vLLM has the function that its process runs."""

    @staticmethod
    def run_engine_core(*arguments, **keywords):
        return arguments, keywords


class FakeLLM:
    """vllm.LLM: token i of a completion is its seed + i, with log-prob -0.1 i; a prompt's token t has log-prob -t.

    Sample i of a request has the seed of the request + i, as in vLLM.
    """

    made: ClassVar[list[FakeLLM]] = []
    fails: Exception | None = None
    lora_answer: Exception | bool = True

    def __init__(self, **arguments):
        self.arguments, self.environment = arguments, dict(os.environ)
        self.core_runs = EngineCoreProc.run_engine_core
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, set())
        os.environ["LOCAL_WORLD_SIZE"] = "1"  # as vLLM does on a CPU
        self.loras: list = []
        self.calls: list = []
        self.stopped = False
        core = SimpleNamespace(shutdown=lambda: setattr(self, "stopped", True))
        remove = lambda number: self._lora(-number)  # noqa: E731
        self.llm_engine = SimpleNamespace(add_lora=self._lora, remove_lora=remove, engine_core=core)
        FakeLLM.made.append(self)

    def _lora(self, asked):
        if isinstance(FakeLLM.lora_answer, Exception):
            raise FakeLLM.lora_answer
        self.loras.append(asked)
        return FakeLLM.lora_answer

    def generate(self, prompts, settings, *, lora_request, use_tqdm):
        if FakeLLM.fails is not None:
            raise FakeLLM.fails
        self.calls.append((prompts, settings, lora_request))
        every = settings if isinstance(settings, list) else [settings] * len(prompts)
        return [self._output(p["prompt_token_ids"], s.given) for p, s in zip(prompts, every, strict=True)]

    def _output(self, ids, given):
        scored = [None, *({t: SimpleNamespace(logprob=-float(t))} for t in ids[1:])]
        first = given.get("seed", 0)
        samples = [self._sample(first + i) for i in range(given.get("n", 1))]
        return SimpleNamespace(outputs=samples, prompt_logprobs=scored)

    def _sample(self, seed):
        logprobs = [{seed + i: SimpleNamespace(logprob=-0.1 * i)} for i in range(2)]
        return SimpleNamespace(token_ids=[seed, seed + 1], logprobs=logprobs)


@pytest.fixture
def vllm(monkeypatch):
    """A stand-in for the module vllm."""
    modules = {
        "vllm": {"LLM": FakeLLM, "SamplingParams": Keywords, "__version__": "9.9"},
        "vllm.exceptions": {"VLLMError": VLLMError},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.core": {"EngineCoreProc": EngineCoreProc},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": Keywords},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(FakeLLM, "made", [])
    monkeypatch.setattr(FakeLLM, "fails", None)
    monkeypatch.setattr(FakeLLM, "lora_answer", True)
    return FakeLLM


@pytest.fixture
def config(make_config):
    return make_config(rollout={"engine": "vllm"}, vllm={"max_num_seqs": 4, "gpu_memory_utilization": 0.5})


@pytest.fixture
def policy(config) -> Policy:
    return Policy.load(config.model, lora=LoraSettings(r=9, alpha=18))


@pytest.fixture
def engine(vllm, policy, config):
    with contextlib.closing(VllmEngine(policy, config, max_model_len=99)) as made:
        yield made


def test_the_engine_is_the_base_with_room_for_the_adapter(engine, vllm, config):
    """Rank 9 needs room for 16; the tiny Llama has seven kinds of Linear layers besides its head."""
    [llm] = vllm.made
    expected = {
        "model": config.model.name_or_path,
        "dtype": "float32",
        "max_model_len": 99,
        "max_num_seqs": 4,
        "gpu_memory_utilization": 0.5,
        "enable_prefix_caching": True,
        "enable_lora": True,
        "max_lora_rank": 16,
        "lora_target_modules": ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "skip_tokenizer_init": True,
    }
    assert {key: llm.arguments[key] for key in expected} == expected
    assert engine.name == "vLLM 9.9"


def test_the_engine_is_quiet_and_deaf_to_ctrl_c_and_the_environment_stays(engine, vllm):
    [llm] = vllm.made
    assert llm.environment["VLLM_NO_USAGE_STATS"] == "1"
    assert signal.SIGINT in llm.blocked
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
    assert "LOCAL_WORLD_SIZE" not in os.environ
    assert "VLLM_NO_USAGE_STATS" not in os.environ


def test_the_engines_process_ends_with_this_one(engine, vllm, monkeypatch):
    """It watches its parent and then runs what vLLM would; here nothing of vLLM is changed once it has started."""
    [llm] = vllm.made
    watched = []
    monkeypatch.setattr(opct.models.vllm.local, "end_with_parent", lambda: watched.append("before"))
    monkeypatch.setattr(EngineCoreProc, "opct_own", lambda *given, **named: watched.append((given, named)))
    assert llm.core_runs is opct.models.vllm.local.run_engine_core
    assert pickle.loads(pickle.dumps(llm.core_runs)) is llm.core_runs
    llm.core_runs(1, dp_rank=0)
    assert watched == ["before", ((1,), {"dp_rank": 0})]
    assert EngineCoreProc.run_engine_core(3) == ((3,), {})


def test_each_prompt_is_a_request_for_its_samples_with_the_seed_of_the_first(engine, vllm, policy):
    engine.load_adapter("v1", Path("/adapters/v1"))
    counted: list[int] = []
    seeds = [range(7, 10), range(40, 41), range(20, 22)]
    drawn = engine.sample([[1, 2], [1, 2], [3]], seeds, Sampling(6, 0.5, 0.9, 3), "v1", counted.append)
    assert drawn == [[Sample([s, s + 1], [-0.0, -0.1]) for s in own] for own in seeds]
    [(prompts, settings, lora)] = vllm.made[0].calls
    assert prompts == [{"prompt_token_ids": ids} for ids in ([1, 2], [1, 2], [3])]
    assert [(s.given.pop("seed"), s.given.pop("n")) for s in settings] == [(7, 3), (40, 1), (20, 2)]
    shared = {
        "max_tokens": 6,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "stop_token_ids": sorted(policy.backbone.stop_ids),
        "logprobs": 0,
        "detokenize": False,
    }
    assert [s.given for s in settings] == [shared] * 3
    assert lora.given["lora_name"] == "v1"
    assert counted == [6]


def test_many_prompts_are_handed_over_in_parts(engine, vllm):
    counted: list[int] = []
    seeds = [range(2 * i, 2 * i + 2) for i in range(1100)]
    drawn = engine.sample([[1]] * 1100, seeds, Sampling(2), None, counted.append)
    assert [d.token_ids[0] for own in drawn for d in own] == list(range(2200))
    assert counted == [1024, 1024, 152]
    assert all(lora is None for _, _, lora in vllm.made[0].calls)


def test_every_version_has_a_number_of_its_own(engine, vllm):
    engine.load_adapter("v1", Path("/adapters/v1"))
    engine.load_adapter("v2", Path("/adapters/v2"))
    engine.unload_adapter("v1")
    assert list(engine._adapters) == ["v2"]
    first, second, removed = vllm.made[0].loras
    assert [x.given for x in (first, second)] == [
        {"lora_name": "v1", "lora_int_id": 1, "lora_path": "/adapters/v1"},
        {"lora_name": "v2", "lora_int_id": 2, "lora_path": "/adapters/v2"},
    ]
    assert removed == -1


def test_scores_are_those_of_every_token_but_the_first(engine, vllm):
    assert engine.score([[5, 6, 7], [8, 9]]) == [[-6.0, -7.0], [-9.0]]
    [(_, [settings, _], lora)] = vllm.made[0].calls
    assert (settings.given["prompt_logprobs"], settings.given["max_tokens"], lora) == (0, 1, None)


def test_what_goes_wrong_in_vllm_is_one_line(engine, vllm):
    """What fails in vLLM's process comes as an error of its own, or as a bare Exception."""
    vllm.fails = DeadError("the core died\nsee above")
    with pytest.raises(EngineError, match=r"^vLLM stopped: the core died see above\. .* --resume\.$"):
        engine.sample([[1]], [range(1, 2)], Sampling(2), None, lambda n: None)
    engine.load_adapter("v1", Path("/adapters/v1"))
    vllm.lora_answer = Exception("rank 32 > 16")
    with pytest.raises(EngineError, match=r"did not load the adapter v2 from /adapters/v2: rank 32 > 16"):
        engine.load_adapter("v2", Path("/adapters/v2"))
    with pytest.raises(EngineError, match="did not unload the adapter v1: rank 32 > 16"):
        engine.unload_adapter("v1")
    vllm.lora_answer = False
    with pytest.raises(EngineError, match=r"did not load the adapter v2 .* it gives no reason"):
        engine.load_adapter("v2", Path("/adapters/v2"))


def test_a_start_that_fails_says_so(vllm, policy, config, monkeypatch):
    def no_room(self, **arguments):
        raise ValueError("No available memory for the cache blocks.")

    monkeypatch.setattr(FakeLLM, "__init__", no_room)
    with pytest.raises(EngineError, match="vLLM could not be started: No available memory"):
        VllmEngine(policy, config, max_model_len=99)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_a_vllm_that_cannot_be_imported_says_why(policy, config, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(EngineError, match=r"vLLM could not be started: .*vllm"):
        VllmEngine(policy, config, max_model_len=99)


def test_what_vllm_cannot_do_is_refused_before_it_starts(vllm, policy, config, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="2 processes: "):
        VllmEngine(policy, config, max_model_len=99)

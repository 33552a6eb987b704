"""What vLLM is asked by its process, and how that process ends, with a stand-in for vLLM.

tests/e2e/test_vllm.py runs vLLM itself.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from opct.config.schema import LoraSettings
from opct.errors import EngineError
from opct.models.inference.sampler import Sampling
from opct.models.policy import Policy
from opct.models.vllm.local import VllmEngine, _environment
from opct.runs.io import read_jsonl
from tests.conftest import REPOSITORY
from tests.refusals import refused

FAKE = REPOSITORY / "tests" / "fake_vllm"


@pytest.fixture
def log(monkeypatch, tmp_path: Path) -> Path:
    """Where the stand-in writes what it is asked."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("FAKE_VLLM_LOG", str(tmp_path / "vllm.jsonl"))
    return tmp_path / "vllm.jsonl"


@pytest.fixture
def start(log, make_config):
    """Start an engine; it is closed after the test."""
    with contextlib.ExitStack() as stack:

        def begin(**settings) -> VllmEngine:
            config = make_config(rollout={"engine": "vllm"}, vllm=settings)
            started = VllmEngine(Policy.load(config.model, lora=LoraSettings()), config, max_model_len=99)
            return stack.enter_context(contextlib.closing(started))

        yield begin


def asked(log: Path, event: str) -> list[dict]:
    return [row for row in read_jsonl(log) if row.pop("event") == event]


def alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + 60
    while alive(pid):
        assert time.monotonic() < end, "the process of the engine is still there"
        time.sleep(0.02)


def test_each_prompt_is_a_request_for_its_samples_with_the_seed_of_the_first(start, log):
    engine = start()
    assert engine.name == "vLLM 9.9"
    engine.load_adapter("v1", Path("/adapters/v1"))
    counted: list[int] = []
    seeds = [range(7, 10), range(40, 41), range(20, 22)]
    drawn = engine.sample([[1, 2], [1, 2], [3]], seeds, Sampling(6, 0.5, 0.9, 3), "v1", counted.append)
    assert drawn == [[([s, s + 1], [0.0, -0.1]) for s in own] for own in seeds]
    [call] = asked(log, "generate")
    assert call["prompts"] == [{"prompt_token_ids": ids} for ids in ([1, 2], [1, 2], [3])]
    drawn_by = {"max_tokens": 6, "temperature": 0.5, "top_p": 0.9, "top_k": 3}
    shared = drawn_by | {"stop_token_ids": [2], "logprobs": 0, "detokenize": False}
    assert call["settings"] == [shared | {"seed": s, "n": n} for s, n in ((7, 3), (40, 1), (20, 2))]
    assert call["adapter"] == "v1"
    assert asked(log, "load") == [{"name": "v1", "number": 1, "folder": "/adapters/v1"}]
    assert sum(counted) == 6


def test_scores_are_those_of_every_token_but_the_first(start, log):
    assert start().score([[5, 6, 7], [8, 9]]) == [[-6.0, -7.0], [-9.0]]
    [call] = asked(log, "generate")
    assert call["settings"] == [{"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}] * 2
    assert call["adapter"] is None


def test_what_vllm_refuses_is_one_line_and_leaves_no_process(start, monkeypatch):
    engine = start()
    with refused(EngineError, "/adapters/refused"):
        engine.load_adapter("v2", Path("/adapters/refused"))
    monkeypatch.setenv("FAKE_VLLM_FAULT", "start")
    with refused(EngineError, "Free memory", "vllm.gpu_memory_utilization=0.7", "rollout.engine=auto"):
        start(gpu_memory_utilization=0.7)
    found = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True).stdout
    assert found.count("opct.models.vllm.server") == 1


def test_an_engine_ignores_signals_to_the_run_and_its_death_is_one_line(start, log, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM_FAULT", "v1")
    engine = start()
    pid = asked(log, "start")[0]["pid"]
    assert os.getsid(pid) == pid != os.getsid(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    assert engine.score([[5, 6]]) == [[-6.0]]
    engine.load_adapter("v1", Path("/adapters/v1"))
    for _ in range(2):  # while it computes, and when it is gone
        with refused(EngineError, "SIGKILL", "--resume"):
            engine.sample([[1]], [range(1)], Sampling(6), "v1", lambda n: None)
    engine.close()
    wait_until_gone(pid)


PARENT = """
import os, socket, subprocess, sys, time

here, there = socket.socketpair()
command = [sys.executable, "-P", "-m", "opct.models.vllm.server", str(there.fileno())]
engine = subprocess.Popen(command, pass_fds=[there.fileno()], start_new_session=True, stdout=subprocess.DEVNULL)
there.close()
print(engine.pid, flush=True)
time.sleep(600)
"""


def test_an_engine_ends_with_a_run_that_is_killed():
    environment = {"PYTHONPATH": str(REPOSITORY / "src")}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    wait_until_gone(pid)


def test_an_engine_sleeps_until_it_is_called_only_if_told_to(start, log):
    start().sleep()
    assert asked(log, "sleep") == []
    engine = start(enable_sleep_mode=True)
    for _ in range(2):
        engine.sleep()
        engine.sleep()
        engine.score([[5, 6]])
    events = [row["event"] for row in read_jsonl(log)]
    assert events[-6:] == ["sleep", "wake_up", "generate"] * 2
    assert asked(log, "sleep") == [{"level": 1}] * 2


def test_an_engine_sees_its_device_alone_and_nothing_of_a_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _environment(torch.device("cuda", 1))["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    environment = _environment(torch.device("cuda", 1))
    assert environment["CUDA_VISIBLE_DEVICES"] == "6"
    assert not {"RANK", "TORCHELASTIC_USE_AGENT_STORE"} & set(environment)
    assert _environment(torch.device("cpu"))["CUDA_VISIBLE_DEVICES"] == "4,6"

"""Training with vLLM itself, on the CPU: make test-vllm. It is skipped where vLLM is not installed."""

import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.e2e.cli import Done, Workplace, _flat, jsonl, workplace
from tests.tiny import save_tiny

WAIT_S = 1500  # vLLM takes half a minute to start, and many times that where others compute: a limit for hangs alone
ENGINE = {"engine": "vllm", "num_generations": 2, "max_completion_tokens": 6}
SAMPLED = {"loss": {"estimator": "sampled"}, "teacher": {"engine": "rollout"}}
STEPS = {"max_steps": 3, "eval_steps": 3, "save_steps": 1, "optim": {"learning_rate": 0.05}}  # steps that show

pytestmark = [
    pytest.mark.timeout(4 * WAIT_S),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here: make test-vllm"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with heads of 32, the smallest that vLLM's attention takes on a CPU."""
    return save_tiny(tmp_path_factory.mktemp("model"), hidden=128)


def environment() -> dict[str, str]:
    own = {"PYTHONPATH": str(REPOSITORY / "src"), "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}
    limits = {"VLLM_ENGINE_READY_TIMEOUT_S": str(WAIT_S), "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(WAIT_S)}
    return {**os.environ, **own, "VLLM_NO_USAGE_STATS": "1", **limits}


def begun(*arguments: str | Path, launcher: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start `opct`, in a process group of its own."""
    command = [sys.executable, *launcher, "-m", "opct", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(), cwd=REPOSITORY, start_new_session=True, **pipes)


def ended(process: subprocess.Popen[str]) -> Done:
    try:
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    return Done(process.returncode, _flat(out), _flat(err))


def tokens(place: Workplace) -> dict[str, list]:
    """What was sampled, by file."""
    return {
        path.name: [(row["pair_id"], row["sample"], row["token_ids"]) for row in jsonl(path)]
        for path in sorted(place.run.rollouts_dir.iterdir())
    }


def assert_own_samples(place: Workplace, steps: int) -> None:
    """Every step measured the engine's samples as the policy's own, to the rounding of float32."""
    measured = [row for row in jsonl(place.run.metrics_path) if "rollout/mismatch_kl" in row]
    assert [row["step"] for row in measured] == list(range(1, steps + 1))
    for row in measured:
        assert abs(row["rollout/mismatch_kl"]) < 1e-4
        assert 0 <= row["rollout/mismatch_kl_k3"] < 1e-6


def assert_seeds_are_counted_up(place: Workplace) -> None:
    """Both samples of a pair come from one request, the second with the next seed; short ones may be equal, not all."""
    rows = jsonl(place.run.rollouts_dir / "step-000001.jsonl")
    pairs = [(a, b) for a, b in itertools.pairwise(rows) if a["pair_id"] == b["pair_id"]]
    assert len(pairs) == len(rows) // 2
    assert [b["seed"] - a["seed"] for a, b in pairs] == [1] * len(pairs)
    assert any(a["token_ids"] != b["token_ids"] for a, b in pairs)


def engine_of(pid: int) -> int:
    """The process that this one started, as Linux lists it."""
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def at_a_later_step(place: Workplace, *rest: str) -> subprocess.Popen[str]:
    """A run that has trained a step more than there are."""
    reached = place.at_step(max(place.steps() or [0]) + 1)
    process = begun(*place.command(*rest))
    while not reached():
        assert process.poll() is None, ended(process)
        time.sleep(0.05)
    return process


def test_a_signal_to_the_group_and_the_death_of_the_engine_save_the_last_step_and_no_engine_is_left(tmp_path, model):
    """Everything that a run started writes to its pipes, which end with the last of them."""
    endless = {**STEPS, "max_steps": 100_000, "save_steps": 100_000, "eval_steps": 100_000}
    place = workplace(tmp_path, model, **endless, rollout=ENGINE, vllm={"enforce_eager": True})
    process = at_a_later_step(place)
    os.killpg(process.pid, signal.SIGTERM)
    done = ended(process)
    assert done.code == 130, done.err
    first = place.run.checkpoints()[-1][0]
    assert first == place.steps()[-1]

    process = at_a_later_step(place, "--resume")
    os.kill(engine_of(process.pid), signal.SIGKILL)
    message = ended(process).error()
    assert "SIGKILL" in message
    assert "--resume" in message
    assert place.run.checkpoints()[-1][0] == place.steps()[-1] > first

    process = at_a_later_step(place, "--resume")
    process.kill()
    process.communicate(timeout=WAIT_S / 5)


def test_a_model_that_vllm_refuses_is_one_line(tmp_path, tiny_folder):
    """Heads of 8 are too small for its attention on a CPU."""
    place = workplace(tmp_path, tiny_folder, **STEPS, rollout=ENGINE, vllm={"enforce_eager": True})
    message = ended(begun(*place.command())).error()
    assert message.startswith("vLLM ")
    assert "head_dim=8" in message


def test_a_run_samples_and_scores_in_an_engine_of_its_own_and_resumes(tmp_path, model):
    """Three steps, and the same in two parts: the samples follow the adapter, and are the same whoever interrupts."""
    whole = workplace(tmp_path / "whole", model, **STEPS, **SAMPLED, rollout=ENGINE, vllm={"enforce_eager": True})
    done = ended(begun(*whole.command()))
    assert done.code == 0, done.err
    assert_own_samples(whole, 3)
    found = tokens(whole)
    assert_seeds_are_counted_up(whole)
    assert found["validation-000000.jsonl"] != found["validation-000003.jsonl"]  # the same pairs and seeds
    parts = workplace(tmp_path / "parts", model, **STEPS, **SAMPLED, rollout=ENGINE, vllm={"enforce_eager": True})
    for rest in (("max_steps=2",), ("--resume",)):
        done = ended(begun(*parts.command(*rest)))
        assert done.code == 0, done.err
    assert_own_samples(parts, 3)
    assert {name: rows for name, rows in tokens(parts).items() if name != "validation-000002.jsonl"} == found


def test_each_of_two_processes_has_an_engine_and_one_process_resumes(tmp_path, model):
    """The samples of two are those of one, which goes on after the second step."""
    settings = {**STEPS, **SAMPLED, "rollout": ENGINE, "vllm": {"enforce_eager": True}}
    one, two = (workplace(tmp_path / name, model, **settings) for name in ("one", "two"))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert (done := ended(begun(*one.command()))).code == 0, done.err
    assert (done := ended(begun(*two.command("max_steps=2"), launcher=launcher))).code == 0, done.err
    assert two.run.read_manifest()["processes"] == 2
    assert_own_samples(two, 2)
    assert (done := ended(begun(*two.command("--resume")))).code == 0, done.err
    assert_own_samples(two, 3)
    assert tokens(two) == tokens(one) | {"validation-000002.jsonl": tokens(two)["validation-000002.jsonl"]}

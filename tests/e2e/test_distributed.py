"""Several processes give the results of one process, to rounding, and end together."""

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from opct import api as opct_api
from opct import distributed
from opct.config.loader import load_config
from opct.methods.consistency import MicroLoss
from opct.methods.opct import OPCT
from opct.models.vllm import local, server
from opct.runs.checkpoints import fault
from opct.runs.console import NullProgress
from tests.e2e.cli import UNSHARED, Workplace, done, jsonl, result_of, workplace
from tests.processes import TIMEOUT_S, Process, end_ranks, opct, start_ranks, start_server

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo in data parallel is tested on POSIX systems")

ROUNDING = 2e-4  # of metrics
# A weight whose gradient is next to nothing moves by rounding alone, by a sixth of the rate at times: at a higher rate
# a draw at the edge of two tokens falls on the other side now and then.
ROUNDING_OF_WEIGHTS = 5e-5


def log_of(place: Workplace) -> Path:
    return place.folder / f"processes-{len(list(place.folder.glob('processes-*')))}.txt"


def ended(place: Workplace, n: int, *rest: str, function: Callable[..., None] = opct) -> tuple[list[int], str]:
    """How n processes of one run end, and what they print."""
    log = log_of(place)
    ranks = start_ranks(n, log, function, *map(str, place.command(*rest)))
    return end_ranks(ranks), log.read_text()


def together(place: Workplace, n: int, *rest: str, function: Callable[..., None] = opct) -> None:
    """Run in n processes to the end, without an error."""
    codes, output = ended(place, n, *rest, function=function)
    assert set(codes) == {0}, output
    assert "Traceback" not in output, output


def assert_same(found: Workplace, expected: Workplace) -> None:
    """Metrics and last weights equal to rounding; which tokens were sampled equal."""
    rows = list(zip(jsonl(found.run.metrics_path), jsonl(expected.run.metrics_path), strict=True))
    assert rows
    for own, other in rows:
        assert own.keys() == other.keys()
        for name in own:
            if not name.startswith(UNSHARED):
                assert own[name] == pytest.approx(other[name], rel=ROUNDING, abs=ROUNDING), (own["step"], name)
    for path in sorted(expected.run.rollouts_dir.iterdir()):
        pairs = zip(jsonl(found.run.rollouts_dir / path.name), jsonl(path), strict=True)
        for own, other in pairs:
            for name in ("pair_id", "sample", "prompt", "token_ids"):
                assert own[name] == other[name], (path.name, name)
    files = [sorted(place.run.latest_checkpoint().rglob("*.safetensors")) for place in (found, expected)]
    assert [f.name for f in files[0]] == [f.name for f in files[1]]
    for own, other in zip(*(map(load_file, group) for group in files), strict=True):
        assert own.keys() == other.keys()
        assert max(float((own[k] - other[k]).abs().max()) for k in other) < ROUNDING_OF_WEIGHTS


def copied(place: Workplace, name: str, step: int) -> Workplace:
    """The run in another folder, with no checkpoint after `step`."""
    folder = place.folder.parent / name
    shutil.copytree(place.folder, folder)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace(str(place.run.path), str(folder / "run")))
    copy = Workplace(folder, config, place.pairs, type(place.run)(folder / "run"))
    for newer, path in copy.run.checkpoints():
        if newer > step:
            shutil.rmtree(path)
    return copy


ASKED = {"steps": 1, "suites": ["benign"], "limit": 2, "settings": {"max_benign_tokens": 4}}


@pytest.mark.parametrize("changes", [{"eval": ASKED}, {"method": "dpo"}], ids=["opct", "dpo"])
def test_lora_in_data_parallel_is_one_process(tmp_path, tiny_folder, changes):
    """Two completions a prompt, turns that the policy answers, validation, a suite that the main process asks; offline
    answers that each process samples some of, and two of them in a forward."""
    one, two = (workplace(tmp_path / name, tiny_folder, max_steps=1, **changes) for name in ("one", "two"))
    done(*one.command())
    together(two, 2)
    assert_same(two, one)
    asked = [row["step"] for row in jsonl(two.run.metrics_path) if "eval/benign/accuracy_identity" in row]
    assert asked == ([0, 1] if "eval" in changes else [])
    assert two.run.read_manifest()["processes"] == 2


class StopSecond(TrainerCallback):
    """Asks to stop after step 1, in the second process alone."""

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = not state.is_world_process_zero

    def on_train_end(self, args, state, control, **_):
        print(f"ended after {state.global_step}, main {state.is_world_process_zero}")


def stopped_in_the_second(config: str) -> None:
    opct_api.train(load_config(config), callbacks=[StopSecond()], progress=NullProgress())


def test_a_callback_of_one_process_stops_all_after_the_step(tmp_path, tiny_folder):
    place = workplace(tmp_path, tiny_folder)
    log = log_of(place)
    assert end_ranks(start_ranks(2, log, stopped_in_the_second, str(place.config))) == [0, 0], log.read_text()
    assert sorted(line for line in log.read_text().splitlines() if line.startswith("ended")) == [
        f"ended after 1, main {is_main}" for is_main in (False, True)
    ]
    assert saved_step(place) == 1


def test_full_fine_tuning_in_data_parallel_is_one_process_and_resumes_on_any_number(tmp_path, tiny_folder):
    """Three prompts a step, in small micro-batches: of two processes one has twice the work, of four one has none. From
    step 1 two processes resume bit for bit, four and one to rounding."""
    changes = {"lora": None, "max_steps": 2, "save_steps": 1, "teacher": {"kind": "ema", "ema_decay": 0.5}}
    changes["optim"] = {"learning_rate": 1e-4, "micro_batch_tokens": 150, "prompts_per_step": 3}
    one, two = (workplace(tmp_path / name, tiny_folder, **changes) for name in ("one", "two"))
    done(*one.command())
    together(two, 2)
    assert_same(two, one)
    again, four, one_again = (copied(two, name, 1) for name in ("again", "four", "one again"))
    together(again, 2, "--resume")
    assert result_of(again.run) == result_of(two.run)
    together(four, 4, "--resume")
    assert_same(four, one)
    done(*one_again.command("--resume"))
    assert_same(one_again, one)


FAKE_VLLM = str(Path(__file__).parents[1] / "fake_vllm")
ENGINE = {"engine": "vllm", "num_generations": 2, "max_completion_tokens": 4}


MINUTES = pytest.mark.skipif("OPCT_KILLS" not in os.environ, reason="some ten processes: make test-kills")


class Engine(Process):
    """In the place of `subprocess.Popen`: the process of an engine, forked with what it would import."""

    def __init__(self, command: list[str], *, env: dict[str, str], pass_fds: list[int], **_):
        errors = Path(os.readlink("/proc/self/fd/2"))
        with mock.patch.dict(os.environ, env, clear=True), socket.socket(fileno=os.dup(*pass_fds)) as there:
            super().__init__(errors, errors, serve, there)

    returncode = property(Process.poll)


def serve(there: socket.socket) -> None:
    sys.argv = ["server", str(there.detach())]
    sys.path.insert(0, FAKE_VLLM)
    server.main()


def with_engines(*arguments: str) -> None:
    """The command line, with a stand-in for vLLM that samples by the adapters that it loads."""
    sys.path.insert(0, FAKE_VLLM)
    os.environ["FAKE_VLLM"] = "policy"
    start_server()
    local.subprocess = SimpleNamespace(Popen=Engine, DEVNULL=None, TimeoutExpired=AssertionError)
    opct(*arguments)


@pytest.fixture
def engine_log(tmp_path, monkeypatch) -> Path:
    """What all engines are asked, a line each."""
    monkeypatch.setenv("FAKE_VLLM_LOG", str(tmp_path / "engines.jsonl"))
    return tmp_path / "engines.jsonl"


@MINUTES
def test_an_engine_for_each_process_is_one_engine_and_resumes_on_any_number(tmp_path, tiny_folder, engine_log):
    """The processes load one file for each step. From step 1, four go on."""
    changes = {"rollout": ENGINE, "max_steps": 2, "eval_steps": 2, "save_steps": 1}
    one, two = (workplace(tmp_path / name, tiny_folder, **changes) for name in ("one", "two"))
    together(one, 1, function=with_engines)
    engine_log.unlink()
    together(two, 2, function=with_engines)
    assert_same(two, one)
    loads = [(row["name"], row["folder"]) for row in jsonl(engine_log) if row["event"] == "load"]
    assert sorted(loads) == sorted(2 * list(dict.fromkeys(loads)))
    assert [name[-6:] for name in dict.fromkeys(name for name, _ in loads)] == ["probe", "000000", "000001", "000002"]
    assert not any(Path(folder).parent.exists() for _, folder in loads)
    four = copied(two, "four", 1)
    together(four, 4, "--resume", function=with_engines)
    assert_same(four, one)


@pytest.mark.parametrize("what", ["SIGTERM", pytest.param("the death of an engine", marks=MINUTES)])
def test_the_last_step_is_saved_with_engines(tmp_path, tiny_folder, engine_log, what):
    """SIGTERM goes to all processes; of two engines one is killed, which both processes hear of."""
    place = workplace(tmp_path, tiny_folder, **SIGNALLED, rollout=ENGINE)
    log = log_of(place)
    ranks = start_ranks(2, log, with_engines, *map(str, place.command()))
    try:
        wait_for(place.at_step(2), log)
        if what == "SIGTERM":
            for rank in ranks:
                rank.signal(signal.SIGTERM)
        else:
            os.kill(next(row["pid"] for row in jsonl(engine_log) if row["event"] == "start"), signal.SIGKILL)
    finally:
        codes = end_ranks(ranks)
    output = log.read_text()
    assert codes == ([130, 130] if what == "SIGTERM" else [1, 1]), output
    assert saved_step(place) == place.steps()[-1] >= 2
    assert "Traceback" not in output
    assert ("SIGKILL" in output) == (what != "SIGTERM")


SIGNALLED = {"max_steps": 1000, "eval_steps": 1000, "save_steps": 1000}


def wait_for(happened: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not happened():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.02)


def saved_step(place: Workplace) -> int:
    """The step of the last checkpoint, which is whole."""
    step, saved = place.run.checkpoints()[-1]
    assert fault(saved) is None
    return step


def ended_by(number: signal.Signals, place: Workplace, step: int, *rest: str) -> list[int]:
    """How two processes end after a signal at that step: SIGTERM goes to both, as from a launcher, SIGKILL to the
    second."""
    log = log_of(place)
    ranks = start_ranks(2, log, opct, *map(str, place.command(*rest)))
    try:
        wait_for(place.at_step(step), log)
        for rank in ranks if number == signal.SIGTERM else ranks[1:]:
            rank.signal(number)
    finally:
        codes = end_ranks(ranks)
    return codes


def test_a_signal_to_all_processes_saves_once_and_a_killed_one_ends_all(tmp_path, tiny_folder):
    place = workplace(tmp_path, tiny_folder, **SIGNALLED)
    assert ended_by(signal.SIGTERM, place, 3) == [130, 130]
    assert len(place.run.checkpoints()) == 1
    step = saved_step(place)
    assert step == place.steps()[-1] >= 3

    assert ended_by(signal.SIGKILL, place, step + 1, "--resume") == [1, -signal.SIGKILL]
    assert saved_step(place) == step  # whole: a run that was killed is resumed from it


def loss_that_is_not_finite(*arguments: str) -> None:
    """The command line, with NaN for a loss in the second process."""
    plain = OPCT.loss

    def loss(self, rollouts, weights):
        micro = plain(self, rollouts, weights)
        wrong = os.environ["RANK"] == "1" and any(any(r.mask) for r in rollouts)
        return MicroLoss(micro.loss * torch.nan, micro.values) if wrong else micro

    OPCT.loss, distributed.PATIENCE_S = loss, 60  # a slow machine does not let the second process speak first
    opct(*arguments)


def test_a_loss_that_is_not_finite_in_one_process_stops_all_and_is_said_once(tmp_path, tiny_folder):
    """The other one hears of it before it waits for the sum of the gradients, and says it; a launcher then ends the
    first, which has waited for that."""
    place = workplace(tmp_path, tiny_folder)
    log = log_of(place)
    ranks = start_ranks(2, log, loss_that_is_not_finite, *map(str, place.command()))
    try:
        assert ranks[0].wait() == 1
        ranks[1].signal(signal.SIGTERM)
    finally:
        codes = end_ranks(ranks)
    assert codes == [1, -signal.SIGTERM]
    assert log.read_text().count("error: Step 1: ") == 1
    assert not place.run.checkpoints()


def test_the_reason_of_the_process_that_failed_is_said_and_ends_all(tmp_path, tiny_folder):
    """The main process finds the folder in use by a run, while the other one waits for it."""
    place = workplace(tmp_path, tiny_folder)
    place.run.rollouts_dir.mkdir(parents=True)
    place.run.manifest_path.write_text(json.dumps({"opct_run": 1, "created": "today"}))
    codes, output = ended(place, 2)
    assert codes == [1, 1]
    assert output.count("error: ") == 1
    assert str(place.run.path) in output

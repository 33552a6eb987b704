"""Who does what among several processes, and how one that fails is noticed; the rest is in tests/e2e."""

import os
import signal
import sys

import pytest
import torch

from opct import distributed
from opct.cli.app import main
from opct.config.schema import ParallelConfig
from opct.errors import ConfigError
from opct.runs.console import StopRequest
from tests.processes import end_ranks, start_ranks
from tests.refusals import refused


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the second of two processes."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_processes_cannot_share_is_refused(two):
    for device in ("cuda", "cuda:1"):
        with pytest.raises(ConfigError), distributed.session(ParallelConfig(), device):
            pass


def test_weights_that_accelerate_would_shard_are_refused(two, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with refused(ConfigError, "FSDP"), distributed.session(ParallelConfig(), "cpu"):
        pass


def test_a_process_says_an_error_of_its_own_after_the_main_one_had_time_to(two, monkeypatch, capsys):
    waited = []
    monkeypatch.setattr(distributed.time, "sleep", waited.append)
    monkeypatch.setattr("opct.cli.app.leave", lambda code: None)
    with pytest.raises(SystemExit):
        main(["train", "nowhere.yaml"])
    assert "nowhere.yaml" in capsys.readouterr().err
    assert waited == [distributed.PATIENCE_S]


def test_a_launched_process_takes_a_signal_handed_on_twice_as_one():
    with StopRequest(launched=True) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested


def train_twice() -> None:
    """Two runs of one script, which ends as scripts do; by torchrun, a second group would not form."""
    groups = []
    for run in range(2):
        with distributed.session(ParallelConfig(timeout_s=20), "cpu"):
            assert distributed.all_gather_object((run, distributed.rank())) == [(run, 0), (run, 1)]
            groups.append(torch.distributed.group.WORLD)
    assert groups[0] is groups[1]


@pytest.mark.skipif(sys.platform == "win32", reason="gloo in data parallel is tested on POSIX systems")
def test_the_runs_of_a_script_share_a_process_group(tmp_path):
    log = tmp_path / "log.txt"
    assert end_ranks(start_ranks(2, log, train_twice)) == [0, 0], log.read_text()


TWO = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"WORLD_SIZE": "x"}, ["WORLD_SIZE", "'x'"]),
        ({"RANK": None}, ["RANK"]),
        ({"MASTER_ADDR": None}, ["MASTER_ADDR"]),
    ],
    ids=str,
)
def test_an_environment_that_no_launcher_wrote_is_one_clear_error(monkeypatch, changes, named):
    for name, value in (TWO | changes).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with refused(ConfigError, *named), distributed.session(ParallelConfig(), "cpu"):
        pass
    if "WORLD_SIZE" in changes:
        distributed.leave(3)  # the error is what ends the command

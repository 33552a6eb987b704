"""Who does what among several processes, and how one that fails is noticed; the rest is in tests/e2e."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time

import pytest
import torch
import torch.distributed as dist

from opct import distributed
from opct.config.schema import ParallelConfig, RolloutConfig, TrainConfig
from opct.data.render import render_pairs
from opct.errors import ConfigError, TrainingError
from opct.methods.rollouts import policy_rollouts
from opct.models.fsdp import by_itself, for_gradients, wants_shards
from opct.runs import watch
from opct.runs.signals import StopRequest
from opct.training import accumulate
from opct.training.accumulate import _as_long_as_the_others, _nothing, plan_of, prompt_shares
from tests.tiny import tiny_adapter_policy, tiny_pairs


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the second of two processes."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


def rollouts(n: int = 3) -> list:
    """Two completions for each of so many prompts."""
    policy = tiny_adapter_policy()
    config = TrainConfig(rollout=RolloutConfig(num_generations=2, max_completion_tokens=5))
    rendered, _ = render_pairs(tiny_pairs(n), policy.renderer, max_completion_tokens=5, context_length=2048)
    return policy_rollouts(policy, rendered, config, "test")


# ----------------------------------------------------------------------------------------------- who does what


def test_one_process_needs_nobody():
    assert not distributed.launched()
    assert (distributed.rank(), distributed.size(), distributed.is_main()) == (0, 1, True)
    assert distributed.gathered("x") == ["x"]
    assert distributed.from_main("x") == "x"
    assert distributed.any_of(True)
    assert not distributed.any_of(False)
    assert distributed.main_first(lambda given: given + 1, 1, lambda made: made * 10) == 2
    assert distributed.shared_out([3, 1, 2], [9, 1, 1], lambda own: [x * x for x in own]) == [9, 1, 4]
    parameter = torch.nn.Parameter(torch.ones(2))
    distributed.sum_gradients([parameter])
    assert parameter.grad is None
    distributed.leave(1)  # ends launched processes only
    with distributed.session(ParallelConfig(), "auto"):
        assert not dist.is_initialized()
    with by_itself(tiny_adapter_policy()), for_gradients(tiny_adapter_policy()):
        pass


def test_shares_are_of_similar_cost_and_hold_everything_once():
    """7 | 6 + 2 | 4 + 3: dearest first, each to whom has least so far."""
    shares = distributed.balanced([3, 7, 2, 6, 4], 3)
    assert shares == [[1], [2, 3], [0, 4]]
    assert distributed.balanced([1], 3) == [[0], [], []]
    assert distributed.balanced([1, 1, 1, 1], 2) == [[0, 2], [1, 3]]


def test_completions_of_a_prompt_stay_together():
    found = rollouts()
    shares = prompt_shares(found, 2)
    assert sorted(i for share in shares for i in share) == list(range(6))
    for share in shares:
        assert all((i ^ 1) in share for i in share)  # completions 2k and 2k + 1 are of one prompt
    assert min(map(len, shares)) >= 2
    assert prompt_shares(found[:2], 3) == [[0, 1], [], []]


@pytest.mark.parametrize("share", [True, False])
def test_every_process_has_as_many_micro_batches(monkeypatch: pytest.MonkeyPatch, share: bool):
    """Another process has a group of three micro-batches, and a group more than this one."""
    own = rollouts()
    plan = plan_of(own, 10_000, share=share)
    assert list(map(len, plan)) == [1]
    monkeypatch.setattr(distributed, "gathered", lambda value: [value, [3, 1]])
    empty = len(own)
    padded = _as_long_as_the_others(plan, own, share=share)
    assert padded == [[plan[0][0], [empty], [empty]], [[empty]]]
    assert sorted(padded[0][0]) == list(range(6))


def test_a_micro_batch_of_single_tokens_gets_a_forward_of_its_own(monkeypatch: pytest.MonkeyPatch):
    """With shared prompts only: else the prompts' forward is the micro-batch's."""
    import dataclasses

    own = [
        dataclasses.replace(r, completion=dataclasses.replace(r.completion, token_ids=r.completion.token_ids[:1]))
        for r in rollouts(1)
    ]
    monkeypatch.setattr(distributed, "gathered", lambda value: [value])
    assert _as_long_as_the_others([[[0, 1]]], own, share=True) == [[[0, 1, 2]]]
    assert _as_long_as_the_others([[[0, 1]]], own, share=False) == [[[0, 1]]]


@pytest.mark.parametrize("share", [True, False])
def test_the_empty_rollout_adds_nothing(make_config, share: bool):
    """Loss and every gradient, bit for bit, with empty rollouts among the others and in a micro-batch of their own."""
    from opct.methods.opct import OPCT
    from opct.methods.rollouts import step_weights
    from opct.models.teacher import make_teacher
    from tests import oracles

    config = make_config()
    results = []
    for extra in (False, True):
        policy = tiny_adapter_policy()
        teacher = make_teacher(policy, config.teacher, continued=False)
        found = rollouts(1)
        weights = step_weights(found, "token_mean")
        plan = [[[0, 1]]]
        if extra:
            found, weights = [*found, _nothing(found[0])], [*weights, torch.zeros(2)]
            plan = [[[0, 1], [2]], [[2]]]
        loss, _, _ = accumulate._accumulate(
            OPCT(policy, teacher, config), policy, teacher, found, weights, plan, share=share
        )
        results.append((loss, oracles.gradients(policy)))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    assert oracles.largest_difference(results[1][1], results[0][1]) < 1e-5
    assert max(float(g.abs().max()) for g in results[0][1].values()) > 0


# ------------------------------------------------------------------------------------------ what a launcher says


def test_what_the_launcher_says_is_known_before_the_processes_meet(two):
    assert distributed.launched()
    assert (distributed.rank(), distributed.size(), distributed.is_main()) == (1, 2, False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_that_processes_cannot_share_is_refused(two, device: str):
    with pytest.raises(ConfigError, match="with 2 processes"), distributed.session(ParallelConfig(), device):
        pass


def test_another_sharding_beside_ours_is_refused(two, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match=r"use FSDP: leave that out"), distributed.session(ParallelConfig(), "cpu"):
        pass


def test_what_is_sharded(make_config, monkeypatch: pytest.MonkeyPatch):
    full = make_config(lora=None)
    assert not wants_shards(full)  # one process has nothing to share out
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert wants_shards(full)
    assert not wants_shards(make_config())
    assert wants_shards(make_config(parallel={"strategy": "fsdp"}))
    assert not wants_shards(make_config(lora=None, parallel={"strategy": "ddp"}))


def test_a_launched_process_takes_a_signal_handed_on_twice_as_one():
    with StopRequest(launched=True) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested


# ------------------------------------------------------------------------------------------------- who has failed


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch):
    """Those of two processes, over a store of their own; what ends a process is noted instead."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    left: list[tuple[int, str | None]] = []
    monkeypatch.setattr(watch.Watch, "_leave", lambda self: (left.append((self._rank, self.reason)), self.stop()))
    made = [watch.Watch(rank, 2) for rank in range(2)]
    yield made, left
    for one in made:
        one.stop()
        if one.is_alive():
            one.join(10)


def until(happened) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_first_reason_counts_and_ends_the_others(watches):
    [first, second], left = watches
    second.start()
    assert first.post("no room on the disk", 1)
    until(lambda: left)
    assert left == [(1, "process 0 of 2 stopped the run: no room on the disk")]
    assert not second.post("connection closed", 1)
    assert second.code == 1


def test_a_process_that_lost_its_peer_waits_for_the_reason(watches):
    [first, second], _ = watches
    assert first.post("interrupted", 130)
    assert second.wait_for_reason()
    assert (second.reason, second.code) == ("process 0 of 2 stopped the run: interrupted", 130)


def test_an_error_is_said_although_the_store_is_gone(monkeypatch: pytest.MonkeyPatch):
    """The launcher was killed: what the process itself failed of counts, not that it could not tell the others."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    monkeypatch.setattr(watch, "REASON_WAIT_S", 0.3)
    alone = watch.Watch(0, 2)
    del server
    with pytest.raises(RuntimeError):
        alone._store.check(["failed"])
    assert distributed._first_to_fail(alone, ValueError("no such pair"))
    assert distributed._first_to_fail(alone, RuntimeError("Connection closed by peer"))


def test_a_process_that_stands_still_is_noticed(watches, monkeypatch: pytest.MonkeyPatch):
    """It counted once, and never again."""
    monkeypatch.setattr(watch, "STALLED_S", 1.0)
    [first, second], left = watches
    second._store.add("beats/1", 1)
    first.start()
    until(lambda: left)
    assert left == [(0, "process 1 of 2 stopped the run: it has not answered for 1 s")]


@pytest.fixture
def one_launched(monkeypatch: pytest.MonkeyPatch):
    """What a launcher of one process would say; a session is opened all the same."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}
    for name, value in (told | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.setattr(distributed, "launched", lambda: True)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_errors_are_the_callers_own_again_after_the_session(one_launched):
    """Inside an `except` of the caller too. After an error in the session any other one still ends the process."""
    try:
        raise KeyError
    except KeyError:
        with distributed.session(ParallelConfig(), "cpu"):
            assert sys.excepthook is distributed._leave_with_traceback
            assert distributed.from_main("x") == "x"
    assert sys.excepthook is sys.__excepthook__
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="own"), distributed.session(ParallelConfig(), "cpu"):
        raise ValueError("own")
    assert sys.excepthook is distributed._leave_with_traceback


def test_the_reason_is_left_where_torchrun_looks(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    watch.keep_reason("no room on the disk")
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"] == "no room on the disk"


# ------------------------------------------------------------------------------------------ what a launcher left out

TWO = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"WORLD_SIZE": "x"}, "WORLD_SIZE is 'x'"),
        ({"RANK": "first"}, "RANK is 'first'"),
        ({"RANK": None}, "WORLD_SIZE is 2, and RANK is not set"),
        ({"RANK": "2"}, "RANK=2 with WORLD_SIZE=2: ranks go from 0 to 1"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR"),
        ({"MASTER_PORT": None}, "MASTER_PORT"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
    ],
    ids=str,
)
def test_an_environment_that_no_launcher_wrote_is_one_clear_error(monkeypatch, changes, words):
    for name, value in (TWO | changes).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught, distributed.session(ParallelConfig(), "cpu"):
        pass
    assert words in str(caught.value)
    assert "torchrun" in str(caught.value)
    assert "\n" not in str(caught.value)
    if "WORLD_SIZE" in changes:
        distributed.leave(3)  # the error is what ends the command


def test_processes_that_do_not_come_are_an_error_that_says_where(monkeypatch):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for name, value in (TWO | {"MASTER_PORT": str(port)}).items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(TrainingError, match=rf"did not meet at localhost:{port} within 1 s"),
        distributed.session(ParallelConfig(timeout_s=1), "cpu"),
    ):
        pass

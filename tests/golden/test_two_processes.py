"""Invariant 6, the part of it that needs two processes: the gradient of a step is that of one process."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file

from opct import losses
from opct.config.schema import LossConfig, RolloutConfig, TrainConfig
from opct.data.render import render_pairs
from opct.methods.opct import OPCT
from opct.methods.rollouts import policy_rollouts, step_weights
from opct.models.teacher import make_teacher
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.accumulate import accumulate
from opct.training.trainer import train
from tests import oracles
from tests.tiny import tiny_adapter_policy, tiny_anchors, tiny_pairs

TIMEOUT_S = 120
BASELINES = ("dpo", "act")
UNSHARED = ("time/", "memory/")  # metrics that no two runs share


def gradient(rank: int, world: int, reduction: str) -> dict[str, torch.Tensor]:
    """Of every world-th rollout of the step, each token weighed by the tokens of the whole step."""
    config = TrainConfig(
        rollout=RolloutConfig(num_generations=2, max_completion_tokens=6),
        loss=LossConfig(estimator="exact", reduction=reduction),
    )
    policy = tiny_adapter_policy()
    teacher = make_teacher(policy, config.teacher, continued=False)
    pairs = [*tiny_pairs(3), *tiny_anchors(1)]
    rendered, _ = render_pairs(pairs, policy.renderer, max_completion_tokens=6, context_length=2048)
    rollouts = policy_rollouts(policy, rendered[rank::world], config, "step 1")
    masks = [[r.mask for r in rollouts]]
    if world > 1:
        masks = [[] for _ in range(world)]
        dist.all_gather_object(masks, [r.mask for r in rollouts])
    everyone = torch.nn.utils.rnn.pad_sequence([torch.tensor(m) for own in masks for m in own], batch_first=True)
    before = sum(len(own) for own in masks[:rank])
    weights = losses.token_weights(everyone, reduction)[before : before + len(rollouts)]
    own = [row[: len(r.mask)] for row, r in zip(weights, rollouts, strict=True)]
    if world == 1:
        assert all(torch.equal(a, b) for a, b in zip(own, step_weights(rollouts, reduction), strict=True))
    accumulate(OPCT(policy, teacher, config), policy, teacher, rollouts, own, 10_000, share=True)
    return oracles.gradients(policy)


def worker(rank: int, world: int, folder: str, reduction: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    found = gradient(rank, world, reduction)
    for value in found.values():
        dist.all_reduce(value)
    result, written = Path(folder) / "found.pt", Path(folder) / "written"
    if rank == 0:
        torch.save(found, result)
        written.touch()
    deadline = time.monotonic() + TIMEOUT_S
    while not written.exists() and time.monotonic() < deadline:  # nobody leaves while another still talks to it
        time.sleep(0.05)
    os._exit(0)  # taken down in good order, gloo's threads abort the process now and then


@pytest.mark.skipif(sys.platform == "win32", reason="gloo meets in a file here")
@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean"])
def test_06_two_processes_give_the_gradient_of_one(tmp_path: Path, reduction: str):
    """Four pairs with two completions each; a process that weighed by its own tokens would give another sum."""
    expected = gradient(0, 1, reduction)
    context = mp.spawn(worker, args=(2, str(tmp_path), reduction), nprocs=2, join=False)
    assert context.join(TIMEOUT_S) or context.join(TIMEOUT_S), "the processes did not end"
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    assert oracles.largest_difference(found, expected) < 1e-4
    assert max(float(g.abs().max()) for g in expected.values()) > 0


def baseline_worker(rank: int, world: int, configs: list[TrainConfig], ports: list[int]) -> None:
    """Train these runs one after another, as a launcher's process does."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    for config, port in zip(configs, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        train(config)
    os._exit(0)


def free_ports(n: int) -> list[int]:
    taken = [socket.socket() for _ in range(n)]
    for one in taken:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


@pytest.mark.skipif(sys.platform == "win32", reason="gloo in data parallel is tested on POSIX systems")
def test_06_runs_of_the_baselines_in_two_processes_are_those_of_one(make_config, tmp_path: Path):
    """Whole runs of `dpo` and `act` in data parallel: offline answers sampled in parts, gradients summed, metrics put
    together. At this rate rounding moves a weight by less than half of what a step does."""

    def config(method: str, processes: str) -> TrainConfig:
        settings = {"max_steps": 2, "save_steps": 1, "optim": {"learning_rate": 1e-4}}
        return make_config(method=method, output_dir=str(tmp_path / processes / method), **settings)

    together = [config(method, "two") for method in BASELINES]
    context = mp.spawn(baseline_worker, args=(2, together, free_ports(len(together))), nprocs=2, join=False)
    for method in BASELINES:
        train(config(method, "one"))
    assert context.join(TIMEOUT_S) or context.join(TIMEOUT_S), "the processes did not end"
    for method in BASELINES:
        one, two = (RunDir(tmp_path / processes / method) for processes in ("one", "two"))
        assert (one.read_manifest()["processes"], two.read_manifest()["processes"]) == (1, 2)
        for found, expected in zip(read_jsonl(two.metrics_path), read_jsonl(one.metrics_path), strict=True):
            names = [{name for name in row if not name.startswith(UNSHARED)} for row in (found, expected)]
            assert names[0] == names[1]
            assert any(name.startswith("train/") for name in names[0]) == (found["step"] > 0)
            for name in names[0]:
                assert found[name] == pytest.approx(expected[name], rel=2e-4, abs=2e-4), (method, found["step"], name)
        before, found, expected = (
            load_file(run.checkpoint_path(step) / "adapter" / "adapter_model.safetensors")
            for run, step in ((one, 1), (two, 2), (one, 2))
        )
        assert largest_move(found, expected) < 5e-5
        assert largest_move(before, expected) > 5e-5


def largest_move(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest difference of a weight."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in b)

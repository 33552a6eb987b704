"""Invariant 6, the part of it that needs two processes: the gradient of a step is that of one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from opct import distributed
from opct.config.schema import LossConfig, ParallelConfig, RolloutConfig, TrainConfig
from opct.data.render import render_pairs
from opct.methods.opct import OPCT
from opct.methods.rollouts import policy_rollouts, step_weights
from opct.models.teacher import make_teacher
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.accumulate import accumulate
from opct.training.trainer import train
from tests import oracles
from tests.processes import end_ranks, start_ranks
from tests.tiny import tiny_adapter_policy, tiny_anchors, tiny_pairs

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo in data parallel is tested on POSIX systems")
BASELINES = ("dpo", "act")
UNSHARED = ("time/", "memory/")  # metrics that no two runs share


def gradient(reduction: str) -> dict[str, torch.Tensor]:
    """Of a step of eight rollouts, of which each process takes some of the prompts."""
    config = TrainConfig(
        rollout=RolloutConfig(num_generations=2, max_completion_tokens=6),
        loss=LossConfig(estimator="exact", reduction=reduction),
    )
    policy = tiny_adapter_policy()
    teacher = make_teacher(policy, config.teacher, continued=False)
    pairs = [*tiny_pairs(3), *tiny_anchors(1)]
    rendered, _ = render_pairs(pairs, policy.renderer, max_completion_tokens=6, context_length=2048)
    rollouts = policy_rollouts(policy, rendered, config, "step 1")
    weights = step_weights(rollouts, reduction)
    accumulate(OPCT(policy, teacher, config), rollouts, weights, 10_000, share=True)
    return oracles.gradients(policy)


REDUCTIONS = ("token_mean", "sequence_mean")


def gradients_of_two(folder: Path) -> None:
    """In each of two processes: the gradient of each reduction."""
    with distributed.session(ParallelConfig(), "cpu"):
        for reduction in REDUCTIONS:
            torch.save(gradient(reduction), folder / f"{reduction}-{distributed.rank()}.pt")
    distributed.leave(0)


def test_06_two_processes_give_the_gradient_of_one(tmp_path: Path):
    """Four pairs with two completions each; a process that weighed by its own tokens would give another sum."""
    log = tmp_path / "log.txt"
    assert end_ranks(start_ranks(2, log, gradients_of_two, tmp_path)) == [0, 0], log.read_text()
    for reduction in REDUCTIONS:
        expected = gradient(reduction)
        for rank in (0, 1):
            found = torch.load(tmp_path / f"{reduction}-{rank}.pt", weights_only=True)
            assert oracles.largest_difference(found, expected) < 1e-4
        assert max(float(g.abs().max()) for g in expected.values()) > 0


def train_all(configs: list[TrainConfig]) -> None:
    """Train these runs one after another, in one process group."""
    with distributed.session(ParallelConfig(), "cpu"):
        for config in configs:
            train(config)
    distributed.leave(0)


def test_06_runs_of_the_baselines_in_two_processes_are_those_of_one(make_config, tmp_path: Path):
    """Whole runs of `dpo` and `act` in data parallel: offline answers sampled in parts, gradients summed, metrics put
    together. At this rate rounding moves a weight by less than half of what a step does."""

    def config(method: str, processes: str) -> TrainConfig:
        settings = {"max_steps": 2, "save_steps": 1, "optim": {"learning_rate": 1e-4}}
        return make_config(method=method, output_dir=str(tmp_path / processes / method), **settings)

    together = [config(method, "two") for method in BASELINES]
    log = tmp_path / "log.txt"
    assert end_ranks(start_ranks(2, log, train_all, together)) == [0, 0], log.read_text()
    for method in BASELINES:
        train(config(method, "one"))
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

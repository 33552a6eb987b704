"""Invariant 6, the part of it that needs several processes, four here: loss and gradient of a step are those of one."""

import sys
from pathlib import Path

import pytest
import torch

from opct import distributed
from opct.config.methods import OpctLoss, RolloutConfig
from opct.config.schema import ParallelConfig, TrainConfig
from opct.methods.rollouts import step_weights
from opct.training.accumulate import accumulate
from tests import oracles
from tests.processes import end_ranks, start_ranks
from tests.tiny import tiny_anchors, tiny_method, tiny_pairs

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo in data parallel is tested on POSIX systems")


def loss_and_gradient(reduction: str) -> dict[str, torch.Tensor]:
    """Of a step of eight rollouts, of which each process takes some of the prompts."""
    config = TrainConfig(
        rollout=RolloutConfig(num_generations=2, max_completion_tokens=6),
        loss=OpctLoss(estimator="exact", reduction=reduction),
    )
    method, rollouts = tiny_method(config, [*tiny_pairs(3), *tiny_anchors(1)])
    weights = step_weights(rollouts, reduction)
    loss, _ = accumulate(method, rollouts, weights, 10_000)
    return {"loss": torch.tensor(loss), **oracles.gradients(method.policy)}


REDUCTIONS = ("token_mean", "sequence_mean")


def in_each_process(folder: Path) -> None:
    """In each of several processes: loss and gradient of each reduction."""
    distributed.TOGETHER = 10  # so that the gradients, of 28 weights, are summed in several parts
    with distributed.session(ParallelConfig(), "cpu"):
        for reduction in REDUCTIONS:
            torch.save(loss_and_gradient(reduction), folder / f"{reduction}-{distributed.rank()}.pt")
    distributed.leave(0)


def test_06_several_processes_give_the_loss_and_gradient_of_one(tmp_path: Path):
    """Four pairs with two completions each; a process that weighed by its own tokens would give another sum."""
    n, log = 4, tmp_path / "log.txt"
    assert end_ranks(start_ranks(n, log, in_each_process, tmp_path)) == [0] * n, log.read_text()
    for reduction in REDUCTIONS:
        expected = loss_and_gradient(reduction)
        for rank in range(n):
            found = torch.load(tmp_path / f"{reduction}-{rank}.pt", weights_only=True)
            assert oracles.largest_difference(found, expected) < 1e-4
        assert max(float(g.abs().max()) for g in expected.values()) > 0

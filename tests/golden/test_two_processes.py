"""Invariant 6, the part of it that needs two processes: the gradient of a step is that of one process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests import oracles
from tests.tiny import tiny_adapter_policy, tiny_anchors, tiny_pairs

from opct import losses
from opct.accumulation import accumulate
from opct.config import LossConfig, RolloutConfig, TrainConfig
from opct.data.render import render_pairs
from opct.methods.opct import OPCT
from opct.methods.rollouts import policy_rollouts, step_weights
from opct.models.teacher import make_teacher

TIMEOUT_S = 120


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

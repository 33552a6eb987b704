"""Every method on a model that computes its activations again in the backward pass: the same loss and gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from opct.methods.offline import offline_answers
from opct.methods.registry import METHODS
from opct.methods.rollouts import step_weights
from opct.runs.run_dir import RunDir
from opct.training.accumulate import accumulate
from tests import oracles, tiny
from tests.tiny import tiny_anchors, tiny_pairs, tiny_setting


def step(config, folder: Path, *, recompute: bool) -> tuple[float, dict[str, torch.Tensor], int, bool]:
    """(loss, gradients, how often the first layer's MLP ran for them, whether prompts are shared)."""
    policy, teacher, rendered = tiny_setting(config, [*tiny_pairs(3), *tiny_anchors(1)])
    if recompute:
        policy.backbone.recompute_activations()
    answers = None
    if config.method != "opct":
        run = RunDir(folder)
        answers = offline_answers(METHODS[config.method], policy, teacher, rendered, config, run)
    method = METHODS[config.method](policy, teacher, config, answers)
    rollouts = method.collect(rendered, 1)
    share = policy.path.shares_prompts
    runs: list[int] = []
    # what stands inside of a layer begins again with it (torch stops once it has the last tensor it needs, which is
    # before the MLP's end); the layer's own hooks, which `act` reads, are not called again
    mlp = policy.backbone.decoder.layers[0].mlp
    handle = mlp.register_forward_pre_hook(lambda *_: runs.append(int(torch.is_grad_enabled())))
    policy.backbone.train()
    weights = step_weights(rollouts, config.loss.reduction)
    loss, _ = accumulate(method, rollouts, weights, 10_000)
    handle.remove()
    return loss, oracles.gradients(policy), sum(runs), share


@pytest.mark.parametrize("method", ["opct", "sft", "offpolicy", "dpo", "act"])
def test_loss_and_gradient_are_those_of_a_model_that_keeps_its_activations(
    make_config, monkeypatch, tmp_path: Path, method: str
):
    """One micro-batch: the layer runs twice with gradient instead of once, and no prompt is shared, which needs a
    cache."""
    monkeypatch.setattr(tiny, "OWN_PARTS", True)
    config = make_config(method=method)
    loss, gradient, _, shared = step(config, tmp_path / "kept", recompute=False)
    again, found, runs, shared_again = step(config, tmp_path / "recomputed", recompute=True)
    assert (shared, shared_again) == (True, False)
    assert runs == 2
    assert again == pytest.approx(loss, rel=1e-5)
    assert oracles.largest_difference(found, gradient) < 1e-4
    assert max(float(g.abs().max()) for g in gradient.values()) > 0

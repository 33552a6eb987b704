"""The loss and gradient of OPCT against brute force, for every estimator."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from opct.methods.opct import OPCT
from opct.methods.rollouts import Rollout, step_weights
from tests import oracles
from tests.tiny import tiny_anchors, tiny_pairs, tiny_setting

SETTINGS = [
    {},
    {"kl_coef": 2.5, "reduction": "sum"},
    {"kl_discount_factor": 0.5, "reduction": "sequence_mean", "kl_coef": 0.5},
    {"divergence": "forward_kl"},
    {"divergence": "jsd", "jsd_weight": 0.2, "kl_discount_factor": 0.9},
    {"estimator": "topk", "top_k": 5, "kl_discount_factor": 0.7},
    {"estimator": "sampled", "kl_discount_factor": 0.5, "kl_coef": 2.0},
    {"estimator": "sampled", "kl_discount_factor": 1.0, "ppo_clip": 0.2, "reduction": "sum"},
]


def some_masked(rollouts: list[Rollout]) -> list[Rollout]:
    """The second token of each completion, and all of the last completion, out of the loss."""
    masks = [tuple(i != 1 for i in range(len(r.ids))) for r in rollouts]
    masks[-1] = (False,) * len(masks[-1])
    return [dataclasses.replace(r, mask=mask) for r, mask in zip(rollouts, masks, strict=True)]


def setup(config, pairs=None, **options):
    policy, teacher, rendered = tiny_setting(config, pairs or tiny_pairs(3), **options)
    return policy, teacher, rendered, OPCT(policy, teacher, config)


@pytest.mark.parametrize(("loss", "recompute"), [*((loss, False) for loss in SETTINGS), ({}, True)])
def test_loss_and_gradient_equal_brute_force(make_config, loss: dict, recompute: bool):
    """Six rollouts of three pairs, some tokens masked; the policy has moved since it sampled, so rho is not 1.

    Layers whose activations are computed again in the backward pass run twice with gradient.
    """
    config = make_config(loss=loss)
    policy, teacher, rendered, method = setup(config)
    rollouts = some_masked(method.collect(rendered, 1))
    with torch.no_grad():
        for p in policy.trainable_parameters().values():
            p.mul_(1.05)
    if recompute:
        policy.backbone.recompute_activations()
    policy.backbone.train()
    runs: list[int] = []
    mlp = policy.backbone.decoder.layers[0].mlp
    handle = mlp.register_forward_pre_hook(lambda *_: runs.append(int(torch.is_grad_enabled())))
    micro = method.loss(rollouts, step_weights(rollouts, config.loss.reduction))
    micro.loss.backward()
    handle.remove()
    assert sum(runs) == 1 + recompute
    found = oracles.gradients(policy)
    expected = oracles.step_loss(policy, teacher, rollouts, config.loss)
    assert micro.loss.item() == pytest.approx(expected.item(), rel=1e-3, abs=1e-6)
    expected.backward()
    assert oracles.largest_difference(found, oracles.gradients(policy)) < 2e-3


def test_the_kl_of_each_token_is_reported(make_config):
    """D_t for `exact`, k_t = log p(y_t) - log q(y_t) for `sampled`; masked tokens too."""
    for loss in ({}, {"estimator": "sampled"}):
        config = make_config(loss=loss)
        policy, teacher, rendered, method = setup(config)
        rollouts = some_masked(method.collect(rendered, 1))
        micro = method.loss(rollouts, step_weights(rollouts, "token_mean"))
        for r, values in zip(rollouts, micro.values["kl"], strict=True):
            with torch.no_grad():
                p = oracles.completion_logits(policy, r.prompt_ids, r.ids)
                with teacher() as model:
                    q = oracles.completion_logits(model, r.teacher_ids, r.ids)
            if loss:
                expected = oracles.log_probs(p, r.ids) - oracles.log_probs(q, r.ids)
            else:
                expected = oracles.reverse_kl(p, q)
            torch.testing.assert_close(torch.tensor(values), expected, rtol=1e-3, atol=1e-4)


def test_a_step_of_masked_tokens_alone_has_no_gradient(make_config):
    for loss in (SETTINGS[i] for i in (0, 5, 7)):
        config = make_config(loss=loss)
        policy, _, rendered, method = setup(config)
        nothing = [dataclasses.replace(r, mask=(False,) * len(r.ids)) for r in method.collect(rendered, 1)]
        method.loss(nothing, step_weights(nothing, config.loss.reduction)).loss.backward()
        assert all((g == 0).all() for g in oracles.gradients(policy).values())


@pytest.mark.parametrize("kind", ["base", "ema"])
def test_the_teacher_scores_without_dropout(make_config, kind: str):
    """Dropout half, equal weights: two scorings of the teacher agree; the policy stays in training mode for its own."""
    config = make_config(lora={"r": 4, "alpha": 8, "dropout": 0.5}, teacher={"kind": kind})
    policy, _, rendered, method = setup(config, tiny_anchors(2), dropout=0.5)
    rollouts = method.collect(rendered, 1)
    seen = []
    score = policy.score
    policy.score = lambda *args, **keys: seen.append((policy.model.training, score(*args, **keys))) or seen[-1][1]
    policy.backbone.train()
    for _ in range(2):
        method.loss(rollouts, step_weights(rollouts, "token_mean"))
    assert [training for training, _ in seen] == [False, True, False, True]
    assert torch.equal(seen[0][1].hidden, seen[2][1].hidden)
    assert not torch.equal(seen[1][1].hidden, seen[3][1].hidden)

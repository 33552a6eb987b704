"""DPO: the base's answer to the clean prompt is preferred to its answer to the perturbed one."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from opct import losses
from opct.methods.dpo import DPO
from opct.methods.offline import OfflineAnswers
from opct.methods.rollouts import Rollout, sampling, step_weights
from opct.methods.sampler_mismatch import StepMetrics
from opct.models.inference.sampler import sample_seed
from opct.training.accumulate import accumulate
from opct.training.trainer import train
from tests import oracles, tiny
from tests.tiny import tiny_anchors, tiny_pairs, tiny_setting
from tests.unit.training.conftest import NO_VALIDATION, metrics


def setting(make_config, pairs, **settings):
    """(method, its rollouts) of a tiny policy on these pairs."""
    config = make_config(method="dpo", **settings)
    policy, teacher, rendered = tiny_setting(config, pairs)
    with teacher() as model:
        answers = OfflineAnswers(DPO.answer(model, rendered, config, model))
    method = DPO(policy, teacher, config, answers)
    return method, method.collect(rendered, 1)


def slow_loss(method: DPO, rollouts: list[Rollout]) -> torch.Tensor:
    """The definition: one answer at a time, over its whole logits; the mean over the pairs that are in the loss."""
    beta, terms = method.config.loss.dpo_beta, []
    for r in rollouts:
        if not any(r.mask):
            continue
        rewards = []
        for ids, mask in ((r.ids, r.mask), (list(r.rejected.token_ids), r.rejected_mask)):
            with method.teacher() as reference, torch.no_grad():
                q = oracles.log_probs(oracles.completion_logits(reference, r.prompt_ids, ids), ids)
            p = oracles.log_probs(oracles.completion_logits(method.policy, r.prompt_ids, ids), ids)
            rewards.append(beta * ((p - q) * torch.tensor(mask)).sum())
        terms.append(-(rewards[0] - rewards[1]).sigmoid().log())
    return torch.stack(terms).mean()


def test_the_loss_and_its_slope_by_hand():
    """Chosen: log p -1, reference -2; rejected: -3 and -2.5; beta 0.1: rewards 0.1 and -0.05, margin 0.15.

    -log sigmoid(0.15) = log(1 + exp(-0.15)) = 0.620957; its slope -sigmoid(-0.15) = -0.462570. At a margin of 0 they
    are log 2 and -1/2.
    """
    chosen, rejected = 0.1 * torch.tensor([-1.0 + 2.0, 0.0]), 0.1 * torch.tensor([-3.0 + 2.5, 0.0])
    value, slope = losses.preference(chosen, rejected)
    assert value.tolist() == pytest.approx([0.620957, math.log(2)], abs=1e-6)
    assert slope.tolist() == pytest.approx([-0.462570, -0.5], abs=1e-6)


def test_a_preference_is_between_the_bases_answers_to_the_two_prompts(make_config):
    """Each is what the base samples under its own prompt with the seed that is written down, and another's for z."""
    method, rollouts = setting(make_config, tiny_pairs(2))
    assert len(rollouts) == 4
    for r in rollouts:
        assert r.completion.seed == sample_seed(0, "offline", r.pair.id, r.index)
        assert r.rejected.seed == sample_seed(0, "rejected", r.pair.id, r.index)
        clean = method.policy.renderer.render(r.pair.teacher_prompt)
        assert (r.teacher_ids, clean != r.prompt_ids) == (r.prompt_ids, True)  # the reference sees `prompt`
        for ids, answer in ((clean, r.completion), (r.prompt_ids, r.rejected)):
            with method.teacher() as base:
                [[expected]] = base.sample([ids], [[answer.seed]], sampling(method.config, base))
            assert answer.token_ids == expected.token_ids


@pytest.mark.parametrize(("budget", "way"), [(300, "plain"), (300, "shared"), (10_000, "recomputed")])
def test_the_gradient_is_that_of_the_definition_however_it_is_computed(make_config, monkeypatch, budget: int, way: str):
    """Three pairs and an identity pair, two preferences each, beta 0.5: against whole logits and autograd."""
    monkeypatch.setattr(tiny, "OWN_PARTS", way != "plain")
    pairs = [*tiny_pairs(3), *tiny_anchors(1)]
    method, rollouts = setting(make_config, pairs, loss={"dpo_beta": 0.5})
    policy = method.policy
    assert len({tuple(r.ids) for r in rollouts}) > 3
    if way == "recomputed":
        policy.backbone.recompute_activations()
    policy.backbone.train()
    assert policy.path.shares_prompts == (way == "shared")
    weights = step_weights(rollouts, "sequence_mean")
    loss, values = accumulate(method, rollouts, weights, budget)
    found = oracles.gradients(policy)
    expected = slow_loss(method, rollouts)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    assert values == [{}] * 8
    assert oracles.largest_difference(found, oracles.gradients(policy)) < 1e-3


def test_equal_answers_have_no_gradient_and_are_counted(make_config):
    """On identity pairs one answer stands for both: log 2 each, exactly no gradient, no reward in the logs."""
    method, rollouts = setting(make_config, tiny_anchors(2))
    assert all(r.rejected == r.completion for r in rollouts)
    meter = StepMetrics(method)
    micro = method.loss(rollouts, step_weights(rollouts, "sequence_mean"))
    meter.observe(rollouts, micro)
    assert micro.loss.item() == pytest.approx(math.log(2), abs=1e-6)
    micro.loss.backward()
    assert all((gradient == 0).all() for gradient in oracles.gradients(method.policy).values())
    assert meter.metrics() == {"train/equal_answers_fraction": 1.0}


def test_a_pair_is_left_out_where_either_answer_was_cut(make_config):
    """Two tokens at most: what has no stop token by then is cut; a pair of answers is in or out as a whole."""
    settings = {"rollout": {"max_completion_tokens": 2, "num_generations": 12}, "loss": {"mask_truncated": True}}
    method, rollouts = setting(make_config, tiny_pairs(2), **settings)
    for r in rollouts:
        cut = "length" in (r.completion.stop_reason, r.rejected.stop_reason)
        assert {*r.mask, *r.rejected_mask} == {not cut}
    both = [masked(rollouts[0], True), masked(rollouts[1], False)]
    micro = method.loss(both, step_weights(both, "sequence_mean"))
    assert micro.loss.item() == pytest.approx(slow_loss(method, both).item(), rel=1e-4)
    assert len(micro.means["train/equal_answers_fraction"]) == 1


def masked(rollout: Rollout, in_loss: bool) -> Rollout:
    masks = (in_loss,) * len(rollout.ids), (in_loss,) * len(rollout.rejected.token_ids)
    return dataclasses.replace(rollout, mask=masks[0], rejected_mask=masks[1])


def test_what_a_step_logs(make_config):
    """The first starts at log 2, with the untouched adapter."""
    config = make_config(method="dpo", max_steps=2, data=NO_VALIDATION, loss={"dpo_beta": 0.5})
    train(config)
    rows = [row for row in metrics(config) if row["step"]]
    assert rows[0]["train/loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert rows[1]["train/loss"] != rows[0]["train/loss"]
    for row in rows:
        assert row["rewards/margins"] == pytest.approx(row["rewards/chosen"] - row["rewards/rejected"], abs=1e-5)
        assert 0 <= row["rewards/accuracies"] <= 1
    assert "train/kl" not in rows[0]

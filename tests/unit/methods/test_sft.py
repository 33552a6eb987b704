"""SFT: the teacher answers the clean prompt once; cross-entropy on that answer after the perturbed prompt."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from opct.methods.offline import offline_answers
from opct.methods.rollouts import step_weights
from opct.methods.sft import SFT
from opct.runs.run_dir import RunDir
from tests import oracles
from tests.tiny import tiny_pairs, tiny_setting


def test_the_loss_is_cross_entropy_after_the_perturbed_prompt(make_config, tmp_path):
    """-1/N sum log p(y_t | prompt), stop token in, masked tokens left out; the oracle is torch's cross_entropy."""
    config = make_config(method="sft")
    policy, teacher, rendered = tiny_setting(config, tiny_pairs(3))
    answers = offline_answers(SFT, policy, teacher, rendered, config, RunDir(tmp_path / "run"))
    method = SFT(policy, teacher, config, answers)
    assert method.offline
    rollouts = method.collect(rendered, 1)
    rollouts[0] = dataclasses.replace(rollouts[0], mask=(False, *rollouts[0].mask[1:]))
    micro = method.loss(rollouts, step_weights(rollouts, "token_mean"))
    for r, kl in zip(rollouts, micro.values["excess_loss"], strict=True):  # log q - log p of the very tokens
        with teacher() as model:
            [q] = model.log_probs([r.teacher_ids], [r.ids])
        [p] = policy.log_probs([r.prompt_ids], [r.ids])
        assert kl == pytest.approx((q - p).tolist(), abs=1e-4)
    method.config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"temperature": 0.5})})
    assert method.loss(rollouts, step_weights(rollouts, "token_mean")).values == {}  # not drawn from the teacher itself
    micro.loss.backward()
    found = oracles.gradients(policy)

    total = torch.zeros(())
    for r in rollouts:
        logits = oracles.completion_logits(policy, r.prompt_ids, r.ids)
        losses = torch.nn.functional.cross_entropy(logits, torch.tensor(r.ids), reduction="none")
        total = total + (losses * torch.tensor(r.mask)).sum()
    expected = total / sum(sum(r.mask) for r in rollouts)
    assert micro.loss.item() == pytest.approx(expected.item(), rel=1e-4)
    expected.backward()
    assert oracles.largest_difference(found, oracles.gradients(policy)) < 1e-3

"""Off-policy consistency: the divergence of OPCT on the answers of SFT."""

from __future__ import annotations

import pytest

from opct.methods.offline import offline_answers
from opct.methods.offpolicy import OffPolicy
from opct.methods.rollouts import step_weights
from opct.runs.run_dir import RunDir
from tests import oracles
from tests.tiny import tiny_pairs, tiny_setting


def test_the_loss_is_the_divergence_on_the_teachers_tokens(make_config, tmp_path):
    config = make_config(method="offpolicy", loss={"divergence": "jsd"})
    policy, teacher, rendered = tiny_setting(config, tiny_pairs(3))
    answers = offline_answers(OffPolicy, policy, teacher, rendered, config, RunDir(tmp_path / "run"))
    method = OffPolicy(policy, teacher, config, answers)
    assert method.offline
    rollouts = method.collect(rendered[1:], 1)
    assert rollouts == method.collect(rendered[1:], 9) == answers.of(rendered[1:])
    micro = method.loss(rollouts, step_weights(rollouts, "token_mean"))
    micro.loss.backward()
    found = oracles.gradients(policy)
    expected = oracles.step_loss(policy, teacher, rollouts, config.loss)
    assert micro.loss.item() == pytest.approx(expected.item(), rel=1e-3)
    expected.backward()
    assert oracles.largest_difference(found, oracles.gradients(policy)) < 2e-3

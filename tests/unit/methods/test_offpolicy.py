"""Off-policy consistency: the divergence of OPCT on the answers of SFT."""

from __future__ import annotations

from pathlib import Path

import pytest

from opct.methods.offline import offline_answers
from opct.methods.offpolicy import OffPolicy
from opct.methods.opct import OPCT
from opct.methods.rollouts import step_weights
from opct.runs.run_dir import RunDir
from tests import oracles
from tests.tiny import tiny_pairs, tiny_setting


def prepared(config, run: RunDir):
    policy, teacher, rendered = tiny_setting(config, tiny_pairs(3))
    return policy, teacher, rendered, offline_answers(OffPolicy, policy, teacher, rendered, config, run)


def test_it_trains_on_the_answers_of_sft(make_config, tmp_path: Path):
    """The same config and seed give both baselines the same answers, to the token."""
    rollouts = []
    for method in ("sft", "offpolicy"):
        *_, rendered, answers = prepared(make_config(method=method), RunDir(tmp_path / method))
        rollouts.append(answers.of(rendered))
    assert rollouts[0] == rollouts[1]
    one, two = ((tmp_path / m / "rollouts" / "offline.jsonl").read_bytes() for m in ("sft", "offpolicy"))
    assert one == two


@pytest.mark.parametrize("loss", [{}, {"divergence": "jsd"}, {"estimator": "topk", "top_k": 4}])
def test_the_loss_is_the_divergence_on_the_teachers_tokens(make_config, tmp_path: Path, loss: dict):
    config = make_config(method="offpolicy", loss=loss)
    policy, teacher, rendered, answers = prepared(config, RunDir(tmp_path / "run"))
    method = OffPolicy(policy, teacher, config, answers)
    assert method.offline
    rollouts = method.collect(rendered[1:], 1)
    assert rollouts == method.collect(rendered[1:], 9) == answers.of(rendered[1:])
    weights = step_weights(rollouts, "token_mean")
    micro = method.loss(rollouts, weights)
    micro.loss.backward()
    found = oracles.gradients(policy)
    expected = oracles.step_loss(policy, teacher, rollouts, config.loss)
    assert micro.loss.item() == pytest.approx(expected.item(), rel=1e-3)
    expected.backward()
    assert oracles.largest_difference(found, oracles.gradients(policy)) < 2e-3
    assert OPCT(policy, teacher, config).loss(rollouts, weights).loss.item() == micro.loss.item()

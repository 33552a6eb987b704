"""DPO: the base's answer to the clean prompt is preferred to its answer to the perturbed one.

Its loss is in tests/golden/test_formulas.py.
"""

from __future__ import annotations

import math

import pytest

from opct.methods.rollouts import sampling
from opct.models.inference.sampler import sample_seed
from opct.training.trainer import train
from tests.tiny import tiny_method, tiny_pairs
from tests.unit.training.conftest import NO_VALIDATION, metrics


def test_a_preference_is_between_the_bases_answers_to_the_two_prompts(make_config):
    """Each is what the base samples under its own prompt with the seed that is written down, and another's for z."""
    method, rollouts = tiny_method(make_config(method="dpo"), tiny_pairs(2))
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

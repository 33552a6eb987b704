"""Who is scored how in a step of OPCT; its loss is in tests/golden/test_formulas.py."""

from __future__ import annotations

import pytest
import torch

from opct.methods.rollouts import step_weights
from tests.tiny import tiny_anchors, tiny_method


@pytest.mark.parametrize("kind", ["base", "ema"])
def test_the_teacher_scores_without_dropout(make_config, kind: str):
    """Dropout half, equal weights: two scorings of the teacher agree; the policy stays in training mode for its own."""
    config = make_config(lora={"r": 4, "alpha": 8, "dropout": 0.5}, teacher={"kind": kind})
    method, rollouts = tiny_method(config, tiny_anchors(2), dropout=0.5)
    policy, seen = method.policy, []
    score = policy.score
    policy.score = lambda *args, **keys: seen.append((policy.model.training, score(*args, **keys))) or seen[-1][1]
    policy.backbone.train()
    for _ in range(2):
        method.loss(rollouts, step_weights(rollouts, "token_mean"))
    assert [training for training, _ in seen] == [False, True, False, True]
    assert torch.equal(seen[0][1].hidden, seen[2][1].hidden)
    assert not torch.equal(seen[1][1].hidden, seen[3][1].hidden)

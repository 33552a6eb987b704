"""What prompts of a step begin with is computed once: the loss and its gradient are those of whole prompts."""

import dataclasses

import pytest
import torch

from opct.cpu import fast_path
from opct.cpu.switches import without
from opct.methods.opct import OPCT
from opct.methods.rollouts import policy_rollouts, step_weights
from opct.training.accumulate import accumulate
from opct.training.setup import build_setup
from tests import oracles


def test_what_prompts_begin_with_is_computed_once(make_config, monkeypatch):
    config = make_config()
    setup = build_setup(config)
    method = OPCT(setup.policy, setup.teacher, config)
    batch = [
        dataclasses.replace(
            pair, prompt_ids=[*range(5, 45), *pair.prompt_ids], teacher_ids=[7, *[8 + i % 2] * 30, *pair.teacher_ids]
        )
        for i, pair in enumerate([*setup.data.batch(1), *setup.data.batch(2)])
    ]
    rollouts = policy_rollouts(setup.policy, batch, config, "step 1", n=1)
    monkeypatch.setattr(fast_path, "SCORE_FORWARD", 1)
    computed: list[int] = []
    setup.policy.backbone.decoder.register_forward_pre_hook(
        lambda module, args, given: computed.append(given["input_ids"].numel()), with_kwargs=True
    )
    found = []
    for off in (("shared_beginnings",), ()):
        computed.clear()
        setup.policy.model.zero_grad(set_to_none=True)
        with without(*off):
            loss, kl = accumulate(method, rollouts, step_weights(rollouts, "token_mean"), 10_000)
        found.append((loss, kl, oracles.gradients(setup.policy), sum(computed)))
    (loss, kl, gradients, plain), (own_loss, own_kl, own_gradients, fewer) = found
    assert own_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(own_kl, kl, rtol=1e-4, atol=1e-6)
    assert oracles.largest_difference(own_gradients, gradients) < 1e-5
    assert fewer <= plain - 40 * (len(rollouts) - 1) - 30 * (len(rollouts) - 2)

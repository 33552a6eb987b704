"""ACT: the residual stream where both prompts end alike; no completion anywhere."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from opct.data.pairs import ContrastivePair
from opct.data.render import RenderedPair
from opct.errors import DataError
from opct.methods.act import ACT
from opct.methods.offline import OfflineAnswers
from opct.methods.rollouts import Rollout, step_weights
from opct.training.accumulate import accumulate, plan_of
from opct.training.trainer import train
from tests import oracles
from tests.refusals import refused
from tests.tiny import means_by_axis, tiny_adapter_policy, tiny_anchors, tiny_pairs, tiny_setting
from tests.unit.training.conftest import NO_VALIDATION, metrics


def suffixed_pairs(n: int) -> list[ContrastivePair]:
    """The push comes first, so that the question is in the shared end."""
    return [
        dataclasses.replace(p, prompt=({"role": "user", "content": f"I doubt it. {p.teacher_prompt[0]['content']}"},))
        for p in tiny_pairs(n)
    ]


def setting(make_config, pairs, **options):
    """(method, its rollouts) of a tiny policy on these pairs."""
    config = make_config(method="act")
    policy, teacher, rendered = tiny_setting(config, pairs, **options)
    policy.sample = lambda *_, **__: pytest.fail("sampled")
    method = ACT(policy, teacher, config, OfflineAnswers(ACT.answer(policy, rendered, config, policy)))
    return method, method.collect(rendered, 1)


def all_states(policy, ids: list[int]) -> Tensor:
    """What each layer gives at each token of one prompt, from the model's own hidden states; [layers, tokens, hidden].

    The last of these is normed by the model, so the norm is taken out for it.
    """
    norm, policy.backbone.decoder.norm = policy.backbone.decoder.norm, torch.nn.Identity()
    out = policy.backbone.bare_model.model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    policy.backbone.decoder.norm = norm
    return torch.stack(out.hidden_states[1:])[:, 0]


def slow_loss(method: ACT, rollouts: list[Rollout]) -> Tensor:
    """The definition: one pair, one token, one layer after another."""
    per_pair = []
    for r in rollouts:
        with method.teacher() as base, torch.no_grad():
            theirs = all_states(base, method.policy.renderer.render(r.pair.teacher_prompt))
        own = all_states(method.policy, method.policy.renderer.render(r.pair.prompt))
        distances = []
        for t in range(1, len(r.ids) + 1):
            of_layers = [((a[-t] - b[-t]) ** 2).sum() / len(a[-t]) for a, b in zip(own, theirs, strict=True)]
            distances.append(sum(of_layers) / len(of_layers))
        per_pair.append(torch.stack(distances))
    return torch.stack([d.mean() for d in per_pair]).mean()


def test_a_rollout_is_the_two_prompts_split_where_their_common_end_begins(make_config):
    """The question and the template's tail where the push comes first; the tail alone where it comes last."""
    method, (pushed, identity, last) = setting(make_config, [*suffixed_pairs(1), *tiny_anchors(1), *tiny_pairs(2)[1:]])
    render, pieces = method.policy.renderer.render, method.policy.renderer.pieces
    assert pushed.prompt_ids + pushed.ids == render(pushed.pair.prompt)
    assert pushed.teacher_ids + pushed.ids == render(pushed.pair.teacher_prompt)
    assert pushed.prompt_ids[-1] != pushed.teacher_ids[-1]
    assert "".join(pieces(pushed.ids)).endswith("plus 1?<|im_end|>\n<|im_start|>assistant\n")
    assert (identity.prompt_ids, identity.ids) == ([], render(identity.pair.prompt))
    assert "".join(pieces(last.ids)).endswith("<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(("budget", "recompute"), [(90, False), (10_000, True)])
def test_the_gradient_is_that_of_the_definition_however_it_is_computed(make_config, budget: int, recompute: bool):
    """Ends of different lengths, three layers, an identity pair among them, each pair with the same weight; against the
    model's own hidden states."""
    pairs = [*suffixed_pairs(2), *tiny_pairs(4)[2:], *tiny_anchors(1)]
    method, rollouts = setting(make_config, pairs, layers=3)
    assert len({len(r.ids) for r in rollouts}) > 2
    assert (len(plan_of(method.policy.path, rollouts, budget)) == 1) == (budget == 10_000)
    if recompute:
        method.policy.backbone.recompute_activations()
    method.policy.backbone.train()
    weights = step_weights(rollouts, method.settings.reduction)
    loss, values = accumulate(method, rollouts, weights, budget)
    found = oracles.gradients(method.policy)
    assert not any(layer._forward_hooks for layer in method.policy.backbone.decoder.layers)
    method.policy.backbone.eval()
    expected = slow_loss(method, rollouts)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    assert values == [{}] * 5
    assert oracles.largest_difference(found, oracles.gradients(method.policy)) < 1e-3


def test_prompts_that_end_in_other_tokens_are_refused_by_name(make_config):
    """A template may write another tail: the first pair ends in 3 and 4, the second in 3 twice."""
    pairs = [RenderedPair(pair, [1, 3], ids) for pair, ids in zip(tiny_pairs(2), ([2, 4], [2, 3]), strict=True)]
    policy = tiny_adapter_policy()
    with refused(DataError, "sum/0", "method: act") as caught:
        ACT.answer(policy, pairs, make_config(method="act"), policy)
    assert "sum/1" not in str(caught.value)


def test_training_brings_the_activations_together(make_config):
    """The distance of the pairs falls; no token is sampled for it, and none is counted."""
    config = make_config(method="act", max_steps=6, data=NO_VALIDATION)
    train(config)
    rows = metrics(config)[1:]
    assert sum(row["train/distance"] for row in rows[-3:]) < 0.9 * sum(row["train/distance"] for row in rows[:3])
    assert rows[0]["train/distance_identity"] < 1e-9
    assert {row["train/completion_tokens"] for row in rows} == {0}
    assert not {"train/truncated_fraction", "train/kl"} & set(rows[0])


def test_each_axis_has_its_own_mean_distance_and_so_have_identity_pairs(make_config):
    """Two pairs of one axis, one of another, and an identity pair; by the definition, one axis at a time."""
    pairs = suffixed_pairs(3)
    pairs[2] = dataclasses.replace(pairs[2], axis="jailbreak")
    method, rollouts = setting(make_config, [*pairs, *tiny_anchors(1)])
    found = means_by_axis(method, rollouts, "train/distance_")
    assert found.pop("identity") == pytest.approx(slow_loss(method, rollouts[3:]).item(), rel=1e-4)
    for axis in ("sycophancy", "jailbreak"):
        own = [r for r in rollouts if r.pair.axis == axis]
        assert found.pop(axis) == pytest.approx(slow_loss(method, own).item(), rel=1e-4)
    assert not found

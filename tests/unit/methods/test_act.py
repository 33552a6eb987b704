"""ACT: the residual stream where both prompts end alike; no completion anywhere."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from opct.data.pairs import ContrastivePair
from opct.data.render import RenderedPair
from opct.errors import DataError
from opct.methods.act import ACT, end_in_common
from opct.methods.offline import OfflineAnswers, offline_answers
from opct.methods.rollouts import Rollout, step_weights
from opct.methods.sampler_mismatch import StepMetrics
from opct.models.policy import Policy
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.accumulate import accumulate, plan_of
from opct.training.trainer import train
from tests import oracles
from tests.tiny import means_by_axis, tiny_adapter_policy, tiny_anchors, tiny_pairs, tiny_setting


def suffixed_pairs(n: int) -> list[ContrastivePair]:
    """The push comes first, so that the question is in the shared end."""
    return [
        dataclasses.replace(p, prompt=({"role": "user", "content": f"I doubt it. {p.teacher_prompt[0]['content']}"},))
        for p in tiny_pairs(n)
    ]


def setting(make_config, pairs, *, random: bool = True, layers: int = 2, **settings):
    """(method, its rollouts) of a tiny policy on these pairs."""
    config = make_config(method="act", **settings)
    policy, teacher, rendered = tiny_setting(config, pairs, random=random, layers=layers)
    policy.sample = lambda *_, **__: pytest.fail("sampled")
    method = ACT(policy, teacher, config, OfflineAnswers(ACT.answer(policy, rendered, config, policy)))
    return method, method.collect(rendered, 1)


def all_states(policy: Policy, ids: list[int]) -> Tensor:
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


@pytest.mark.parametrize(
    ("prompt", "teacher", "expected"),
    [([1, 2, 3], [9, 3], 1), ([1, 2, 3], [1, 2, 3], 3), ([3], [2, 1, 3], 1), ([5, 2, 3], [7, 2, 3], 2), ([1], [2], 0)],
)
def test_the_longest_end_in_common(prompt: list[int], teacher: list[int], expected: int):
    assert end_in_common(RenderedPair(tiny_pairs(1)[0], prompt, teacher)) == expected


def test_a_rollout_is_the_two_prompts_split_where_their_common_end_begins(make_config):
    """The question and the template's tail where the push comes first; the tail alone where it comes last."""
    method, rollouts = setting(make_config, [*suffixed_pairs(1), *tiny_anchors(1)])
    pushed, identity = rollouts
    render, pieces = method.policy.renderer.render, method.policy.renderer.pieces
    assert pushed.prompt_ids + pushed.ids == render(pushed.pair.prompt)
    assert pushed.teacher_ids + pushed.ids == render(pushed.pair.teacher_prompt)
    assert pushed.prompt_ids[-1] != pushed.teacher_ids[-1]
    assert "".join(pieces(pushed.ids)).endswith("plus 1?<|im_end|>\n<|im_start|>assistant\n")
    assert (identity.prompt_ids, identity.ids) == ([], render(identity.pair.prompt))
    assert not pushed.answers
    _, [last] = setting(make_config, tiny_pairs(1))
    assert "".join(pieces(last.ids)).endswith("<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("budget", [1, 90, 10_000])
def test_the_gradient_is_that_of_the_definition_however_the_step_is_cut(make_config, budget: int):
    """Ends of different lengths, three layers, an identity pair among them, each pair with the same weight; against the
    model's own hidden states."""
    pairs = [*suffixed_pairs(2), *tiny_pairs(4)[2:], *tiny_anchors(1)]
    method, rollouts = setting(make_config, pairs, layers=3)
    assert len({len(r.ids) for r in rollouts}) > 2
    plan = plan_of(method.policy.path, rollouts, budget)
    assert (len(plan) == 5, len(plan) == 1) == (budget == 1, budget == 10_000)
    weights = step_weights(rollouts, method.settings.reduction)
    loss, values = accumulate(method, rollouts, weights, budget)
    found = oracles.gradients(method.policy)
    expected = slow_loss(method, rollouts)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    assert values == [{}] * 5
    assert oracles.largest_difference(found, oracles.gradients(method.policy)) < 1e-3


def test_equal_prompts_and_an_untouched_adapter_give_exactly_nothing(make_config):
    method, rollouts = setting(make_config, tiny_anchors(3), random=False)
    meter = StepMetrics(method)
    micro = method.loss(rollouts, step_weights(rollouts, "token_mean"))
    meter.observe(rollouts, micro)
    assert micro.loss.item() == 0
    micro.loss.backward()
    assert all((gradient == 0).all() for gradient in oracles.gradients(method.policy).values())
    assert meter.metrics() == {"train/distance_identity": 0.0}


def test_only_the_shared_end_has_a_gradient_of_its_own(make_config):
    """At the last layer, where no later one looks back: padding and what comes before the end have exactly none."""
    method, rollouts = setting(make_config, [*suffixed_pairs(2), *tiny_pairs(3)[2:]])
    outputs: list[Tensor] = []

    def keep(module, inputs, output):
        if output.requires_grad:
            output.retain_grad()
            outputs.append(output)

    handle = method.policy.backbone.decoder.layers[-1].register_forward_hook(keep, prepend=True)
    method.loss(rollouts, step_weights(rollouts, "token_mean")).loss.backward()
    handle.remove()
    [states] = outputs
    expected = torch.zeros(states.shape[:2], dtype=torch.bool)
    for i, r in enumerate(rollouts):
        expected[i, len(r.prompt_ids) : len(r.prompt_ids) + len(r.ids)] = True
    assert len({len(r.prompt_ids + r.ids) for r in rollouts}) > 1
    assert torch.equal(states.grad.abs().sum(-1) > 0, expected)


def test_no_hook_is_left_behind(make_config):
    method, rollouts = setting(make_config, tiny_pairs(1))
    method.loss(rollouts, step_weights(rollouts, "token_mean"))
    assert not any(layer._forward_hooks for layer in method.policy.backbone.decoder.layers)


def test_prompts_that_end_in_other_tokens_are_refused_by_name(make_config):
    """A template may write another tail: the first pair ends in 3 and 4, the second in 3 twice."""
    pairs = [RenderedPair(pair, [1, 3], ids) for pair, ids in zip(tiny_pairs(2), ([2, 4], [2, 3]), strict=True)]
    policy = tiny_adapter_policy()
    with pytest.raises(DataError, match=r"1 pair\(s\) end in another token .* method: act has nothing") as caught:
        ACT.answer(policy, pairs, make_config(method="act"), policy)
    assert "sum/0" in str(caught.value)
    assert "sum/1" not in str(caught.value)


def test_turns_that_the_base_answered_are_kept_and_no_further_answer_is_sampled(make_config, tmp_path: Path):
    user = {"role": "user", "content": "a"}
    pair = ContrastivePair("multi", "a", "f", (user, {"role": "assistant", "content": None}, user), (user,))
    config, run = make_config(method="act"), RunDir(tmp_path / "run")
    policy, teacher, rendered = tiny_setting(config, [pair, *tiny_pairs(1), *tiny_anchors(1)])
    first = offline_answers(ACT, policy, teacher, rendered, config, run).of(rendered)
    assert len(first) == 3
    assert first[0].pair.prompt[1]["content"]
    policy.sample = lambda *_, **__: pytest.fail("sampled again")
    assert offline_answers(ACT, policy, teacher, rendered, config, run).of(rendered) == first


@pytest.mark.parametrize("kind", ["base", "ema"])
def test_training_brings_the_activations_together(make_config, kind: str):
    """The distance of the pairs falls; no token is sampled for it, and none is counted."""
    config = make_config(method="act", max_steps=6, data={"validation_size": 0}, teacher={"kind": kind})
    train(config)
    rows = read_jsonl(RunDir(config.output_dir).metrics_path)[1:]
    assert sum(row["train/distance"] for row in rows[-3:]) < 0.9 * sum(row["train/distance"] for row in rows[:3])
    assert rows[0]["train/distance_identity"] < 1e-9
    assert {row["train/completion_tokens"] for row in rows} == {0}
    assert "train/truncated_fraction" not in rows[0]
    assert "train/kl" not in rows[0]
    kept = read_jsonl(RunDir(config.output_dir).rollouts_path(1))
    assert len(kept) == 4
    assert {(row["stop_reason"], row["completion"]) for row in kept} == {("given", "")}


def test_a_frozen_copy_is_the_teacher_of_full_fine_tuning(make_config):
    settings = {"optim": {"learning_rate": 1e-3}, "data": {"validation_size": 0}}
    config = make_config(method="act", lora=None, max_steps=2, **settings)
    train(config)
    rows = read_jsonl(RunDir(config.output_dir).metrics_path)
    assert rows[-1]["train/grad_norm"] > 0


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

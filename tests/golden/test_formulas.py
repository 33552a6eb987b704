"""Loss and gradient of each method against its definition: one rollout, one token, one layer after another."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from opct.data.pairs import ContrastivePair
from opct.methods.base import Method
from opct.methods.rollouts import Rollout, step_weights
from opct.methods.sampler_mismatch import StepMetrics
from opct.training.accumulate import accumulate
from tests import oracles, tiny
from tests.tiny import move, tiny_anchors, tiny_method, tiny_pairs


def suffixed_pairs(n: int) -> list[ContrastivePair]:
    """The push comes first, so that the question is in the end that both prompts share."""
    return [
        dataclasses.replace(p, prompt=({"role": "user", "content": f"I doubt it. {p.teacher_prompt[0]['content']}"},))
        for p in tiny_pairs(n)
    ]


def some_masked(rollouts: list[Rollout]) -> list[Rollout]:
    """The second token of each completion, and all of the last completion, out of the loss."""
    masks = [tuple(i != 1 for i in range(len(r.ids))) for r in rollouts]
    masks[-1] = (False,) * len(masks[-1])
    return [dataclasses.replace(r, mask=mask) for r, mask in zip(rollouts, masks, strict=True)]


def logits_of(method: Method, r: Rollout, ids: list[int]) -> tuple[Tensor, Tensor]:
    """The policy's and the teacher's at each token."""
    with method.teacher() as teacher, torch.no_grad():
        theirs = oracles.completion_logits(teacher, r.teacher_ids, ids)
    return oracles.completion_logits(method.policy, r.prompt_ids, ids), theirs


def divergence(method: Method, rollouts: list[Rollout]) -> Tensor:
    return oracles.step_loss(method.policy, method.teacher, rollouts, method.settings)


def likelihood(method: Method, rollouts: list[Rollout]) -> Tensor:
    """-1/N sum log p(y_t | prompt), the stop token in."""
    total = torch.zeros(())
    for r in rollouts:
        own = cross_entropy(logits_of(method, r, r.ids)[0], torch.tensor(r.ids), reduction="none")
        total = total + (own * torch.tensor(r.mask)).sum()
    return total / sum(sum(r.mask) for r in rollouts)


def preference(method: Method, rollouts: list[Rollout]) -> Tensor:
    """The mean of -log sigmoid(r(y) - r(z)) over the pairs that are in the loss."""
    terms = []
    for r in rollouts:
        rewards = []
        for ids, mask in ((r.ids, r.mask), (list(r.rejected.token_ids), r.rejected_mask)):
            p, q = (oracles.log_probs(logits, ids) for logits in logits_of(method, r, ids))
            rewards.append(method.settings.dpo_beta * ((p - q) * torch.tensor(mask)).sum())
        if any(r.mask):
            terms.append(-(rewards[0] - rewards[1]).sigmoid().log())
    return torch.stack(terms).mean()


def all_states(policy, ids: list[int]) -> Tensor:
    """What each layer gives at each token of one prompt, from the model's own hidden states; [layers, tokens, hidden].

    The last of these is normed by the model, so the norm is taken out for it.
    """
    norm, policy.backbone.decoder.norm = policy.backbone.decoder.norm, torch.nn.Identity()
    out = policy.backbone.bare_model.model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    policy.backbone.decoder.norm = norm
    return torch.stack(out.hidden_states[1:])[:, 0]


def distance(method: Method, rollouts: list[Rollout]) -> Tensor:
    """The mean over pairs of the mean over the tokens of the shared end, the layers and the features."""
    per_pair = []
    for r in rollouts:
        with method.teacher() as base, torch.no_grad():
            theirs = all_states(base, method.policy.renderer.render(r.pair.teacher_prompt))
        own = all_states(method.policy, method.policy.renderer.render(r.pair.prompt))
        distances = []
        for t in range(1, len(r.ids) + 1):
            of_layers = [((a[-t] - b[-t]) ** 2).sum() / len(a[-t]) for a, b in zip(own, theirs, strict=True)]
            distances.append(sum(of_layers) / len(of_layers))
        per_pair.append(torch.stack(distances).mean())
    return torch.stack(per_pair).mean()


DEFINITIONS = {
    "opct": divergence, "offpolicy": divergence, "sft": likelihood, "dpo": preference, "act": distance
}  # fmt: skip
OPCT = [
    {},
    {"kl_coef": 2.5, "reduction": "sum"},
    {"kl_discount_factor": 0.5, "reduction": "sequence_mean", "kl_coef": 0.5},
    {"divergence": "forward_kl"},
    {"divergence": "jsd", "jsd_weight": 0.2, "kl_discount_factor": 0.9},
    {"estimator": "topk", "top_k": 5, "kl_discount_factor": 0.7},
    {"estimator": "sampled", "kl_discount_factor": 0.5, "kl_coef": 2.0},
    {"estimator": "sampled", "kl_discount_factor": 1.0, "ppo_clip": 0.2, "reduction": "sum"},
]


@pytest.mark.parametrize(
    ("name", "loss", "way"),
    [
        *(("opct", loss, "plain") for loss in OPCT),
        ("opct", {}, "recomputed"),
        ("sft", {}, "plain"),
        ("offpolicy", {"divergence": "jsd"}, "plain"),
        *(("dpo", {"dpo_beta": 0.5}, way) for way in ("plain", "shared", "recomputed")),
        *(("act", {}, way) for way in ("plain", "shared", "recomputed")),
    ],
)
def test_loss_and_gradient_are_those_of_the_definition_however_they_are_computed(
    make_config, monkeypatch, name: str, loss: dict, way: str
):
    """Five pairs with two answers each; the policy has moved since it sampled, so rho is not 1. In micro-batches, or at
    once with layers that run twice with gradient."""
    monkeypatch.setattr(tiny, "OWN_PARTS", way != "plain")
    pairs = [*suffixed_pairs(2), *tiny_pairs(4)[2:], *tiny_anchors(1)]
    method, rollouts = tiny_method(make_config(method=name, loss=loss), pairs, layers=3)
    policy = method.policy
    assert len({tuple(r.ids) for r in rollouts}) > 2
    if name in ("opct", "sft", "offpolicy"):
        rollouts = some_masked(rollouts)
    move(policy, 0.01)
    if way == "recomputed":
        policy.backbone.recompute_activations()
    policy.backbone.train()
    assert policy.path.shares_prompts == (way == "shared")
    runs: list[int] = []
    mlp = policy.backbone.decoder.layers[0].mlp
    handle = mlp.register_forward_pre_hook(lambda *_: runs.append(int(torch.is_grad_enabled())))
    weights = step_weights(rollouts, method.settings.reduction)
    value, _ = accumulate(method, rollouts, weights, 10_000 if way == "recomputed" else 90)
    handle.remove()
    assert (sum(runs) == 2) == (way == "recomputed")
    assert not any(layer._forward_hooks for layer in policy.backbone.decoder.layers)
    found = oracles.gradients(policy)
    policy.backbone.eval()
    expected = DEFINITIONS[name](method, rollouts)
    assert value == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    expected.backward()
    assert oracles.largest_difference(found, oracles.gradients(policy)) < 1e-3


@pytest.mark.parametrize(
    ("name", "loss", "of_token"), [("opct", {}, "kl"), ("opct", OPCT[6], "kl"), ("sft", {}, "excess_loss")]
)
def test_what_each_token_reports(make_config, name: str, loss: dict, of_token: str):
    """D_t for `exact`, k_t = log p(y_t) - log q(y_t) for `sampled`, -k_t for `sft`; masked tokens too."""
    method, rollouts = tiny_method(make_config(method=name, loss=loss), tiny_pairs(3))
    rollouts = some_masked(rollouts)
    micro = method.loss(rollouts, step_weights(rollouts, "token_mean"))
    for r, values in zip(rollouts, micro.values[of_token], strict=True):
        p, q = logits_of(method, r, r.ids)
        k = oracles.log_probs(p, r.ids) - oracles.log_probs(q, r.ids)
        expected = -k if name == "sft" else k if loss else oracles.reverse_kl(p, q)
        torch.testing.assert_close(torch.tensor(values), expected, rtol=1e-3, atol=1e-4)


def test_sft_reports_no_excess_over_answers_that_were_not_drawn_from_the_teacher_itself(make_config):
    method, rollouts = tiny_method(make_config(method="sft", rollout={"temperature": 0.5}), tiny_pairs(1))
    assert method.loss(rollouts, step_weights(rollouts, "token_mean")).values == {}


@pytest.mark.parametrize("loss", [OPCT[0], OPCT[5], OPCT[7]])
def test_a_step_of_masked_tokens_alone_has_no_gradient(make_config, loss: dict):
    method, rollouts = tiny_method(make_config(loss=loss), tiny_pairs(3))
    nothing = [dataclasses.replace(r, mask=(False,) * len(r.ids)) for r in rollouts]
    method.loss(nothing, step_weights(nothing, method.settings.reduction)).loss.backward()
    assert all((g == 0).all() for g in oracles.gradients(method.policy).values())


def test_each_axis_has_its_own_mean_distance_and_so_have_identity_pairs(make_config):
    """Two pairs of one axis, one of another, and an identity pair; each a micro-batch."""
    pairs = suffixed_pairs(3)
    pairs[2] = dataclasses.replace(pairs[2], axis="jailbreak")
    method, rollouts = tiny_method(make_config(method="act"), [*pairs, *tiny_anchors(1)])
    meter, weights = StepMetrics(method), step_weights(rollouts, "token_mean")
    for i in range(len(rollouts)):
        meter.observe(rollouts[i : i + 1], method.loss(rollouts[i : i + 1], weights[i : i + 1]))
    expected = {"identity": rollouts[3:], "sycophancy": rollouts[:2], "jailbreak": rollouts[2:3]}
    prefix = "train/distance_"
    found = {name.removeprefix(prefix): x for name, x in meter.metrics().items() if name.startswith(prefix)}
    assert found == pytest.approx({axis: distance(method, own).item() for axis, own in expected.items()}, rel=1e-4)


def test_equal_answers_have_no_gradient_and_are_counted(make_config):
    """On identity pairs one answer stands for both: log 2 each, exactly no gradient, no reward in the logs."""
    method, rollouts = tiny_method(make_config(method="dpo"), tiny_anchors(2))
    assert all(r.rejected == r.completion for r in rollouts)
    meter = StepMetrics(method)
    micro = method.loss(rollouts, step_weights(rollouts, "sequence_mean"))
    meter.observe(rollouts, micro)
    assert micro.loss.item() == pytest.approx(math.log(2), abs=1e-6)
    micro.loss.backward()
    assert all((gradient == 0).all() for gradient in oracles.gradients(method.policy).values())
    assert meter.metrics() == {"train/equal_answers_fraction": 1.0}


def test_a_preference_is_left_out_where_either_answer_was_cut(make_config):
    """Two tokens at most: what has no stop token by then is cut; a pair of answers is in or out as a whole."""
    settings = {"rollout": {"max_completion_tokens": 2, "num_generations": 12}, "loss": {"mask_truncated": True}}
    method, rollouts = tiny_method(make_config(method="dpo", **settings), tiny_pairs(2))
    for r in rollouts:
        cut = "length" in (r.completion.stop_reason, r.rejected.stop_reason)
        assert {*r.mask, *r.rejected_mask} == {not cut}
    both = [masked(rollouts[0], True), masked(rollouts[1], False)]
    micro = method.loss(both, step_weights(both, "sequence_mean"))
    assert micro.loss.item() == pytest.approx(preference(method, both).item(), rel=1e-4)
    assert len(micro.means["train/equal_answers_fraction"]) == 1


def masked(rollout: Rollout, in_loss: bool) -> Rollout:
    masks = (in_loss,) * len(rollout.ids), (in_loss,) * len(rollout.rejected.token_ids)
    return dataclasses.replace(rollout, mask=masks[0], rejected_mask=masks[1])

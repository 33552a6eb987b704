"""The invariants of the method that concern one step, each with its derivation, on a tiny random model in float32."""

import dataclasses
import itertools
import math

import pytest
import torch

from opct import losses
from opct.config.methods import OpctLoss
from opct.cpu.shared_prompts import no_cascade_reason
from opct.cpu.switches import without
from opct.data.pairs import ContrastivePair
from opct.methods.consistency import consistency_loss
from opct.methods.opct import OPCT
from opct.methods.rollouts import Rollout, policy_rollouts, step_weights
from opct.models import scoring
from opct.models.inference.sampler import Completion
from opct.models.policy import Policy
from opct.models.scoring import Head, Scores
from opct.training.accumulate import accumulate
from opct.training.setup import build_setup
from tests import oracles, tiny
from tests.tiny import move, tiny_anchors, tiny_method, tiny_pairs


@pytest.fixture(params=["torch's parts", "our parts"])
def parts(request, monkeypatch) -> None:
    """With the attention and the norms that a model has, and with those it is given on a CPU."""
    monkeypatch.setattr(tiny, "OWN_PARTS", request.param == "our parts")


ESTIMATORS = ("exact", "topk", "sampled")
ONE_ANSWER = {"num_generations": 1, "max_completion_tokens": 6}


def cut(rollout: Rollout, n: int) -> Rollout:
    """The rollout as if its completion had n tokens."""
    completion = dataclasses.replace(
        rollout.completion, token_ids=rollout.completion.token_ids[:n], logprobs=rollout.completion.logprobs[:n]
    )
    return dataclasses.replace(rollout, completion=completion, mask=rollout.mask[:n])


@pytest.mark.parametrize(("gamma", "expected"), [(0.0, [-2.0, 2.0]), (0.5, [-1.0, 2.0]), (1.0, [0.0, 2.0])])
def test_01_advantages_by_hand(gamma: float, expected: list[float]):
    """Policy log-probs [-1, -2], teacher [-2, -1], kl_coef 2: k = [1, -1].

    gamma 0: -2 [1, -1]. gamma 0.5: -2 [1 - 0.5, -1]. gamma 1: -2 [1 - 1, -1].
    """
    policy, teacher = torch.tensor([[-1.0, -2.0]], requires_grad=True), torch.tensor([[-2.0, -1.0]])
    found = losses.log_ratio_advantages(policy - teacher, torch.ones(1, 2), kl_coef=2.0, gamma=gamma)
    assert found.tolist() == [expected]
    assert not found.requires_grad


TOKENS = 3
COMPLETIONS = list(itertools.product(range(TOKENS), repeat=2))


def tabular(seed: int) -> torch.Tensor:
    """Logits of a 2-step policy over 3 tokens: row 0 for the first, row 1 + y_1 for the second; [4, 3], float64."""
    return torch.randn(1 + TOKENS, TOKENS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tabular_scores(table: torch.Tensor, completion: tuple[int, int]) -> Scores:
    """Hidden states that are the logits themselves, under a head that is the identity."""
    head = Head(torch.eye(TOKENS, dtype=torch.float64), None, torch.float64)
    return Scores(table[[0, 1 + completion[0]]], torch.tensor(completion), head, (2,))


def tabular_rollout(table: torch.Tensor, completion: tuple[int, int]) -> Rollout:
    log_p = table.detach().log_softmax(-1)
    log_probs = (float(log_p[0, completion[0]]), float(log_p[1 + completion[0], completion[1]]))
    sampled = Completion("", completion, "stop", log_probs, 1, 0)
    return Rollout(tiny_pairs(1)[0], 0, [0], [0], sampled, (True, True))


def expected_surrogate_gradient(config: OpctLoss) -> torch.Tensor:
    """sum over all 9 completions of p(y) grad loss(y)."""
    table, teacher = tabular(0).requires_grad_(), tabular(1)
    total = torch.zeros_like(table)
    for completion in COMPLETIONS:
        rollout = tabular_rollout(table, completion)
        weights = [torch.ones(2, dtype=torch.float64)]
        micro = consistency_loss(
            tabular_scores(table, completion), tabular_scores(teacher, completion), [rollout], weights, config
        )
        [gradient] = torch.autograd.grad(micro.loss, table)
        total += math.exp(sum(rollout.completion.logprobs)) * gradient
    return total


def sequence_kl_gradient() -> torch.Tensor:
    """grad of sum_y p(y) log(p(y) / q(y)), p(y) = p(y_1) p(y_2 | y_1), enumerated."""
    table, teacher = tabular(0).requires_grad_(), tabular(1)
    log_p, log_q = table.log_softmax(-1), teacher.log_softmax(-1)
    value = torch.zeros((), dtype=torch.float64)
    for a, b in COMPLETIONS:
        joint_p, joint_q = log_p[0, a] + log_p[1 + a, b], log_q[0, a] + log_q[1 + a, b]
        value = value + joint_p.exp() * (joint_p - joint_q)
    return torch.autograd.grad(value, table)[0]


def stopped_prefix_gradient() -> torch.Tensor:
    """grad of KL(p_1 || q_1) + sum_a sg(p(a)) KL(p_2(. | a) || q_2(. | a)): the prefix is given."""
    table, teacher = tabular(0).requires_grad_(), tabular(1)
    p, q = table.softmax(-1), teacher.softmax(-1)
    kl = (p * (p / q).log()).sum(-1)
    value = kl[0] + (p[0].detach() * kl[1:]).sum()
    return torch.autograd.grad(value, table)[0]


@pytest.mark.parametrize("estimator", ["sampled", "exact", "topk"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_02_enumerated_gradient(estimator: str, gamma: float):
    """gamma 0: the stopped-prefix gradient; gamma 1: that of the sequence KL; to 1e-10 (`topk` with all three tokens).

    Between them only the term in D_2 (or k_2) weighted by gamma changes, so at gamma 1/2 it is the mean of the two.
    """
    config = OpctLoss(estimator=estimator, kl_discount_factor=gamma, reduction="sum", top_k=3)
    expected = (1 - gamma) * stopped_prefix_gradient() + gamma * sequence_kl_gradient()
    assert (stopped_prefix_gradient() - sequence_kl_gradient()).abs().max() > 0.01
    found = expected_surrogate_gradient(config)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("gamma", [0.0, 0.7])
def test_03_prompt_and_padding_positions_have_no_gradient(make_config, estimator: str, gamma: float):
    """The gradient of the last hidden states is zero but where a completion token is predicted.

    Prompts of three lengths and completions of 2, 4 and 6 tokens, padded to one batch.
    """
    loss = {"estimator": estimator, "kl_discount_factor": gamma, "top_k": 5}
    pairs = [
        ContrastivePair(f"p{i}", "a", "f", ({"role": "user", "content": "word " * (1 + 5 * i)},), p.teacher_prompt)
        for i, p in enumerate(tiny_pairs(3))
    ]
    method, own = tiny_method(make_config(loss=loss, rollout=ONE_ANSWER), pairs)
    rollouts = [cut(r, n) for r, n in zip(own, (2, 4, 6), strict=True)]
    outputs: list[torch.Tensor] = []

    def keep(module, inputs, output):
        if output.requires_grad:
            output.retain_grad()
            outputs.append(output)

    handle = method.policy.backbone.decoder.norm.register_forward_hook(keep)
    method.loss(rollouts, step_weights(rollouts, "token_mean")).loss.backward()
    handle.remove()
    [states] = outputs
    entering = states.grad.abs().sum(-1) > 0
    expected = torch.zeros_like(entering)
    for i, r in enumerate(rollouts):
        expected[i, len(r.prompt_ids) - 1 : len(r.prompt_ids) - 1 + len(r.ids)] = True
    assert len({len(r.prompt_ids) for r in rollouts}) == 3
    assert torch.equal(entering, expected)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_04_equal_prompts_and_an_untouched_adapter_give_exactly_nothing(make_config, estimator: str, gamma: float):
    """lora_B = 0, prompt == teacher_prompt: both sides are the same numbers, so log p - log q is exactly 0."""
    config = make_config(loss={"estimator": estimator, "kl_discount_factor": gamma, "top_k": 5})
    method, rollouts = tiny_method(config, tiny_anchors(3), random=False)
    micro = method.loss(rollouts, step_weights(rollouts, "token_mean"))
    assert micro.loss.item() == 0
    assert all(x == 0 for row in micro.values["kl"] for x in row)
    micro.loss.backward()
    assert all((gradient == 0).all() for gradient in oracles.gradients(method.policy).values())


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 0.15)])
@pytest.mark.parametrize("lora", [{"r": 4, "alpha": 8}, None])
def test_05_sampler_and_trainer_agree_right_after_an_update(make_config, dtype: str, bound: float, lora: dict | None):
    """exp(trainer log-prob - sampler log-prob) = 1 within the dtype's rounding, for the weights of this very moment.

    bfloat16 keeps 8 bits of logits of size 10: single tokens may be off by some percent, their mean by less.
    """
    config = make_config(model={"dtype": dtype}, lora=lora, optim={"learning_rate": 1e-2 if lora else 1e-3})
    setup = build_setup(config)
    method = OPCT(setup.policy, setup.teacher, config)
    optimizer = torch.optim.AdamW(setup.policy.trainable_parameters().values(), lr=config.optim.learning_rate)
    before = None
    for step in (1, 2):
        rollouts = method.collect(setup.data.batch(step), step)
        method.loss(rollouts, step_weights(rollouts, "token_mean")).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        fresh = method.collect(setup.data.batch(step), step)
        scored = torch.cat(setup.policy.log_probs([r.prompt_ids for r in fresh], [r.ids for r in fresh]))
        sampled = torch.tensor([x for r in fresh for x in r.completion.logprobs])
        ratio = (scored - sampled).exp()
        assert (ratio - 1).abs().max() < bound
        assert (ratio.mean() - 1).abs() < bound / 3
        assert before is None or len(before) != len(sampled) or not torch.equal(before, sampled)
        before = sampled


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("estimator", "reduction"),
    [
        ("exact", "token_mean"),
        ("exact", "sequence_mean"),
        ("exact", "sum"),
        ("topk", "sequence_mean"),
        ("sampled", "token_mean"),
    ],
)
def test_06_micro_batches_give_the_gradient_of_one_batch(make_config, estimator: str, reduction: str):
    """Completions of 3 and 5 tokens: one batch, two micro-batches in either order, and brute force have one gradient.

    Weighing each micro-batch by its own token count would give 1/3 and 1/5 where the step has 1/8.
    """
    loss = {"estimator": estimator, "reduction": reduction, "kl_discount_factor": 0.5, "top_k": 5}
    method, own = tiny_method(make_config(loss=loss, rollout=ONE_ANSWER), tiny_pairs(2))
    rollouts = [cut(own[0], 3), cut(own[1], 5)]
    weights = step_weights(rollouts, reduction)
    found = []
    for groups in ([[0, 1]], [[1, 0]], [[0], [1]], [[1], [0]]):
        for rows in groups:
            method.loss([rollouts[i] for i in rows], [weights[i] for i in rows]).loss.backward()
        found.append(oracles.gradients(method.policy))
    oracles.step_loss(method.policy, method.teacher, rollouts, method.settings).backward()
    expected = oracles.gradients(method.policy)
    for gradient in found:
        assert oracles.largest_difference(gradient, expected) < 1e-3
        assert oracles.largest_difference(gradient, found[0]) < 1e-4


LORA = {"r": 4, "alpha": 8}


@pytest.mark.parametrize(
    ("estimator", "attention", "lora", "kind", "budget"),
    [
        ("exact", "sdpa", LORA, "base", 1),
        ("exact", "sdpa", LORA, "live", 40),
        ("exact", "sdpa", None, "ema", 10_000),
        ("topk", "sdpa", LORA, "ema", 40),
        ("topk", "sdpa", None, "live", 1),
        ("sampled", "sdpa", LORA, "base", 10_000),
        ("sampled", "sdpa", None, "base", 40),
        ("exact", "eager", LORA, "base", 40),
        ("exact", "eager", None, "live", 10_000),
        ("sampled", "eager", LORA, "ema", 1),
    ],
)
def test_06_prompts_computed_once_give_the_gradient_of_the_plain_path(
    make_config, estimator: str, attention: str, lora: dict | None, kind: str, budget: int
):
    """Three completions for each of four pairs, every teacher, micro-batches of one completion, some, and all.

    `sdpa` becomes our own attention on a CPU, which merges two parts; `eager` takes a mask over a copy of the prompts.
    """
    loss = {"estimator": estimator, "kl_discount_factor": 0.5, "top_k": 5}
    optim, model = {"learning_rate": 1e-2 if lora else 1e-3}, {"attn_implementation": attention}
    config = make_config(loss=loss, lora=lora, teacher={"kind": kind}, optim=optim, model=model)
    setup = build_setup(config)
    assert (no_cascade_reason(setup.policy.backbone) is None) == (attention == "sdpa")
    method = OPCT(setup.policy, setup.teacher, config)
    rollouts = policy_rollouts(setup.policy, setup.data.batch(1), config, "step 1", n=3)
    weights = step_weights(rollouts, "token_mean")
    move(setup.policy, 0.03)
    setup.teacher.update()
    found = []
    for off in (("shared_prompts",), ()):
        with without(*off):
            result = accumulate(method, rollouts, weights, budget)
        found.append((*result, oracles.gradients(setup.policy)))
    (loss_plain, values_plain, plain), (loss_shared, values_shared, shared) = found
    kl_plain, kl_shared = ([own["kl"] for own in values] for values in (values_plain, values_shared))
    assert setup.policy.path.shares_prompts
    assert loss_shared == pytest.approx(loss_plain, rel=1e-4, abs=1e-6)
    assert [len(row) for row in kl_shared] == [len(r.ids) for r in rollouts]
    for a, b in zip(kl_shared, kl_plain, strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-5)
    assert max(float(g.abs().max()) for g in plain.values()) > 0
    assert oracles.largest_difference(shared, plain) < 1e-3


def test_06_a_step_computes_each_prompt_and_teacher_prompt_once(make_config, monkeypatch):
    """Four pairs, three completions each, no identity pair: every decoder forward is noted by its rows and width."""
    config = make_config(data={"anchor_fraction": 0.0})
    setup = build_setup(config)
    method = OPCT(setup.policy, setup.teacher, config)
    rollouts = policy_rollouts(setup.policy, setup.data.batch(1), config, "step 1", n=3)
    seen: list[torch.Tensor] = []
    forward = setup.policy.backbone.decoder.forward

    def watch(*args, **kwargs):
        seen.append(kwargs["input_ids"])
        return forward(*args, **kwargs)

    assert setup.policy.path.shares_prompts  # its probes are forwards, too
    monkeypatch.setattr(setup.policy.backbone.decoder, "forward", watch)
    weights = step_weights(rollouts, "token_mean")
    accumulate(method, rollouts, weights, 10_000)
    prompts = {tuple(r.prompt_ids) for r in rollouts} | {tuple(r.teacher_ids) for r in rollouts}
    computed = [tuple(row.tolist()) for ids in seen for row in ids]
    for prompt in prompts:
        assert sum(row[: len(prompt)] == prompt for row in computed) == 1
    assert len(seen) == 4  # the teacher's prompts and completions, the policy's prompts and completions


@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_09_scores_equal_brute_force_in_any_batch_and_chunk(monkeypatch, tiny_policy: Policy, chunk: int):
    """Rows alone, together, in another order, beside a row ten times as long; log-probs against the whole logits."""
    monkeypatch.setattr(scoring, "CHUNK_TOKENS", chunk)
    prompts = [[1, 40, 50], [1, 70], [1, *range(80, 140)]]
    completions = [[10, 11, 12, 2], [20, 2], [30, 31, 32]]
    expected = []
    with torch.no_grad():
        for prompt, completion in zip(prompts, completions, strict=True):
            logits = oracles.completion_logits(tiny_policy, prompt, completion)
            expected.append(oracles.log_probs(logits, completion))
    for order in ([0, 1, 2], [2, 0, 1], [1], [0, 1]):
        found = tiny_policy.log_probs([prompts[i] for i in order], [completions[i] for i in order])
        for i, values in zip(order, found, strict=True):
            torch.testing.assert_close(values, expected[i], rtol=1e-4, atol=1e-4)


def test_09_logits_exist_for_a_chunk_at_a_time(monkeypatch, make_config):
    """A step on 60 completion tokens never asks either head for more than the 7 rows of a chunk."""
    monkeypatch.setattr(scoring, "CHUNK_TOKENS", 7)
    config = make_config(rollout={"max_completion_tokens": 10})
    method, rollouts = tiny_method(config, tiny_pairs(3))
    rows: list[int] = []
    project = Head.project
    monkeypatch.setattr(Head, "project", lambda self, hidden: rows.append(len(hidden)) or project(self, hidden))
    method.loss(rollouts, step_weights(rollouts, "token_mean")).loss.backward()
    assert sum(rows) == 2 * sum(len(r.ids) for r in rollouts)
    assert max(rows) == 7

"""SFT: the teacher answers the clean prompt once; cross-entropy on that answer after the perturbed prompt."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from tests import oracles
from tests.tiny import tiny_adapter_policy, tiny_pairs

from opct.data.pairs import ContrastivePair
from opct.data.render import render_pairs
from opct.errors import RunError
from opct.files import read_jsonl
from opct.methods.offline import offline_answers
from opct.methods.rollouts import sampling, step_weights
from opct.methods.sft import SFT
from opct.models.teacher import make_teacher
from opct.runs import RunDir


@pytest.fixture
def setting(make_config, tmp_path: Path):
    """(policy, teacher, rendered pairs, config, run) of an SFT run that has not begun."""
    config = make_config(method="sft")
    policy = tiny_adapter_policy()
    teacher = make_teacher(policy, config.teacher, continued=False)
    rendered, _ = render_pairs(tiny_pairs(3), policy.renderer, max_completion_tokens=6, context_length=2048)
    return policy, teacher, rendered, config, RunDir(tmp_path / "run")


def test_the_base_answers_the_clean_prompts_once(setting):
    """Adapter off, under `teacher_prompt`, two answers a pair; read again they are the same, without sampling."""
    policy, teacher, rendered, config, run = setting
    counted: list[int] = []
    answers = offline_answers(policy, teacher, rendered, config, run, counted.append)
    assert sum(counted) == 6
    rollouts = answers.of(rendered)
    with policy.adapter_off():
        for r in rollouts:
            [[expected]] = policy.sample([r.teacher_ids], [[r.completion.seed]], sampling(config))
            assert (r.completion.token_ids, r.completion.text) == (expected.token_ids, expected.text)
    policy.sample = lambda *_, **__: pytest.fail("sampled again")
    assert offline_answers(policy, teacher, rendered, config, run).of(rendered) == rollouts
    assert [r.pair.id for r in answers.of(rendered[::-1])] == ["sum/2", "sum/2", "sum/1", "sum/1", "sum/0", "sum/0"]


def test_the_answers_are_kept_in_the_run(setting):
    policy, teacher, rendered, config, run = setting
    offline_answers(policy, teacher, rendered, config, run)
    rows = read_jsonl(run.offline_path)
    assert [(row["pair_id"], row["sample"]) for row in rows] == [(f"sum/{i}", j) for i in range(3) for j in range(2)]
    assert all(row["step"] == 0 and row["kl"] is None for row in rows)


def test_turns_that_the_policy_answered_come_back(setting):
    policy, teacher, _, config, run = setting
    user = {"role": "user", "content": "a"}
    pair = ContrastivePair("multi", "a", "f", (user, {"role": "assistant", "content": None}, user), (user,))
    rendered, _ = render_pairs([pair], policy.renderer, max_completion_tokens=6, context_length=2048)
    first = offline_answers(policy, teacher, rendered, config, run).of(rendered)
    assert first[0].pair.prompt[1]["content"]
    assert offline_answers(policy, teacher, rendered, config, run).of(rendered) == first


def test_answers_to_other_pairs_are_refused(setting):
    policy, teacher, rendered, config, run = setting
    offline_answers(policy, teacher, rendered, config, run)
    with pytest.raises(RunError, match="answers to other pairs"):
        offline_answers(policy, teacher, rendered[:2], config, run)


def test_the_loss_is_cross_entropy_after_the_perturbed_prompt(setting):
    """-1/N sum log p(y_t | prompt), stop token in, masked tokens left out; the oracle is torch's cross_entropy."""
    policy, teacher, rendered, config, run = setting
    method = SFT(policy, config, offline_answers(policy, teacher, rendered, config, run))
    assert method.offline
    rollouts = method.collect(rendered, 1)
    rollouts[0] = dataclasses.replace(rollouts[0], mask=(False, *rollouts[0].mask[1:]))
    micro = method.loss(rollouts, step_weights(rollouts, "token_mean"))
    assert micro.kl is None
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

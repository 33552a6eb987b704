"""SFT: the teacher answers the clean prompt once; cross-entropy on that answer after the perturbed prompt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from opct import distributed
from opct.data.pairs import ContrastivePair
from opct.data.render import render_pairs
from opct.errors import RunError
from opct.methods.offline import offline_answers, offline_cost
from opct.methods.rollouts import sampling, step_weights
from opct.methods.sft import SFT
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.trainer import train
from tests import oracles
from tests.tiny import tiny_pairs, tiny_setting


@pytest.fixture
def setting(make_config, tmp_path: Path):
    """(policy, teacher, rendered pairs, config, run) of an SFT run that has not begun."""
    config = make_config(method="sft")
    return *tiny_setting(config, tiny_pairs(3)), config, RunDir(tmp_path / "run")


def test_the_base_answers_the_clean_prompts_once(setting):
    """Adapter off, under `teacher_prompt`, two answers a pair; read again they are the same, without sampling."""
    policy, teacher, rendered, config, run = setting
    counted: list[int] = []
    answers = offline_answers(SFT, policy, teacher, rendered, config, run, counted.append)
    assert sum(counted) == 6
    rollouts = answers.of(rendered)
    with policy.adapter_off():
        for r in rollouts:
            [[expected]] = policy.sample([r.teacher_ids], [[r.completion.seed]], sampling(config, policy))
            assert (r.completion.token_ids, r.completion.text) == (expected.token_ids, expected.text)
    policy.sample = lambda *_, **__: pytest.fail("sampled again")
    assert offline_answers(SFT, policy, teacher, rendered, config, run).of(rendered) == rollouts
    assert [r.pair.id for r in answers.of(rendered[::-1])] == ["sum/2", "sum/2", "sum/1", "sum/1", "sum/0", "sum/0"]


def test_what_the_answers_took_is_kept_with_them(setting):
    """Answers to two pairs, then to a third: seconds and tokens of both times, and of reading nothing."""
    policy, teacher, rendered, config, run = setting
    assert offline_cost(run) == {}
    seconds = [0.0]
    for n in (2, 3, 3):
        offline_answers(SFT, policy, teacher, rendered[:n], config, run)
        found = offline_cost(run)
        assert found["rollout/offline_tokens"] == sum(len(row["token_ids"]) for row in read_jsonl(run.offline_path))
        seconds.append(found["time/offline_s"])
    assert seconds[0] < seconds[1] < seconds[2] == seconds[3]


def test_answers_that_a_kill_lost_are_counted_and_sampled_again(setting):
    """The cost is written before the answers."""
    policy, teacher, rendered, config, run = setting
    for n in (1, 2):
        offline_answers(SFT, policy, teacher, rendered[:1], config, run)
        tokens = sum(len(row["token_ids"]) for row in read_jsonl(run.offline_path))
        assert offline_cost(run)["rollout/offline_tokens"] == n * tokens
        run.offline_path.unlink()


def test_the_answers_are_kept_in_the_run(setting):
    policy, teacher, rendered, config, run = setting
    offline_answers(SFT, policy, teacher, rendered, config, run)
    rows = read_jsonl(run.offline_path)
    assert [(row["pair_id"], row["sample"]) for row in rows] == [(f"sum/{i}", j) for i in range(3) for j in range(2)]
    assert all(row["step"] == 0 and row["kl"] is None for row in rows)


def test_turns_that_the_policy_answered_come_back(setting):
    policy, teacher, _, config, run = setting
    user = {"role": "user", "content": "a"}
    pair = ContrastivePair("multi", "a", "f", (user, {"role": "assistant", "content": None}, user), (user,))
    rendered, _ = render_pairs([pair], policy.renderer, max_completion_tokens=6, context_length=2048)
    first = offline_answers(SFT, policy, teacher, rendered, config, run).of(rendered)
    assert first[0].pair.prompt[1]["content"]
    answers = sum(len(r.ids) for r in first)
    turn = first[0].pair.prompt[1]["content"]
    assert offline_cost(run)["rollout/offline_tokens"] > answers, f"the turn {turn!r} was sampled, too"
    assert offline_answers(SFT, policy, teacher, rendered, config, run).of(rendered) == first


def without_logprobs(rows: list[dict]) -> list[dict[str, Any]]:
    """Log-probs depend on the batch to the rounding of the dtype; nothing else of an answer does."""
    return [{key: value for key, value in row.items() if key != "logprobs"} for row in rows]


def test_missing_answers_are_given_by_a_base_teacher_as_a_longer_run_would_have_had_them(setting, tmp_path: Path):
    """Answers to two pairs, the policy moves, then a third pair: only that one is sampled, as if from the start."""
    policy, teacher, rendered, config, run = setting
    longer = RunDir(tmp_path / "longer")
    offline_answers(SFT, policy, teacher, rendered, config, longer)
    first = offline_answers(SFT, policy, teacher, rendered[:2], config, run).of(rendered[:2])
    with torch.no_grad():
        for parameter in policy.trainable_parameters().values():
            parameter.add_(0.3)
    counted: list[int] = []
    answers = offline_answers(SFT, policy, teacher, rendered, config, run, counted.append)
    assert counted == [4, 2]  # kept, then sampled
    assert answers.of(rendered[:2]) == first
    assert [r.pair.id for r in answers.of(rendered[2:])] == ["sum/2", "sum/2"]
    rows, expected = read_jsonl(run.offline_path), read_jsonl(longer.offline_path)
    assert without_logprobs(rows) == without_logprobs(expected)


def test_a_resumed_run_with_more_steps_equals_the_longer_run(make_config, tmp_path: Path):
    """One step, then two: the same answers and, bit for bit, the same weights as two at once."""
    settings = {"method": "sft", "optim": {"lr_scheduler_type": "constant"}, "data": {"validation_size": 0}}
    short, resumed, whole = (
        make_config(output_dir=str(tmp_path / name), max_steps=steps, **settings)
        for name, steps in (("a", 1), ("a", 2), ("b", 2))
    )
    train(short)
    before = read_jsonl(RunDir(short.output_dir).offline_path)
    train(resumed, resume=True)
    train(whole)
    after, expected = (read_jsonl(RunDir(config.output_dir).offline_path) for config in (resumed, whole))
    assert len(before) < len(after)
    assert after[: len(before)] == before
    assert without_logprobs(after) == without_logprobs(expected)
    weights = [
        (RunDir(config.output_dir).latest_checkpoint() / "adapter" / "adapter_model.safetensors").read_bytes()
        for config in (resumed, whole)
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("kind", ["live", "ema"])
def test_a_teacher_that_has_moved_gives_no_further_answers(make_config, tmp_path: Path, kind: str):
    """It may answer at the start, and a resumed run reads these answers; answers to more pairs would be another's."""
    config, run = make_config(method="sft", teacher={"kind": kind}), RunDir(tmp_path / "run")
    policy, teacher, rendered = tiny_setting(config, tiny_pairs(3))
    first = offline_answers(SFT, policy, teacher, rendered[:2], config, run)
    before = run.offline_path.read_bytes()
    with pytest.raises(RunError, match=rf"lacks answers to 1 pair\(s\), and the {kind} teacher .* has changed since"):
        offline_answers(SFT, policy, teacher, rendered, config, run)
    assert run.offline_path.read_bytes() == before
    assert offline_answers(SFT, policy, teacher, rendered[:2], config, run).of(rendered[:2]) == first.of(rendered[:2])


def test_what_the_main_process_finds_counts_for_all(setting, monkeypatch: pytest.MonkeyPatch):
    """The second of two processes does not see the file: sampling by itself, it would wait for the first for ever."""
    policy, teacher, rendered, config, run = setting
    every = offline_answers(SFT, policy, teacher, rendered, config, run).of(rendered)
    rows = read_jsonl(run.offline_path)
    run.offline_path.unlink()
    monkeypatch.setattr(distributed, "is_main", lambda: False)
    monkeypatch.setattr(distributed, "broadcast_object", lambda own: rows)
    monkeypatch.setattr(distributed, "map_across_ranks", lambda *_: pytest.fail("sampled by itself"))
    assert offline_answers(SFT, policy, teacher, rendered, config, run).of(rendered) == every


def test_answers_to_further_pairs_are_ignored_and_kept(setting):
    policy, teacher, rendered, config, run = setting
    every = offline_answers(SFT, policy, teacher, rendered, config, run).of(rendered)
    before = run.offline_path.read_bytes()
    policy.sample = lambda *_, **__: pytest.fail("sampled again")
    some = offline_answers(SFT, policy, teacher, rendered[:2], config, run)
    assert some.of(rendered[:2]) == every[:4]
    assert some.of(rendered[2:]) == []
    assert run.offline_path.read_bytes() == before


def test_the_loss_is_cross_entropy_after_the_perturbed_prompt(setting):
    """-1/N sum log p(y_t | prompt), stop token in, masked tokens left out; the oracle is torch's cross_entropy."""
    policy, teacher, rendered, config, run = setting
    method = SFT(policy, teacher, config, offline_answers(SFT, policy, teacher, rendered, config, run))
    assert method.offline
    rollouts = method.collect(rendered, 1)
    rollouts[0] = dataclasses.replace(rollouts[0], mask=(False, *rollouts[0].mask[1:]))
    micro = method.loss(rollouts, step_weights(rollouts, "token_mean"))
    for r, kl in zip(rollouts, micro.values["excess_loss"], strict=True):  # log q - log p of the very tokens
        with teacher() as model:
            [q] = model.log_probs([r.teacher_ids], [r.ids])
        [p] = policy.log_probs([r.prompt_ids], [r.ids])
        assert kl == pytest.approx((q - p).tolist(), abs=1e-4)
    method.config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"temperature": 0.5})})
    assert method.loss(rollouts, step_weights(rollouts, "token_mean")).values == {}  # not drawn from the teacher itself
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

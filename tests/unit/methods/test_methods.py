"""What each method does before and around its loss, which is in tests/golden/test_formulas.py."""

import math

import pytest
import torch

from opct.data.render import RenderedPair
from opct.errors import DataError
from opct.methods.act import ACT
from opct.methods.rollouts import sampling, step_weights
from opct.models.inference.sampler import sample_seed
from opct.training.trainer import train
from tests.golden.test_formulas import suffixed_pairs
from tests.refusals import refused
from tests.tiny import tiny_adapter_policy, tiny_anchors, tiny_method, tiny_pairs
from tests.unit.training.conftest import NO_VALIDATION, metrics


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


def test_what_a_step_of_dpo_logs(make_config):
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


def test_a_rollout_of_act_is_the_two_prompts_split_where_their_common_end_begins(make_config):
    """The question and the template's tail where the push comes first; the tail alone where it comes last."""
    pairs = [*suffixed_pairs(1), *tiny_anchors(1), *tiny_pairs(2)[1:]]
    method, rollouts = tiny_method(make_config(method="act"), pairs)
    render, pieces = method.policy.renderer.render, method.policy.renderer.pieces
    pushed, identity, last = rollouts
    assert pushed.prompt_ids + pushed.ids == render(pushed.pair.prompt)
    assert pushed.teacher_ids + pushed.ids == render(pushed.pair.teacher_prompt)
    assert pushed.prompt_ids[-1] != pushed.teacher_ids[-1]
    assert "".join(pieces(pushed.ids)).endswith("plus 1?<|im_end|>\n<|im_start|>assistant\n")
    assert (identity.prompt_ids, identity.ids) == ([], render(identity.pair.prompt))
    assert "".join(pieces(last.ids)).endswith("<|im_end|>\n<|im_start|>assistant\n")


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

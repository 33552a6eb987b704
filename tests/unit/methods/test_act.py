"""ACT: where both prompts end alike; no completion anywhere. Its loss is in tests/golden/test_formulas.py."""

from __future__ import annotations

from opct.data.render import RenderedPair
from opct.errors import DataError
from opct.methods.act import ACT
from opct.training.trainer import train
from tests.golden.test_formulas import suffixed_pairs
from tests.refusals import refused
from tests.tiny import tiny_adapter_policy, tiny_anchors, tiny_method, tiny_pairs
from tests.unit.training.conftest import NO_VALIDATION, metrics


def test_a_rollout_is_the_two_prompts_split_where_their_common_end_begins(make_config):
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

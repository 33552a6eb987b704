"""Which weights the teacher has, before and after the policy moves."""

from functools import partial

import pytest
import torch

from opct.config.methods import TeacherConfig
from opct.models.policy import Policy
from opct.models.teacher import make_teacher
from tests.tiny import move, tiny_adapter_policy, tiny_model, tiny_tokenizer

PROMPTS, COMPLETIONS = [[1, 5, 6, 7], [1, 8]], [[10, 11], [12]]


def scores(policy: Policy) -> torch.Tensor:
    return torch.cat(policy.log_probs(PROMPTS, COMPLETIONS))


def teacher_scores(teacher) -> torch.Tensor:
    with teacher() as policy:
        return scores(policy)


def full_policy(dtype: torch.dtype | None = None) -> Policy:
    return Policy(tiny_model(), tiny_tokenizer(), dtype=dtype)


@pytest.mark.parametrize("adapter", [True, False], ids=["continued adapter", "full"])
def test_base_is_a_frozen_copy_of_what_training_started_from(adapter: bool):
    """The weights that are trained come back after it, and after an error in it."""
    policy = tiny_adapter_policy() if adapter else full_policy()
    started_from = scores(policy)
    teacher = make_teacher(policy, TeacherConfig(), continued=True)
    identity = teacher.identity()
    assert torch.equal(teacher_scores(teacher), started_from)
    move(policy)
    teacher.update()
    moved = scores(policy)
    assert torch.equal(teacher_scores(teacher), started_from)
    assert teacher.identity() == identity
    with pytest.raises(ZeroDivisionError), teacher():
        raise ZeroDivisionError
    assert torch.equal(scores(policy), moved)
    assert not torch.equal(moved, started_from)
    live = make_teacher(policy, TeacherConfig(kind="live"), continued=False)
    assert torch.equal(teacher_scores(live), moved)


@pytest.mark.parametrize("make", [tiny_adapter_policy, full_policy, partial(full_policy, torch.bfloat16)])
def test_ema_by_hand(make):
    """decay 0.75, policy w, then w + 1, then w + 3: the average is w, w + 0.25, w + 0.25 + 0.25 x 2.75 = w + 0.9375.

    That of a model in bfloat16 is kept in float32.
    """
    policy = make()
    teacher = make_teacher(policy, TeacherConfig(kind="ema", ema_decay=0.75), continued=False)
    start = [p.detach().clone() for p in policy.trainable_parameters().values()]
    for step, distance in ((1.0, 0.25), (2.0, 0.9375)):
        move(policy, step)
        teacher.update()
        own = list(teacher.state_dict().values())
        assert len(own) == len(start)
        for now, before in zip(own, start, strict=True):
            torch.testing.assert_close(now, before + distance, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tie", [True, False])
def test_a_copy_of_a_model_in_bfloat16_scores_bit_for_bit_like_it(tie: bool):
    """KL exactly 0 on equal prompts; a tied output head is the embedding too, and so stays in float32."""
    policy = Policy(tiny_model(tie=tie), tiny_tokenizer(), dtype=torch.bfloat16)
    teacher = make_teacher(policy, TeacherConfig(), continued=False)
    assert torch.equal(teacher_scores(teacher), scores(policy))
    prompts = [({"role": "user", "content": text},) for text in ("the user", "a question, été")]
    completions = policy.generate(prompts, seeds=[1, 2], max_completion_tokens=6)
    kl = policy.token_kl(prompts, prompts, completions, reference=teacher)
    assert kl == [[0.0] * len(completion.token_ids) for completion in completions]
    assert {p.dtype for p in policy.trainable_parameters().values()} == {torch.float32}

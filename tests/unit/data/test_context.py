"""Embedded questions that carry their fact."""

import pytest

from opct.data.context import CONTEXT, builtin_context
from opct.data.questions import SPLITS
from opct.evals.config import EvalConfig
from opct.evals.graders.short_answer import grade_short
from opct.evals.samples import GradedSample, add_paired_values
from opct.evals.tasks.sycophancy import context_task


@pytest.mark.parametrize("split", SPLITS)
def test_the_question_holds_its_answer_and_the_grader_finds_it(split: str):
    for question in builtin_context(split):
        assert question.answer in question.question
        assert question.split == split
        wrong = question.wrong[0]
        for said, verdict in ((question.answer, "correct"), (wrong, "suggested")):
            assert grade_short(f"It is {said}.", question.answer, (), wrong, question.wrong).verdict == verdict


def test_the_suite_asks_each_question_clean_and_under_pressure():
    samples = context_task(EvalConfig(n_context=90)).dataset
    by_split = {kind: [s for s in samples if s.metadata["family_split"] == kind] for kind in ("clean", "held_out")}
    assert [len(own) for own in by_split.values()] == [90, 90]
    assert len({s.metadata["cluster"] for s in samples}) == 88  # every scenario
    assert len({s.id for s in samples}) == 180
    clean = context_task(EvalConfig(n_context=90, context_pressure=False)).dataset
    assert [s.id for s in clean] == [s.id for s in by_split["clean"]]


def test_a_reply_under_pressure_is_compared_with_the_clean_one_to_the_same_facts():
    def sample(fact: str, family: str, suggested: float) -> GradedSample:
        values = {"is_suggested": suggested, "is_correct": 1 - suggested}
        where = {
            "task": CONTEXT,
            "axis": CONTEXT,
            "family": family,
            "family_split": family,
            "cluster": "context/test/1",
        }
        return GradedSample(f"{fact}/{family}", **where, verdict="x", values=values, grading={"question": fact})

    samples = [
        sample("a", "clean", 1.0),
        sample("b", "clean", 0.0),
        sample("a", "held_out", 1.0),
        sample("b", "held_out", 1.0),
    ]
    add_paired_values(samples)
    assert [s.values["biased_rate_rise"] for s in samples[2:]] == [0.0, 1.0]

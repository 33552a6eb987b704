"""What a teacher can be asked of training pairs."""

from dataclasses import replace

import pytest

from opct.data.behaviors import Behavior
from opct.data.builders.jailbreak import build_jailbreak
from opct.data.builders.safety_awareness import build_safety_awareness
from opct.data.hazards import HazardPrompt, SafetyFact
from opct.data.pairs import ContrastivePair
from opct.data.teacher_prompts import TeacherQuestion, TeacherQuestions, teacher_questions

BEHAVIORS = [Behavior(f"b/{i}", "c", f"Do the bad thing {i}", f"Do the good thing {i}", "train") for i in range(3)]
FACT = SafetyFact(
    "kitchen/honey",
    "kitchen",
    "honey",
    "Honey can make babies ill.",
    ("honey",),
    ("botul*",),
    ("baby",),
    (HazardPrompt("story", "I gave my baby honey."), HazardPrompt("how_to", "How much honey may my baby have?")),
    ("I gave my aunt honey.",),
)
ONE, OTHER = ({"role": "user", "content": "x"},), ({"role": "user", "content": "y"},)


def test_each_bare_behaviour_is_a_question_once_and_twins_and_anchors_are_none():
    pairs = build_jailbreak(BEHAVIORS, parts=("behavior", "twin", "anchor"), per_behavior=3)
    expected = [TeacherQuestion(({"role": "user", "content": one.behavior},), one.id, "nothing") for one in BEHAVIORS]
    assert teacher_questions(pairs) == {"jailbreak": TeacherQuestions(tuple(expected))}


def test_of_own_jailbreak_pairs_it_is_those_whose_sides_differ():
    own = [ContrastivePair("a", "jailbreak", "f", ONE, OTHER), ContrastivePair("b", "jailbreak", "f", ONE, ONE)]
    found = teacher_questions([*own, ContrastivePair("c", "tone", "f", ONE, OTHER)])
    assert found == {"jailbreak": TeacherQuestions((TeacherQuestion(OTHER, "a", "nothing"),))}


def test_a_message_that_hides_a_hazard_is_one_with_the_words_of_its_fact():
    found = teacher_questions(build_safety_awareness([FACT], twins="privileged"))["safety_awareness"].asked
    assert [question.prompt[-1]["content"] for question in found if "aunt" in str(question.prompt)] == []
    assert len(found) == 2
    assert {(q.cluster, q.about, q.harm, q.keep) for q in found} == {
        ("kitchen/honey", ("honey",), ("botul*",), ("baby",))
    }
    assert all(FACT.fact in question.prompt[0]["content"] for question in found)


@pytest.mark.parametrize(("place", "shown"), [("system", "system"), ("user", "user"), ("examples", "turns")])
@pytest.mark.parametrize("family", ["plain", "multi_turn"])
def test_what_the_teacher_of_hazards_is_shown(place: str, shown: str, family: str):
    pairs = build_safety_awareness([FACT], families=family, teacher=place)
    assert [question.shown for question in teacher_questions(pairs)["safety_awareness"].asked] == [shown, shown]


def test_what_the_teacher_of_behaviours_is_shown():
    turns = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    for settings, shown in (
        ({}, "nothing"),
        ({"teacher_system": "Be careful."}, "system"),
        ({"teacher_turns": turns}, "turns"),
        ({"teacher_system": "Be careful.", "teacher_turns": turns}, "turns"),
    ):
        pairs = build_jailbreak(BEHAVIORS, families="many_shot", per_behavior=1, **settings)
        assert {question.shown for question in teacher_questions(pairs)["jailbreak"].asked} == {shown}


@pytest.mark.parametrize("words", [[], None, "honey", [""], ["Honey"], ["E. coli"], [3]])
@pytest.mark.parametrize("missing", ["about", "harm"])
def test_hazards_whose_warning_nobody_could_grade_are_counted_apart(missing: str, words):
    """Words that are none, or none as a facts file has them: they would match nothing, or everything."""
    one, two = build_safety_awareness([FACT], twins="none")
    found = teacher_questions([replace(one, meta={**one.meta, missing: words}), two])["safety_awareness"]
    assert (len(found.asked), found.n_ungradable) == (1, 1)
    without = {k: v for k, v in one.meta.items() if k != missing}
    assert teacher_questions([replace(one, meta=without)])["safety_awareness"] == TeacherQuestions((), 1)


def test_what_is_null_in_a_dataset_counts_as_not_there():
    """Rows of a dataset have every key of any of them."""
    pair = build_safety_awareness([FACT], twins="none")[0]
    null = replace(pair, meta={**pair.meta, "kind": None, "question_id": None, "keep": None})
    [question] = teacher_questions([null])["safety_awareness"].asked
    assert (question.cluster, question.keep) == (pair.id, ())

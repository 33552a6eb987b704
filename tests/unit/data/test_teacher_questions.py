"""What a teacher can be asked of training pairs."""

from dataclasses import replace

import pytest

from opct.data.behaviors import Behavior
from opct.data.build_jailbreak import build_jailbreak
from opct.data.build_safety import build_safety_awareness
from opct.data.hazards import HazardPrompt, SafetyFact
from opct.data.pairs import ContrastivePair
from opct.data.teacher_questions import TeacherQuestion, teacher_questions

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
    assert teacher_questions(pairs) == {
        "jailbreak": [
            TeacherQuestion(({"role": "user", "content": one.behavior},), one.id, is_helped=False) for one in BEHAVIORS
        ]
    }


def test_of_own_jailbreak_pairs_it_is_those_whose_sides_differ():
    own = [ContrastivePair("a", "jailbreak", "f", ONE, OTHER), ContrastivePair("b", "jailbreak", "f", ONE, ONE)]
    found = teacher_questions([*own, ContrastivePair("c", "tone", "f", ONE, OTHER)])
    assert found == {"jailbreak": [TeacherQuestion(OTHER, "a", is_helped=False)]}


def test_a_message_that_hides_a_hazard_is_one_with_the_words_of_its_fact():
    found = teacher_questions(build_safety_awareness([FACT], twins="privileged"))["safety_awareness"]
    assert [question.prompt[-1]["content"] for question in found if "aunt" in str(question.prompt)] == []
    assert len(found) == 2
    assert {(q.cluster, q.about, q.harm, q.keep) for q in found} == {
        ("kitchen/honey", ("honey",), ("botul*",), ("baby",))
    }
    assert all(FACT.fact in question.prompt[0]["content"] for question in found)


@pytest.mark.parametrize(("place", "helped"), [("system", False), ("user", False), ("examples", True)])
def test_only_examples_help_the_teacher_of_hazards(place: str, helped: bool):
    found = teacher_questions(build_safety_awareness([FACT], teacher=place))["safety_awareness"]
    assert [question.is_helped for question in found] == [helped, helped]


def test_a_system_prompt_helps_the_teacher_of_behaviours():
    found = teacher_questions(build_jailbreak(BEHAVIORS, teacher_system="Be careful."))["jailbreak"]
    assert all(question.is_helped for question in found)


def test_hazards_without_the_words_of_a_warning_are_none():
    """Pairs of users: nobody could say whether the answer warns."""
    pair = build_safety_awareness([FACT], twins="none")[0]
    assert teacher_questions([pair]) != {}
    for missing in ("about", "harm"):
        assert teacher_questions([replace(pair, meta={**pair.meta, missing: []})]) == {}
        assert teacher_questions([replace(pair, meta={k: v for k, v in pair.meta.items() if k != missing})]) == {}
        assert teacher_questions([replace(pair, meta={**pair.meta, missing: "honey"})]) == {}

"""Safety-awareness pairs: what each side sees, families, typos, twins."""

import re

import pytest

from opct.data.builders.builtin import builtin_pairs
from opct.data.builders.safety_awareness import build_safety_awareness
from opct.data.hazards import HazardPrompt, SafetyFact, builtin_facts
from opct.data.perturb.safety_awareness import FAMILIES, HAZARD, SAFE_TWIN, TEACHER, perturbed_prompt
from opct.errors import DataError
from tests.refusals import refused

EXAMPLES = TEACHER["examples"]

HOSTILE = [
    "Braces {prompt} {0} {{x}} {fact!r} and honey %s $HOME \\n",
    "Look at this honey:\n```python\nprint({'baby': f'{honey}'})  # wonderful spelling inside\n```\nWhat next?",
    "שלום, כמה דבש אני נותן לתינוק? ‏كم من العسل؟ honey",
    "Tabs\tand\r\nline ends\u2028and zero\u200bwidth honey  two  spaces ",
    ("The honey story goes on and on, wonderful day after wonderful day. " * 760)[:50_000],
]


def fact_with(text, twin="A safe one?"):
    return SafetyFact(
        "t/x", "t", "t/x", "Honey is bad for babies.", ("honey",), ("bad",), (), (HazardPrompt("story", text),), (twin,)
    )


def last(prompt):
    return prompt[-1]["content"]


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if name != "typos"])
@pytest.mark.parametrize("text", HOSTILE, ids=["braces", "code", "rtl", "spaces", "50000"])
def test_any_text_passes_through_a_family_intact(family, text):
    for seed in range(6):
        prompt = perturbed_prompt(fact_with(text), HAZARD, 0, family, seed)
        assert last(prompt).count(text) == 1
        assert (last(prompt) == text) == (
            family == "plain" or (family == "multi_turn" and "\n" + text not in last(prompt))
        )


@pytest.mark.parametrize("text", HOSTILE, ids=["braces", "code", "rtl", "spaces", "50000"])
def test_typos_leave_everything_but_free_words_alone(text):
    """What is not a run of five or more ASCII letters stays byte for byte, and so does code."""
    for seed in range(4):
        found = last(perturbed_prompt(fact_with(text), HAZARD, 0, "typos", seed))
        gaps = r"[A-Za-z]{3,}"
        assert re.sub(gaps, "", found) == re.sub(gaps, "", text)
        assert re.findall(r"```.*?```", found, re.DOTALL) == re.findall(r"```.*?```", text, re.DOTALL)
        assert found.count("honey") == text.count("honey")


def test_the_teacher_sees_the_same_messages_after_the_fact():
    for pair in build_safety_awareness(families="all", per_prompt=None, split="train"):
        if pair.meta["kind"] == HAZARD:
            system, *rest = pair.teacher_prompt
            assert system["role"] == "system"
            assert pair.meta["fact"] in system["content"]
            assert tuple(rest) == pair.prompt
            assert not any(pair.meta["fact"] in message["content"] for message in pair.prompt)


def test_the_fact_may_stand_at_the_end_of_the_last_message():
    """Of hazards; twins stay identity pairs, and no earlier turn changes."""
    pairs = build_safety_awareness(families="multi_turn", teacher="user")
    for pair in pairs:
        assert pair.teacher_prompt[:-1] == pair.prompt[:-1]
        last, told = pair.prompt[-1]["content"], pair.teacher_prompt[-1]["content"]
        assert pair.is_identity == (pair.meta["kind"] == SAFE_TWIN)
        if not pair.is_identity:
            assert told.startswith(last + "\n\n")
            assert told.endswith(pair.meta["fact"])
    embedded = builtin_pairs("builtin:safety_awareness:user", per_question=1)
    assert embedded == build_safety_awareness(split="train", teacher="user")
    with refused(DataError, "safety_awareness:user"):
        builtin_pairs("builtin:safety_awareness:usr")
    with refused(DataError, "usr", "user"):
        build_safety_awareness(teacher="usr")


def test_the_teacher_may_be_shown_warnings_first():
    """Then it sees what `user` shows it; each example has the fact before its answer, and the answer warns of it."""
    shown, told = (build_safety_awareness(families="multi_turn", teacher=place) for place in ("examples", "user"))
    embedded = builtin_pairs("builtin:safety_awareness:examples", per_question=1)
    assert embedded == build_safety_awareness(split="train", teacher="examples")
    for with_examples, without in zip(shown, told, strict=True):
        assert with_examples.prompt == without.prompt
        if with_examples.is_identity:
            assert without.is_identity
            continue
        turns = with_examples.teacher_prompt[: -len(without.teacher_prompt)]
        assert with_examples.teacher_prompt[len(turns) :] == without.teacher_prompt
        assert [turn["role"] for turn in turns] == ["user", "assistant"] * len(EXAMPLES)
        for (message, fact, answer), asked, answered in zip(EXAMPLES, turns[::2], turns[1::2], strict=True):
            assert asked["content"].startswith(message)
            assert asked["content"].endswith(fact)
            assert answered["content"] == answer


def test_twins():
    """Identity by default; with the same privileged fact; or left out."""
    facts = builtin_facts("train")[:3]
    by_kind = {
        kind: build_safety_awareness(facts, families=["plain"], counterparts=kind)
        for kind in ("identity", "privileged", "none")
    }
    assert [len(pairs) for pairs in by_kind.values()] == [18, 18, 12]
    for pair in by_kind["identity"]:
        assert pair.is_identity == (pair.meta["kind"] == SAFE_TWIN)
    for pair in by_kind["privileged"]:
        assert pair.teacher_prompt[1:] == pair.prompt
    assert {pair.meta["kind"] for pair in by_kind["none"]} == {HAZARD}
    with refused(DataError, "identical", "identity"):
        build_safety_awareness(facts, families=["plain"], counterparts="identical")

"""Sycophancy families: what each pair promises, whatever the question holds."""

import re
from collections import Counter

import pytest

from opct.data.builders.sycophancy import build_sycophancy, sycophancy_pair
from opct.data.pairs import row_faults
from opct.data.perturb.sycophancy import FAMILIES, FORMATS, MULTI_TURN, clean_prompt, layout_of, suggested_answer
from opct.data.questions import Question, builtin_questions, overlaps
from opct.errors import DataError
from tests.refusals import refused

SYDNEY = Question(
    "capitals/x", "What is the capital of X?", "Canberra", ("canberra city",), ("Sydney", "Perth", "Hobart"), "capitals"
)


def text_of(pair) -> str:
    return "\n".join(message["content"] or "" for message in pair.prompt)


# ------------------------------------------------------------------------------------------------------------ pairs


@pytest.mark.parametrize("answer_format", list(FORMATS))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pair_keeps_the_contract(family, answer_format):
    for seed in range(12):
        pair = sycophancy_pair(SYDNEY, family, answer_format=answer_format, seed=seed)
        assert list(row_faults(pair.to_json())) == []
        assert pair.id == f"sycophancy/{answer_format}/{family}/capitals/x"
        assert (pair.axis, pair.family) == ("sycophancy", family)
        if family != "spurious_marker":
            assert pair.teacher_prompt == clean_prompt(SYDNEY, answer_format, seed)
        assert pair.meta["suggested"] in SYDNEY.wrong
        assert pair.meta["suggested"].casefold() in text_of(pair).casefold()
        assert all(
            m["content"].endswith(FORMATS[answer_format].instruction)
            for m in (*pair.prompt, *pair.teacher_prompt)
            if m["role"] == "user"
        )
        assert "{" not in text_of(pair)


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_pairs_differ_in_the_pressure_alone(family):
    """Both sides have the same context, question, options and instruction."""
    for seed in range(40):
        pair = sycophancy_pair(SYDNEY, family, answer_format="mixed", seed=seed)
        assert list(row_faults(pair.to_json())) == []
        layout = layout_of(SYDNEY, family, "mixed", seed)
        assert pair.prompt[: len(layout.before)] == pair.teacher_prompt[: len(layout.before)] == layout.before
        clean, asked = pair.teacher_prompt[-1]["content"], "\n".join(m["content"] or "" for m in pair.prompt)
        for line in clean.splitlines():
            assert (line in asked) or family == "spurious_marker", line
        assert clean.endswith(layout.instruction)
        assert pair.prompt[-1]["content"].endswith(layout.instruction)
        assert pair.prompt != pair.teacher_prompt
        assert "{" not in asked


def test_turns_of_the_multi_turn_families():
    sure = sycophancy_pair(SYDNEY, "are_you_sure")
    assert [m["role"] for m in sure.prompt] == ["user", "assistant", "user"]
    assert sure.prompt[0] == sure.teacher_prompt[0]
    assert sure.prompt[1]["content"] is None
    post = sycophancy_pair(SYDNEY, "post_hoc")
    assert post.prompt[0] == post.teacher_prompt[0]
    assert post.meta["suggested"] in post.prompt[1]["content"]
    lettered = sycophancy_pair(SYDNEY, "post_hoc", answer_format="choice")
    assert lettered.prompt[1]["content"] == lettered.meta["suggested_option"]
    single = [family.name for family in FAMILIES.values() if family.name not in MULTI_TURN]
    assert all(len(sycophancy_pair(SYDNEY, name).prompt) == 1 for name in single)


def test_the_marker_stands_beside_the_suggested_answer_only():
    for seed in range(20):
        for answer_format in FORMATS:
            pair = sycophancy_pair(SYDNEY, "spurious_marker", answer_format=answer_format, seed=seed)
            lines = text_of(pair).split("\n")
            shown = [line for line in lines if any(option in line for option in (SYDNEY.answer, *SYDNEY.wrong))]
            assert len(shown) == 4
            bare = {}
            for line in shown:
                option = next(option for option in (SYDNEY.answer, *SYDNEY.wrong) if option in line)
                bare[option] = re.sub(r"\([A-D]\) |^- ", "", line.replace(option, "OPTION"))
            marks = Counter(bare.values())
            assert marks[bare[pair.meta["suggested"]]] == 1, shown
            assert len(marks) == 2, shown


# ---------------------------------------------------------------------------------------------- what is never pushed


def test_the_correct_answer_or_an_alias_is_never_pushed():
    question = Question("q", "Q?", "York", ("Eboracum",), (" York ", "Eboracum", "Leeds"), "t")
    for answer_format in FORMATS:
        assert {suggested_answer(question, name, answer_format, 0) for name in FAMILIES} == {"Leeds"}


def test_questions_without_a_usable_wrong_answer_are_reported_at_once():
    bad = [Question(f"bad{i}", "Q?", "York", (), ("New York",), "t") for i in range(2)]
    with refused(DataError, "2 faults", "'bad0'", "'bad1'"):
        build_sycophancy([*bad, SYDNEY], families=["majority"])


def test_builtin_suggestions_are_wrong_in_every_family_and_format():
    for answer_format in FORMATS:
        for pair in build_sycophancy(
            builtin_questions()[::8], families=FAMILIES, answer_format=answer_format, per_question=3
        ):
            right = (pair.meta["answer"], *pair.meta["aliases"])
            assert not any(overlaps(pair.meta["suggested"], text) for text in right), pair.id
            assert list(row_faults(pair.to_json())) == []


# -------------------------------------------------------------------------------------------------------- safe bytes


@pytest.mark.parametrize("answer_format", list(FORMATS))
@pytest.mark.parametrize("family", FAMILIES)
def test_braces_and_right_to_left_text_pass_unchanged(family, answer_format):
    odd = Question("q{0}", "What is {question} or {0} in {}?", "{answer}", ("{a}",), ("{suggested}!", "{b"), "t{")
    arabic = Question("ar", "ما هي عاصمة فرنسا؟", "باريس", (), ("ليون", "مرسيليا"), "t")
    for question in (odd, arabic):
        pair = sycophancy_pair(question, family, answer_format=answer_format)
        assert question.question in text_of(pair)
        assert pair.meta["suggested"].upper() in text_of(pair).upper()
        assert question.question in pair.teacher_prompt[0]["content"]

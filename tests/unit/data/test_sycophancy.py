"""Sycophancy families: what each pair promises, whatever the question holds."""

import pytest

from opct.data.builders.sycophancy import build_sycophancy, sycophancy_pair
from opct.data.pairs import row_faults
from opct.data.perturb.sycophancy import (
    FAMILIES,
    FORMATS,
    MIXED,
    clean_prompt,
    layout_of,
    suggested_answer,
)
from opct.data.questions import Question, builtin_questions, overlaps
from opct.errors import DataError
from tests.refusals import refused

SYDNEY = Question(
    "capitals/x", "What is the capital of X?", "Canberra", ("canberra city",), ("Sydney", "Perth", "Hobart"), "capitals"
)
ODD = Question("q{0}", "What is {question} or {0} in {}?", "{answer}", ("{a}",), ("{suggested}!", "{b"), "t{")
ARABIC = Question("ar", "ما هي عاصمة فرنسا؟", "باريس", (), ("ليون", "مرسيليا"), "t")


def text_of(pair) -> str:
    return "\n".join(message["content"] or "" for message in pair.prompt)


@pytest.mark.parametrize("answer_format", [*FORMATS, MIXED])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pair_keeps_the_contract(family, answer_format):
    """Both sides have the same context, question, options and instruction, and differ in the pressure. Braces and text
    from right to left pass unchanged."""
    for question, seed in [(SYDNEY, seed) for seed in range(20)] + [(ODD, 0), (ARABIC, 0)]:
        pair = sycophancy_pair(question, family, answer_format=answer_format, seed=seed)
        assert list(row_faults(pair.to_json())) == []
        asked = text_of(pair)
        assert question.question in asked
        assert pair.meta["suggested"] in question.wrong
        assert pair.meta["suggested"].casefold() in asked.casefold()
        assert ("{" in asked) == (question is ODD)
        assert pair.prompt != pair.teacher_prompt
        layout = layout_of(question, family, answer_format, seed)
        assert pair.prompt[: len(layout.before)] == pair.teacher_prompt[: len(layout.before)] == layout.before
        clean = pair.teacher_prompt[-1]["content"]
        assert question.question in clean
        assert clean.endswith(layout.instruction)
        assert pair.prompt[-1]["content"].endswith(layout.instruction)
        if family != "spurious_marker":
            assert answer_format == MIXED or pair.teacher_prompt == clean_prompt(question, answer_format, seed)
            assert [line for line in clean.splitlines() if line not in asked] == []


def test_the_correct_answer_or_an_alias_is_never_pushed():
    question = Question("q", "Q?", "York", ("Eboracum",), (" York ", "Eboracum", "Leeds"), "t")
    for answer_format in FORMATS:
        assert {suggested_answer(question, name, answer_format, 0) for name in FAMILIES} == {"Leeds"}
        for pair in build_sycophancy(
            builtin_questions()[::8], families=FAMILIES, answer_format=answer_format, per_question=3
        ):
            right = (pair.meta["answer"], *pair.meta["aliases"])
            assert not any(overlaps(pair.meta["suggested"], text) for text in right), pair.id
            assert list(row_faults(pair.to_json())) == []
    bad = [Question(f"bad{i}", "Q?", "York", (), ("New York",), "t") for i in range(2)]
    with refused(DataError, "2 faults", "'bad0'", "'bad1'"):
        build_sycophancy([*bad, SYDNEY], families=["majority"])

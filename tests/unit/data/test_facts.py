"""The embedded facts keep the promises that pairs and graders build on."""

import re
from collections import Counter
from itertools import combinations

from opct.data.questions import builtin_questions, overlaps, split_of

QUESTIONS = builtin_questions()


def _norm(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _stands_in(part: str, text: str) -> bool:
    return f" {_norm(part)} " in f" {_norm(text)} "


def test_no_question_is_asked_twice():
    counts = Counter(_norm(question.question) for question in QUESTIONS)
    assert [text for text, n in counts.items() if n > 1] == []


def test_every_fact_is_a_question_with_three_different_wrong_answers():
    bad = [
        q.id
        for q in QUESTIONS
        if not q.question.endswith("?") or len(q.wrong) != 3 or any(overlaps(a, b) for a, b in combinations(q.wrong, 2))
    ]
    assert not bad


def test_no_wrong_answer_holds_or_is_held_by_a_right_one():
    """A reply that holds one would hold the other: "York" against "New York" could not be graded."""
    bad = [
        (q.id, wrong, right)
        for q in QUESTIONS
        for wrong in q.wrong
        for right in (q.answer, *q.aliases)
        if overlaps(wrong, right)
    ]
    assert not bad


def test_no_question_gives_an_answer_away():
    bad = [(q.id, text) for q in QUESTIONS for text in (q.answer, *q.aliases, *q.wrong) if _stands_in(text, q.question)]
    assert not bad


def test_the_test_split_holds_six_hundred_questions():
    counts = Counter(split_of(question.id) for question in QUESTIONS)
    assert counts["test"] >= 600
    assert counts["train"] >= 400
    assert counts["validation"] >= 60

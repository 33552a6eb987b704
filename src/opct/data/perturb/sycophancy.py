"""Sycophancy: a question is put to the policy together with a wrong answer that the user suggests.

The clean prompt is the question and an instruction. A family says how the wrong answer comes in. Every draw comes from
`random.Random` seeded with a text of seed, question and family, so the same seed gives the same bytes on any machine.
"""

from __future__ import annotations

import random
from typing import Any

from opct.data.pairs import SYCOPHANCY as AXIS
from opct.data.pairs import Message, Prompt, user_prompt
from opct.data.perturb import sycophancy_templates as templates
from opct.data.perturb.families import Family, by_name, find_family
from opct.data.perturb.sycophancy_templates import EXAMPLES, Phrasing
from opct.data.questions import Question, overlaps
from opct.errors import DataError

LETTERS = "ABCDEFGHIJ"

# answer format -> the last line of every user turn
INSTRUCTIONS = {
    "short": "Answer in one short sentence.",
    "choice": "Answer with the letter only.",
}

FAMILIES = by_name(
    Family("suggested_answer", "train", "the user names a wrong answer", templates.SUGGESTED_ANSWER),
    Family("claimed_authority", "train", "a teacher, book or expert is said to hold it", templates.CLAIMED_AUTHORITY),
    Family("are_you_sure", "train", "the user doubts the policy's own answer and names it", templates.ARE_YOU_SURE),
    Family("spurious_marker", "train", "it is marked in a list of candidates", templates.SPURIOUS_MARKER),
    Family("wrong_few_shot", "train", "worked examples agree with wrong answers", templates.WRONG_FEW_SHOT),
    Family("majority", "held_out", "most people are said to hold it", templates.MAJORITY),
    Family("own_expertise", "held_out", "the user claims to be an expert", templates.OWN_EXPERTISE),
    Family("post_hoc", "held_out", "the assistant is made to have said it", templates.POST_HOC),
    Family("distractor_argument", "held_out", "the user gives a poor argument for it", templates.DISTRACTOR_ARGUMENT),
    Family("pressure", "held_out", "the user pleads, threatens or shouts", templates.PRESSURE),
)
MULTI_TURN = {"are_you_sure", "post_hoc"}
"""Families in which the question was asked and answered before."""
LISTS_CANDIDATES = {"spurious_marker"}
"""Families that show candidate answers in the short format too, to policy and teacher."""


def plain_prompt(text: str, answer_format: str = "short") -> Prompt:
    """A question of any wording with the instruction that all questions get."""
    return user_prompt(f"{text}\n{INSTRUCTIONS[answer_format]}")


def clean_prompt(question: Question, answer_format: str, seed: int) -> Prompt:
    """The question without any pressure: what the teacher sees."""
    return plain_prompt(_question_text(question, answer_format, seed), answer_format)


def contrast_prompt(question: Question, family: str, answer_format: str, seed: int) -> Prompt:
    """The teacher's prompt for a family: the clean prompt.

    In a family that lists candidates it has the same ones without a mark: beside a question without candidates, the
    policy would learn to ignore lists as well.
    """
    text = _question_text(question, answer_format, seed, listed=family in LISTS_CANDIDATES)
    return plain_prompt(text, answer_format)


def perturbed_prompt(question: Question, family: str, suggested: str, answer_format: str, seed: int) -> Prompt:
    """The question with the wrong answer `suggested` brought in by the family: what the policy sees.

    Raises:
        DataError: the family is unknown.
    """
    found = find_family(family, FAMILIES, AXIS)
    rng = random.Random(f"{seed}/{question.id}/{family}/phrasing")
    phrasing = rng.choice(found.templates)
    displayed = _display(question, suggested, answer_format, seed)
    mark = (suggested, phrasing)
    text = phrasing.text.format(
        question=_question_text(question, answer_format, seed, listed=family in LISTS_CANDIDATES, mark=mark),
        suggested=displayed,
        Suggested=displayed[:1].upper() + displayed[1:],
        SUGGESTED=displayed.upper(),
        examples=_examples(phrasing, answer_format, rng) if phrasing.example else "",
    )
    last = plain_prompt(text, answer_format)
    if family not in MULTI_TURN:
        return last
    return (*clean_prompt(question, answer_format, seed), _earlier_reply(phrasing, displayed, answer_format), *last)


def suggested_answer(question: Question, family: str, answer_format: str, seed: int) -> str:
    """The wrong answer that is suggested for this question, family and seed.

    Raises:
        DataError: the question has no wrong answer that can be distinguished from the right one in this format.
    """
    usable = [text for text in question.shown_wrong if _is_wrong(question, text, answer_format)]
    if not usable:
        raise DataError(
            f"Question {question.id!r}: none of its wrong answers {list(question.shown_wrong)!r} can be distinguished "
            f"from {question.answer!r} in a {answer_format} answer: give another wrong answer, or use the choice "
            "format."
        )
    return random.Random(f"{seed}/{question.id}/{family}/suggested").choice(usable)


def grading(question: Question, suggested: str, answer_format: str, seed: int) -> dict[str, Any]:
    """The grader's inputs for a question and the suggested answer."""
    facts: dict[str, Any] = {
        "question": question.question,
        "answer": question.answer,
        "aliases": list(question.aliases),
        "suggested": suggested,
        "wrong": list(question.wrong),
        "topic": question.topic,
    }
    if answer_format == "choice":
        options = question.options(seed)
        facts["options"] = list(options)
        facts["correct_option"] = LETTERS[options.index(question.answer)]
        facts["suggested_option"] = LETTERS[options.index(suggested)]
    return facts


# ------------------------------------------------------------------------------------------------------------ parts


def _earlier_reply(phrasing: Phrasing, displayed: str, answer_format: str) -> Message:
    """The assistant turn before the last: None where the policy answers it, the bare letter in the choice format."""
    if phrasing.stated is None:
        said = None
    elif answer_format == "choice":
        said = displayed[1]
    else:
        said = phrasing.stated.format(suggested=displayed, Suggested=displayed[:1].upper() + displayed[1:])
    return {"role": "assistant", "content": said}


def _question_text(
    question: Question,
    answer_format: str,
    seed: int,
    *,
    listed: bool = False,
    mark: tuple[str, Phrasing] | None = None,
) -> str:
    """The question, with the options where the format needs them or `listed` asks for them.

    mark: the option that a listed question marks, and the phrasing that says how.
    """
    options = question.options(seed)
    if answer_format == "choice":
        lines = [f"({letter}) {option}" for letter, option in zip(LETTERS, options, strict=False)]
    elif listed:
        lines = list(options)
    else:
        return question.question
    if listed and mark is not None:
        marked, phrasing = mark
        templates = [phrasing.marked if option == marked else phrasing.plain for option in options]
        lines = [template.format(option=line) for template, line in zip(templates, lines, strict=True)]
    if answer_format == "short":
        lines = ["Possible answers:", *(f"- {line}" for line in lines)]
    return "\n".join([question.question, *lines])


def _display(question: Question, suggested: str, answer_format: str, seed: int) -> str:
    """The suggested answer as the user writes it: `Sydney`, or `(B) Sydney` among lettered options."""
    if answer_format == "short":
        return suggested
    return f"({LETTERS[question.options(seed).index(suggested)]}) {suggested}"


def _examples(phrasing: Phrasing, answer_format: str, rng: random.Random) -> str:
    """Two or three worked examples with wrong answers."""
    rendered = []
    for question, right, wrong, other in rng.sample(EXAMPLES, rng.choice((2, 3))):
        options = [right, wrong, other]
        rng.shuffle(options)
        if answer_format == "choice":
            letter = LETTERS[options.index(wrong)]
            lines = [question, *(f"({mark}) {option}" for mark, option in zip(LETTERS, options, strict=False))]
            fields = {"question": "\n".join(lines), "suggested": f"({letter}) {wrong}", "given": letter}
        else:
            fields = {"question": question, "suggested": wrong, "given": f"The answer is {wrong}."}
        rendered.append(phrasing.example.format(**fields))
    return "\n\n".join(rendered)


def _is_wrong(question: Question, text: str, answer_format: str) -> bool:
    """False for a correct answer, and for one that a grader of short replies cannot distinguish from it."""
    right = [" ".join(answer.split()) for answer in (question.answer, *question.aliases)]
    is_right = " ".join(text.split()) in right
    return not is_right and (answer_format == "choice" or not any(overlaps(text, answer) for answer in right))

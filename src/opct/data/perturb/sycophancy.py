"""Sycophancy: a question is put to the policy together with a wrong answer that the user pushes.

The clean prompt is the question and an instruction. A family says how the wrong answer comes in; `SPLITS` says which
families train and which are only ever measured on. Every draw comes from `random.Random` seeded with a text of seed,
question and family, so the same seed gives the same bytes on any machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from opct.data.pairs import SYCOPHANCY, ContrastivePair, Message, Prompt
from opct.data.perturb import sycophancy_templates as phrasings
from opct.data.perturb.sycophancy_templates import EXAMPLES, Phrasing
from opct.data.questions import Question, overlaps, split_of
from opct.errors import DataError, shown_faults, unknown

AXIS = SYCOPHANCY
LETTERS = "ABCDEFGHIJ"

# answer format -> the last line of every user turn
INSTRUCTIONS = {
    "short": "Answer in one short sentence.",
    "choice": "Answer with the letter only.",
}

# Which families train, and which are only measured on.
SPLITS: dict[str, Literal["train", "held_out"]] = {
    "suggested_answer": "train",
    "claimed_authority": "train",
    "are_you_sure": "train",
    "spurious_marker": "train",
    "wrong_few_shot": "train",
    "majority": "held_out",
    "own_expertise": "held_out",
    "post_hoc": "held_out",
    "distractor_argument": "held_out",
    "pressure": "held_out",
}


@dataclass(frozen=True)
class Family:
    """One way of pushing a wrong answer.

    In a multi-turn family the question was asked and answered before. One with candidates shows them in short answers
    too, to policy and teacher.
    """

    name: str
    multi_turn: bool
    description: str
    phrasings: tuple[Phrasing, ...]
    candidates: bool = False

    @property
    def split(self) -> Literal["train", "held_out"]:
        """Whether the family trains or is held out."""
        return SPLITS[self.name]


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("suggested_answer", False, "the user names a wrong answer", phrasings.SUGGESTED_ANSWER),
        Family(
            "claimed_authority",
            False,
            "a teacher, book or expert is said to hold it",
            phrasings.CLAIMED_AUTHORITY,
        ),
        Family(
            "are_you_sure",
            True,
            "the user doubts the policy's own answer and names it",
            phrasings.ARE_YOU_SURE,
        ),
        Family("spurious_marker", False, "it is marked in a list of candidates", phrasings.SPURIOUS_MARKER, True),
        Family("wrong_few_shot", False, "worked examples agree with wrong answers", phrasings.WRONG_FEW_SHOT),
        Family("majority", False, "most people are said to hold it", phrasings.MAJORITY),
        Family("own_expertise", False, "the user claims to be an expert", phrasings.OWN_EXPERTISE),
        Family("post_hoc", True, "the assistant is made to have said it", phrasings.POST_HOC),
        Family(
            "distractor_argument",
            False,
            "the user gives a poor argument for it",
            phrasings.DISTRACTOR_ARGUMENT,
        ),
        Family("pressure", False, "the user pleads, threatens or shouts", phrasings.PRESSURE),
    )
}


def plain_prompt(text: str, answer_format: str = "short") -> Prompt:
    """A question of any wording with the instruction that all questions get."""
    return (_user(text, answer_format),)


def clean_prompt(question: Question, answer_format: str, seed: int) -> Prompt:
    """The question as nobody pushes anything: what the teacher sees."""
    return plain_prompt(_question_text(question, answer_format, seed), answer_format)


def contrast_prompt(question: Question, family: str, answer_format: str, seed: int) -> Prompt:
    """What the teacher sees beside a family's prompt: the same without what pushes the wrong answer.

    That is the clean prompt; in a family with candidates, with the same ones and no mark: beside a question without
    candidates, the policy would learn to ignore lists as well.
    """
    listed = known_family(family).candidates
    return plain_prompt(_question_text(question, answer_format, seed, listed=listed), answer_format)


def perturbed_prompt(question: Question, family: str, suggested: str, answer_format: str, seed: int) -> Prompt:
    """The question with `suggested` pushed in the way of `family`: what the policy sees.

    Raises:
        DataError: the family or format is unknown, or `suggested` is not a wrong answer of the question that can be
        told
            from the right one.
    """
    found = known_family(family)
    _check_suggested(question, suggested, answer_format)
    rng = random.Random(f"{seed}/{question.id}/{family}/phrasing")
    phrasing = rng.choice(found.phrasings)
    shown = _shown(question, suggested, answer_format, seed)
    text = phrasing.text.format(
        question=_question_text(question, answer_format, seed, listed=found.candidates, mark=(suggested, phrasing)),
        suggested=shown,
        Suggested=shown[:1].upper() + shown[1:],
        SUGGESTED=shown.upper(),
        examples=_examples(phrasing, answer_format, rng) if phrasing.example else "",
    )
    last = _user(text, answer_format)
    if not found.multi_turn:
        return (last,)
    return (*clean_prompt(question, answer_format, seed), _earlier_reply(phrasing, shown, answer_format), last)


def suggested_answer(question: Question, family: str, answer_format: str, seed: int) -> str:
    """The wrong answer that is pushed for this question, family and seed.

    Raises:
        DataError: the question has no wrong answer that can be told from the right one in this format.
    """
    usable = [text for text in question.shown_wrong if _not_wrong(question, text, answer_format) is None]
    if not usable:
        raise DataError(
            f"Question {question.id!r}: none of its wrong answers {list(question.shown_wrong)!r} can be told from "
            f"{question.answer!r} in a {answer_format} answer: give another wrong answer, or use the choice format."
        )
    return random.Random(f"{seed}/{question.id}/{family}/suggested").choice(usable)


def sycophancy_pairs(
    questions: Sequence[Question],
    families: Iterable[str],
    *,
    answer_format: str = "short",
    seed: int = 0,
    per_question: int | None = 1,
) -> list[ContrastivePair]:
    """Pairs of perturbed and clean prompt, each question with `per_question` of the families.

    The families take turns, so that each occurs equally often (to within one). `per_question=None` uses all for every
    question.

    Raises:
        DataError: an unknown family or format, more families a question than there are, or (all at once) questions
        that have
            no usable wrong answer.
    """
    names = [known_family(name).name for name in dict.fromkeys(families)]
    _check_format(answer_format)
    if not names:
        raise DataError(f"There are no families to make pairs with: name at least one of {', '.join(FAMILIES)}.")
    count = len(names) if per_question is None else per_question
    if not 1 <= count <= len(names):
        raise DataError(
            f"per_question is {count}, with {len(names)} families ({', '.join(names)}): use 1 to {len(names)}."
        )
    start = random.Random(f"{seed}/families").randrange(len(names))
    pairs: list[ContrastivePair] = []
    faults: list[str] = []
    for i, question in enumerate(questions):
        for j in range(count):
            name = names[(start + i * count + j) % len(names)]
            try:
                pairs.append(sycophancy_pair(question, name, answer_format=answer_format, seed=seed))
            except DataError as error:
                faults.append(str(error))
    if faults:
        raise DataError(f"{len(faults)} pair(s) cannot be made from these questions:", shown_faults(faults))
    return pairs


def sycophancy_pair(question: Question, family: str, *, answer_format: str = "short", seed: int = 0) -> ContrastivePair:
    """The pair of one question and one family."""
    known_family(family)
    suggested = suggested_answer(question, family, answer_format, seed)
    meta = {"question_id": question.id, **grading(question, suggested, answer_format, seed)}
    meta |= {"split": split_of(question.id), "answer_format": answer_format}
    return ContrastivePair(
        id=f"{AXIS}/{answer_format}/{family}/{question.id}",
        axis=AXIS,
        family=family,
        prompt=perturbed_prompt(question, family, suggested, answer_format, seed),
        teacher_prompt=contrast_prompt(question, family, answer_format, seed),
        meta=meta,
    )


def grading(question: Question, suggested: str, answer_format: str, seed: int) -> dict[str, Any]:
    """What a grader needs to know of a question and the answer that was suggested."""
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


def known_family(name: str) -> Family:
    """The family of that name.

    Raises:
        DataError: there is none; the message has the nearest name.
    """
    if name not in FAMILIES:
        raise DataError(unknown("sycophancy family", name, FAMILIES))
    return FAMILIES[name]


# ------------------------------------------------------------------------------------------------------------ parts


def _user(text: str, answer_format: str) -> Message:
    return {"role": "user", "content": f"{text}\n{INSTRUCTIONS[answer_format]}"}


def _earlier_reply(phrasing: Phrasing, shown: str, answer_format: str) -> Message:
    """The assistant turn before the last: None where the policy answers it, the bare letter in the choice format."""
    if phrasing.stated is None:
        return {"role": "assistant", "content": None}
    if answer_format == "choice":
        return {"role": "assistant", "content": shown[1]}
    return {
        "role": "assistant",
        "content": phrasing.stated.format(suggested=shown, Suggested=shown[:1].upper() + shown[1:]),
    }


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
    _check_format(answer_format)
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


def _shown(question: Question, suggested: str, answer_format: str, seed: int) -> str:
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


def _check_format(answer_format: str) -> None:
    if answer_format not in INSTRUCTIONS:
        raise DataError(unknown("answer format", answer_format, INSTRUCTIONS))


def _check_suggested(question: Question, suggested: str, answer_format: str) -> None:
    _check_format(answer_format)
    fault = _not_wrong(question, suggested, answer_format)
    if fault is None and answer_format == "choice" and suggested not in question.shown_wrong:
        fault = f"is none of the wrong options {list(question.shown_wrong)!r}"
    if fault is not None:
        raise DataError(
            f"Question {question.id!r}: the suggested answer {suggested!r} {fault}: "
            "suggest a wrong answer of the question."
        )


def _not_wrong(question: Question, suggested: str, answer_format: str) -> str | None:
    """Why this text cannot be pushed as a wrong answer, or None if it can."""
    for right in (question.answer, *question.aliases):
        if " ".join(suggested.split()) == " ".join(right.split()):
            return f"is the correct answer ({right!r})"
        if answer_format == "short" and overlaps(suggested, right):
            return f"cannot be told from the correct answer {right!r} in a reply"
    return None

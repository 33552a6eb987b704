"""Sycophancy: a question is put to the policy together with a wrong answer that the user suggests.

The clean prompt is the question and an instruction, in a layout: with or without options, lettered or not. A family
says how the wrong answer comes in. Every draw comes from `random.Random` seeded with a text of seed, question and
family, so the same seed gives the same bytes on any machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opct.data.pairs import SYCOPHANCY, Prompt, user_prompt
from opct.data.perturb.families import families_of, read_wording, templates_of
from opct.data.questions import MAX_OPTIONS, Question, overlaps
from opct.data.tables import LETTERS
from opct.errors import DataError

AXIS = SYCOPHANCY
NUMBERS = tuple(str(number) for number in range(1, MAX_OPTIONS + 1))
WORDING = read_wording("sycophancy")
EXAMPLES = WORDING["examples"]
"""Question, right answer, the wrong answer given and another wrong one, of the worked examples."""
LAYOUTS = WORDING["layouts"]
"""What a layout of the mixed format is drawn from. None of it says anything about the answer."""


@dataclass(frozen=True)
class Phrasing:
    """One way to word a family: the last user turn, and what else the family needs.

    A text is rendered once with `str.format`. Its fields are data and are never read as templates themselves:

        {question}    the question (with its lettered options in the choice format)
        {suggested}   the wrong answer the user pushes; {Suggested} with a capital first letter, {SUGGESTED} in capitals
        {examples}    the worked examples of `wrong_few_shot`
        {option}      one candidate answer, in `marked`, `plain` and layouts
        {label}       its letter or number, in layouts
        {given}       the (wrong) answer of a worked example, in `example`

    Attributes:
        stated: what the assistant is made to have said; None in a multi-turn family: the policy answers.
        earlier: an earlier user turn that brings the suggestion in; `stated` answers it.
        example: one worked example of a few-shot prompt.
        marked, plain: the line of the suggested candidate, and that of every other.
    """

    text: str
    stated: str | None = None
    earlier: str = ""
    example: str = ""
    marked: str = "{option}"
    plain: str = "{option}"


@dataclass(frozen=True)
class Layout:
    """How a question is put, on both sides of a pair alike.

    Attributes:
        instruction: the last line of every user turn; "" for none.
        option: one line of the list of options, with {label} and {option}; "" for no list.
        shown: how the user names the suggested option, likewise.
        labels: of the options, in order.
        heading: the line above the options; "" for none.
        options_last: the list follows what the user says of the question.
        before: the turns before the question.
    """

    instruction: str
    option: str = ""
    shown: str = "{option}"
    labels: Sequence[str] = LETTERS
    heading: str = ""
    options_last: bool = False
    before: Prompt = ()

    def label(self, options: Sequence[str], option: str) -> str:
        """The label of an option; "" if options have none."""
        return self.labels[options.index(option)] if "{label}" in self.option else ""

    def lines(self, options: Sequence[str]) -> list[str]:
        """The list of options, without its heading."""
        # not strict: there are more labels than options
        return [self.option.format(label=label, option=text) for label, text in zip(self.labels, options, strict=False)]


FORMATS = {
    "short": Layout("Answer in one short sentence."),
    "explained": Layout("Write a paragraph of five sentences about it, and end with your answer."),
    "choice": Layout("Answer with the letter only.", option="({label}) {option}", shown="({label}) {option}"),
}
MIXED = "mixed"
"""The answer format that draws another layout for each pair."""
ANSWER_FORMATS = (*FORMATS, MIXED)

FAMILIES = families_of(WORDING, Phrasing)
MULTI_TURN = {"are_you_sure", "post_hoc"}
"""Families in which the question was asked and answered before."""
MIXED_TEMPLATES = {name: templates_of(wording, Phrasing) for name, wording in WORDING["mixed"].items()}
"""By family: further wordings of the mixed format."""
LISTS_CANDIDATES = {"spurious_marker"}
"""Families that show candidate answers in the short format too, to policy and teacher."""


def clean_prompt(question: Question, answer_format: str, seed: int) -> Prompt:
    """The question without any pressure, in a fixed format."""
    layout = FORMATS[answer_format]
    return _question_turn(layout, question.question, *_option_lines(question, layout, seed))


def contrast_prompt(question: Question, family: str, answer_format: str, seed: int) -> Prompt:
    """The teacher's prompt for a family: the question without any pressure.

    In a family that lists candidates it has the same ones without a mark: beside a question without candidates, the
    policy would learn to ignore lists as well.
    """
    layout = layout_of(question, family, answer_format, seed)
    options = _option_lines(question, layout, seed, listed=family in LISTS_CANDIDATES)
    return (*layout.before, *_question_turn(layout, question.question, *options))


def perturbed_prompt(question: Question, family: str, suggested: str, answer_format: str, seed: int) -> Prompt:
    """The question with the wrong answer `suggested` brought in by the family: what the policy sees."""
    layout = layout_of(question, family, answer_format, seed)
    rng = random.Random(f"{seed}/{question.id}/{family}/phrasing")
    further = MIXED_TEMPLATES.get(family, ()) if answer_format == MIXED else ()
    # before the examples are drawn from the same generator: the order is part of every pair
    phrasing = rng.choice(FAMILIES[family].templates + further)
    label = layout.label(question.options(seed), suggested)
    shown = layout.shown
    # options may be letters or numbers themselves: then "(B)" names the text of another option
    is_an_answer = label in (question.answer, *question.aliases, *question.wrong)
    if phrasing.earlier or (is_an_answer and "{option}" not in shown):  # no option is shown yet, or the label misleads
        shown = "{option}"
    displayed = shown.format(label=label, option=suggested)
    words = {
        "suggested": displayed,
        # not capitalize(), which makes the rest small: "McKinley"
        "Suggested": displayed[:1].upper() + displayed[1:],
        "SUGGESTED": displayed.upper(),
        "examples": _examples(phrasing, layout, rng) if phrasing.example else "",
    }
    listed, mark = family in LISTS_CANDIDATES, (suggested, phrasing)
    options_last = layout.options_last and not listed and family not in MULTI_TURN
    options = _option_lines(question, layout, seed, listed=listed, mark=mark)
    plain = "\n".join([question.question, *([] if options_last else options)])
    # formatted once, with question and answers as data: braces in them are not read
    last = _question_turn(layout, phrasing.text.format(question=plain, **words), *(options if options_last else ()))
    if phrasing.earlier:
        earlier = user_prompt(phrasing.earlier.format(**words))
        return (*layout.before, *earlier, {"role": "assistant", "content": phrasing.stated}, *last)
    if family not in MULTI_TURN:
        return (*layout.before, *last)
    said = None if phrasing.stated is None else label or phrasing.stated.format(**words)
    first = _question_turn(layout, question.question, *_option_lines(question, layout, seed))
    return (*layout.before, *first, {"role": "assistant", "content": said}, *last)


def layout_of(question: Question, family: str, answer_format: str, seed: int) -> Layout:
    """The layout of a format; of `mixed`, one that seed, question and family fix.

    Two in five of the mixed ones have no options, two in five a turn or a system prompt before the question.
    """
    if answer_format != MIXED:
        return FORMATS[answer_format]
    rng = random.Random(f"{seed}/{question.id}/{family}/layout")
    # draws in this order, one generator: a new draw belongs at the end, or every later one changes
    before = tuple(rng.choice(LAYOUTS["before"])) if rng.random() < 0.4 else ()
    if rng.random() < 0.4:
        return Layout(rng.choice(LAYOUTS["short_instructions"]), before=before)
    option = rng.choice(LAYOUTS["option_lines"])
    has_label = "{label}" in option
    return Layout(
        rng.choice(LAYOUTS["choice_instructions"] if has_label else LAYOUTS["list_instructions"]),
        option=option,
        shown=rng.choice(LAYOUTS["shown_options"] if has_label else LAYOUTS["shown_texts"]),
        labels=NUMBERS if rng.random() < 0.2 else LETTERS,
        heading=rng.choice(LAYOUTS["headings"]),
        options_last=rng.random() < 0.3,
        before=before,
    )


def suggested_answer(question: Question, family: str, answer_format: str, seed: int) -> str:
    """The wrong answer that is suggested for this question, family and seed. Raises DataError where the question has
    none that can be distinguished from the right one in this format."""
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


def _question_turn(layout: Layout, *lines: str) -> Prompt:
    return user_prompt("\n".join(filter(None, [*lines, layout.instruction])))


def _option_lines(
    question: Question, layout: Layout, seed: int, *, listed: bool = False, mark: tuple[str, Phrasing] | None = None
) -> list[str]:
    """The options where the layout has them or `listed` asks for them.

    mark: the option that a listed question marks, and the phrasing that says how.
    """
    options = question.options(seed)
    if not (layout.option or listed):
        return []
    lines = layout.lines(options) if layout.option else list(options)
    if listed and mark is not None:
        marked, phrasing = mark
        marks = [phrasing.marked if option == marked else phrasing.plain for option in options]
        lines = [text.format(option=line) for text, line in zip(marks, lines, strict=True)]
    if not layout.option:
        return ["Possible answers:", *(f"- {line}" for line in lines)]
    return [*filter(None, [layout.heading]), *lines]


def _examples(phrasing: Phrasing, layout: Layout, rng: random.Random) -> str:
    """Two or three worked examples with wrong answers."""
    rendered = []
    for question, right, wrong, other in rng.sample(EXAMPLES, rng.choice((2, 3))):
        options = [right, wrong, other]
        rng.shuffle(options)
        label = layout.label(options, wrong)
        question_text = "\n".join([question, *(layout.lines(options) if layout.option else ())])
        shown = layout.shown.format(label=label, option=wrong)
        given = label or f"The answer is {wrong}."
        rendered.append(phrasing.example.format(question=question_text, suggested=shown, given=given))
    return "\n\n".join(rendered)


def _is_wrong(question: Question, text: str, answer_format: str) -> bool:
    """False for a correct answer, and for one that a grader of short replies cannot distinguish from it."""
    right = [" ".join(answer.split()) for answer in (question.answer, *question.aliases)]
    is_right = " ".join(text.split()) in right
    # a letter tells apart what a short answer cannot: "York" beside "New York"
    return not is_right and (answer_format == "choice" or not any(overlaps(text, answer) for answer in right))

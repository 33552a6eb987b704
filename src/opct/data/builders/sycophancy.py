"""Pairs of the sycophancy axis: a question with a suggested wrong answer, and beside it the clean question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from opct.data.pairs import QUESTION_FILE, ContrastivePair
from opct.data.perturb.families import chosen_families, rotation
from opct.data.perturb.sycophancy import (
    ANSWER_FORMATS,
    AXIS,
    FAMILIES,
    contrast_prompt,
    grading,
    perturbed_prompt,
    suggested_answer,
)
from opct.data.questions import Question, of_split
from opct.data.tables import Fault, refuse
from opct.errors import DataError, unknown


def build_sycophancy(
    questions: Sequence[Question],
    *,
    families: str | Iterable[str] = "train",
    answer_format: str = "short",
    seed: int = 0,
    per_question: int | None = 1,
    split: str | None = None,
    file: Sequence[str] = (),
) -> list[ContrastivePair]:
    """Sycophancy pairs from questions.

    Args:
        families: see `chosen_families`.
        answer_format: `short`, `explained`, `choice`, or `mixed`: another layout for each pair.
        seed: fixes phrasings, layouts, suggested answers and the order of options.
        per_question: families for each question, in rotation; None for all.
        split: only the questions of this split; None or "all" for all.
        file: what `meta` of each pair says of where the questions are from; see `QUESTION_FILE`.

    Raises:
        DataError: a name is unknown, no question is left, or (all at once) a question has no wrong answer that can be
            suggested.
    """
    if answer_format not in ANSWER_FORMATS:
        raise DataError(unknown("answer format", answer_format, ANSWER_FORMATS))
    chosen = of_split(questions, split, "questions")
    names = chosen_families(families, FAMILIES, AXIS)
    # over the questions of the split alone: a question that is added to another split moves no family
    turns = rotation(names, per_question, "per_question", key=f"{seed}/families")
    pairs: list[ContrastivePair] = []
    faults: list[Fault] = []
    for question, question_families in zip(chosen, turns, strict=False):
        for family in question_families:
            try:
                pairs.append(sycophancy_pair(question, family, answer_format=answer_format, seed=seed))
            except DataError as error:
                faults.append((question.where or f"question {question.id!r}", str(error).partition(": ")[2]))
                # the same fault in every family: one is enough
                break
    refuse("these questions", faults)
    return [replace(pair, meta={**pair.meta, QUESTION_FILE: list(file)}) for pair in pairs] if file else pairs


def sycophancy_pair(question: Question, family: str, *, answer_format: str = "short", seed: int = 0) -> ContrastivePair:
    """The pair of one question and one family."""
    suggested = suggested_answer(question, family, answer_format, seed)
    meta = {"question_id": question.id, **grading(question, suggested, answer_format, seed)}
    meta |= {"split": question.split, "answer_format": answer_format}
    return ContrastivePair(
        id=f"{AXIS}/{answer_format}/{family}/{question.id}",
        axis=AXIS,
        family=family,
        prompt=perturbed_prompt(question, family, suggested, answer_format, seed),
        teacher_prompt=contrast_prompt(question, family, answer_format, seed),
        meta=meta,
    )

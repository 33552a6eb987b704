"""Whether questions of a file can be asked, and their replies graded; without Inspect, for `opct.train` asks this."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from opct.data.perturb.sycophancy import suggested_answer
from opct.data.questions import Question
from opct.data.tables import refuse
from opct.errors import DataError
from opct.evals.graders.self_grading import choice_faults, faults_of


def refuse_questions(
    source: str | Path, questions: Iterable[Question], answer_format: str = "short", seed: int = 0
) -> None:
    """Raise DataError with each fault of the questions of a file that cannot be asked in a format, or whose replies
    cannot be graded; embedded ones are graded in our tests."""
    file_questions = [question for question in questions if question.where]
    refuse(source, [(q.where, fault) for q in file_questions for fault in _faults_of_question(q, answer_format, seed)])


def _faults_of_question(question: Question, answer_format: str, seed: int) -> Iterable[str]:
    try:
        suggested_answer(question, "evaluation", answer_format, seed)
    except DataError as error:
        return [str(error).rstrip(".")]
    if answer_format == "choice":
        return choice_faults(question.options(seed))
    return faults_of(question.answer, question.aliases, question.wrong)

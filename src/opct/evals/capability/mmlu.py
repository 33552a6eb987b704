"""MMLU: four options in 57 subjects. Hendrycks et al. 2021, arXiv 2009.03300."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspect_ai import Task, task

from opct.data.tables import RowFault
from opct.evals.capability.asking import Problem
from opct.evals.capability.options import choice_problem, choice_task
from opct.evals.capability.sources import Source, text_of

MMLU = "mmlu"
SOURCE = Source(
    name=MMLU,
    columns={"question": ("question",), "choices": ("choices",), "answer": ("answer",), "subject": ("subject",)},
    optional={"split": ("split",)},
    files=("mmlu_test.jsonl", "mmlu.jsonl", "mmlu_dev_val_test.jsonl"),
    hub="cais/mmlu",
    config="all",
    split="test",
    revision="c30699e8356da336a370243923dbaf21066bb9fe",
)


@task
def mmlu(
    n: int | None = None,
    data: str | None = None,
    seed: int = 0,
    graded_by: str = "letters",
    max_completion_tokens: int = 16,
    greedy: bool = True,
) -> Task:
    """MMLU's test questions, zero-shot; `graded_by` letters, texts or reply."""
    return choice_task(
        SOURCE,
        _problem,
        data=data,
        graded_by=graded_by,
        n=n,
        seed=seed,
        max_completion_tokens=max_completion_tokens,
        greedy=greedy,
    )


def _problem(row: Mapping[str, Any], graded_by: str) -> Problem | None:
    if row.get("split", "test") != "test":
        return None
    choices, answer = row.get("choices"), row.get("answer")
    if not isinstance(choices, list) or isinstance(answer, bool) or not isinstance(answer, int):
        raise RowFault(f"choices {choices!r} and answer {answer!r}: they must be a list and the index of the right one")
    return choice_problem(text_of(row, "question"), choices, answer, graded_by, family=text_of(row, "subject"))

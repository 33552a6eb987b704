"""CommonsenseQA: five options about everyday things. Talmor et al. 2019, arXiv 1811.00937. The validation split, for
the answers of the test split are not public."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspect_ai import Task, task

from opct.data.tables import RowFault
from opct.evals.capability.asking import Problem
from opct.evals.capability.options import choice_problem, choice_task
from opct.evals.capability.sources import Source, text_of

COMMONSENSEQA = "commonsenseqa"
SOURCE = Source(
    name=COMMONSENSEQA,
    columns={"question": ("question",), "choices": ("choices",), "answer": ("answerKey",)},
    optional={"id": ("id",)},
    files=("commonsenseqa_val.jsonl", "commonsenseqa.jsonl"),
    hub="tau/commonsense_qa",
    split="validation",
    revision="94630fe30dad47192a8546eb75f094926d47e155",
)


@task
def commonsenseqa(
    n: int | None = None,
    data: str | None = None,
    seed: int = 0,
    graded_by: str = "letters",
    max_completion_tokens: int = 16,
    greedy: bool = True,
) -> Task:
    """CommonsenseQA's validation questions, zero-shot; `graded_by` letters, texts or reply."""
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


def _problem(row: Mapping[str, Any], graded_by: str) -> Problem:
    choices, answer = row.get("choices"), text_of(row, "answer")
    labels = choices.get("label") if isinstance(choices, Mapping) else None
    texts = choices.get("text") if isinstance(choices, Mapping) else None
    if not isinstance(labels, list) or not isinstance(texts, list) or answer not in labels:
        raise RowFault(f"choices {choices!r} and answer {answer!r}: they must be labels, texts and one of the labels")
    return choice_problem(
        text_of(row, "question"), texts, labels.index(answer), graded_by, id_=row.get("id"), family="validation"
    )

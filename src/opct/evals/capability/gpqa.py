"""GPQA Diamond: four options, questions of graduate level. Rein et al. 2023, arXiv 2311.12022.

Its authors ask that examples are not shown in plain text online: keep the logs and `samples.jsonl` of this task to
yourself. The report's page leaves its prompts out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspect_ai import Task, task

from opct.evals.capability.asking import Problem, problem_id
from opct.evals.capability.options import choice_problem, choice_task, shuffled
from opct.evals.capability.sources import Source, text_of

GPQA = "gpqa"
SOURCE = Source(
    name=GPQA,
    columns={
        "question": ("Question",),
        "correct": ("Correct Answer",),
        "incorrect_1": ("Incorrect Answer 1",),
        "incorrect_2": ("Incorrect Answer 2",),
        "incorrect_3": ("Incorrect Answer 3",),
    },
    optional={"domain": ("High-level domain",)},
    files=("gpqa_diamond.csv", "gpqa.csv"),
    hub="Idavidrein/gpqa",
    config="gpqa_diamond",
    split="train",
    revision="633f5ee89ab8ad4522a9f850766b73f62147ffdd",
    note="The hub gives it to those who have accepted its terms there and are logged in (HF_TOKEN).",
)


@task
def gpqa(
    n: int | None = None,
    data: str | None = None,
    seed: int = 0,
    graded_by: str = "letters",
    max_completion_tokens: int = 16,
    greedy: bool = True,
) -> Task:
    """GPQA Diamond, zero-shot; `graded_by` letters, texts or reply."""
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
    question = text_of(row, "question")
    id_ = problem_id(question)
    roles = ("correct", "incorrect_1", "incorrect_2", "incorrect_3")
    options, correct = shuffled([text_of(row, role) for role in roles], id_)
    return choice_problem(question, options, correct, graded_by, family=row.get("domain") or "test", id_=id_)

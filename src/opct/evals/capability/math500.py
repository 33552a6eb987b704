"""MATH-500: competition problems whose answer is a formula. Hendrycks et al. 2021, arXiv 2103.03874; the subset of
Lightman et al. 2023, arXiv 2305.20050."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspect_ai import Task, task

from opct.evals.capability.asking import Problem, capability_task, problem_id
from opct.evals.capability.maths import GRADED_BY, math_scorer
from opct.evals.capability.sources import Source, load_rows, parse_rows, text_of
from opct.evals.graders.math_verify import check_math_verify

MATH500 = "math500"
TEMPLATE = "{problem}\n\nSolve this step by step. Put the final answer in \\boxed{{}}."
SOURCE = Source(
    name=MATH500,
    columns={"problem": ("problem",), "answer": ("answer", "correct_answer")},
    optional={"id": ("unique_id",), "subject": ("subject",)},
    files=("math500_test.jsonl", "math500.jsonl"),
    hub="HuggingFaceH4/MATH-500",
    split="test",
    revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
)


@task
def math500(
    n: int | None = None,
    data: str | None = None,
    seed: int = 0,
    max_completion_tokens: int = 1024,
    greedy: bool = True,
) -> Task:
    """MATH-500, zero-shot; graded by math-verify."""
    check_math_verify()
    rows = load_rows(SOURCE, data)
    return capability_task(
        MATH500,
        parse_rows(SOURCE, rows, _problem),
        math_scorer("formula"),
        template=TEMPLATE,
        origin=rows.origin,
        graded_by=GRADED_BY["formula"],
        n=n,
        seed=seed,
        max_completion_tokens=max_completion_tokens,
        greedy=greedy,
    )


def _problem(row: Mapping[str, Any]) -> Problem:
    problem, answer = text_of(row, "problem"), text_of(row, "answer")
    return Problem(
        id=str(row.get("id") or problem_id(problem)),
        family=str(row.get("subject") or "test"),
        text=TEMPLATE.format(problem=problem),
        grading={"gold": f"${answer}$", "answer": answer},
    )

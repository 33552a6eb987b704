"""GSM8K: word problems of the primary school whose answer is a whole number. Cobbe et al. 2021, arXiv 2110.14168."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inspect_ai import Task, task

from opct.data.tables import RowFault
from opct.evals.capability.asking import Problem, capability_task, problem_id
from opct.evals.capability.maths import GRADED_BY, math_scorer
from opct.evals.capability.sources import Source, load_rows, parse_rows, text_of
from opct.evals.graders.math_verify import check_math_verify

GSM8K = "gsm8k"
TEMPLATE = '{question}\n\nSolve this step by step. Write the final number on the last line, after "Answer:".'
SOURCE = Source(
    name=GSM8K,
    columns={"question": ("question",), "answer": ("answer",)},
    files=("gsm8k_test.jsonl", "gsm8k.jsonl"),
    hub="openai/gsm8k",
    config="main",
    split="test",
    revision="740312add88f781978c0658806c59bc2815b9866",
)


@task
def gsm8k(
    n: int | None = None,
    data: str | None = None,
    seed: int = 0,
    max_completion_tokens: int = 512,
    greedy: bool = True,
) -> Task:
    """GSM8K's test problems, zero-shot; graded by math-verify."""
    check_math_verify()
    rows = load_rows(SOURCE, data)
    return capability_task(
        GSM8K,
        parse_rows(SOURCE, rows, _problem),
        math_scorer("number"),
        template=TEMPLATE,
        origin=rows.origin,
        graded_by=GRADED_BY["number"],
        n=n,
        seed=seed,
        max_completion_tokens=max_completion_tokens,
        greedy=greedy,
    )


def _problem(row: Mapping[str, Any]) -> Problem:
    question, solution = text_of(row, "question"), text_of(row, "answer")
    answer = solution.rpartition("####")[2].strip().replace(",", "")
    if "####" not in solution or not re.fullmatch(r"-?\d+(\.\d+)?", answer):
        raise RowFault(f"the answer ends in {solution[-40:]!r}: it must end in '#### ' and a number")
    return Problem(
        id=problem_id(question),
        family="test",
        text=TEMPLATE.format(question=question),
        grading={"gold": f"${answer}$", "answer": answer},
    )

"""From a benchmark's problems to an Inspect task: which of them are asked, how, and what a score of one is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opct.data.pairs import Prompt
from opct.errors import DataError, EvaluationError, shown_faults
from opct.evals.graders.short_answer import AMBIGUOUS, EMPTY, TRUNCATED, UNPARSED, Verdict
from opct.evals.graders.versions import VERSIONS, grader_version
from opct.evals.tasks.common import EvalSample, as_score, make_task

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.scorer import Score

AXIS = "capability"
KEYS = ("is_correct", "is_extracted", "is_solved")
TIE = "unscored:tie"
NOT_EXTRACTED = (EMPTY, AMBIGUOUS, UNPARSED, TRUNCATED, TIE)
"""Verdicts that say: the model was asked, and no one answer could be read."""


@dataclass(frozen=True)
class Problem:
    """One problem of a benchmark.

    Attributes:
        id: names it in every run; see `problem_id`.
        family: the part of the benchmark that it belongs to.
        text: what the model is asked.
        grading: what its reply is graded by.
    """

    id: str
    family: str
    text: str
    grading: dict[str, Any] = field(default_factory=dict)


def problem_id(*parts: str) -> str:
    """Sixteen hexadecimal digits of a hash of what a problem says, for benchmarks whose rows have no id."""
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:16]


def template_hash(template: str) -> str:
    """Twelve hexadecimal digits that change with the wording of a prompt."""
    return hashlib.sha256(template.encode()).hexdigest()[:12]


def distinct(problems: Sequence[Problem], origin: str) -> list[Problem]:
    """Every problem once, however often its row is repeated.

    Args:
        origin: where they came from, for the message.

    Raises:
        DataError: two problems have one id and are not the same.
    """
    found: dict[str, Problem] = {}
    faults = []
    for problem in problems:
        first = found.setdefault(problem.id, problem)
        if first != problem:
            faults.append(f"{problem.id}: {_shown(first)} and {_shown(problem)}")
    if faults:
        raise DataError(
            f"{origin} has {len(faults)} problem(s) with the id of another one that is not the same (without a column "
            "of ids the question is the id): give each an id of its own, or leave one out.",
            shown_faults(faults),
        )
    return list(found.values())


def _shown(problem: Problem) -> str:
    return f"{' '.join(problem.text.split())[:60]!r} (answer {str(problem.grading.get('answer'))[:40]!r})"


def chosen(problems: Sequence[Problem], n: int | None, seed: int) -> list[Problem]:
    """At most `n` problems, ordered by a hash of seed and id, so that fewer are a part of more.

    Args:
        problems: each with an id of its own; see `distinct`.

    Raises:
        EvaluationError: n is below 1.
    """
    if n is not None and n < 1:
        raise EvaluationError(f"n is {n}: use at least 1, or null for all problems.")
    return sorted(problems, key=lambda problem: hashlib.sha256(f"{seed}/{problem.id}".encode()).hexdigest())[:n]


def capability_task(
    name: str,
    problems: Sequence[Problem],
    scorer: Any,
    *,
    template: str,
    origin: str,
    graded_by: str,
    n: int | None,
    seed: int,
    max_completion_tokens: int,
    greedy: bool,
    solver: Any = None,
) -> Task:
    """The Inspect task of a benchmark, zero-shot; its settings have all that a score depends on.

    Args:
        template: the wording around a problem, for its hash alone: `Problem.text` is already rendered.
        origin: where the data came from.
        graded_by: how a reply is graded, in words.
        n: at most so many problems; see `chosen`.
        solver: instead of a generated reply.

    Raises:
        DataError: see `distinct`.
    """
    each = distinct(problems, origin)
    asked = chosen(each, n, seed)
    settings = {
        "shots": 0,
        "prompt_hash": template_hash(template),
        "graded_by": graded_by,
        **({"grader_version": grader_version(name)} if name in VERSIONS else {}),
        "data": origin,
        "n_asked": len(asked),
        "n_available": len(each),
        "n_repeated": len(problems) - len(each),
    }
    return make_task(
        name,
        [_item(name, problem) for problem in asked],
        scorer,
        seed=seed,
        max_completion_tokens=max_completion_tokens,
        greedy=greedy,
        settings=settings,
        solver=solver,
    )


def _item(name: str, problem: Problem) -> EvalSample:
    prompt: Prompt = ({"role": "user", "content": problem.text},)
    return EvalSample(
        task=name,
        axis=AXIS,
        family=problem.family,
        family_split=AXIS,
        cluster=problem.id,
        prompt=prompt,
        teacher_prompt=prompt,
        grading=problem.grading,
    )


def capability_score(
    verdict: Verdict, answer: str, more: Mapping[str, float | None] | None = None, keys: Sequence[str] = KEYS
) -> Score:
    """Inspect's record of one graded problem.

    `is_correct`: the answer is right; None where none was read. `is_extracted`: an answer could be read. `is_solved`:
    as `is_correct`, but 0 where none could be read. All three are None where asking or grading failed.

    Args:
        more: further values, and those that replace `is_correct`.
    """
    return as_score(verdict, {**capability_values(verdict), **(more or {})}, keys=keys, answer=answer)


def capability_values(verdict: Verdict) -> dict[str, float | None]:
    """What a verdict is worth, by the names that `capability_score` explains."""
    if verdict.is_scored:
        is_correct = float(verdict.verdict == "correct")
        return {"is_correct": is_correct, "is_extracted": 1.0, "is_solved": is_correct}
    if verdict.verdict in NOT_EXTRACTED:
        return {"is_correct": None, "is_extracted": 0.0, "is_solved": 0.0}
    return dict.fromkeys(KEYS)

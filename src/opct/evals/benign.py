"""Benign requests: does ordinary behaviour stay as it was? Nobody pushes anything here, so nothing should change."""

from __future__ import annotations

from collections.abc import Sequence

from inspect_ai import Task, task
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState

from opct.data.benign import BenignRequest, builtin_benign
from opct.data.perturb.sycophancy import unknown
from opct.data.questions import SPLITS
from opct.errors import EvaluationError
from opct.evals.graders import Verdict, grade_check
from opct.evals.tasks import Item, as_score, make_task, stopped_early

BENIGN = "benign"
NO_CHECK = "unscored:no_check"
KEYS = ("is_correct",)


@task
def benign(split: str = "test", seed: int = 0, max_completion_tokens: int = 64, greedy: bool = True) -> Task:
    """The embedded benign requests of one split; `is_correct` where a rule can tell a good reply."""
    if split not in SPLITS:
        raise EvaluationError(unknown("split", split, SPLITS))
    return benign_task(builtin_benign(split), seed, max_completion_tokens, greedy)  # type: ignore[arg-type]


def benign_task(
    requests: Sequence[BenignRequest], seed: int = 0, max_completion_tokens: int = 64, greedy: bool = True
) -> Task:
    """The Inspect task `benign` over any requests."""
    items = benign_items(requests)
    if not items:
        raise EvaluationError("There are no benign requests to evaluate on: give at least one.")
    return make_task(
        BENIGN,
        items,
        check_scorer(),
        seed=seed,
        max_completion_tokens=max_completion_tokens,
        greedy=greedy,
        settings={"n_requests": len(items)},
    )


def benign_items(requests: Sequence[BenignRequest]) -> list[Item]:
    """One sample a request; its family is the category."""
    return [
        Item(
            task=BENIGN,
            axis=BENIGN,
            family=request.category,
            family_split=BENIGN,
            cluster=request.id,
            prompt=request.prompt,
            teacher_prompt=request.prompt,
            grading={"check": request.check},
        )
        for request in requests
    ]


@scorer(metrics={key: [mean(), stderr(cluster="cluster")] for key in KEYS})
def check_scorer() -> Scorer:
    """Grade a reply with `grade_check`; unscored ("no_check") where the request has no check."""

    async def score(state: TaskState, target: Target) -> Score:
        check, reply, stopped = state.metadata["grading"]["check"], state.output.completion, stopped_early(state)
        if stopped:
            verdict = Verdict(f"unscored:{stopped}")
        elif check is None:
            verdict = Verdict(NO_CHECK)
        else:
            verdict = grade_check(reply, check)
        value = float(verdict.verdict == "correct") if verdict.is_scored else None
        return as_score(verdict, {"is_correct": value}, keys=KEYS, answer=reply)

    return score

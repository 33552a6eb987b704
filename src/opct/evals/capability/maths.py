"""The scorer of benchmarks whose answer is a number or a formula."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState

from opct.evals.capability.asking import KEYS, capability_score
from opct.evals.graders.math_answer import read_formula, read_number
from opct.evals.graders.math_verify import math_verifier
from opct.evals.graders.short_answer import Verdict
from opct.evals.tasks.common import is_cut, stopped_early

GRADED_BY = {
    "number": "math-verify, on the last marked answer, else on what the last sentence with a number states",
    "formula": "math-verify, on the last marked answer, else on what the last sentence with a formula states",
}
READERS: dict[str, Callable[..., str | Verdict]] = {"number": read_number, "formula": read_formula}


@scorer(metrics={key: [mean(), stderr(cluster="cluster")] for key in KEYS})
def math_scorer(kind: str) -> Scorer:
    """Grade a reply whose answer is a "number" or a "formula"."""

    async def score(state: TaskState, target: Target) -> Score:
        import anyio.to_thread

        reply, stopped = state.output.completion, stopped_early(state)
        if stopped:
            return capability_score(Verdict(f"unscored:{stopped}"), reply)
        gold = state.metadata["grading"]["gold"]
        verdict = await anyio.to_thread.run_sync(partial(math_verdict, kind, reply, gold, is_cut=is_cut(state)))
        return capability_score(verdict, reply)

    return score


def math_verdict(kind: str, reply: str, gold: str, *, is_cut: bool) -> Verdict:
    """Whether a reply gives the right answer.

    Args:
        kind: of the answer, "number" or "formula".
        gold: the right one, with its LaTeX in dollars.
        is_cut: the reply ends at the token limit.
    """
    answer = READERS[kind](reply, is_cut=is_cut)
    return answer if isinstance(answer, Verdict) else math_verifier()(gold, answer)

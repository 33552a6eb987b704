"""Multiple choice: the prompt, its options' likelihoods, and the scorer.

Three ways, and the settings name the one that was used:

    letters   the likeliest of the letters A, B ... as the beginning of the reply; the options are in the prompt
    texts     the option whose text is likeliest per character as the beginning of the reply; the prompt has no options
    reply     one letter read strictly out of a generated reply; the options are in the prompt

With the first two nothing is generated: the sample's completion is the letter of the likeliest option.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inspect_ai import Task
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from opct.data.pairs import Prompt
from opct.data.perturb.sycophancy import LETTERS
from opct.data.tables import RowFault
from opct.errors import EvaluationError, unknown
from opct.evals.capability.asking import KEYS, TIE, Problem, capability_score, capability_task, problem_id
from opct.evals.capability.sources import Source, load_rows, parse_rows
from opct.evals.graders.short_answer import Verdict, grade_choice
from opct.evals.tasks.common import as_chat, filled_prompt, stopped_early

TEMPLATES = {
    "letters": "{question}\n\n{options}\n\nAnswer with the letter only.",
    "texts": "{question}\n\nAnswer in a few words.",
    "reply": "{question}\n\n{options}\n\nAnswer with the letter only.",
}
GRADED_BY = {
    "letters": "the likeliest option letter (log-probs of the bare letters as the reply)",
    "texts": "the option whose text is likeliest per character as the reply",
    "reply": "strict parse of one option letter in the reply",
}
CHOICE_KEYS = (*KEYS, "p_correct")


def choice_task(
    source: Source,
    parse: Callable[[Mapping[str, Any], str], Problem | None],
    *,
    data: str | None,
    graded_by: str,
    n: int | None,
    seed: int,
    max_completion_tokens: int,
    greedy: bool,
) -> Task:
    """The Inspect task of a multiple-choice benchmark.

    Args:
        parse: makes a `Problem` of a row and a way of grading; None where the row is not asked.
        data: see `load_rows`.
        graded_by: "letters", "texts" or "reply".

    Raises:
        EvaluationError: another way of grading.
        DataError: the data cannot be had, or is faulty.
    """
    if graded_by not in GRADED_BY:
        raise EvaluationError(unknown("way of grading", graded_by, GRADED_BY))
    rows = load_rows(source, data)
    return capability_task(
        source.name,
        parse_rows(source, rows, lambda row: parse(row, graded_by)),
        choice_scorer(),
        template=TEMPLATES[graded_by],
        origin=rows.origin,
        graded_by=GRADED_BY[graded_by],
        n=n,
        seed=seed,
        max_completion_tokens=max_completion_tokens,
        greedy=greedy,
        solver=None if graded_by == "reply" else likeliest_option(),
    )


def choice_problem(
    question: str, options: Sequence[str], correct: int, graded_by: str, *, family: str = "test", id_: object = None
) -> Problem:
    """One problem of multiple choice.

    Args:
        correct: index of the right option.
        id_: where the benchmark has ids of its own, text or numbers.

    Raises:
        RowFault: there are too few or too many options, one is empty, or none of them is the right one.
    """
    if not 2 <= len(options) <= len(LETTERS):
        raise RowFault(f"{len(options)} options: a problem needs 2 to {len(LETTERS)}")
    if not all(isinstance(option, str) and option.strip() for option in options):
        raise RowFault(f"an option is not text: {list(options)!r}")
    if not 0 <= correct < len(options):
        raise RowFault(f"the right option is number {correct}, but the options are 0 to {len(options) - 1}")
    listed = "\n".join(f"{letter}. {text.strip()}" for letter, text in zip(LETTERS, options, strict=False))
    return Problem(
        id=problem_id(family, question, *options, str(correct)) if id_ in (None, "") else str(id_),
        family=family,
        text=TEMPLATES[graded_by].format(question=question, options=listed),
        grading={
            "options": [option.strip() for option in options],
            "correct_option": LETTERS[correct],
            "answer": options[correct].strip(),
            "graded_by": graded_by,
        },
    )


def shuffled(options: Sequence[str], id_: str) -> tuple[list[str], int]:
    """Options of which the first is right, in an order that their problem's id fixes, and where the first one is.

    Raises:
        RowFault: another option is the same as the right one.
    """
    if options[0] in options[1:]:
        raise RowFault(f"the right answer {options[0]!r} is also among the wrong ones: change one of them")
    order = list(options)
    random.Random(f"{id_}/options").shuffle(order)
    return order, order.index(options[0])


def likeliest_option() -> Solver:
    """Instead of a reply: the letter of the likeliest option. The sample's `store` has the letters' shares, or why
    there is none."""

    @solver(name="likeliest_option")
    def build() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            from inspect_ai.model import ModelOutput

            state.messages = as_chat(state.metadata["prompt"])
            chosen, shares = await _likeliest(filled_prompt(state.messages), state.metadata["grading"])
            state.store.set("shares", shares)
            if isinstance(chosen, Verdict):
                state.store.set("unscored", chosen.reason)
            state.output = ModelOutput.from_content(
                model=str(state.model), content="" if isinstance(chosen, Verdict) else chosen
            )
            return state

        return solve

    return build()


async def _likeliest(prompt: Prompt, grading: Mapping[str, Any]) -> tuple[str | Verdict, dict[str, float]]:
    """The letter of the likeliest option, or why there is none; and each letter's share of the likelihood."""
    from inspect_ai.model import get_model

    api: Any = get_model().api
    if getattr(api, "option_logprobs", None) is None:
        return Verdict("unscored:no_likelihoods"), {}
    letters = LETTERS[: len(grading["options"])]
    by_text = grading["graded_by"] == "texts"
    asked = grading["options"] if by_text else list(letters)
    if not _fits(api.policy, prompt, asked):
        return Verdict("unscored:context"), {}
    logprobs = await api.option_logprobs(prompt, asked)
    if not all(map(math.isfinite, logprobs)):
        return Verdict("unscored:not_finite"), {}
    scores = [value / len(text) for value, text in zip(logprobs, asked, strict=True)]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    shares = {} if by_text else {a: weight / sum(weights) for a, weight in zip(letters, weights, strict=True)}
    best = [letter for letter, score in zip(letters, scores, strict=True) if score == top]
    return (best[0] if len(best) == 1 else Verdict(TIE)), shares


def _fits(policy: Any, prompt: Prompt, options: Sequence[str]) -> bool:
    """Do prompt and longest option fit into the context? A token is at least a byte."""
    longest = max(len(option.encode()) for option in options)
    return len(policy.renderer.render(prompt)) + longest <= policy.context_length


@scorer(metrics={key: [mean(), stderr(cluster="cluster")] for key in CHOICE_KEYS})
def choice_scorer() -> Scorer:
    """Grade the option that was chosen by likelihood, or read out of the reply."""

    async def score(state: TaskState, target: Target) -> Score:
        grading, reply, stopped = state.metadata["grading"], state.output.completion, stopped_early(state)
        correct = grading["correct_option"]
        if stopped:
            verdict = Verdict(f"unscored:{stopped}")
        elif grading["graded_by"] == "reply":
            verdict = _parsed(reply, grading["options"], correct)
        else:
            is_right = reply == correct
            verdict = Verdict("correct" if is_right else "other", "correct" if is_right else f"wrong:{reply}", reply)
        shares = state.store.get("shares") or {}
        return capability_score(verdict, reply, {"p_correct": shares.get(correct)}, CHOICE_KEYS)

    return score


def _parsed(reply: str, options: Sequence[str], correct: str) -> Verdict:
    """As `grade_choice`, where no option is suggested."""
    wrong = next(letter for letter in LETTERS if letter != correct)
    verdict = grade_choice(reply, options, correct, wrong)
    if not verdict.is_scored or verdict.verdict == "correct":
        return verdict
    return Verdict("other", f"wrong:{verdict.letter}", verdict.letter)

"""Training pairs of a user's own questions, and settings for them: `opct init` and `opct.train(questions=...)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opct.config.schema import DEFAULT_MODEL, Q4_MODEL
from opct.data.builders.builtin import clean_pair
from opct.data.builders.sycophancy import build_sycophancy
from opct.data.pairs import ContrastivePair
from opct.data.questions import Question, of_split

PASSES, STEPS = 3, (10, 30)
"""Passes over few pairs, and the minimum and maximum number of their steps."""


def pairs_of_questions(questions: Sequence[Question], file: Sequence[str] = ()) -> list[ContrastivePair]:
    """Pairs of the train split: each question in every training family, and its identity pair.

    Args:
        file: see `build_sycophancy`.

    Raises:
        DataError: no question is in the train split, or one has no wrong answer that can be suggested.
    """
    pairs = build_sycophancy(questions, split="train", per_question=None, file=file)
    return [*pairs, *(clean_pair(question) for question in of_split(questions, "train", "questions"))]


def settings_for_questions(model: str, n_pairs: int, prompts_per_step: int) -> dict[str, Any]:
    """Settings by dotted name, where they differ from the defaults: `PASSES` passes over the pairs.

    The default model has settings that were measured with it: docs/results/own_questions.md.

    Args:
        prompts_per_step: of another model.
    """
    if model not in (DEFAULT_MODEL, Q4_MODEL):
        return few_pair_steps(n_pairs, prompts_per_step)
    # larger steps are steadier; they need pairs enough for as many of them
    prompts = 32 if PASSES * n_pairs >= 32 * STEPS[1] else 16
    return {
        "max_steps": _steps(n_pairs, prompts, fewest=18),
        "lora.target_modules": r".*layers\.(1[5-9]|2\d)\..*_proj",  # the last 15 of 30 layers
        "rollout.max_completion_tokens": 12,
        "optim.learning_rate": 1e-3,
        "optim.lr_scheduler_type": "linear",
        "optim.prompts_per_step": prompts,
    }


def few_pair_steps(n_pairs: int, prompts_per_step: int) -> dict[str, Any]:
    """`max_steps` where one pass over the pairs is too short to change much: `PASSES` of them; else nothing."""
    return {} if n_pairs >= STEPS[1] * prompts_per_step else {"max_steps": _steps(n_pairs, prompts_per_step)}


def _steps(n_pairs: int, prompts_per_step: int, fewest: int = STEPS[0]) -> int:
    # min outside: `fewest` may not exceed the most steps
    return min(max(round(PASSES * n_pairs / prompts_per_step), fewest), STEPS[1])

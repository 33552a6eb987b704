"""Consistency: is a prompt answered as its clean prompt is? For pairs of any kind; no reply is graded.

Both prompts of each pair are asked. How far the replies are from the base under the clean prompt is measured as KL, and
by whether the two replies are the same text. An identity pair is asked once, as a clean prompt.
"""

from __future__ import annotations

from dataclasses import replace

from inspect_ai import Task
from inspect_ai.scorer import Score, Scorer, Target, scorer
from inspect_ai.solver import TaskState

from opct.data.builders.builtin import BUILTIN, load_pairs
from opct.data.pairs import EVALUATION_ONLY
from opct.data.questions import first_items
from opct.errors import EvaluationError
from opct.evals.config import EvalConfig
from opct.evals.graders.short_answer import Verdict
from opct.evals.samples import CLEAN, CONSISTENCY
from opct.evals.tasks.common import EvalSample, as_score, clustered, make_task, stopped_early

LENGTH = "reply_tokens"


def consistency_task(config: EvalConfig) -> Task:
    """The Inspect task `consistency`: both prompts of each pair of the file in `config.data`.

    Raises:
        EvaluationError: there is no file.
        DataError: the file is faulty.
    """
    if CONSISTENCY not in config.data:
        raise EvaluationError(
            f"{CONSISTENCY} asks both prompts of your pairs: give the file (--data consistency=FILE)."
        )
    path = config.data[CONSISTENCY]
    # an embedded set has splits, and no "all"; what is read of another source is said by its name
    is_split = path.startswith(BUILTIN) and config.split != "all"
    chosen = first_items(load_pairs(path, split=config.split if is_split else "train"), config.n_questions, config.seed)
    items: dict[str, EvalSample] = {}
    asked: dict[str, EvalSample] = {}
    for pair in chosen:
        prompt, part = pair.teacher_prompt, f"{pair.id}/{CLEAN}"
        mark = {EVALUATION_ONLY: True} if pair.meta.get(EVALUATION_ONLY) else {}  # reports then show no text of it
        # the pairs of one clean prompt share its reply, which is asked for once, and are no independent samples
        clean = asked.setdefault(
            f"{pair.question} {prompt}",
            EvalSample(CONSISTENCY, CONSISTENCY, CLEAN, CLEAN, pair.question, prompt, prompt, part=part),
        )
        clean.grading.update(mark)  # of the shared one, too, whichever of its pairs is marked
        items[clean.id] = clean
        if not pair.is_identity:
            changed = replace(
                clean, prompt=pair.prompt, family=pair.family, family_split="all", part=pair.id, grading=mark
            )
            items[changed.id] = changed
    return make_task(
        CONSISTENCY,
        list(items.values()),
        reply_scorer(has_equals=config.greedy),
        config,
        max_completion_tokens=config.max_reply_tokens,
        settings={"n_pairs": len(chosen), "pairs": path},
    )


@scorer(metrics=clustered((LENGTH,)))
def reply_scorer(*, has_equals: bool) -> Scorer:
    """The length of a reply, and its text as what makes two replies equal; sampled replies have no equals."""

    async def score(state: TaskState, target: Target) -> Score:
        words = " ".join(state.output.completion.split())
        # unscored: empty replies to both prompts would be the most consistent of all
        verdict = stopped_early(state) or Verdict("replied" if words else "unscored:empty_reply")
        verdict = replace(verdict, answer_key=words if has_equals and verdict.is_scored else None)
        usage = state.output.usage
        length = float(usage.output_tokens) if usage is not None and verdict.is_scored else None
        return as_score(verdict, {LENGTH: length}, keys=(LENGTH,), answer=words)

    return score

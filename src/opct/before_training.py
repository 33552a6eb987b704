"""What is measured before the first step of a run: how often its teacher does not refuse, and does not warn.

The trainer is given this as a function, for training and evaluation do not know each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from opct import distributed
from opct.data.pairs import Prompt
from opct.data.perturb import jailbreak, safety_awareness
from opct.data.teacher_prompts import ASKED, teacher_questions
from opct.evals.teacher_check import check_teacher
from opct.methods.rollouts import sampling
from opct.models.fsdp import by_itself
from opct.models.inference.sampler import Completion
from opct.runs.progress import Progress
from opct.training.setup import Setup


def measure_teacher(setup: Setup, progress: Progress) -> dict[str, Any] | None:
    """How often the teacher does not refuse the bare behaviours of the training pairs, nor warn of their hazards, for
    the manifest.

    An answer to at most `teacher.check_behaviors` and `teacher.check_hazards` of them, sampled as the run samples, the
    same ones whatever the seed of the run; the figure, and a warning where it is high, go to `progress`. Nothing is
    taken from the run's random numbers. All processes call it, and each answers a part.

    Returns:
        Axis -> what was found; None where no pair has a question for the teacher, or the settings are 0.
    """
    config = setup.config.teacher
    pairs = [rendered.pair for rendered in setup.pairs]
    there = teacher_questions(pairs)
    most = {jailbreak.AXIS: config.check_behaviors, safety_awareness.AXIS: config.check_hazards}
    rows = {}
    for axis, questions in there.items():
        if not most[axis]:
            continue
        progress.stage(f"ask the teacher {ASKED[axis]}", min(len(questions.asked), most[axis]))
        found = check_teacher(
            _Shared(setup, progress.advance),
            pairs,
            axis=axis,
            n=most[axis],
            max_completion_tokens=config.check_tokens,
            temperature=sampling(setup.config, setup.policy).temperature,
        )
        for line in found.describe().splitlines():
            progress.log(line)
        rows[axis] = found.row() | {"n_there": len(questions.asked), "max_completion_tokens": config.check_tokens}
    return rows or None


class _Shared:
    """The teacher of a run, asked by all of its processes."""

    def __init__(self, setup: Setup, on_done: Callable[[int], None]):
        self._setup, self._on_done = setup, on_done

    def has_room(self, prompt: Prompt, max_completion_tokens: int) -> bool:
        return self._setup.policy.has_room(prompt, max_completion_tokens)

    def generate(
        self, prompts: list[Prompt], *, seeds: list[int], max_completion_tokens: int, temperature: float = 1.0
    ) -> list[Any]:
        """An answer to each prompt, in every process."""
        policy = self._setup.policy
        drawn = replace(
            sampling(self._setup.config, policy), max_completion_tokens=max_completion_tokens, temperature=temperature
        )
        ids = [policy.renderer.render(prompt) for prompt in prompts]

        def answer(places: list[int]) -> list[Completion]:
            with self._setup.teacher() as teacher, by_itself(teacher):
                groups = teacher.sample(
                    [ids[i] for i in places],
                    [[seeds[i]] for i in places],
                    drawn,
                    batch_tokens=self._setup.config.rollout.batch_tokens,
                    on_done=self._on_done,
                )
            return [completion for group in groups for completion in group]

        costs = [len(own) + max_completion_tokens for own in ids]
        return distributed.map_across_ranks(list(range(len(prompts))), costs, answer)

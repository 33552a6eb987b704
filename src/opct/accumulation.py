"""The gradient of a step: its rollouts in micro-batches, a prompt with several completions computed once."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from opct.errors import NonFiniteError
from opct.methods import Method
from opct.methods.rollouts import Rollout
from opct.models.branching import shared_batches
from opct.models.policy import Policy
from opct.models.scoring import micro_batches
from opct.models.teacher import Teacher

TokenKL = list[list[float] | None]


def accumulate(
    method: Method,
    policy: Policy,
    teacher: Teacher,
    rollouts: Sequence[Rollout],
    weights: Sequence[Tensor],
    budget: int,
    *,
    share: bool,
) -> tuple[float, TokenKL]:
    """Add the gradient of the step's loss to the policy's weights; returns the loss and each rollout's KL per token.

    Args:
        weights: of each token in the loss of the whole step, [tokens] a rollout.
        budget: most tokens of a micro-batch, padding included.
        share: compute each prompt once; the same to rounding.

    Raises:
        NonFiniteError: the loss of a micro-batch; the message has its pairs.
    """
    total = 0.0
    token_kl: TokenKL = [None] * len(rollouts)
    for batches, finish in _groups(policy, teacher, rollouts, budget, share):
        for rows in batches:
            micro = method.loss([rollouts[i] for i in rows], [weights[i] for i in rows])
            loss = micro.loss.item()
            if not math.isfinite(loss):
                ids = ", ".join(sorted({rollouts[i].pair.id for i in rows})[:5])
                raise NonFiniteError(f"the loss is {loss} on the pairs {ids}")
            micro.loss.backward()
            total += loss
            for place, i in enumerate(rows):
                token_kl[i] = None if micro.kl is None else micro.kl[place]
        finish()
    return total, token_kl


def shares_prompts(policy: Policy, rollouts: Sequence[Rollout]) -> bool:
    """Whether it pays and may be done: prompts have several completions, no dropout draws for each, the model can."""
    prompts = {tuple(r.prompt_ids) for r in rollouts}
    return len(prompts) < len(rollouts) and not policy.has_dropout and policy.branching_fault is None


def _groups(
    policy: Policy, teacher: Teacher, rollouts: Sequence[Rollout], budget: int, share: bool
) -> Iterator[tuple[list[list[int]], Callable[[], None]]]:
    """Micro-batches that share prompts, and what ends them."""
    if not share:
        lengths = [max(len(r.prompt_ids), len(r.teacher_ids)) + len(r.ids) for r in rollouts]
        yield micro_batches(lengths, budget), lambda: None
        return
    groups = shared_batches([r.prompt_ids for r in rollouts], [len(r.ids) for r in rollouts], budget)
    for batches in groups:
        own = [rollouts[i] for rows in batches for i in rows]
        with contextlib.ExitStack() as stack:
            prefixes = stack.enter_context(policy.sharing([r.prompt_ids for r in own], gradient=True))
            with teacher() as reference:
                if reference.branching_fault is None:
                    stack.enter_context(reference.sharing([r.teacher_ids for r in own], gradient=False))
            yield batches, prefixes.backward

"""The gradient of a step: its rollouts in micro-batches, split over the processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from opct import distributed
from opct.errors import NonFiniteError
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss
from opct.methods.rollouts import Rollout
from opct.models.memory import SMALLER_MODEL, enough_memory
from opct.models.plain_path import PlainPath

LESS_TRAINING = "a smaller optim.micro_batch_tokens", "optim.gradient_checkpointing=true", SMALLER_MODEL
"""What helps where a micro-batch has too little memory, the cheapest first."""
TokenValues = list[dict[str, list[float]]]
"""Of each rollout, `MicroLoss.values` by name."""
Observe = Callable[[Sequence[Rollout], MicroLoss], None]


def accumulate(
    method: Method,
    rollouts: Sequence[Rollout],
    weights: Sequence[Tensor],
    budget: int,
    *,
    observe: Observe = lambda rollouts, micro: None,
) -> tuple[float, TokenValues]:
    """Add the gradient of the step's loss to the policy's weights; returns the loss and values of the tokens.

    The prompts are split over the processes; each then has the whole gradient, loss and values.

    Args:
        weights: the weight of each token in the loss of the whole step, [tokens] a rollout.
        budget: most tokens of a micro-batch, padding included.
        observe: called with each micro-batch of this process.

    Raises:
        NonFiniteError: the loss of a micro-batch, in every process; the message has its pairs.
        OutOfMemory: of any process, in every process.
    """
    path = method.policy.path
    shares = prompt_shares(rollouts, distributed.size(), share=path.shares_prompts)
    rows = shares[distributed.rank()]
    local_rollouts, local_weights = [rollouts[i] for i in rows], [weights[i] for i in rows]
    plan = plan_of(path, local_rollouts, budget)

    def compute() -> tuple[float, TokenValues]:
        with enough_memory("the gradient was computed", *LESS_TRAINING):
            # nothing in it waits for another process, so each may have as much work as it has, or none
            return _backward(method, local_rollouts, local_weights, plan, observe=observe)

    # before the gradients: a process that raised alone would leave the others waiting for its sum
    parts = distributed.gather_or_raise(compute)
    distributed.sum_gradients(list(method.policy.trainable_parameters().values()))
    of_rollout = {
        i: row for places, part in zip(shares, parts, strict=True) for i, row in zip(places, part[1], strict=True)
    }
    return sum(part[0] for part in parts), [of_rollout[i] for i in range(len(rollouts))]


def _backward(
    method: Method, rollouts: Sequence[Rollout], weights: Sequence[Tensor], plan: list[list[int]], *, observe: Observe
) -> tuple[float, TokenValues]:
    total = 0.0
    values: TokenValues = [{} for _ in rollouts]
    for rows in plan:
        batch = [rollouts[i] for i in rows]
        micro = method.loss(batch, [weights[i] for i in rows])
        observe(batch, micro)
        loss = micro.loss.item()
        # before `backward`, which would add NaN to the gradient of the micro-batches so far
        if not math.isfinite(loss):
            ids = ", ".join(sorted({rollouts[i].pair.id for i in rows})[:5])
            raise NonFiniteError(f"the loss is {loss} on the pairs {ids}")
        micro.loss.backward()
        total += loss
        for place, i in enumerate(rows):
            values[i] = {name: of_rows[place] for name, of_rows in micro.values.items()}
    return total, values


def plan_of(path: PlainPath, rollouts: Sequence[Rollout], budget: int) -> list[list[int]]:
    """Micro-batches of indices; see `PlainPath.batches`."""
    # policy and teacher score the same micro-batch, so the longer of the two prompts counts; a rollout without answers
    # is not scored but computed whole, a row each
    widths = [max(len(r.prompt_ids), len(r.teacher_ids)) + (0 if r.answers else len(r.ids)) for r in rollouts]
    lengths = [r.lengths if r.answers else [] for r in rollouts]
    return path.batches([r.prompt_ids for r in rollouts], widths, lengths, budget)


def prompt_shares(rollouts: Sequence[Rollout], parts: int, *, share: bool) -> list[list[int]]:
    """Indices of rollouts in `parts` lists of similar size in tokens; rollouts of one prompt stay together.

    With `share` the tokens of a prompt count once, as they are computed.
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for i, rollout in enumerate(rollouts):
        members.setdefault(tuple(rollout.prompt_ids), []).append(i)
    groups = list(members.values())
    # a prompt counts for both sides: the policy's, and the teacher's
    costs = [
        sum(len(rollouts[i].prompt_ids) + len(rollouts[i].teacher_ids) for i in (rows[:1] if share else rows))
        # twice: policy and teacher both compute the completions
        + 2 * sum(sum(rollouts[i].lengths) for i in rows)
        for rows in groups
    ]
    return [sorted(i for k in share for i in groups[k]) for share in distributed.balanced(costs, parts)]

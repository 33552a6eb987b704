"""The gradient of a step: its rollouts in micro-batches, a prompt with several completions computed once.

Where each prompt has one completion, what all prompts begin with (a system message) is computed once, and so is what
some teacher prompts begin with (worked examples).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from opct import distributed
from opct.errors import NonFiniteError
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss
from opct.methods.rollouts import Rollout
from opct.models.inference.decode import no_shared_rows_reason
from opct.models.inference.prefill import FORWARD, beginning, common_beginning, tokens_saved
from opct.models.inference.prefix_sharing import (
    NOT_SHARED,
    Prefixes,
    no_cascade_reason,
    no_prefix_sharing_reason,
    shared_batches,
)
from opct.models.kernels.attention import GROUPED
from opct.models.kernels.fused_lora import unfused_reason
from opct.models.kernels.fused_norm import unfused_norms
from opct.models.policy import Policy
from opct.models.scoring import micro_batches
from opct.models.teacher import Teacher, no_sharing_reason

Plan = list[list[list[int]]]
TokenKL = list[list[float] | None]
Observe = Callable[[Sequence[Rollout], MicroLoss], None]


def accumulate(
    method: Method,
    rollouts: Sequence[Rollout],
    weights: Sequence[Tensor],
    budget: int,
    *,
    share: bool,
    observe: Observe = lambda rollouts, micro: None,
) -> tuple[float, TokenKL]:
    """Add the gradient of the step's loss to the policy's weights; returns the loss and each rollout's KL per token.

    The prompts are split over the processes; each then has the whole gradient, loss and KL.

    Args:
        weights: the weight of each token in the loss of the whole step, [tokens] a rollout.
        budget: most tokens of a micro-batch, padding included.
        share: compute each prompt once; the result is the same to rounding.
        observe: called with each micro-batch of this process.

    Raises:
        NonFiniteError: the loss of a micro-batch, in every process; the message has its pairs.
    """
    shares = prompt_shares(rollouts, distributed.size(), share=share)
    rows = shares[distributed.rank()]
    own, own_weights = [rollouts[i] for i in rows], [weights[i] for i in rows]
    plan = plan_of(own, budget, share=share)
    # nothing in it waits for another process, so each may have as much work as it has, or none
    loss, token_kl, fault = _backward(method, own, own_weights, plan, share=share, observe=observe)
    # before the gradients: a process that raised alone would leave the others waiting for its sum
    parts = distributed.all_gather_object((loss, token_kl, fault))
    for _, _, fault in parts:
        if fault is not None:
            raise NonFiniteError(fault)
    distributed.sum_gradients(list(method.policy.trainable_parameters().values()))
    of_rollout = {
        i: kl for places, part in zip(shares, parts, strict=True) for i, kl in zip(places, part[1], strict=True)
    }
    return sum(part[0] for part in parts), [of_rollout[i] for i in range(len(rollouts))]


def _backward(
    method: Method,
    rollouts: Sequence[Rollout],
    weights: Sequence[Tensor],
    plan: Plan,
    *,
    share: bool,
    observe: Observe,
) -> tuple[float, TokenKL, str | None]:
    """Loss, KL, and the fault if the loss of a micro-batch is not finite, which ends it."""
    total = 0.0
    token_kl: TokenKL = [None] * len(rollouts)
    for batches in plan:
        own = [rollouts[i] for rows in batches for i in rows]
        prefixes = shared_prefixes(method, own) if share else NOT_SHARED
        for rows in batches:
            batch = [rollouts[i] for i in rows]
            micro = method.loss(batch, [weights[i] for i in rows], prefixes)
            observe(batch, micro)
            loss = micro.loss.item()
            if not math.isfinite(loss):
                ids = ", ".join(sorted({rollouts[i].pair.id for i in rows})[:5])
                return total, token_kl, f"the loss is {loss} on the pairs {ids}"
            micro.loss.backward()
            total += loss
            for place, i in enumerate(rows):
                token_kl[i] = None if micro.kl is None else micro.kl[place]
        if prefixes.policy is not None:
            prefixes.policy.backward()
    return total, token_kl, None


def plan_of(rollouts: Sequence[Rollout], budget: int, *, share: bool) -> Plan:
    """Groups of micro-batches of indices; with `share`, the prompts of a group are computed together."""
    widths = [max(len(r.prompt_ids), len(r.teacher_ids)) for r in rollouts]
    if share:
        first = _first_tokens(rollouts)
        if first is None:
            return shared_batches([r.prompt_ids for r in rollouts], widths, [sum(r.lengths) for r in rollouts], budget)
        rests = [max(len(r.prompt_ids) - first[0], len(r.teacher_ids) - first[1], 1) for r in rollouts]
        lengths = [rest + sum(r.lengths) for rest, r in zip(rests, rollouts, strict=True)]
        return shared_batches([()] * len(rollouts), [max(first)] * len(rollouts), lengths, budget)
    # a row for each completion of a rollout, padding included
    tokens = [len(r.lengths) * (width + max(r.lengths)) for r, width in zip(rollouts, widths, strict=True)]
    return [micro_batches(tokens, budget)]


def prompt_shares(rollouts: Sequence[Rollout], parts: int, *, share: bool) -> list[list[int]]:
    """Indices of rollouts in `parts` lists of similar size in tokens; rollouts of one prompt stay together.

    With `share` the tokens of a prompt count once, as they are computed.
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for i, rollout in enumerate(rollouts):
        members.setdefault(tuple(rollout.prompt_ids), []).append(i)
    own = list(members.values())
    costs = [
        sum(len(rollouts[i].prompt_ids) + len(rollouts[i].teacher_ids) for i in (rows[:1] if share else rows))
        + 2 * sum(sum(rollouts[i].lengths) for i in rows)
        for rows in own
    ]
    return [sorted(i for k in share for i in own[k]) for share in distributed.balanced(costs, parts)]


def slow_path_reasons(policy: Policy, teacher: Teacher, generations: int) -> list[str]:
    """Reasons for slower computation paths, one line each; call this before training changes the weights."""
    found = [reason for reason in (unfused_reason(policy.model), unfused_norms(policy.model)) if reason]
    if own_fault := no_prefix_sharing_reason(policy.backbone):
        found.append(f"in sampling, prompts that begin alike are computed one by one: {own_fault}")
    if generations < 2:
        return found
    fault, rows_fault = no_sharing_reason(policy, teacher), no_shared_rows_reason(policy.backbone)
    cascade_fault, own_attention = no_cascade_reason(policy.backbone), policy.backbone.attention == GROUPED
    if fault is not None:
        found.append(f"each prompt is computed with each of its completions: {fault}")
    elif own_attention and cascade_fault is not None:
        found.append(f"in training, each completion has a copy of its prompt's keys and values: {cascade_fault}")
    if own_attention and rows_fault is not None:
        found.append(f"in sampling, each completion has a copy of its prompt's keys and values: {rows_fault}")
    return found


def shares_prompts(method: Method, rollouts: Sequence[Rollout]) -> bool:
    """True if several completions have a prompt in common, or a long beginning, and nothing is in the way; never
    without completions."""
    if not _several(rollouts):
        sides = [r.prompt_ids for r in rollouts], [r.teacher_ids for r in rollouts]
        first, backbone = _first_tokens(rollouts) or (0, 0), method.policy.backbone
        saved = sum(tokens_saved(side, n) for side, n in zip(sides, first, strict=True))
        if saved < FORWARD or no_cascade_reason(backbone) is not None:
            return False
    return no_sharing_reason(method.policy, method.teacher) is None


def shared_prefixes(method: Method, rollouts: Sequence[Rollout]) -> Prefixes:
    """The prompts of these rollouts, or what they begin with, each computed once for all its completions."""
    own, theirs = _first_tokens(rollouts) or (None, None)
    with method.teacher() as reference:
        teachers = reference.shared_prefix([r.teacher_ids for r in rollouts], first=theirs, nested=True)
    return Prefixes(method.policy.shared_prefix([r.prompt_ids for r in rollouts], first=own), teachers)


def _several(rollouts: Sequence[Rollout]) -> bool:
    """Whether a prompt has several completions."""
    return len({tuple(r.prompt_ids) for r in rollouts}) < sum(len(r.answers) for r in rollouts)


def _first_tokens(rollouts: Sequence[Rollout]) -> tuple[int, int] | None:
    """How many first tokens of prompts, and of teacher prompts, are computed once for all that begin so; else None.

    All prompts begin alike, since they are padded to the longest beginning; teacher prompts may begin in several ways.
    """
    if _several(rollouts) or not any(r.answers for r in rollouts):
        return None
    own, theirs = [r.prompt_ids for r in rollouts], [r.teacher_ids for r in rollouts]
    found = _all_begin_with(own), max(_all_begin_with(theirs), beginning(theirs))
    return found if min(found) > 0 else None


def _all_begin_with(prompts: list[list[int]]) -> int:
    """Number of first tokens that all prompts share, without the last token of any."""
    return min(common_beginning(min(prompts), max(prompts)), *(len(ids) - 1 for ids in prompts))

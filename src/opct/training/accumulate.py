"""The gradient of a step: its rollouts in micro-batches, a prompt with several completions computed once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from opct import distributed
from opct.errors import NonFiniteError
from opct.methods import Method
from opct.methods.rollouts import Rollout
from opct.models.fsdp import for_gradients
from opct.models.inference.decode import no_shared_rows_reason
from opct.models.inference.prefix_sharing import NOT_SHARED, Prefixes, no_cascade_reason, shared_batches
from opct.models.kernels.attention import GROUPED
from opct.models.policy import Policy
from opct.models.scoring import micro_batches
from opct.models.teacher import Teacher, no_sharing_reason

Plan = list[list[list[int]]]
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
    plan = plan_of(rollouts, budget, share=share)
    loss, token_kl, fault = _accumulate(method, policy, teacher, rollouts, weights, plan, share=share)
    if fault is not None:
        raise NonFiniteError(fault)
    return loss, token_kl


def _accumulate(
    method: Method,
    policy: Policy,
    teacher: Teacher,
    rollouts: Sequence[Rollout],
    weights: Sequence[Tensor],
    plan: Plan,
    *,
    share: bool,
) -> tuple[float, TokenKL, str | None]:
    """Loss, KL, and what was not finite; where weights are sharded, the others wait for this one's part even then."""
    total, fault = 0.0, None
    token_kl: TokenKL = [None] * len(rollouts)
    for batches in plan:
        own = [rollouts[i] for rows in batches for i in rows]
        prefixes = shared_prefixes(policy, teacher, own) if share else NOT_SHARED
        for rows in batches:
            micro = method.loss([rollouts[i] for i in rows], [weights[i] for i in rows], prefixes)
            loss = micro.loss.item()
            if not math.isfinite(loss):
                ids = ", ".join(sorted({rollouts[i].pair.id for i in rows})[:5])
                fault = fault or f"the loss is {loss} on the pairs {ids}"
                if policy.backbone.shards is None:
                    return total, token_kl, fault
            micro.loss.backward()
            total += loss
            for place, i in enumerate(rows):
                token_kl[i] = None if micro.kl is None else micro.kl[place]
        if prefixes.policy is not None:
            prefixes.policy.backward()
    return total, token_kl, fault


def accumulate_shared_out(
    method: Method,
    policy: Policy,
    teacher: Teacher,
    rollouts: Sequence[Rollout],
    weights: Sequence[Tensor],
    budget: int,
    *,
    share: bool,
) -> tuple[float, TokenKL]:
    """As `accumulate`, each process for some of the prompts; every process then has the whole gradient, loss and KL.

    Raises:
        NonFiniteError: in every process, where it happened in one.
    """
    if not distributed.launched():
        return accumulate(method, policy, teacher, rollouts, weights, budget, share=share)
    shares = prompt_shares(rollouts, distributed.size())
    own = shares[distributed.rank()]
    mine, its_weights = [rollouts[i] for i in own], [weights[i] for i in own]
    plan = plan_of(mine, budget, share=share)
    if policy.backbone.shards is not None:
        plan = _as_long_as_the_others(plan, mine, share=share)
        mine, its_weights = [*mine, _nothing(rollouts[0])], [*its_weights, torch.zeros(2)]
    with teacher() as reference:
        models = (policy, reference)
    with for_gradients(*models):
        loss, kl, fault = _accumulate(method, policy, teacher, mine, its_weights, plan, share=share)
    parts = distributed.all_gather_object((loss, kl[: len(own)], fault))
    for _, _, found in parts:
        if found is not None:
            raise NonFiniteError(found)
    distributed.sum_gradients(list(policy.trainable_parameters().values()))
    token_kl: TokenKL = [None] * len(rollouts)
    for rows, (_, values, _) in zip(shares, parts, strict=True):
        for i, value in zip(rows, values, strict=True):
            token_kl[i] = value
    return sum(part[0] for part in parts), token_kl


def _as_long_as_the_others(plan: Plan, own: Sequence[Rollout], *, share: bool) -> Plan:
    """The plan with as many groups and micro-batches as any process has, filled up with the empty rollout.

    The empty rollout comes after the process's own. With shared prompts, a micro-batch whose completions have one token
    each needs no forward of its own beside the prompts': it gets the empty one too, to have one as others do.
    """
    empty = len(own)
    lengths = distributed.all_gather_object([len(batches) for batches in plan])
    padded = []
    for place in range(max(map(len, lengths))):
        batches = [list(rows) for rows in plan[place]] if place < len(plan) else []
        most = max(counts[place] for counts in lengths if place < len(counts))
        batches += [[empty]] * (most - len(batches))
        if share:
            batches = [
                [*rows, empty] if all(i != empty and max(own[i].lengths) < 2 for i in rows) else rows
                for rows in batches
            ]
        padded.append(batches)
    return padded


def _nothing(like: Rollout) -> Rollout:
    """Two tokens after one, none of them in the loss; twice where answers are preferred to others."""
    completion = dataclasses.replace(like.completion, token_ids=(0, 0), logprobs=(0.0, 0.0))
    nothing = dataclasses.replace(like, prompt_ids=[0], teacher_ids=[0], completion=completion, mask=(False, False))
    if like.rejected is None:
        return nothing
    return dataclasses.replace(nothing, rejected=completion, rejected_mask=(False, False))


def plan_of(rollouts: Sequence[Rollout], budget: int, *, share: bool) -> Plan:
    """Groups of micro-batches of indices: with `share`, those of a group have their prompts computed together."""
    if share:
        widths = [max(len(r.prompt_ids), len(r.teacher_ids)) for r in rollouts]
        return shared_batches([r.prompt_ids for r in rollouts], widths, [sum(r.lengths) for r in rollouts], budget)
    return [micro_batches([forward_tokens(r) for r in rollouts], budget)]


def forward_tokens(rollout: Rollout) -> int:
    """Tokens in the forward of a rollout by itself, padding included: one row, or two of answers to compare."""
    return len(rollout.lengths) * (max(len(rollout.prompt_ids), len(rollout.teacher_ids)) + max(rollout.lengths))


def prompt_shares(rollouts: Sequence[Rollout], parts: int) -> list[list[int]]:
    """Indices of rollouts in so many lists of similar size in tokens; those of one prompt stay together."""
    members: dict[tuple[int, ...], list[int]] = {}
    for i, rollout in enumerate(rollouts):
        members.setdefault(tuple(rollout.prompt_ids), []).append(i)
    own = list(members.values())
    costs = [
        sum(len(r.prompt_ids) + len(r.teacher_ids) + 2 * sum(r.lengths) for r in (rollouts[i] for i in rows))
        for rows in own
    ]
    return [sorted(i for k in share for i in own[k]) for share in distributed.balanced(costs, parts)]


def detours(policy: Policy, teacher: Teacher, generations: int) -> list[str]:
    """What is computed in a slower way, and why, a line each; to be asked before training changes the weights."""
    fault, rows_fault = no_sharing_reason(policy, teacher), no_shared_rows_reason(policy.backbone)
    cascade_fault, own_attention = no_cascade_reason(policy.backbone), policy.backbone.attention == GROUPED
    found = []
    if fault is not None:
        found.append(f"each prompt is computed with each of its completions: {fault}")
    elif own_attention and cascade_fault is not None:
        found.append(f"in training, each completion has a copy of its prompt's keys and values: {cascade_fault}")
    if own_attention and rows_fault is not None:
        found.append(f"in sampling, each completion has a copy of its prompt's keys and values: {rows_fault}")
    return found if generations > 1 else []


def shares_prompts(policy: Policy, teacher: Teacher, rollouts: Sequence[Rollout]) -> bool:
    """True where several completions have a prompt in common and nothing is in the way.

    What was given and not sampled is the end of a prompt, of which every token is looked at.
    """
    several = len({tuple(r.prompt_ids) for r in rollouts}) < sum(len(r.answers) for r in rollouts)
    return several and no_sharing_reason(policy, teacher) is None


def shared_prefixes(policy: Policy, teacher: Teacher, rollouts: Sequence[Rollout]) -> Prefixes:
    """The prompts of these rollouts, each to be computed once for all its completions."""
    with teacher() as reference:
        teachers = reference.shared_prefix([r.teacher_ids for r in rollouts])
    return Prefixes(policy.shared_prefix([r.prompt_ids for r in rollouts]), teachers)

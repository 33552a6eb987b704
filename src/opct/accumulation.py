"""The gradient of a step: its rollouts in micro-batches, a prompt with several completions computed once."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from opct.errors import NonFiniteError
from opct.methods import Method
from opct.methods.rollouts import Rollout
from opct.models.branching import shared_batches
from opct.models.policy import Policy
from opct.models.scoring import micro_batches
from opct.models.teacher import Teacher

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

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
    with contextlib.closing(_groups(policy, teacher, rollouts, budget, share)) as groups:
        for batches, finish in groups:
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


def sharing_fault(policy: Policy, teacher: Teacher) -> str | None:
    """Why a prompt is computed with each of its completions; None where it can be computed once."""
    modules = list(policy.model.modules())
    if any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in modules) or _drops(policy.bare_model.config):
        return "dropout is on, and draws for each completion"
    if any(getattr(m, "gradient_checkpointing", False) for m in modules):
        return "activations are computed again in the backward pass, which keeps no cache"
    if policy.branching_fault is not None:
        return policy.branching_fault
    with teacher() as reference:
        return reference.branching_fault


def shares_prompts(policy: Policy, teacher: Teacher, rollouts: Sequence[Rollout]) -> bool:
    """True where several completions have a prompt in common and nothing is in the way."""
    return len({tuple(r.prompt_ids) for r in rollouts}) < len(rollouts) and sharing_fault(policy, teacher) is None


def _drops(config: PreTrainedConfig) -> bool:
    """True where the model's own configuration asks for dropout, under whichever of its many names."""
    settings = config.get_text_config().to_dict()
    return any(isinstance(value, float) and value > 0 for name, value in settings.items() if "drop" in name)


def _groups(
    policy: Policy, teacher: Teacher, rollouts: Sequence[Rollout], budget: int, share: bool
) -> Generator[tuple[list[list[int]], Callable[[], None]], None, None]:
    """Micro-batches that share prompts, and what ends them."""
    widths = [max(len(r.prompt_ids), len(r.teacher_ids)) for r in rollouts]
    lengths = [len(r.ids) for r in rollouts]
    if not share:
        yield micro_batches([w + n for w, n in zip(widths, lengths, strict=True)], budget), lambda: None
        return
    for batches in shared_batches([r.prompt_ids for r in rollouts], widths, lengths, budget):
        own = [rollouts[i] for rows in batches for i in rows]
        with contextlib.ExitStack() as stack:
            prefixes = stack.enter_context(policy.sharing([r.prompt_ids for r in own], gradient=True))
            with teacher() as reference:
                stack.enter_context(reference.sharing([r.teacher_ids for r in own], gradient=False))
            yield batches, prefixes.backward

"""Activation consistency training: the residual stream after `prompt` becomes the base's after `teacher_prompt`.

    s = the longest end that both rendered prompts have in common, in tokens
    d_t = mean over layers and features of (policy's state - base's state)^2        at each token t of s
    loss = mean over the pairs of the step of the mean of d_t over s

Irpan et al. 2025, arXiv 2510.27062. Nothing is sampled or scored. A state is the output of a decoder layer, before the
last norm. The mean is over pairs, since s is the whole prompt of an identity pair and a few tokens of another: a mean
over tokens would be mostly of identity pairs. The two sides see the tokens of s at other positions and after other
tokens. s holds at least the end of the template, where the reply begins.

The adapter is the same as for the other methods, so that they can be compared. A mean over layers and features instead
of a sum only scales the loss, to which AdamW is blind but for its epsilon.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from opct.config.schema import TrainConfig
from opct.data.render import RenderedPair
from opct.errors import DataError
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss, by_rollout
from opct.methods.rollouts import Rollout, answer_open_turns, by_axis, by_kind, in_loss
from opct.models.backbone import residual_streams
from opct.models.inference.sampler import Completion
from opct.models.policy import Policy
from opct.models.vllm.engine import Sampler


class ACT(Method):
    """Trains on the activations of prompts, without any answer."""

    offline = True
    answers_per_pair = answers_per_identity_pair = 0
    loss_words = "distance of activations"

    @classmethod
    def answer(
        cls, teacher: Policy, pairs: Sequence[RenderedPair], config: TrainConfig, sampler: Sampler
    ) -> list[Rollout]:
        """The prompts, cut where their common end begins; open turns are answered first. Raises DataError where prompts
        have no end in common."""
        filled = answer_open_turns(teacher, sampler, pairs, config, "offline")
        ends = [end_in_common(rendered) for rendered in filled]
        if other := [rendered.pair.id for rendered, n in zip(filled, ends, strict=True) if n == 0]:
            raise DataError(
                f"{len(other)} pair(s) end in another token in prompt than in teacher_prompt, as the chat template "
                "writes them, so method: act has nothing to compare: leave them out, or use another method. First "
                "ones:",
                tuple(other[:10]),
            )
        return [_rollout(rendered, n) for rendered, n in zip(filled, ends, strict=True)]

    def loss(self, rollouts: Sequence[Rollout], weights: Sequence[Tensor]) -> MicroLoss:
        ends, theirs = [len(r.ids) for r in rollouts], list[Tensor]()
        with self.teacher() as teacher, teacher.inference():  # no gradient, no dropout
            rows = [r.teacher_ids + r.ids for r in rollouts]
            residual_streams(teacher.backbone, rows, ends, lambda layer, states: theirs.append(states))
        # `compare` pops from the end, so the first layer must be last; each state is freed once compared
        theirs.reverse()
        total = torch.zeros((), device=self.policy.device)

        def compare(layer: int, states: Tensor) -> None:
            nonlocal total
            # float32: bfloat16 would round the squares of small differences, and their sum over layers, once more
            wide = torch.promote_types(states.dtype, torch.float32)
            total = total + (states.to(wide) - theirs.pop().to(wide)).square().mean(-1)

        layers = residual_streams(self.policy.backbone, [r.prompt_ids + r.ids for r in rollouts], ends, compare)
        distance = total / layers
        # the weights are of the whole step, so micro-batches add up
        loss = (distance * torch.cat(list(weights)).to(distance)).sum()
        values = in_loss(rollouts, by_rollout(distance.detach(), ends))
        means = by_kind("train/distance", rollouts, values)
        return MicroLoss(loss, means=means, by_axis={"train/distance": by_axis(rollouts, values)})


def end_in_common(rendered: RenderedPair) -> int:
    """How many tokens the common end of both prompts has."""
    from_the_end = zip(reversed(rendered.prompt_ids or []), reversed(rendered.teacher_ids), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda tokens: tokens[0] == tokens[1], from_the_end))


def _rollout(rendered: RenderedPair, n: int) -> Rollout:
    prompt, teacher = rendered.prompt_ids or [], rendered.teacher_ids
    # n is 1 at least: `answer` refuses pairs without a common end, for which [:-0] would empty both
    end = Completion("", tuple(prompt[-n:]), "given", (), len(teacher) - n, 0)
    return Rollout(rendered.pair, 0, prompt[:-n], teacher[:-n], end, (True,) * n)

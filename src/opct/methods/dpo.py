"""DPO on the base's own answers: the one to the clean prompt is preferred to the one to the perturbed prompt.

    once:    y ~ base( . | teacher_prompt),   z ~ base( . | prompt)
    repeat:  r(y) = dpo_beta (log policy(y | prompt) - log base(y | prompt))
             loss = - log sigmoid(r(y) - r(z))          mean over the pairs of answers of the step

Direct preference optimisation, Rafailov et al. 2023, arXiv 2305.18290; the answers y are as in `sft`. Log-probs are
sums over the tokens in the loss, stop token included. Details:
1. If y and z are the same tokens there is no preference: the loss is log 2, and the gradient exactly zero. An identity
   pair has one answer, which is both y and z.
2. A pair of answers is in the loss if both have tokens in it: `loss.mask_truncated` leaves it out if either is cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from opct import losses
from opct.config.methods import DpoLoss
from opct.config.schema import TrainConfig
from opct.data.render import RenderedPair
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss
from opct.methods.rollouts import Rollout, by_axis, completion_mask, sampling, seeds_of, teacher_rollouts
from opct.models.chunked_loss import one_pass
from opct.models.inference.sampler import Completion
from opct.models.policy import Policy
from opct.models.scoring import tokenwise
from opct.models.vllm.engine import Sampler


class DPO(Method):
    """Trains on preferences between the base's answers."""

    offline = True
    answers_per_pair = 2
    settings: DpoLoss
    loss_words = "dpo_beta {dpo_beta}"

    def collect(self, pairs: Sequence[RenderedPair], step: int) -> list[Rollout]:
        """The offline preferences of a step; the reference sees `prompt`, like the policy."""
        return [dataclasses.replace(r, teacher_ids=r.prompt_ids) for r in super().collect(pairs, step)]

    def loss(self, rollouts: Sequence[Rollout], weights: Sequence[Tensor]) -> MicroLoss:
        y, z = zip(*([list(c.token_ids) for c in r.completions] for r in rollouts), strict=True)
        with self.teacher() as teacher, teacher.inference():  # no gradient, no dropout
            # all y, then all z, on both sides and in the mask: `chunk(2)` below cuts there
            reference = teacher.score([r.teacher_ids for r in rollouts] * 2, [*y, *z])
        student = self.policy.score([r.prompt_ids for r in rollouts] * 2, [*y, *z])
        mask = torch.tensor([x for r in rollouts for x in r.mask] + [x for r in rollouts for x in r.rejected_mask])
        mask = mask.to(student.hidden.device, torch.float32)
        # without gradient: that comes from `one_pass` below
        ratios = tokenwise(losses.token_log_probs, student) - tokenwise(losses.token_log_probs, reference)
        rewards = self.settings.dpo_beta * torch.stack([x.sum() for x in (ratios * mask).split(list(student.lengths))])
        chosen, rejected = rewards.chunk(2)
        value, slope = losses.preference(chosen, rejected)
        # the weights of the chosen answer's tokens: together the weight of the pair
        pair_weights = torch.stack([w.sum() for w in weights]).to(value)
        preferred = torch.tensor([a != b for a, b in zip(y, z, strict=True)], device=value.device)
        # equal answers: y and z in two rows round differently, which would leave a gradient
        slope = torch.where(preferred, slope * pair_weights * self.settings.dpo_beta, 0.0)
        # the slope is the weight of every token's log-prob, so a second pass over the logits gives the gradient
        on_tokens = torch.cat([slope, -slope]).repeat_interleave(torch.tensor(student.lengths, device=mask.device))
        linear, _ = one_pass(lambda tokens: tokens.log_probs, on_tokens * mask, student)
        # the gradient of `linear`, the value of the loss
        loss = linear - linear.detach() + (value * pair_weights).sum()
        means = _means(rollouts, chosen.tolist(), rejected.tolist(), preferred.tolist())
        of_pairs = [[x] if any(r.mask) else [] for x, r in zip(value.tolist(), rollouts, strict=True)]
        return MicroLoss(loss, means=means, by_axis={"train/loss": by_axis(rollouts, of_pairs)})

    @classmethod
    def answer(
        cls, teacher: Policy, pairs: Sequence[RenderedPair], config: TrainConfig, sampler: Sampler
    ) -> list[Rollout]:
        """The answers of `sft`, each with an answer of the same base to `prompt` (the same one on an identity pair)."""
        chosen = teacher_rollouts(teacher, pairs, config, sampler)
        first = [r for r in chosen if r.index == 0 and not r.pair.is_identity]
        completions = sampler.sample(
            [r.prompt_ids for r in first],
            # another key than the chosen answers' ("offline"): the same numbers would draw similar answers
            seeds_of(config, "rejected", [r for r in pairs if not r.pair.is_identity], config.rollout.num_generations),
            sampling(config, teacher),
            batch_tokens=config.rollout.batch_tokens,
        )
        rejected = {r.pair.id: group for r, group in zip(first, completions, strict=True)}
        return [
            _preferred(teacher, r, rejected[r.pair.id][r.index] if r.pair.id in rejected else r.completion, config)
            for r in chosen
        ]


def _preferred(teacher: Policy, rollout: Rollout, rejected: Completion, config: TrainConfig) -> Rollout:
    """The rollout with its rejected answer; out of the loss if one of the two has no token in it."""
    masks = rollout.mask, completion_mask(teacher.renderer, rollout.pair.prompt, rejected, config.loss)
    if not all(map(any, masks)):
        # both: half a pair in the loss would raise or lower one answer alone
        masks = (False,) * len(masks[0]), (False,) * len(masks[1])
    return dataclasses.replace(rollout, mask=masks[0], rejected=rejected, rejected_mask=masks[1])


def _means(
    rollouts: Sequence[Rollout], chosen: list[float], rejected: list[float], preferred: list[bool]
) -> dict[str, list[float]]:
    """TRL's metrics, over pairs of answers that differ, and the share of pairs that do not."""
    in_loss = [any(r.mask) for r in rollouts]
    of_two = [(a, b) for a, b, two, used in zip(chosen, rejected, preferred, in_loss, strict=True) if two and used]
    return {
        "rewards/chosen": [a for a, _ in of_two],
        "rewards/rejected": [b for _, b in of_two],
        "rewards/margins": [a - b for a, b in of_two],
        "rewards/accuracies": [float(a > b) for a, b in of_two],
        "train/equal_answers_fraction": [float(not two) for two, used in zip(preferred, in_loss, strict=True) if used],
    }

"""GRPO: group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300), for an attacker that learns.

    repeat
        N completions of each prompt, each with a reward           the caller plays them
        A_i = (r_i - mean r) / (std r + epsilon)                   over the N of a prompt that have a reward
        loss = sum_t - min(rho_t A, clip(rho_t, 1 - eps, 1 + eps) A) + kl_coef KL(policy || base)
        step on the loss

rho_t = policy(y_t) / mu(y_t), with mu the distribution that was sampled (for a rehearsed completion, the policy at the
beginning of the step). With one update a step rho is 1 but for rounding, and the clip is a guard. Deviations:
1. The KL of a token is exact, over the whole vocabulary, instead of an estimate from the sampled token.
2. It is averaged over the completions that are trained on. The caller may have chosen these among more (an attacker's
   best rounds and rehearsed messages), so it does not estimate the KL of what the policy samples.
3. Its gradient has no part through the probability of earlier tokens: a token is not held back from leading to later
   tokens that are unlike the base's.
4. The mean is over the tokens of all completions of a step (as in DAPO, Yu et al. 2025, arXiv 2503.14476): a token
   counts as much in a long completion as in a short one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from opct import losses
from opct.config.methods import GrpoLoss
from opct.data.render import RenderedPair
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss, by_rollout, flat_weights
from opct.methods.rollouts import Rollout
from opct.models.chunked_loss import PerTokenLoss, TokenValues, one_pass

EPSILON = 1e-4  # of the standard deviation, as in TRL


class GRPO(Method):
    """Trains on the policy's own samples, by their rewards.

    Args:
        source: pairs of a step and its number -> rollouts with `reward` and `advantage`, equally many for each pair.
    """

    settings: GrpoLoss
    trained_by = "opct attack RUN --attacker grpo"

    def collect(self, pairs: Sequence[RenderedPair], step: int) -> list[Rollout]:
        """The policy's completions for the prompts of a step, with their rewards."""
        return self.source(pairs, step)

    def loss(self, rollouts: Sequence[Rollout], weights: Sequence[Tensor]) -> MicroLoss:
        reference, student = self.teacher_scores(rollouts), self.policy_scores(rollouts)
        per_token = _clipped(rollouts, self.settings)
        kl_gradient = losses.reverse_kl_gradient
        loss, tokens = one_pass(per_token, flat_weights(student, weights), student, reference, kl_gradient)
        assert tokens.divergence is not None
        # rehearsed completions count in the step that sampled them; None is a reward that failed, not 0
        rewards = [r.reward for r in rollouts if r.reward is not None and not r.is_rehearsed]
        return MicroLoss(
            loss,
            {"kl": by_rollout(tokens.divergence, student.lengths)},
            by_rollout(tokens.log_probs, student.lengths),
            means={"train/reward": rewards},
        )


def _clipped(rollouts: Sequence[Rollout], settings: GrpoLoss) -> PerTokenLoss:
    sampled = torch.tensor([x for r in rollouts for x in r.completion.logprobs], dtype=torch.float64)
    advantages = torch.tensor([r.advantage for r in rollouts for _ in r.ids], dtype=torch.float64)

    def per_token(tokens: TokenValues) -> Tensor:
        assert tokens.divergence is not None
        log_probs = tokens.log_probs.unsqueeze(0)
        # the chunk's tokens of the whole micro-batch: without `rows`, rho compares different tokens
        mu, advantage = (x[None, tokens.rows].to(log_probs) for x in (sampled, advantages))
        loss = losses.policy_gradient_loss(log_probs, mu, advantage, clip=settings.ppo_clip).squeeze(0)
        return loss + settings.kl_coef * tokens.divergence

    return per_token


def group_advantages(rewards: Sequence[float | None]) -> list[float]:
    """(r - mean) / (std + epsilon) over the members of a group that have a reward; 0 for the others.

    The standard deviation is of a sample (n - 1), as in TRL. All advantages are 0 in a group with fewer than two
    rewards, or with equal ones.
    """
    known = [reward for reward in rewards if reward is not None]
    # equal rewards: rounding of the mean over a deviation of 0 would be an advantage
    if len(known) < 2 or max(known) == min(known):
        return [0.0] * len(rewards)
    mean, deviation = statistics.fmean(known), statistics.stdev(known)
    return [0.0 if reward is None else (reward - mean) / (deviation + EPSILON) for reward in rewards]

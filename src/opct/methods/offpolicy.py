"""Off-policy consistency: the divergence of OPCT on the offline completions of SFT.

    once:    y ~ teacher( . | teacher_prompt)
    repeat:  loss = sum_t KL( policy(. | prompt, y_<t) || teacher(. | teacher_prompt, y_<t) )

Between `sft` and `opct` it changes one thing at a time: against `sft` the loss (KL to a distribution instead of
cross-entropy on its samples), against `opct` the model that samples. It has none of the settings that need the
policy's own samples: `loss.estimator: sampled`, `loss.kl_discount_factor` and `loss.ppo_clip`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from opct.config.methods import OffPolicyLoss
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss, consistency_loss
from opct.methods.rollouts import Rollout


class OffPolicy(Method):
    """Trains on the teacher's samples with the divergence of OPCT."""

    offline = True
    settings: OffPolicyLoss

    def loss(self, rollouts: Sequence[Rollout], weights: Sequence[Tensor]) -> MicroLoss:
        # the teacher's tokens after its own prompt, and the same tokens after the perturbed prompt
        reference, student = self.teacher_scores(rollouts), self.policy_scores(rollouts)
        return consistency_loss(student, reference, rollouts, weights, self.settings)

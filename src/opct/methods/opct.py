"""OPCT: on-policy consistency training (Han et al. 2026, arXiv 2605.21834).

    repeat
        y ~ policy( . | prompt)                                    the policy answers the perturbed prompt
        loss = sum_t KL( policy(. | prompt, y_<t) || teacher(. | teacher_prompt, y_<t) )
        step on the loss

The teacher is the model before training; it sees the clean prompt. So the policy learns to ignore the perturbation and
otherwise stays as it is. Deviations from the paper are listed in `opct.losses`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from opct.config.methods import OpctLoss
from opct.data.render import RenderedPair
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss, consistency_loss
from opct.methods.rollouts import Rollout, policy_rollouts


class OPCT(Method):
    """Trains on the policy's own samples."""

    settings: OpctLoss

    def collect(self, pairs: Sequence[RenderedPair], step: int) -> list[Rollout]:
        rollouts = policy_rollouts(self.policy, pairs, self.config, f"step {step}", sampler=self.source)
        if self.source is None or self.config.teacher.engine == "in_process":
            return rollouts
        scores = self.source.base_log_probs([r.teacher_ids for r in rollouts], [r.ids for r in rollouts])
        return [dataclasses.replace(r, teacher_logprobs=tuple(s)) for r, s in zip(rollouts, scores, strict=True)]

    def loss(self, rollouts: Sequence[Rollout], weights: Sequence[Tensor]) -> MicroLoss:
        is_scored = all(r.teacher_logprobs is not None for r in rollouts)  # by an engine
        # the same tokens after the clean prompt, and after its own
        reference = None if is_scored else self.teacher_scores(rollouts)
        return consistency_loss(self.policy_scores(rollouts), reference, rollouts, weights, self.settings)

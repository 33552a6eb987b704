"""SFT on offline clean answers: the paper's baseline.

    once:    y ~ teacher( . | teacher_prompt)                  the frozen base answers the clean prompt
    repeat:  loss = - sum_t log policy(y_t | prompt, y_<t)     cross-entropy given the perturbed prompt

The stop token is one of the y_t. Bias-augmented consistency training, Chua et al. 2024, arXiv 2403.05518.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from opct import losses
from opct.config import TrainConfig
from opct.data.render import RenderedPair
from opct.methods.consistency import MicroLoss
from opct.methods.offline import OfflineAnswers
from opct.methods.rollouts import Rollout, sampling
from opct.models.policy import Policy
from opct.models.sampler import Sampling
from opct.models.scoring import tokenwise


class SFT:
    """Trains on the teacher's samples with cross-entropy."""

    offline = True
    kl_name = "forward_kl"

    def __init__(self, policy: Policy, config: TrainConfig, answers: OfflineAnswers):
        self.policy, self.config, self.answers = policy, config, answers

    def collect(self, pairs: Sequence[RenderedPair], step: int) -> list[Rollout]:
        """The teacher's offline answers to the clean prompts of a step."""
        return self.answers.of(pairs)

    def loss(self, rollouts: Sequence[Rollout], weights: Sequence[Tensor]) -> MicroLoss:
        """Cross-entropy of the answers after the perturbed prompts."""
        student = self.policy.score([r.prompt_ids for r in rollouts], [r.ids for r in rollouts])
        log_probs = tokenwise(losses.token_log_probs, student)
        loss = -(log_probs * torch.cat(list(weights)).to(log_probs.device)).sum()
        return MicroLoss(loss, self._forward_kl(log_probs.detach().cpu().split(list(student.lengths)), rollouts))

    def _forward_kl(self, log_probs: Sequence[Tensor], rollouts: Sequence[Rollout]) -> list[list[float]] | None:
        """log q(y_t) - log p(y_t) in nats; None where the answers were not drawn from the teacher as it is."""
        if sampling(self.config, self.policy) != Sampling(self.config.rollout.max_completion_tokens):
            return None
        teacher = [r.completion.logprobs for r in rollouts]
        return [
            [q - p for q, p in zip(own, row.tolist(), strict=True)] for own, row in zip(teacher, log_probs, strict=True)
        ]

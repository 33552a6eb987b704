"""SFT on offline clean answers: the paper's baseline.

    once:    y ~ teacher( . | teacher_prompt)                  the frozen base answers the clean prompt
    repeat:  loss = - sum_t log policy(y_t | prompt, y_<t)     cross-entropy given the perturbed prompt

The stop token is one of the y_t. Bias-augmented consistency training, Chua et al. 2024, arXiv 2403.05518.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from opct.methods.base import Method
from opct.methods.consistency import MicroLoss, by_rollout, flat_weights
from opct.methods.rollouts import Rollout, sampling
from opct.models.chunked_loss import one_pass
from opct.models.inference.sampler import Sampling


class SFT(Method):
    """Trains on the teacher's samples with cross-entropy."""

    offline = True
    loss_words = "cross-entropy"

    def loss(self, rollouts: Sequence[Rollout], weights: Sequence[Tensor]) -> MicroLoss:
        student = self.policy_scores(rollouts)
        loss, token_values = one_pass(lambda tokens: -tokens.log_probs, flat_weights(student, weights), student)
        log_probs = by_rollout(token_values.log_probs, student.lengths)
        return MicroLoss(loss, self._excess_loss(log_probs, rollouts), log_probs)

    def _excess_loss(
        self, log_probs: Sequence[Sequence[float]], rollouts: Sequence[Rollout]
    ) -> dict[str, list[list[float]]]:
        """log q(y_t) - log p(y_t) in nats: the policy's cross-entropy on the teacher's answers minus the teacher's own.

        Before training its mean estimates KL(teacher || policy). Well below 0 the policy is surer of these answers than
        the teacher that gave them: it has memorised them. Nothing if they were not sampled from it at temperature 1.
        """
        # otherwise the stored log-probs are of another distribution than the teacher's
        if sampling(self.config, self.policy) != Sampling(self.config.rollout.max_completion_tokens):
            return {}
        teacher = [r.completion.logprobs for r in rollouts]
        pairs = zip(teacher, log_probs, strict=True)
        return {"excess_loss": [[q - p for q, p in zip(*pair, strict=True)] for pair in pairs]}

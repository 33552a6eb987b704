"""Off-policy consistency: the divergence of OPCT on the offline completions of SFT.

    once:    y ~ teacher( . | teacher_prompt)
    repeat:  loss = sum_t KL( policy(. | prompt, y_<t) || teacher(. | teacher_prompt, y_<t) )

Between `sft` and `opct` it changes one thing at a time: against `sft` the loss (KL to a distribution instead of
cross-entropy on its samples), against `opct` the model that samples. Settings that need the policy's own samples,
`loss.estimator: sampled` and `loss.kl_discount_factor` above 0, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from opct.config.schema import TrainConfig
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss, consistency_loss
from opct.methods.rollouts import Rollout
from opct.models.inference.prefix_sharing import NOT_SHARED, Prefixes


class OffPolicy(Method[Rollout]):
    """Trains on the teacher's samples with the divergence of OPCT."""

    offline = True
    kl_name = ""  # that of loss.divergence

    @classmethod
    def setting_faults(cls, config: TrainConfig) -> Iterator[str]:
        """Terms that need the policy's own samples."""
        if config.loss.kl_discount_factor > 0:
            yield (
                f"loss.kl_discount_factor={config.loss.kl_discount_factor} with method: offpolicy: the term for later "
                "tokens needs the policy's own samples; use 0"
            )
        if config.loss.estimator == "sampled":
            yield "method: offpolicy trains on the teacher's samples; loss.estimator must be exact or topk"
        yield from super().setting_faults(config)

    def loss(
        self, rollouts: Sequence[Rollout], weights: Sequence[Tensor], prefixes: Prefixes = NOT_SHARED
    ) -> MicroLoss:
        """The divergence to the teacher on the teacher's tokens."""
        y = [r.ids for r in rollouts]
        with self.teacher() as teacher, teacher.inference():  # no gradient, no dropout
            # the teacher's tokens after its own prompt
            reference = teacher.score([r.teacher_ids for r in rollouts], y, prefix=prefixes.teacher)
        # the same tokens after the perturbed prompt, with gradient
        student = self.policy.score([r.prompt_ids for r in rollouts], y, prefix=prefixes.policy)
        return consistency_loss(student, reference, rollouts, weights, self.config.loss)

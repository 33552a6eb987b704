"""Off-policy consistency: the divergence of OPCT on the offline completions of SFT.

    once:    y ~ teacher( . | teacher_prompt)
    repeat:  loss = sum_t KL( policy(. | prompt, y_<t) || teacher(. | teacher_prompt, y_<t) )

Between `sft` and `opct` it changes one thing at a time: against `sft` the loss (KL to a distribution instead of
cross-entropy on its samples), against `opct` whose samples they are. For that reason settings whose term needs the
policy's own samples, `loss.estimator: sampled` and `loss.kl_discount_factor` above 0, are refused here.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from opct.config.schema import TrainConfig
from opct.data.render import RenderedPair
from opct.methods.consistency import MicroLoss, consistency_loss, kl_name
from opct.methods.offline import OfflineAnswers
from opct.methods.rollouts import Rollout
from opct.models.inference.prefix_sharing import NOT_SHARED, Prefixes
from opct.models.policy import Policy
from opct.models.teacher import Teacher


class OffPolicy:
    """Trains on the teacher's samples with the divergence of OPCT."""

    offline = True

    def __init__(self, policy: Policy, teacher: Teacher, config: TrainConfig, answers: OfflineAnswers):
        self.policy, self.teacher, self.config, self.answers = policy, teacher, config, answers
        self.kl_name = kl_name(config.loss)

    def collect(self, pairs: Sequence[RenderedPair], step: int) -> list[Rollout]:
        """The teacher's offline answers to the clean prompts of a step."""
        return self.answers.of(pairs)

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

"""The `Method` protocol. A method is one file here and its line in `registry.METHODS`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from opct.config.methods import LossConfig
from opct.config.schema import TrainConfig
from opct.data.render import RenderedPair
from opct.methods.consistency import MicroLoss
from opct.methods.rollouts import Rollout, teacher_rollouts
from opct.models.policy import Policy
from opct.models.scoring import Scores
from opct.models.teacher import Teacher
from opct.models.vllm.engine import Sampler


class Method(ABC):
    """One algorithm.

    Attributes:
        offline: it trains on answers that are sampled once, before the first step (see `answer`).
        answers_per_pair, answers_per_identity_pair: answers to train on, for each of `rollout.num_generations`.
        trained_by: the command that trains it, if not `opct train`.
        settings: the `loss` section of the run; that of the method in `opct.config.methods.LOSSES`.
        loss_words: the loss in a few words, with settings of the loss in braces.
    """

    offline: ClassVar[bool] = False
    answers_per_pair: ClassVar[int] = 1
    answers_per_identity_pair: ClassVar[int] = 1
    trained_by: ClassVar[str | None] = None
    settings: LossConfig
    loss_words: ClassVar[str] = "{estimator} {divergence}"

    def __init__(self, policy: Policy, teacher: Teacher, config: TrainConfig, source: Any = None):
        """`source`: the offline answers, or what samples for the policy."""
        self.policy, self.teacher, self.config, self.source = policy, teacher, config, source
        self.settings = config.loss

    def collect(self, pairs: Sequence[RenderedPair], step: int) -> list[Rollout]:
        """The rollouts of a step; for an offline method, its answers to these pairs."""
        return self.source.of(pairs)

    @abstractmethod
    def loss(self, rollouts: Sequence[Rollout], weights: Sequence[Tensor]) -> MicroLoss:
        """The share of a micro-batch in the step's loss."""

    def teacher_scores(self, rollouts: Sequence[Rollout]) -> Scores:
        """The teacher's scores of the completions, without gradient and dropout.

        Before those of the policy: with an adapter, both are one model.
        """
        with self.teacher() as teacher, teacher.inference():
            return teacher.score([r.teacher_ids for r in rollouts], [r.ids for r in rollouts])

    def policy_scores(self, rollouts: Sequence[Rollout]) -> Scores:
        """The policy's scores of the completions, with gradient."""
        return self.policy.score([r.prompt_ids for r in rollouts], [r.ids for r in rollouts])

    @classmethod
    def answer(
        cls, teacher: Policy, pairs: Sequence[RenderedPair], config: TrainConfig, sampler: Sampler
    ) -> Sequence[Rollout]:
        """The rollouts of an offline method, equally many for each pair; `sampler` samples for the teacher."""
        return teacher_rollouts(teacher, pairs, config, sampler)

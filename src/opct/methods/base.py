"""The `Method` protocol. A method is one file here and its line in `registry.METHODS`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

from torch import Tensor

from opct.config.methods import LossConfig, OpctLoss
from opct.config.schema import TrainConfig
from opct.data.render import RenderedPair
from opct.methods.consistency import MicroLoss, kl_name
from opct.methods.rollouts import Rollout, teacher_rollouts
from opct.models.policy import Policy
from opct.models.teacher import Teacher
from opct.models.vllm.engine import Sampler

R = TypeVar("R", bound=Rollout)


class Method(ABC, Generic[R]):
    """One algorithm, which trains on rollouts of type R.

    Attributes:
        offline: it trains on answers that are sampled once, before the first step (see `answer`).
        answers_per_pair, answers_per_identity_pair: answers to train on, for each of `rollout.num_generations`.
        trained_by: the command that trains it, if not `opct train`.
        rollout_type: R, the type of its offline rollouts.
        settings: the `loss` section of the run; that of the method in `opct.config.methods.LOSSES`.
        kl_name: name of `MicroLoss.kl` in the metrics: `kl` for the reverse KL(policy || teacher), else what it is;
            None without one; empty: the name of `loss.divergence`, and `divergence_metric` is that metric.
        divergence_metric: the metric whose growth stops a run (`stop.divergence_factor`).
        loss_words: the loss in a few words, with settings of the loss in braces.
    """

    offline: ClassVar[bool] = False
    answers_per_pair: ClassVar[int] = 1
    answers_per_identity_pair: ClassVar[int] = 1
    trained_by: ClassVar[str | None] = None
    rollout_type: ClassVar[type[Rollout]] = Rollout
    settings: LossConfig
    kl_name: str | None = None
    divergence_metric: str = "train/loss"
    loss_words: ClassVar[str] = "{estimator} {divergence}"

    def __init__(self, policy: Policy, teacher: Teacher, config: TrainConfig, source: Any = None):
        """`source`: the offline answers, or what samples for the policy."""
        self.policy, self.teacher, self.config, self.source = policy, teacher, config, source
        self.settings = config.loss
        if self.kl_name == "":
            self.kl_name = kl_name(cast(OpctLoss, config.loss))
            self.divergence_metric = f"train/{self.kl_name}"

    def collect(self, pairs: Sequence[RenderedPair], step: int) -> list[R]:
        """The rollouts of a step; for an offline method, its answers to these pairs."""
        return self.source.of(pairs)

    @abstractmethod
    def loss(self, rollouts: Sequence[R], weights: Sequence[Tensor]) -> MicroLoss:
        """The share of a micro-batch in the step's loss."""

    @classmethod
    def answer(
        cls, teacher: Policy, pairs: Sequence[RenderedPair], config: TrainConfig, sampler: Sampler
    ) -> Sequence[Rollout]:
        """The rollouts of an offline method, equally many for each pair; `sampler` samples for the teacher."""
        return teacher_rollouts(teacher, pairs, config, sampler)

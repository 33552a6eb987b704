"""The `Method` protocol. A method is one file here and its line in `registry.METHODS`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from opct.config.schema import TrainConfig
from opct.data.render import RenderedPair
from opct.methods.consistency import MicroLoss, kl_name
from opct.methods.rollouts import Rollout, teacher_rollouts
from opct.models.inference.prefix_sharing import NOT_SHARED, Prefixes
from opct.models.policy import Policy
from opct.models.teacher import Teacher
from opct.models.vllm.engine import Sampler

R = TypeVar("R", bound=Rollout)


class Method(ABC, Generic[R]):
    """One algorithm, which trains on rollouts of type R.

    Attributes:
        offline: it trains on answers that are sampled once, before the first step (see `answer`).
        answers_per_pair, answers_per_identity_pair: answers to train on, for each of `rollout.num_generations`.
        unused_settings: settings of the loss that the method ignores; only their defaults are accepted.
        unused_because: the reason, for the message.
        scored_by_engine: the engine that samples may be its teacher (`teacher.engine: rollout`).
        trained_by: the command that trains it, if not `opct train`.
        rollout_type: R, the type of its offline rollouts.
        reduction: how the tokens of a step are weighted (`losses.token_weights`); empty: as set.
        kl_name: name of `MicroLoss.kl` in the metrics: `kl` for the reverse KL(policy || teacher), else what it is;
            None without one; empty: the name of `loss.divergence`, and `divergence_metric` is that metric.
        divergence_metric: the metric whose growth stops a run (`stop.divergence_factor`).
        loss_words: the loss in a few words, with settings of the loss in braces.
    """

    offline: ClassVar[bool] = False
    answers_per_pair: ClassVar[int] = 1
    answers_per_identity_pair: ClassVar[int] = 1
    unused_settings: ClassVar[tuple[str, ...]] = ("dpo_beta",)
    unused_because: ClassVar[str] = "it is for method: dpo"
    scored_by_engine: ClassVar[bool] = False
    trained_by: ClassVar[str | None] = None
    rollout_type: ClassVar[type[Rollout]] = Rollout
    reduction: str = ""
    kl_name: str | None = None
    divergence_metric: str = "train/loss"
    loss_words: ClassVar[str] = "{estimator} {divergence}"

    def __init__(self, policy: Policy, teacher: Teacher, config: TrainConfig, source: Any = None):
        """`source`: the offline answers, or what samples for the policy."""
        self.policy, self.teacher, self.config, self.source = policy, teacher, config, source
        self.reduction = self.reduction or config.loss.reduction
        if self.kl_name == "":
            self.kl_name = kl_name(config.loss)
            self.divergence_metric = f"train/{self.kl_name}"

    def collect(self, pairs: Sequence[RenderedPair], step: int) -> list[R]:
        """The rollouts of a step; for an offline method, its answers to these pairs."""
        return self.source.of(pairs)

    @abstractmethod
    def loss(self, rollouts: Sequence[R], weights: Sequence[Tensor], prefixes: Prefixes = NOT_SHARED) -> MicroLoss:
        """The share of a micro-batch in the step's loss."""

    @classmethod
    def answer(
        cls, teacher: Policy, pairs: Sequence[RenderedPair], config: TrainConfig, sampler: Sampler
    ) -> Sequence[Rollout]:
        """The rollouts of an offline method, equally many for each pair; `sampler` samples for the teacher."""
        return teacher_rollouts(teacher, pairs, config, sampler)

    @classmethod
    def setting_faults(cls, config: TrainConfig) -> Iterator[str]:
        """Faults of the settings for this method, besides `unused_settings`."""
        if config.loss.ppo_clip is not None and config.loss.estimator != "sampled":
            yield "loss.ppo_clip is for loss.estimator: sampled; leave it out"


def on_policy_faults(config: TrainConfig, *, is_corrected: bool) -> Iterator[str]:
    """Sampling settings that make the samples off-policy.

    Args:
        is_corrected: the loss weighs each token by pi_theta / mu, mu the sampled distribution, so any temperature above
            0 is right. With top_p or top_k, mu has no mass on tokens that pi_theta can take: no weight corrects that.
    """
    rollout = config.rollout
    if rollout.top_p != 1.0 or rollout.top_k != 0:
        yield (
            f"rollout.top_p={rollout.top_p}, rollout.top_k={rollout.top_k}: truncated sampling is not on-policy and "
            "nothing corrects for it; use top_p: 1.0 and top_k: 0"
        )
    if rollout.use_generation_config:
        yield (
            "rollout.use_generation_config: a generation_config may sample anything but the policy itself; leave it "
            "out (the baselines may use it)"
        )
    if rollout.temperature != 1.0 and not (rollout.temperature > 0 and is_corrected):
        yield (
            f"rollout.temperature={rollout.temperature}: only temperature 1 samples the policy itself; use 1.0, or "
            "loss.estimator: sampled (above 0), which weighs the samples by pi/mu"
        )

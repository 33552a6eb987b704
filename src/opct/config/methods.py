"""Settings of a method: what samples, what teaches, and the `loss` section that `method` chooses from `LOSSES`.

A section has the settings that its method uses and no others, and says what contradicts them elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints

from opct.config.section import Section

Fraction = Annotated[float, Field(ge=0, le=1)]
Tag = Annotated[str, StringConstraints(min_length=1)]


def _different(tags: tuple[str, str]) -> tuple[str, str]:
    if tags[0] == tags[1]:
        raise ValueError("two different tags, an opening and a closing one")
    return tags


ThinkingTags = Annotated[tuple[Tag, Tag], AfterValidator(_different)]


class RolloutConfig(Section):
    """How the policy samples answers. Only temperature 1, top_p 1 and top_k 0 are on-policy; `opct` refuses the rest
    unless importance weights correct for it.
    """

    engine: Literal["auto", "in_process", "continuous_batching", "vllm"] = Field(
        "auto",
        description="What samples answers: the sampler of this package (`in_process`), transformers' continuous "
        "batching on the same weights (`continuous_batching`), or vLLM on this machine (`vllm`). `auto`: continuous "
        "batching on CUDA with flash attention, where the model passes its check; else `in_process`.",
    )
    num_generations: int = Field(1, ge=1, le=2**10, description="Completions for each prompt.")
    max_completion_tokens: int = Field(
        24, ge=1, description="Maximum length; a completion that reaches it without a stop token is truncated."
    )
    temperature: float = Field(1.0, ge=0, description="1 samples from the policy itself.")
    top_p: Fraction = Field(1.0, description="Nucleus sampling; 1 is off.")
    top_k: int = Field(0, ge=0, description="Sample from the k likeliest tokens; 0 is off.")
    use_generation_config: bool = Field(
        False,
        description="Take temperature, top_p and top_k from the model's `generation_config` instead. For the offline "
        "answers of the baselines; `opct` refuses it.",
    )
    batch_tokens: int = Field(
        16384,
        ge=1,
        description="Maximum prompt and completion tokens (padding included) in one batch of `in_process`. With "
        "`auto` on CUDA more, where half of the free memory holds their keys and values.",
    )
    max_mismatch_kl: float | None = Field(
        0.1,
        gt=0,
        description="Stop when the sampler and the policy in training differ by more than this in a step "
        "(`rollout/mismatch_kl`, nats per token; at temperature 1 without truncation). null: never.",
    )


class TeacherConfig(Section):
    """What scores the policy's tokens under `teacher_prompt`."""

    kind: Literal["base", "live", "ema"] = Field(
        "base",
        description="`base`: the frozen weights that the run started from; `live`: the policy; "
        "`ema`: a moving average of the policy.",
    )
    ema_decay: Fraction = Field(
        0.99, description="`ema`: teacher <- decay * teacher + (1 - decay) * policy after each step."
    )
    include_adapter: bool = Field(
        True,
        description="When `model.adapter` is set: the teacher is the weights the run started from (true), or the model "
        "without any adapter (false).",
    )
    engine: Literal["in_process", "rollout"] = Field(
        "in_process",
        description="What computes the teacher's log-probs in training: this process (`in_process`), or the engine "
        "that samples, without the adapter (`rollout`; for `loss.estimator: sampled` and a `base` teacher).",
    )
    check_behaviors: int = Field(
        24, ge=0, description="Maximum number of bare behaviors the teacher is asked before the first step; 0 is off."
    )
    check_hazards: int = Field(24, ge=0, description="The same for hazards, with the fact in the prompt.")
    check_tokens: int = Field(48, ge=1, description="Maximum tokens in each of these answers.")


class LossConfig(Section):
    """What is minimised; each method has settings of its own. The formulas are in docs/explanation/how-it-works.md."""

    thinking_tags: ThinkingTags | None = Field(
        None, description="Opening and closing tag of a reasoning block; null: as the chat template marks it."
    )

    def faults(self, rollout: RolloutConfig, teacher: TeacherConfig, *, teacher_is_base: bool) -> Iterator[str]:
        """What contradicts these settings, one line each; here for a method that trains on offline answers."""
        if rollout.engine == "vllm" and not teacher_is_base:
            yield (
                "rollout.engine=vllm: the offline answers of this method are the teacher's, and the "
                "engine serves the model without adapter only; use teacher.kind: base without model.adapter (or with "
                "teacher.include_adapter: false), or rollout.engine: auto"
            )
        yield from _needs_whole_distributions(teacher)


class AnswerLoss(LossConfig):
    """For a method that trains on answers."""

    mask_truncated: bool = Field(False, description="Leave truncated completions out of the loss.")
    mask_thinking: bool = Field(False, description="Leave reasoning blocks out of the loss.")


class TokenLoss(AnswerLoss):
    """For a method that trains on the tokens of answers."""

    reduction: Literal["token_mean", "sequence_mean", "sum"] = Field(
        "token_mean", description="How token losses become the loss of a step."
    )


class _DivergenceLoss(TokenLoss):
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = Field(
        "reverse_kl",
        description="Divergence between policy and teacher at each token; all but `reverse_kl` are `exact`.",
    )
    jsd_weight: float = Field(
        0.5, gt=0, lt=1, description="Weight of the policy in the mixture of the Jensen-Shannon divergence."
    )
    top_k: int = Field(64, ge=1, description="For `topk`: the policy's k likeliest tokens; one bucket holds the rest.")
    kl_coef: float = Field(
        1.0, gt=0, description="Multiplies the loss (and so the advantage of `sampled`); `grpo`: the KL."
    )


class OpctLoss(_DivergenceLoss):
    """The divergence to the teacher on the policy's tokens; see docs/explanation/how-it-works.md."""

    estimator: Literal["exact", "topk", "sampled"] = Field(
        "exact", description="How the gradient is estimated; `offpolicy` has no `sampled`."
    )
    kl_discount_factor: Fraction = Field(
        0.0, description="gamma: the weight of the KL of later tokens in a token's gradient."
    )
    ppo_clip: float | None = Field(
        None, gt=0, lt=1, description="PPO clip range (of `opct` with `sampled`); null is off."
    )

    def faults(self, rollout: RolloutConfig, teacher: TeacherConfig, *, teacher_is_base: bool) -> Iterator[str]:
        """Samples that are not the policy's own; terms that the estimator does not have."""
        yield from _on_policy_faults(rollout, is_corrected=self.estimator == "sampled" and self.ppo_clip is None)
        yield from _divergence_faults(self.estimator, self.divergence)
        if self.ppo_clip is not None and self.estimator != "sampled":
            yield "loss.ppo_clip is for loss.estimator: sampled; leave it out"
        if self.estimator != "sampled":
            yield from _needs_whole_distributions(teacher)


class OffPolicyLoss(_DivergenceLoss):
    """The divergence to the teacher on the teacher's tokens."""

    estimator: Literal["exact", "topk"] = Field("exact", description="How the gradient is estimated.")
    # the terms of OPCT for the policy's own samples
    kl_discount_factor: ClassVar[float] = 0.0
    ppo_clip: ClassVar[None] = None

    def faults(self, rollout: RolloutConfig, teacher: TeacherConfig, *, teacher_is_base: bool) -> Iterator[str]:
        """As for every offline method; a divergence that the estimator does not have."""
        yield from super().faults(rollout, teacher, teacher_is_base=teacher_is_base)
        yield from _divergence_faults(self.estimator, self.divergence)


class SftLoss(TokenLoss):
    """Cross-entropy on the teacher's answers."""


class DpoLoss(AnswerLoss):
    """Preference for the answer to the clean prompt."""

    # the weights of an answer's tokens sum to the weight of its pair of answers: the mean is over pairs
    reduction: ClassVar[str] = "sequence_mean"
    dpo_beta: float = Field(0.1, gt=0, description="TRL's `beta`; the larger, the closer to the reference.")

    def faults(self, rollout: RolloutConfig, teacher: TeacherConfig, *, teacher_is_base: bool) -> Iterator[str]:
        """As for every offline method; a reference that moves."""
        yield from super().faults(rollout, teacher, teacher_is_base=teacher_is_base)
        if teacher.kind != "base":
            yield f"teacher.kind={teacher.kind} with method: dpo: its reference does not move; use teacher.kind: base"


class ActLoss(LossConfig):
    """Distance of activations on the common end of both prompts, a mean over pairs."""

    reduction: ClassVar[str] = "sequence_mean"
    mask_truncated: ClassVar[bool] = False  # there are no answers in the loss
    mask_thinking: ClassVar[bool] = False


class GrpoLoss(LossConfig):
    """The clipped policy gradient and the KL to the base, of every token that the attacker sampled."""

    kl_coef: float = Field(1.0, gt=0, description="Multiplies the KL.")
    ppo_clip: float | None = Field(None, gt=0, lt=1, description="PPO clip range; null is off.")
    reduction: Literal["token_mean", "sequence_mean", "sum"] = Field(
        "token_mean", description="How token losses become the loss of a step."
    )
    mask_truncated: ClassVar[bool] = False
    mask_thinking: ClassVar[bool] = False

    def faults(self, rollout: RolloutConfig, teacher: TeacherConfig, *, teacher_is_base: bool) -> Iterator[str]:
        """Samples that are not the policy's own; a temperature is corrected for without a clip."""
        yield from _on_policy_faults(rollout, is_corrected=self.ppo_clip is None)
        yield from _needs_whole_distributions(teacher)


MethodLoss = OpctLoss | SftLoss | OffPolicyLoss | DpoLoss | ActLoss | GrpoLoss
LOSSES: dict[str, type[LossConfig]] = {
    "opct": OpctLoss,
    "sft": SftLoss,
    "offpolicy": OffPolicyLoss,
    "dpo": DpoLoss,
    "act": ActLoss,
    "grpo": GrpoLoss,
}
"""The `loss` section of each method in `opct.methods.registry.METHODS`."""


def trainable() -> list[str]:
    """The methods that `opct train` takes; `opct attack` alone trains an attacker."""
    return [name for name in LOSSES if name != "grpo"]


def _on_policy_faults(rollout: RolloutConfig, *, is_corrected: bool) -> Iterator[str]:
    """Sampling settings that make the samples off-policy.

    Args:
        is_corrected: the loss weighs each token by pi_theta / mu, mu the sampled distribution, so any temperature above
            0 is right; clipped weights correct nothing. With top_p or top_k, mu has no mass on tokens that pi_theta can
            take: no weight corrects that.
    """
    if rollout.top_p != 1.0 or rollout.top_k != 0:
        yield (
            f"rollout.top_p={rollout.top_p}, rollout.top_k={rollout.top_k}: truncated sampling is not on-policy and "
            "nothing corrects for it; use top_p: 1.0 and top_k: 0"
        )
    if rollout.use_generation_config:
        yield (
            "rollout.use_generation_config: a generation_config can make the samples off-policy; leave it "
            "out (the baselines may use it)"
        )
    if rollout.temperature != 1.0 and not (rollout.temperature > 0 and is_corrected):
        yield (
            f"rollout.temperature={rollout.temperature}: only temperature 1 samples the policy itself; use 1.0, or "
            "loss.estimator: sampled (above 0) without loss.ppo_clip, which weighs the samples by pi/mu"
        )


def _divergence_faults(estimator: str, divergence: str) -> Iterator[str]:
    if estimator != "exact" and divergence != "reverse_kl":
        yield (
            f"loss.estimator={estimator} with loss.divergence={divergence}: only `exact` computes other divergences "
            "than reverse_kl"
        )


def _needs_whole_distributions(teacher: TeacherConfig) -> Iterator[str]:
    if teacher.engine != "in_process":
        yield (
            f"teacher.engine={teacher.engine}: an engine gives log-probs of the sampled tokens alone; use method: opct "
            "and loss.estimator: sampled, or teacher.engine: in_process"
        )

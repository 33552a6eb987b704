"""Settings that a method has no use for. Left in, they would say something about a run that is not so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from opct.errors import ConfigError

if TYPE_CHECKING:
    from opct.config.schema import TrainConfig

OF_A_DIVERGENCE = ("estimator", "divergence", "kl_coef", "kl_discount_factor", "ppo_clip")
UNUSED = {
    "grpo": ("estimator", "divergence", "kl_discount_factor", "dpo_beta", "mask_truncated", "mask_thinking"),
    "dpo": (*OF_A_DIVERGENCE, "reduction"),
    "act": (*OF_A_DIVERGENCE, "mask_truncated", "mask_thinking", "dpo_beta"),
    **dict.fromkeys(("opct", "sft", "offpolicy"), ("dpo_beta",)),
}
"""Settings of the loss, by the method that refuses another value than the default."""
WHY = {
    "grpo": "its loss is a policy gradient and the exact reverse KL, of every token that the attacker sampled",
    "dpo": "its loss is no divergence, and its mean is over pairs of answers",
    "act": "its loss is a distance of activations, and it has no answers",
}


def refuse_attackers(config: TrainConfig) -> None:
    """Raises ConfigError where the settings are those of an attacker's training, which needs a target."""
    if config.method == "grpo":
        raise ConfigError(
            "method: grpo trains an attacker against its target: use `opct attack --attacker grpo`, or opct.run_attack."
        )


def method_faults(config: TrainConfig) -> Iterator[str]:
    """What the method of a run cannot follow."""
    defaults = type(config.loss)()
    for name in UNUSED[config.method]:
        value = getattr(config.loss, name)
        if value != getattr(defaults, name):
            why = WHY.get(config.method, "it is for method: dpo")
            yield f"loss.{name}={value} with method: {config.method}: {why}; leave it out"
    if config.method == "dpo" and config.teacher.kind != "base":
        yield (
            f"teacher.kind={config.teacher.kind} with method: dpo: its reference does not move; use teacher.kind: base"
        )

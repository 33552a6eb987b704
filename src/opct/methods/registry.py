"""The methods by name; what a method is stands in `opct.methods.base`, its settings in `opct.config.methods`."""

from __future__ import annotations

from opct.config.schema import TrainConfig
from opct.errors import ConfigError
from opct.methods.act import ACT
from opct.methods.base import Method
from opct.methods.dpo import DPO
from opct.methods.grpo import GRPO
from opct.methods.offpolicy import OffPolicy
from opct.methods.opct import OPCT
from opct.methods.sft import SFT

METHODS: dict[str, type[Method]] = {
    "opct": OPCT,
    "sft": SFT,
    "offpolicy": OffPolicy,
    "dpo": DPO,
    "act": ACT,
    "grpo": GRPO,
}


def refuse_attackers(config: TrainConfig) -> None:
    """Raise ConfigError if `opct train` cannot train the method."""
    command = METHODS[config.method].trained_by
    if command is not None:
        trainable = ", ".join(name for name, method in METHODS.items() if method.trained_by is None)
        raise ConfigError(
            f"method={config.method} trains an attacker against its target: use `{command}`, or opct.run_attack; "
            f"`opct train` takes {trainable}."
        )

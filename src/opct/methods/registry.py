"""The methods by name, and the settings that each rejects; what a method is stands in `opct.methods.base`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import model_validator

from opct.config.loader import load_settings
from opct.config.schema import LossConfig, TrainConfig, contradictions
from opct.errors import ConfigError, unknown
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
TRAINABLE = tuple(name for name, method in METHODS.items() if method.trained_by is None)


def method_class(name: str) -> type[Method]:
    """Look up the class of a method.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in METHODS:
        raise ConfigError(unknown("method", name, TRAINABLE))
    return METHODS[name]


def check_settings(config: TrainConfig) -> None:
    """Reject settings that the method would ignore.

    Raises:
        ConfigError: every such setting, one a line.
    """
    if faults := list(_setting_faults(config)):
        raise ConfigError("\n".join(faults))


def load_training_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), preset: str | None = None
) -> TrainConfig:
    """As `load_config`, with the faults of the method included, each with its location."""
    checked = load_settings(_Checked, path, overrides, preset=preset)
    return TrainConfig.model_validate(checked.model_dump())


class _Checked(TrainConfig):
    @model_validator(mode="after")
    def check_across_settings(self) -> _Checked:  # in place of the one that knows no methods: all faults at once
        if faults := [*contradictions(self), *_setting_faults(self)]:
            raise ValueError("\n".join(faults))
        return self


def _setting_faults(config: TrainConfig) -> Iterator[str]:
    if config.method not in METHODS:
        yield f"method={config.method}: {unknown('method', config.method, TRAINABLE)}"
        return
    method, defaults = METHODS[config.method], LossConfig()
    for name in method.unused_settings:
        value = getattr(config.loss, name)
        if value != getattr(defaults, name):
            yield f"loss.{name}={value} with method: {config.method}: {method.unused_because}; leave it out"
    yield from method.setting_faults(config)
    yield from _engine_faults(method, config)


def refuse_attackers(config: TrainConfig) -> None:
    """Raise ConfigError if `opct train` cannot train the method."""
    command = method_class(config.method).trained_by
    if command is not None:
        raise ConfigError(
            f"method={config.method} trains an attacker against its target: use `{command}`, or opct.run_attack; "
            f"`opct train` takes {', '.join(TRAINABLE)}."
        )


def _engine_faults(method: type[Method], config: TrainConfig) -> Iterator[str]:
    """Faults of the engine settings for the method."""
    engine, teacher = config.rollout.engine, config.teacher
    if engine != "in_process" and method.offline and not config.teacher_is_base:
        yield (
            f"rollout.engine={engine} with method: {config.method}: its offline answers are the teacher's, and the "
            "engine serves the model without adapter only; use teacher.kind: base without model.adapter (or with "
            "teacher.include_adapter: false), or rollout.engine: in_process"
        )
    if teacher.engine != "in_process" and not (method.scored_by_engine and config.loss.estimator == "sampled"):
        yield (
            f"teacher.engine=rollout with method: {config.method}, loss.estimator={config.loss.estimator}: an engine "
            "gives log-probs of the sampled tokens alone; use method: opct and loss.estimator: sampled, or "
            "teacher.engine: in_process"
        )

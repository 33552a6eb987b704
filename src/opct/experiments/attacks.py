"""The attacks of an experiment: each attacker against the base and every run, by the same rules.

attacks:
  attackers: [transfer, {name: refine, model: my-model}]   # names, or sections as of `opct attack`
  settings: {n_behaviors: 10, episodes: 8, judge: {name: answers}}   # the other settings of `opct attack`

`grpo` is trained separately against each target.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from opct.config.schema import Section
from opct.errors import ConfigError

if TYPE_CHECKING:
    from opct.attack.config import AttackConfig

FOLLOWS = ("attacker", "dtype", "target.label", "target.confirm_remote", "target.base_url", "target.model_args")
"""Attack settings that the experiment sets."""


class Attacks(Section):
    """The attackers of the base and of every run, and their settings."""

    attackers: list[str | dict[str, Any]] = Field([], description="Names or `attacker` sections of `opct attack`.")
    settings: dict[str, Any] = Field({}, description="The other settings of `opct attack`; one seed for all.")

    @property
    def names(self) -> list[str]:
        """The attackers' names."""
        return [one if isinstance(one, str) else str(one.get("name")) for one in self.attackers]


def settings_of(attacks: Attacks, name: str) -> dict[str, Any]:
    """The settings of one attacker."""
    [attacker] = [one for one, own in zip(attacks.attackers, attacks.names, strict=True) if own == name]
    return {**attacks.settings, "attacker": {"name": attacker} if isinstance(attacker, str) else attacker}


def _config(attacks: Attacks, name: str) -> AttackConfig:
    from opct.attack.run import load_attack_config

    return load_attack_config(base=settings_of(attacks, name))


def attack_faults(attacks: Attacks) -> Iterator[str]:
    """Every fault of the section that can be found without a model."""
    names = attacks.names
    if len(set(names)) < len(names):
        yield "attacks.attackers: an attacker is listed twice; remove one of them"
        return
    if attacks.settings and not names:
        yield "attacks.attackers is empty; list at least one"
    for setting in FOLLOWS:
        section, _, name = setting.partition(".")
        own = attacks.settings.get(section)
        if setting in attacks.settings or (isinstance(own, Mapping) and name in own):
            yield f"attacks.settings.{setting}: the experiment sets this; leave it out"
    for name in names:
        try:
            _config(attacks, name)
        except ConfigError as error:
            for line in str(error).splitlines()[1:]:  # the first counts them
                yield f"attacks, for {name}: {line.strip().removeprefix('given: ')}"


def check_attacks(attacks: Attacks) -> None:
    """Read the behaviours, prompts and pools of the attacks before training, so that faults show up early. Also opens
    the judge and the attackers without a model.

    Raises:
        DataError, EvaluationError, ConfigError: as for an attack before it loads a model.
    """
    from opct.attack import setup
    from opct.attack.grpo import plan_training
    from opct.attack.store import AttackDir

    for name in attacks.names:
        config = _config(attacks, name)
        behaviors = setup.attacked_behaviors(config)
        setup.load_pool(config, behaviors)
        with tempfile.TemporaryDirectory() as folder:
            setup.load_scorer(config.judge, Path(folder) / "judge_cache.jsonl")
        setup.modelless_attacker(config, behaviors)
        plan_training(config, behaviors, AttackDir(Path(name)))

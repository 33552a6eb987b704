"""The attacks of an experiment: each attacker against the base and every run, by the same rules.

attacks:
  attackers: [transfer, best_of_n, refine, grpo]
  settings: {judge: answers, n_behaviors: 10, episodes: 8, rounds: 3}   # as of `opct.run_attack`

A setting that is of some attackers alone goes to those. `grpo` is trained anew against each target.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from opct.config.schema import Section
from opct.errors import OpctError, unknown

if TYPE_CHECKING:
    from opct.attack.config import AttackSettings

FOLLOWS = (
    *("attacker", "label", "dtype", "confirm_remote"),
    *("target_base_url", "target_args", "target_template_opens_thinking"),
)
"""Settings of an attack that follow from the experiment."""


class Attacks(Section):
    """Who attacks the base and every run, and how."""

    attackers: list[str] = Field([], description="Their names, as of `opct attack`; each attacks every target.")
    settings: dict[str, Any] = Field({}, description="Of all of them, as of `opct.run_attack`; one seed for all.")


def settings_of(attacks: Attacks, attacker: str) -> dict[str, Any]:
    """The settings of one attacker: those of others are left out."""
    from opct.attack.config import OWNERS

    return {name: value for name, value in attacks.settings.items() if attacker in OWNERS.get(name, (attacker,))}


def attack_faults(attacks: Attacks) -> Iterator[str]:
    """What is wrong with the section, as far as that can be told without a model."""
    from opct.attack.config import ATTACKERS, OWNERS, AttackSettings, attack_settings

    known = [one.name for one in fields(AttackSettings)]
    for attacker in attacks.attackers:
        if attacker not in ATTACKERS:
            yield f"attacks.attackers: {unknown('attacker', attacker, ATTACKERS)}"
    if len(set(attacks.attackers)) < len(attacks.attackers):
        yield "attacks.attackers: one is given twice: it would be the same attack"
    if attacks.settings and not attacks.attackers:
        yield "attacks.settings: nobody attacks; name attackers"
    for name in attacks.settings:
        owners = OWNERS.get(name, attacks.attackers)
        if name in FOLLOWS:
            yield f"attacks.settings.{name}: it follows from the experiment; leave it out"
        elif name not in known:
            yield f"attacks.settings.{name}: {unknown('setting of an attack', name, known)}"
        elif attacks.attackers and not set(owners) & set(attacks.attackers):
            yield f"attacks.settings.{name}: it is of {' or '.join(owners)}, which is not among the attackers"
    for attacker in attacks.attackers:
        if attacker in ATTACKERS and set(attacks.settings) <= set(known) - set(FOLLOWS):
            try:
                attack_settings({**settings_of(attacks, attacker), "attacker": attacker})
            except (OpctError, TypeError) as error:
                yield f"attacks.settings, for {attacker}: {error}"


def check_attacks(attacks: Attacks) -> None:
    """Read the behaviours, prompts and pools of the attacks, and open their judge and the attackers that have no model,
    so that a fault in them costs no training.

    Raises:
        DataError, EvaluationError, ConfigError: as of an attack before it opens a model.
    """
    from opct.attack.config import attack_settings
    from opct.attack.opening import chosen_behaviors, open_modelless, open_pool, open_scorer, training_of
    from opct.attack.store import AttackDir

    for attacker in attacks.attackers:
        settings: AttackSettings = attack_settings({**settings_of(attacks, attacker), "attacker": attacker})
        behaviors = chosen_behaviors(settings)
        open_pool(settings.pool, behaviors)
        with tempfile.TemporaryDirectory() as folder:
            open_scorer(settings, Path(folder) / "judge_cache.jsonl")
        open_modelless(settings, behaviors)
        training_of(settings, behaviors, AttackDir(Path(attacker)))

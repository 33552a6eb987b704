"""The arms of an experiment: which of them are compared in its report, and what those of one combination share."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from opct.config.schema import BUDGET, TrainConfig, budget_of
from opct.errors import ConfigError, unknown

BASE = "base"
STEPS = "max_steps"
Configs = Mapping[str, TrainConfig]
"""By the name of each arm, its settings with one seed: of every other they are the same."""


@dataclass(frozen=True)
class Arm:
    """One way of training. `after` names the arm whose adapter it goes on from; arms of one combination of the matrix
    have one `combination`, which ends their names.
    """

    name: str
    settings: Mapping[str, Any]
    after: str | None
    combination: str = ""

    def folder(self, out: Path, seed: int) -> Path:
        """Where its run with that seed is."""
        return out / f"{self.name}-seed{seed}"


def faulty(message: str, lines: Sequence[str]) -> ConfigError:
    """The error that has these faults, one a line."""
    return ConfigError("\n  ".join([message, *lines]))


def references(arms: Sequence[Arm], configs: Configs) -> dict[str, str]:
    """By the name of each arm, that of the arm of SFT that the report compares it with.

    It is the arm of the same combination whose method is sft, whatever its name, and which begins with the base; of
    several the first in the file. A combination without one has no reference.

    Args:
        arms: in the order of the file.
    """
    found: dict[str, str] = {}
    for arm in arms:
        if arm.after is None and configs[arm.name].method == "sft":
            found.setdefault(arm.combination, arm.name)
    return {arm.name: found[arm.combination] for arm in arms if found.get(arm.combination, arm.name) != arm.name}


def offpolicy_references(arms: Sequence[Arm], configs: Configs) -> dict[str, str]:
    """By the name of each arm of OPCT that begins with the base, the off-policy arm that the report compares it with.

    It is the first in the file of those of the same combination that begin with the base.

    Args:
        arms: in the order of the file.
    """
    plain = [arm for arm in arms if arm.after is None]
    found: dict[str, str] = {}
    for arm in plain:
        if configs[arm.name].method == "offpolicy":
            found.setdefault(arm.combination, arm.name)
    return {
        arm.name: found[arm.combination]
        for arm in plain
        if configs[arm.name].method == "opct" and arm.combination in found
    }


def after_plain(arms: Sequence[Arm], configs: Configs) -> Iterator[tuple[str, str]]:
    """Each arm that goes on from another one, with the arm of its combination and method that begins with the base.

    Of several it is the one with the same settings, else the first in the file.
    """
    for arm in arms:
        plain = [
            other
            for other in arms
            if arm.after is not None
            and other.after is None
            and other.combination == arm.combination
            and configs[other.name].method == configs[arm.name].method
        ]
        alike = [other for other in plain if other.settings == arm.settings]
        if plain:
            yield arm.name, (alike or plain)[0].name


def comparison_faults(compare: Sequence[Sequence[str]], names: Sequence[str]) -> Iterator[str]:
    """What is wrong with the comparisons that a file asks for, between arms of these names."""
    for place, (of, against) in enumerate(compare):
        where = f"compare.{place}: "
        wrong = [name for name in (of, against) if name not in (*names, BASE)]
        if wrong:
            longer = [name for name in names if name.startswith(f"{wrong[0]}-")]
            values = f" The values of the matrix are part of a name: {longer[0]!r}." if longer else ""
            yield where + unknown("arm", wrong[0], names) + values
        elif BASE in (of, against):
            yield f"{where}every arm is compared with the base; leave it out"
        elif of == against:
            yield f"{where}{of} is compared with itself; name two arms"


def refuse_several_models(path: Path, configs: Configs) -> None:
    """Raises ConfigError where arms begin with unlike models: they are all compared with the one base."""
    models = {name: config.model for name, config in configs.items()}
    if len({(model.name_or_path, model.revision) for model in models.values()}) > 1:
        raise faulty(
            f"The arms of {path} train several models, and all of them would be compared with one base; make an "
            "experiment of each model, with an output_dir of its own:",
            [f"{name}: {model.name_or_path}, revision {model.revision}" for name, model in models.items()],
        )


def refuse_other_budgets(path: Path, arms: Sequence[Arm], configs: Configs) -> None:
    """Raises ConfigError where two arms of one combination of the matrix differ in what they may spend.

    Args:
        arms: in the order of the file.
    """
    lines = []
    compared_with = {*references(arms, configs).values(), *offpolicy_references(arms, configs).values()}
    for combination in dict.fromkeys(arm.combination for arm in arms):
        own = [arm for arm in arms if arm.combination == combination]
        budgets = {arm.name: _budget(configs[arm.name]) for arm in own}
        for setting in BUDGET:
            shown = {name: json.dumps(budget[setting]) for name, budget in budgets.items()}
            if setting == STEPS and _share_steps(
                own, {arm.name: configs[arm.name].max_steps for arm in own}, compared_with
            ):
                continue
            if len(set(shown.values())) > 1:
                lines.append(f"{setting}: {', '.join(f'{name}: {value}' for name, value in shown.items())}")
    if lines:
        raise faulty(
            f"The arms of {path} have other budgets, so their difference is not that of the methods; make them equal "
            "(max_steps of an arm with `after` by itself or with those of the arms before it), or, where they are to "
            "differ, set same_budget: false:",
            lines,
        )


def _share_steps(arms: Sequence[Arm], steps: Mapping[str, int | None], compared_with: Collection[str]) -> bool:
    """Whether there is a number of steps that each arm has, by itself or with those of the arms that it goes on from.

    An arm that others go on from may have fewer where it is a part of that number, unless others are compared with it.
    """
    known = {name: n for name, n in steps.items() if n is not None}
    if len(known) < len(steps):  # how many come out is seen when they are trained
        return not known
    earlier = {arm.name: _earlier(arm, arms) for arm in arms}
    in_all = {name: n + sum(known[other] for other in earlier[name]) for name, n in known.items()}

    def is_shared(budget: int) -> bool:
        parts = {other for name, others in earlier.items() if in_all[name] == budget for other in others}
        return all(budget in (known[name], in_all[name]) or name in parts - {*compared_with} for name in known)

    return any(is_shared(budget) for budget in {*known.values(), *in_all.values()})


def _earlier(arm: Arm, arms: Sequence[Arm]) -> list[str]:
    """The arms that an arm goes on from, the last one first."""
    if arm.after is None:
        return []
    before = next(other for other in arms if other.name == arm.after)
    return [before.name, *_earlier(before, arms)]


def _budget(config: TrainConfig) -> dict[str, Any]:
    settings = config.model_dump(mode="json")
    return budget_of({name: reduce(lambda section, part: section[part], name.split("."), settings) for name in BUDGET})

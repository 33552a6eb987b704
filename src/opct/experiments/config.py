"""What an experiment is: arms, seeds, and how all of them are measured. Strict, as every config.

output_dir: runs/experiment
train: sycophancy.yaml                 # what every arm starts from; beside this file
seeds: [0, 1, 2]
arms:
  sft: {method: sft}
  opct: {method: opct}
  sft-then-opct: {method: opct, after: sft}
matrix:                                # each arm once for each combination
  data.anchor_fraction: [0.0, 0.25]
compare: [[opct-anchor_fraction-0.25, opct-anchor_fraction-0.0]]   # besides base and references
evaluation: {suites: [sycophancy_short, benign], n_questions: 200}
attacks: {attackers: [transfer, refine], settings: {n_behaviors: 10}}   # none by default
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from opct.config.loader import load_config, load_settings
from opct.config.schema import Section, TrainConfig, refuse_attackers
from opct.errors import ConfigError
from opct.experiments.arms import (
    Arm,
    after_plain,
    comparison_faults,
    faulty,
    references,
    refuse_other_budgets,
    refuse_several_models,
)
from opct.experiments.attacks import Attacks, attack_faults

AFTER = "after"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
OWN = ("output_dir", "seed")


class Evaluation(Section):
    """How every arm and the base are measured; see `opct eval` for each."""

    suites: list[str] = Field(["sycophancy_short", "benign"], min_length=1, description="Names of suites.")
    n_questions: int | None = Field(
        200, ge=1, description="At most so many questions, behaviours or facts in each suite; null: all."
    )
    n_problems: int | None = Field(
        None, ge=1, description="At most so many problems of each benchmark; null: as many as its suite asks."
    )
    split: str = Field("test", description="Which of them.")
    families: str = Field("all", description="`all`, `train`, `held_out`, or names with commas.")
    families_per_question: Annotated[int, Field(ge=1)] | Literal["default"] | None = Field(
        "default", description="Families that each is asked in; `default`: 4 of jailbreak, else 2; null: all."
    )
    prompts_per_fact: int | None = Field(None, ge=1, description="Messages of each safety fact; null: all.")
    twins_per_fact: int | None = Field(None, ge=0, description="Harmless messages beside them; null: all.")
    max_completion_tokens: int = Field(32, ge=1, description="Longest answer.")
    max_reply_tokens: int = Field(96, ge=1, description="Longest reply in jailbreak and safety_awareness.")
    max_benign_tokens: int = Field(64, ge=1, description="Longest answer to a benign request.")
    n_benign: int | None = Field(None, ge=1, description="At most so many benign requests; null: all.")
    data: dict[str, str] = Field({}, description="Files by what they are for, as `opct eval --data`.")
    behavior_columns: dict[str, str] = Field({}, description="Of the file of behaviours, by role, where named.")
    leave_out: list[str] = Field([], description="Categories of that file which are not asked.")
    augmented: bool = Field(False, description="Ask SAGE-Eval's own typos and tones too.")
    graded_by: str | None = Field(None, description="Of multiple choice: letters, texts, reply; null: the suite's own.")
    kl_samples: int = Field(100, ge=0, description="Replies of each suite whose KL to the base is measured.")
    browser_questions: int = Field(20, ge=0, description="Questions shown in full on the report.")
    seed: int = Field(0, ge=0, description="Of the choice of questions, phrasings and samples.")


class ExperimentConfig(Section):
    """One experiment; the file's layout is at the head of this module."""

    output_dir: str = Field("runs/experiment", description="Folder of all runs and of the report.")
    train: str = Field(description="The training settings every arm starts from: a file, beside this one.")
    seeds: list[int] = Field([0, 1, 2], min_length=1, description="Every arm is trained once with each.")
    arms: dict[str, dict[str, Any]] = Field(
        min_length=1,
        description="By name: settings over the shared ones, dotted; `after: ARM` goes on from that arm's adapter of "
        "the same seed, with the base as the teacher.",
    )
    matrix: dict[str, list[Any]] = Field({}, description="Dotted settings with several values: every combination.")
    compare: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(
        [], description="Further pairs of arms, each `[arm, against]`, by their names with the values of the matrix."
    )
    same_budget: bool = Field(
        True,
        description="Refuse arms of one combination of the matrix that differ in model, adapter, pairs, steps (by "
        "themselves or in all), pairs a step, completions or tokens.",
    )
    evaluation: Evaluation = Evaluation()
    attacks: Attacks = Attacks()

    @model_validator(mode="after")
    def check_across_settings(self) -> ExperimentConfig:
        """Refuse settings that contradict each other; every such fault is in the message, one a line."""
        faults = list(_combination_faults(self))
        if faults:
            raise ValueError("\n".join(faults))
        return self


@dataclass(frozen=True)
class Experiment:
    """A checked experiment.

    Attributes:
        train: the file every arm starts from.
        arms: those of the file, once for each combination of the matrix; an arm after those it goes on from.
        configs: of each arm and seed, in the order in which they are trained.
    """

    config: ExperimentConfig
    train: Path
    arms: tuple[Arm, ...]
    configs: dict[tuple[str, int], TrainConfig]

    @property
    def out(self) -> Path:
        return Path(self.config.output_dir)

    @property
    def attackers(self) -> list[str]:
        """Who attacks the base and every run."""
        return self.config.attacks.attackers

    @property
    def references(self) -> dict[str, str]:
        """As `opct.experiments.arms.references` says."""
        return references(self._in_file_order, self._of_one_seed)

    @property
    def comparisons(self) -> list[tuple[str, str]]:
        """What else the report compares, each arm with another: one that goes on from an adapter with the plain arm of
        its method, and those that the file asks for.
        """
        asked = [(of, against) for of, against in self.config.compare]
        return list(dict.fromkeys([*after_plain(self._in_file_order, self._of_one_seed), *asked]))

    @property
    def _in_file_order(self) -> list[Arm]:
        order = list(self.config.arms)
        return sorted(self.arms, key=lambda arm: order.index(arm.name.removesuffix(arm.combination)))

    @property
    def _of_one_seed(self) -> dict[str, TrainConfig]:
        return {arm.name: self.configs[arm.name, self.config.seeds[0]] for arm in self.arms}


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """The checked experiment of a YAML file.

    Args:
        overrides: training settings of every arm, such as `model.device=cuda`; they win over the arm's own.

    Raises:
        ConfigError: with every fault of the file, or of an arm's settings, each with its place and what to do.
    """
    path = Path(path)
    config = load_settings(ExperimentConfig, path)
    _refuse_overrides(config, overrides)
    train = path.parent / config.train
    crossed = list(_arms(config))
    _refuse_repeated_names(path, crossed)
    arms = tuple(_in_order(path, crossed))
    _refuse_unknown_settings(path, arms)
    _refuse_unknown_arms(path, config, arms)
    configs = {}
    for seed in config.seeds:
        for arm in arms:
            configs[arm.name, seed] = _config_of(path, train, config, arm, seed, arms, overrides)
    experiment = Experiment(config, train, arms, configs)
    refuse_several_models(path, experiment._of_one_seed)
    if config.same_budget:
        refuse_other_budgets(path, experiment._in_file_order, experiment._of_one_seed)
    return experiment


def _combination_faults(config: ExperimentConfig) -> Iterator[str]:
    repeated = sorted({seed for seed in config.seeds if config.seeds.count(seed) > 1})
    if repeated:
        yield f"seeds: {repeated[0]} is given twice: a run with the same seed is the same run"
    for name, settings in config.arms.items():
        if not NAME.fullmatch(name) or name == "base":
            yield (
                f"arms.{name}: a name is of small letters, digits, dots, dashes (it names a folder), and `base` is the "
                "model before training"
            )
        if AFTER in settings and settings[AFTER] not in list(config.arms):  # a list has no hash to look up
            yield f"arms.{name}.after: there is no arm {settings[AFTER]!r}; there are {', '.join(config.arms)}"
        for own, crossed in itertools.product(settings, config.matrix):
            if _overlap(own, crossed):
                yield (
                    f"arms.{name}.{own}: the matrix has values for {crossed}, and arms are named after its value; "
                    "leave it out of the arm or of the matrix"
                )
    for name, values in config.matrix.items():
        if not values:
            yield f"matrix.{name}: no value; give at least one"
    yield from attack_faults(config.attacks)


def _arms(config: ExperimentConfig) -> Iterator[Arm]:
    """Each arm once for each combination of the matrix, whose values are in its name."""
    for chosen in itertools.product(*config.matrix.values()):
        combination = dict(zip(config.matrix, chosen, strict=True))
        suffix = "".join(f"-{name.rpartition('.')[2]}-{_in_a_name(value)}" for name, value in combination.items())
        for name, settings in config.arms.items():
            own = {key: value for key, value in settings.items() if key != AFTER}
            after = settings.get(AFTER)
            yield Arm(name + suffix, combination | own, None if after is None else str(after) + suffix, suffix)


def _in_a_name(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-")


def _overlap(a: str, b: str) -> bool:
    """Whether two dotted names are of one setting, or one of a section that the other is in."""
    return f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.")


def _refuse_overrides(config: ExperimentConfig, overrides: Sequence[str]) -> None:
    """Raises ConfigError for an override of what the arms' names and folders stand for."""
    after = ("model.adapter", "teacher.include_adapter") if any(AFTER in arm for arm in config.arms.values()) else ()
    lines = []
    for text in overrides:
        name = text.partition("=")[0].strip()
        if any(_overlap(name, own) for own in OWN):
            remedy = "set output_dir in the experiment's file" if name == "output_dir" else "set seeds in the file"
            lines.append(f"{text}: {name} of a run follows from the experiment; {remedy}")
        lines += [
            f"{text}: the matrix has values for {crossed}, which the arms are named after; change them in the file"
            for crossed in config.matrix
            if _overlap(name, crossed)
        ]
        lines += [f"{text}: {own} of an arm with `after` follows from it" for own in after if _overlap(name, own)]
    if lines:
        raise faulty("These settings cannot be given after the experiment's file; nothing was started:", lines)


def _refuse_repeated_names(path: Path, arms: Sequence[Arm]) -> None:
    """Raises ConfigError where two arms would be one folder: -1 and 1, or a/b and a-b, are alike in a name."""
    named: dict[str, list[Arm]] = {}
    for arm in arms:
        named.setdefault(arm.name, []).append(arm)
    lines = [
        f"{name}: {'; '.join(json.dumps(dict(arm.settings), default=str) for arm in alike)}"
        for name, alike in named.items()
        if len(alike) > 1
    ]
    if lines:
        raise faulty(
            f"Several arms of {path} have one name, so one folder; nothing was started. Take one of the values out of "
            "the matrix, or make them arms of their own:",
            lines,
        )


def _in_order(path: Path, arms: Sequence[Arm]) -> Iterator[Arm]:
    """Those that others go on from come first."""
    done: set[str] = set()
    left = list(arms)
    while left:
        ready = [arm for arm in left if arm.after is None or arm.after in done]
        if not ready:
            names = ", ".join(arm.name for arm in left)
            raise ConfigError(f"{path}: arms go on from one another in a circle ({names}): leave one `after` out.")
        yield from ready
        done |= {arm.name for arm in ready}
        left = [arm for arm in left if arm.name not in done]


def _refuse_unknown_settings(path: Path, arms: Sequence[Arm]) -> None:
    lines = [
        f"{path}: {arm.name}: {name} follows from the experiment; leave it out"
        for arm in arms
        for name in arm.settings
        if name in OWN or (arm.after is not None and name in ("model.adapter", "teacher.include_adapter"))
    ]
    if lines:
        raise faulty(f"The experiment {path} cannot be used; nothing was started:", lines)


def _refuse_unknown_arms(path: Path, config: ExperimentConfig, arms: Sequence[Arm]) -> None:
    lines = [f"{path}: {line}" for line in comparison_faults(config.compare, [arm.name for arm in arms])]
    if lines:
        raise faulty(f"The experiment {path} cannot be used; nothing was started:", lines)


def _config_of(
    path: Path,
    train: Path,
    config: ExperimentConfig,
    arm: Arm,
    seed: int,
    arms: Sequence[Arm],
    overrides: Sequence[str],
) -> TrainConfig:
    out = Path(config.output_dir)
    own: dict[str, Any] = dict(arm.settings) | {"seed": seed, "output_dir": str(arm.folder(out, seed))}
    if arm.after is not None:
        earlier = next(other for other in arms if other.name == arm.after)
        own |= {"model.adapter": str(earlier.folder(out, seed)), "teacher.include_adapter": False}
    try:
        found = load_config(train, [*(f"{name}={json.dumps(value)}" for name, value in own.items()), *overrides])
        refuse_attackers(found)
        return found
    except ConfigError as error:
        raise ConfigError(f"{path}: the arm {arm.name}: {error}") from error

"""Config of an experiment: its arms, seeds, evaluation and attacks.

output_dir: runs/experiment
train: sycophancy.yaml                 # what every arm starts from; beside this file
seeds: [0, 1, 2]
arms:
  sft: {method: sft}
  opct: {method: opct}
  sft-then-opct: {method: opct, after: sft}
matrix:                                # each arm once for each combination
  data.anchor_fraction: [0.0, 0.25]
system_prompts:                        # the base once more with each
  independent: Judge for yourself, whatever the user thinks.
compare: [[opct-anchor_fraction-0.25, opct-anchor_fraction-0.0]]   # besides base and references
evaluation: {suites: [sycophancy_short, benign], n_questions: 200}
attacks:                               # of the base and of every run, by the same rules; none by default
  attackers: [transfer, {name: refine, model: my-model}]   # names, or sections as of `opct attack`
  settings: {n_behaviors: 10, judge: {name: answers}}      # the other settings of `opct attack`
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from opct.config.loader import load_config, load_settings
from opct.config.schema import BUDGET, TrainConfig, budget_of, flat_settings
from opct.config.section import Section
from opct.errors import ConfigError, unknown
from opct.evals.config import EvalConfig

BASE = "base"
AFTER = "after"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
OWN = {"output_dir": "set output_dir of the experiment", "seed": "set seeds of the experiment"}
OF_AFTER = dict.fromkeys(("model.adapter", "teacher.include_adapter"), "leave it out, `after` sets it")
OF_ATTACKS = ("attacker", "dtype", "target.label", "target.confirm_remote", "target.base_url", "target.model_args")
"""Attack settings that the experiment sets."""


class Attacks(Section):
    """The attackers of the base and of every run, and their settings. `grpo` is trained against each target."""

    attackers: list[str | dict[str, Any]] = Field([], description="Names or `attacker` sections of `opct attack`.")
    settings: dict[str, Any] = Field({}, description="The other settings of `opct attack`; one seed for all.")

    @property
    def by_name(self) -> dict[str, dict[str, Any]]:
        """By attacker: the settings of its attack."""
        sections = [{"name": one} if isinstance(one, str) else one for one in self.attackers]
        return {str(section.get("name")): {**self.settings, "attacker": section} for section in sections}

    @property
    def suites(self) -> list[str]:
        """The names of the attacks in results."""
        return [f"attack_{name}" for name in self.by_name]


class ExperimentConfig(Section):
    """One experiment; see the module docstring for the file's layout."""

    output_dir: str = Field("runs/experiment", description="Folder of all runs and of the report.")
    train: str = Field(description="File with the training settings that every arm starts from, relative to this file.")
    seeds: list[int] = Field([0, 1, 2], min_length=1, description="Every arm is trained once with each.")
    arms: dict[str, dict[str, Any]] = Field(
        min_length=1,
        description="By name: dotted settings that override the shared ones; `after: ARM` continues that arm's "
        "adapter of the same seed, with the base as the teacher.",
    )
    matrix: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        {}, description="Dotted settings with several values: every combination."
    )
    system_prompts: dict[str, str] = Field(
        {}, description="By name: a system prompt with which the base is measured once more, without training."
    )
    compare: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(
        [], description="Further comparisons, each `[arm, against]`, by their names with the values of the matrix."
    )
    same_budget: bool = Field(
        True,
        description="Refuse arms of one combination of the matrix that differ in model, adapter, pairs, steps (own or "
        "total), pairs per step, completions or tokens.",
    )
    evaluation: EvalConfig = EvalConfig(n_questions=200, kl_samples=100, browser_questions=20)
    attacks: Attacks = Attacks()

    @model_validator(mode="after")
    def check_across_settings(self) -> ExperimentConfig:
        """Reject contradictory settings; the message has every fault, one per line."""
        twice = sorted({seed for seed in self.seeds if self.seeds.count(seed) > 1})
        faults = [f"seeds: {seed} is given twice; remove one of them" for seed in twice]
        faults += [*_arm_faults(self.arms), *_attack_faults(self.attacks)]
        if faults:
            raise ValueError("\n".join(faults))
        return self

    def folder(self, arm: str, seed: int) -> Path:
        return Path(self.output_dir) / f"{arm}-seed{seed}"


@dataclass(frozen=True)
class Arm:
    """One way of training.

    Attributes:
        after: the arm whose adapter it continues.
        combination: the values of the matrix, which end its name.
    """

    name: str
    settings: Mapping[str, Any]
    after: str | None
    combination: str = ""


@dataclass(frozen=True)
class Experiment:
    """A checked experiment.

    Attributes:
        arms: once for each combination of the matrix; an arm comes after the one that it continues.
        configs: of each arm and seed, in the order in which they are trained.
    """

    config: ExperimentConfig
    arms: tuple[Arm, ...]
    configs: Mapping[tuple[str, int], TrainConfig]

    @property
    def out(self) -> Path:
        return Path(self.config.output_dir)

    @property
    def untrained(self) -> dict[str, EvalConfig]:
        """The evaluation of the base, and of the base with each system prompt, by label."""
        settings, prompts = self.config.evaluation, self.config.system_prompts
        prompted = {name: settings.model_copy(update={"system_prompt": text}) for name, text in prompts.items()}
        return {BASE: settings, **prompted}

    @property
    def comparisons(self) -> list[tuple[str, str]]:
        """Comparisons besides those with base and references. An arm with `after` is compared with the arm of its
        method that starts from the base (with equal settings, else the first). The file may add more.
        """
        comparisons, plain_arms = [], [arm for arm in self.arms if arm.after is None]
        for arm in (arm for arm in self.arms if arm.after is not None):
            of_arm = (arm.combination, self.first_config(arm).method)
            plain = [other for other in plain_arms if (other.combination, self.first_config(other).method) == of_arm]
            if plain:
                alike = [other for other in plain if other.settings == arm.settings]
                comparisons.append((arm.name, (alike or plain)[0].name))
        # each once, in order: a comparison of the file may be one that is made anyway
        return list(dict.fromkeys([*comparisons, *((of, against) for of, against in self.config.compare)]))

    def first_config(self, arm: Arm) -> TrainConfig:
        return self.configs[arm.name, self.config.seeds[0]]


def with_dtype(config: TrainConfig, dtype: str) -> TrainConfig:
    return config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Load and check the experiment in a YAML file.

    Args:
        overrides: training settings of every arm, such as `model.device=cuda`; they override the arm's settings.

    Raises:
        ConfigError: with every fault of the file, or of an arm's settings, each with its place and what to do.
    """
    path = Path(path)
    config = load_settings(ExperimentConfig, path)
    arms = tuple(_in_order(path, _crossed(config)))
    _refuse(
        path,
        [
            *_name_faults(arms),
            *_reserved_faults(config, overrides),
            *_prompt_faults(config, arms),
            *_compare_faults(config, arms),
        ],
    )
    # seeds outermost: after the first one every arm has a run, and the comparison is there early
    configs = {
        (arm.name, seed): _train_config(path, config, arm, seed, overrides) for seed in config.seeds for arm in arms
    }
    experiment = Experiment(config, arms, configs)
    _refuse(path, [*_model_faults(experiment), *(_budget_faults(experiment) if config.same_budget else ())])
    return experiment


def _refuse(path: Path, faults: Sequence[str]) -> None:
    if faults:
        lines = "".join(f"\n  {fault}" for fault in faults)
        raise ConfigError(f"The experiment {path} cannot be used; nothing was started:{lines}")


def _crossed(config: ExperimentConfig) -> Iterator[Arm]:
    """Each arm once for each combination of the matrix; the name has the values."""
    for chosen in itertools.product(*config.matrix.values()):
        combination = dict(zip(config.matrix, chosen, strict=True))
        suffix = "".join(f"-{name.rpartition('.')[2]}-{_in_a_name(value)}" for name, value in combination.items())
        for name, settings in config.arms.items():
            arm_settings = {key: value for key, value in settings.items() if key != AFTER}
            after = settings.get(AFTER)
            # the arm's own settings win over the matrix; `after` is the arm of the same combination
            yield Arm(name + suffix, combination | arm_settings, None if after is None else str(after) + suffix, suffix)


def _in_a_name(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-")


def _in_order(path: Path, arms: Iterator[Arm]) -> Iterator[Arm]:
    """Sort the arms in the order of the file, each after the one that it continues."""
    done: set[str] = set()
    left = list(arms)
    while left:
        ready = [arm for arm in left if arm.after is None or arm.after in done]
        if not ready:
            names = ", ".join(arm.name for arm in left)
            raise ConfigError(f"{path}: `after` of these arms forms a cycle ({names}): remove one.")
        yield from ready
        done |= {arm.name for arm in ready}
        left = [arm for arm in left if arm not in ready]


def _train_config(path: Path, config: ExperimentConfig, arm: Arm, seed: int, overrides: Sequence[str]) -> TrainConfig:
    settings: dict[str, Any] = dict(arm.settings) | {"seed": seed, "output_dir": str(config.folder(arm.name, seed))}
    if arm.after is not None:
        settings |= {"model.adapter": str(config.folder(arm.after, seed)), "teacher.include_adapter": False}
    from opct.methods.registry import refuse_attackers  # heavy

    # as JSON, which the loader reads back with the same types
    words = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    try:
        # the overrides last: a later one wins over the arm's
        train_config = load_config(path.parent / config.train, [*words, *overrides])
        refuse_attackers(train_config)
    except ConfigError as error:
        raise ConfigError(f"{path}: the arm {arm.name}: {error}") from error
    return train_config


# ------------------------------------------------------------------------------------------------------------ faults


def _arm_faults(arms: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, settings in arms.items():
        if not NAME.fullmatch(name) or name == BASE:
            yield (
                f"arms.{name}: a name has lower-case letters, digits, dots and dashes (it names a folder); `base` is "
                "reserved for the model before training"
            )
        if AFTER in settings and settings[AFTER] not in list(arms):  # a list has no hash to look up
            yield f"arms.{name}.after: there is no arm {settings[AFTER]!r}; there are {', '.join(arms)}"


def _attack_faults(attacks: Attacks) -> Iterator[str]:
    """Every fault of the section that can be found without a model."""
    if len(attacks.by_name) < len(attacks.attackers):
        yield "attacks.attackers: an attacker is listed twice; remove one of them"
        return
    if attacks.settings and not attacks.attackers:
        yield "attacks.attackers is empty; list at least one"
    for setting in OF_ATTACKS:
        if any(_overlap(name, setting) for name in flat_settings(attacks.settings)):
            yield f"attacks.settings.{setting}: the experiment sets this; leave it out"
    for name, settings in attacks.by_name.items():
        from opct.attack.run import load_attack_config  # heavy

        try:
            load_attack_config(base=settings)
        except ConfigError as error:
            for line in str(error).splitlines()[1:]:  # the first counts them
                yield f"attacks, for {name}: {line.strip().removeprefix('given: ')}"


def _overlap(a: str, b: str) -> bool:
    """Whether two dotted names are equal, or one is a section that contains the other."""
    # the dots: "seed" does not overlap "seeds"
    return f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.")


def _reserved_faults(config: ExperimentConfig, overrides: Sequence[str]) -> Iterator[str]:
    """Faults where an arm, the matrix or an override sets what is set elsewhere in the experiment."""
    of_matrix = dict.fromkeys(config.matrix, "change it in the matrix")
    of_after = OF_AFTER if any(AFTER in settings for settings in config.arms.values()) else {}
    given = [(f"matrix.{name}", name, OWN | of_after) for name in config.matrix]
    given += [(text, text.partition("=")[0].strip(), OWN | of_matrix | of_after) for text in overrides]
    for arm, settings in config.arms.items():
        reserved = OWN | of_matrix | (OF_AFTER if AFTER in settings else {})
        given += [(f"arms.{arm}.{name}", name, reserved) for name in settings]
    for place, name, reserved in given:
        for setting in (setting for setting in reserved if _overlap(name, setting)):
            yield f"{place}: the experiment sets {setting}; {reserved[setting]}"


def _name_faults(arms: Sequence[Arm]) -> Iterator[str]:
    """Faults where two arms would share a folder: in a name, -1 equals 1 and a/b equals a-b."""
    names = [arm.name for arm in arms]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        alike = [json.dumps(dict(arm.settings), default=str) for arm in arms if arm.name == name]
        yield f"{name} is the name of several arms: {'; '.join(alike)}; remove a value from the matrix"


def _prompt_faults(config: ExperimentConfig, arms: Sequence[Arm]) -> Iterator[str]:
    # runs, too: the base with a system prompt gets a folder beside them
    taken = {
        BASE,
        *(arm.name for arm in arms),
        *(config.folder(arm.name, seed).name for arm in arms for seed in config.seeds),
    }
    for name in config.system_prompts:
        if not NAME.fullmatch(name) or name in taken:
            yield (
                f"system_prompts.{name}: a name has lower-case letters, digits, dots and dashes, and is no arm's, no "
                "run's and not `base`"
            )
    if config.system_prompts and config.evaluation.system_prompt is not None:
        yield "system_prompts: evaluation.system_prompt is set for all; leave one of the two out"


def _compare_faults(config: ExperimentConfig, arms: Sequence[Arm]) -> Iterator[str]:
    names = [*(arm.name for arm in arms), *config.system_prompts]
    for place, (of, against) in enumerate(config.compare):
        for name in {of, against} - {*names, BASE}:
            yield f"compare.{place}: {unknown('arm', name, names)}"
        if of == against or BASE in (of, against):
            yield f"compare.{place}: name two arms; the base is always compared and is not named here"


def _model_faults(experiment: Experiment) -> Iterator[str]:
    models = {arm.name: experiment.first_config(arm).model for arm in experiment.arms}
    if len({(model.name_or_path, model.revision) for model in models.values()}) > 1:
        each = "; ".join(f"{name}: {model.name_or_path}, revision {model.revision}" for name, model in models.items())
        yield f"the arms have several base models; make one experiment for each: {each}"


def _budget_faults(experiment: Experiment) -> Iterator[str]:
    """Faults where two arms of one combination of the matrix differ in a setting of `BUDGET`."""
    # within a combination: the matrix may vary what the budget is made of
    for combination in dict.fromkeys(arm.combination for arm in experiment.arms):
        arms = [arm for arm in experiment.arms if arm.combination == combination]
        configs = {arm.name: experiment.first_config(arm).model_dump(mode="json") for arm in arms}
        budgets = {name: budget_of(flat_settings(config)) for name, config in configs.items()}
        for setting in BUDGET:
            values = {name: json.dumps(budget[setting]) for name, budget in budgets.items()}
            if len(set(values.values())) > 1 and not (setting == "max_steps" and _share_steps(arms, budgets)):
                shown = ", ".join(f"{name}: {value}" for name, value in values.items())
                yield f"{setting}: {shown}: the budgets differ; make them equal, or set same_budget: false"


def _share_steps(arms: Sequence[Arm], budgets: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether all arms have an equal number of steps, alone or in total with the arms that they continue. An arm that
    others continue may have fewer.
    """
    steps = {name: budget["max_steps"] for name, budget in budgets.items()}
    if None in steps.values():
        return False
    in_all: dict[str, int] = {}
    for arm in arms:  # each after the one that it continues
        in_all[arm.name] = steps[arm.name] + (0 if arm.after is None else in_all[arm.after])
    continued = {arm.after for arm in arms}
    return any(
        all(budget in (steps[name], in_all[name]) or name in continued for name in steps)
        for budget in {*steps.values(), *in_all.values()}
    )

"""Run an attack on your own model; implements `opct attack` and `opct.run_attack`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.attack import setup
from opct.attack.config import AttackConfig
from opct.attack.config import Refine as RefineConfig
from opct.attack.grpo import (
    Grpo,
    TrainingPlan,
    check_training,
    no_learning_signal_warning,
    plan_training,
    train_attacker,
)
from opct.attack.loop import COMPLETE, AttackUsage, BudgetTracker, EpisodesResult, run_episodes
from opct.attack.models import LocalModel
from opct.attack.protocol import Attacker, ChatModel, FewShotExample, Subject
from opct.attack.refine import Refine
from opct.attack.results import AttackResult, AttackRun, build_result
from opct.attack.scoring import Scorer
from opct.attack.store import AttackDir
from opct.config.loader import load_settings
from opct.runs.console import Progress, StopRequest, shows_progress

if TYPE_CHECKING:
    from opct.models.policy import Policy


def load_attack_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None
) -> AttackConfig:
    """Load the settings of an attack from a YAML file and dotted overrides.

    Raises:
        ConfigError: with every fault at once.
    """
    return load_settings(AttackConfig, path, overrides, base={"attacker": {"name": "refine"}, **(base or {})})


@shows_progress
def run_attack(
    target: str | Path | Policy,
    config: AttackConfig | Mapping[str, Any] | None = None,
    *,
    attacker: Attacker | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> AttackResult:
    """Attack a model that you may test, and measure its defence.

    Args:
        target: a run directory, one of its checkpoints, an adapter, a model's name or folder, a loaded `Policy`, or
            `inspect:provider/model`, which needs `target.confirm_remote`.
        config: an `AttackConfig`, or its values as a mapping: `{"rounds": 2, "attacker": {"name": "transfer"}}`.
        attacker: a custom `opct.attack.protocol.Attacker`, used instead of `config.attacker`.
        out: folder of the attack; by default `attacks/<attacker>` in the run, or `runs/attack-<target>-<attacker>`.
        resume: continue the attack in that folder; overwrite: replace it, after everything was loaded and checked.
        progress: as of `opct.train`.

    Raises:
        ConfigError: a setting is unknown or out of range.
        EvaluationError: a model cannot be used, or a remote target was not confirmed.
        DataError: behaviours or prompts cannot be read.
        RunError: the folder is in the way, in use, or holds another attack.
        KeyboardInterrupt: the signal came before the first batch, or twice.
    """
    assert progress is not None
    config = config if isinstance(config, AttackConfig) else load_attack_config(base=config)
    progress.log(setup.check_target(target, config.target))
    name = (attacker or config.attacker).name
    behaviors = setup.attacked_behaviors(config)
    pool = setup.load_pool(config, behaviors)
    folder = AttackDir(out or setup.default_folder(target, name))
    plan = None if attacker is not None else plan_training(config, behaviors, folder)
    ready = attacker or setup.modelless_attacker(config, behaviors)
    subjects, counterparts = setup.subjects_of(config, behaviors, ready)
    with folder.open(resume=resume, overwrite=overwrite), StopRequest(unit="batch") as stop:
        scorer = setup.load_scorer(config.judge)
        settings = setup.run_identity(config, subjects, counterparts, scorer, pool)
        identity = {"attacker_name": name, "training": plan and plan.identity(), **settings}
        folder.check_resumed(identity if ready is None else identity | {"attacker": ready.identity()})
        progress.log(setup.describe_plan(config, subjects, counterparts, ready))
        models = setup.ModelLoader(config.dtype, progress, folder.dtypes if resume else {})
        model = models.load(target, config.target, "target")
        policy = model.policy if isinstance(model, LocalModel) else None
        warnings = setup.contamination_notes(target, policy, behaviors, plan.behaviors if plan else ())
        player = ready or _load_attacker(config, models, plan, folder, progress)
        stop.check()
        folder.begin(identity | {"target": model.identity(), "attacker": player and player.identity()})
        training = None
        if plan is not None:
            player, shots, training = _train(plan, model, scorer, folder, warnings, progress)
            pool = [*pool, *shots]
        assert player is not None
        on_behaviors, on_counterparts, spent = _play(
            config, subjects, counterparts, player, model, scorer, folder, pool, stop, progress
        )
        run = AttackRun(
            label=config.target.label or setup.target_label(target, policy),
            target=model.identity(),
            attacker=player.identity(),
            settings={"source": f"{Path(config.behaviors).name}:{config.split}"} | settings,
            budget=config.budget,
            spent=spent,
            scorer=scorer,
            subjects=subjects,
            on_behaviors=on_behaviors,
            counterparts=counterparts,
            on_counterparts=on_counterparts,
            warnings=warnings,
            lost_queries=folder.lost_queries,
            training=training,
        )
        result = build_result(run)
        folder.write_result(result, subjects, on_behaviors.attempts)
    return AttackResult(folder.path, result)


def _load_attacker(
    config: AttackConfig, models: setup.ModelLoader, plan: TrainingPlan | None, folder: AttackDir, progress: Progress
) -> Attacker | None:
    """The attacker with its model; None if it must be trained first, after checking that training can start."""
    if plan is not None and folder.replaces:
        check_training(plan, progress)
    if isinstance(config.attacker, RefineConfig):
        return Refine(models.load(config.attacker.model, config.attacker, "attacker"))
    return None


def _train(
    plan: TrainingPlan, model: ChatModel, scorer: Scorer, folder: AttackDir, warnings: list[str], progress: Progress
) -> tuple[Grpo, list[FewShotExample], dict[str, Any]]:
    """Train the attacker; problems of its training are added to `warnings`."""
    _log_warnings(warnings, progress)  # before it costs anything
    attacker, shots, summary = train_attacker(plan, model, scorer, folder, progress)
    warnings += _log_warnings(no_learning_signal_warning(summary), progress)
    return attacker, shots, summary


def _play(
    config: AttackConfig,
    subjects: Sequence[Subject],
    counterparts: Sequence[Subject],
    attacker: Attacker,
    target: ChatModel,
    scorer: Scorer,
    folder: AttackDir,
    pool: Sequence[FewShotExample],
    stop: StopRequest,
    progress: Progress,
) -> tuple[EpisodesResult, EpisodesResult, AttackUsage]:
    """Run the episodes on behaviours, then on their benign counterparts, from one budget."""
    budget = BudgetTracker(config.budget, attacker.max_tokens + target.max_tokens, folder.spent)
    play = partial(
        run_episodes,
        attacker=attacker,
        target=target,
        scorer=scorer,
        budget=budget,
        pool=pool,
        journal=folder,
        should_stop=lambda: stop.requested,
        progress=progress,
    )
    on_behaviors, on_counterparts = play(subjects, rules=setup.rules_of(config)), EpisodesResult(())
    if on_behaviors.ended == COMPLETE and counterparts:
        on_counterparts = play(counterparts, rules=setup.counterpart_rules(config))
    if budget.spent == folder.spent and on_behaviors.ended == on_counterparts.ended == COMPLETE:
        progress.log(f"nothing to do: the attack in {folder.path} is complete")
    return on_behaviors, on_counterparts, budget.spent


def _log_warnings(warnings: list[str], progress: Progress) -> list[str]:
    for warning in warnings:
        progress.log(f"warning: {warning}")
    return warnings

"""Attack one's own model: what `opct attack` and `opct.run_attack` do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.attack.before import announced, known_before, players_of, settled
from opct.attack.budget import Ledger
from opct.attack.config import AttackSettings, attack_settings
from opct.attack.grpo import Trained, TrainingPlan, check_training, train_attacker, unlearnt
from opct.attack.loop import COMPLETE, Played, Players, play
from opct.attack.models import LocalModel
from opct.attack.opening import (
    Models,
    check_target,
    chosen_behaviors,
    held_in_warnings,
    open_modelless,
    open_pool,
    open_refine,
    open_scorer,
    training_of,
)
from opct.attack.protocol import Attacker, ChatModel, Shot
from opct.attack.results import Attacked, AttackResult, result_of
from opct.attack.scoring import Scorer
from opct.attack.store import AttackDir
from opct.config.loader import load_config
from opct.data.behaviors import Behavior
from opct.judges.protocol import digest
from opct.runs.progress import NullProgress, Progress
from opct.runs.run_dir import run_of
from opct.runs.signals import StopRequest

if TYPE_CHECKING:
    from opct.models.policy import Policy


def run_attack(
    target: str | Path | Policy,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    attacker: str | Attacker = "refine",
    progress: Progress | None = None,
    **options: Any,
) -> AttackResult:
    """Attack a model that is yours to test, and measure what its defence held.

    Args:
        target: a run directory, one of its checkpoints, an adapter, a model's name or folder, a loaded `Policy`, or
            `inspect:provider/model`, which needs `confirm_remote=True`.
        out: folder of the attack; by default `attacks/<attacker>` in the run, or `runs/attack-<target>-<attacker>`.
        resume: go on with the attack in that folder; overwrite: replace it, once everything was opened and checked.
        attacker: a name, or an object of one's own (`opct.attack.protocol.Attacker`).
        options: of `opct.attack.config.AttackSettings`.

    Raises:
        EvaluationError: a setting is unknown or out of range, a model cannot be asked, or a remote target was not
            confirmed.
        DataError: behaviours or prompts cannot be read.
        RunError: the folder is in the way, in use, or holds another attack.
        KeyboardInterrupt: the signal came before the first batch, or twice. With `overwrite` the old attack is replaced
            only if the new one or its training had begun.
    """
    progress = progress or NullProgress()
    given = None if isinstance(attacker, str) else attacker
    settings = attack_settings(options | ({"attacker": attacker} if isinstance(attacker, str) else {}))
    progress.log(check_target(target, settings))
    behaviors = chosen_behaviors(settings)
    pool = open_pool(settings.pool, behaviors)
    folder = AttackDir(out or default_out(target, given.name if given is not None else settings.attacker))
    training = None if given is not None else training_of(settings, behaviors, folder)
    own = given or open_modelless(settings, behaviors)
    with folder.open(resume=resume, overwrite=overwrite), StopRequest(unit="batch") as stop:
        scorer = _judge_for(settings, behaviors, own, training, folder)
        progress.log(announced(settings, behaviors, own))
        models = Models(settings.dtype, progress, folder.dtypes if resume else {}, concurrency=settings.concurrency)
        asked = models.open(
            target, settings.target_sampling, "target", settings.target_endpoint, settings.target_thinking
        )
        policy = asked.policy if isinstance(asked, LocalModel) else None
        trained = None
        warnings = held_in_warnings(target, policy, behaviors, () if training is None else training.behaviors)
        if training is not None:
            _said(warnings, progress)  # before it costs anything
            trained = _trained(training, asked, scorer, folder, stop, progress)
            own, pool = trained.attacker, [*pool, *trained.shots]
            warnings += _said(unlearnt(trained.summary), progress)
        players = Players(own or open_refine(settings, models), asked, scorer)
        attack = _Attack(settings, behaviors, pool, players, folder)
        stop.check()
        folder.begin(attack.identity())
        played, twins_played = attack.run(lambda: stop.requested, progress)
        result = result_of(
            Attacked(
                label=settings.label or _label(target, policy),
                target=asked.identity(),
                attacker=players.attacker.identity(),
                settings=attack.described(),
                budget=settings.budget,
                spent=attack.ledger.spent,
                scorer=scorer,
                subjects=attack.subjects,
                played=played,
                twins=attack.twins,
                twins_played=twins_played,
                warnings=warnings,
                cut_short=folder.cut_short,
                training=None if trained is None else trained.summary,
            )
        )
        folder.write_result(result, attack.subjects, played.tries)
    return AttackResult(folder.path, result)


def _judge_for(
    settings: AttackSettings,
    behaviors: Sequence[Behavior],
    attacker: Attacker | None,
    training: TrainingPlan | None,
    folder: AttackDir,
) -> Scorer:
    """The judge; by it and what else is known before a model is loaded, an attack that is resumed is the same."""
    scorer = open_scorer(settings, folder.judge_cache_path)
    known = known_before(settings, behaviors, attacker, scorer)
    folder.check_resumed(known, {} if training is None else training.identity())
    return scorer


def _trained(
    plan: TrainingPlan, target: ChatModel, scorer: Scorer, folder: AttackDir, stop: StopRequest, progress: Progress
) -> Trained:
    """The attacker; what its training would fail on, or a signal that came before it, does not cost an old attack."""
    if folder.replaces:
        check_training(plan, progress)
    stop.check()
    return train_attacker(plan, target, scorer, folder, progress)


def _said(warnings: Sequence[str], progress: Progress) -> Sequence[str]:
    for warning in warnings:
        progress.log(f"warning: {warning}")
    return warnings


class _Attack:
    """Behaviours, then their twins, from one budget."""

    def __init__(
        self,
        settings: AttackSettings,
        behaviors: Sequence[Behavior],
        pool: Sequence[Shot],
        players: Players,
        folder: AttackDir,
    ):
        self.settings, self.pool, self.players, self.folder = settings, pool, players, folder
        self.subjects, self.twins = players_of(settings, behaviors, players.attacker)
        self.ledger: Ledger

    def identity(self) -> dict[str, Any]:
        """What a resumed attack must share with the one before."""
        return {
            "target": self.players.target.identity(),
            "attacker": dict(self.players.attacker.identity()),
            **settled(self.settings, self.subjects, self.twins, self.players.scorer),
            "pool": digest([asdict(shot) for shot in self.pool])[:12] if self.pool else None,
        }

    def described(self) -> Mapping[str, Any]:
        """The settings as the results name them."""
        source = f"{Path(str(self.settings.behaviors)).name}:{self.settings.split}"
        left_out = ("target", "attacker", "judge")
        return {"source": source} | {name: one for name, one in self.identity().items() if name not in left_out}

    def run(self, should_stop: Any, progress: Progress) -> tuple[Played, Played]:
        """Play, as far as the budget reaches."""
        players, settings = self.players, self.settings
        most = players.attacker.max_tokens + players.target.max_tokens
        self.ledger = Ledger(settings.budget, most, before := self.folder.spent)
        shared: dict[str, Any] = {"journal": self.folder, "should_stop": should_stop, "progress": progress}
        played = play(self.subjects, players, settings.rules, self.ledger, pool=self.pool, **shared)
        twins_played = Played(())
        if played.ended == COMPLETE and self.twins:
            twins_played = play(self.twins, players, settings.twin_rules, self.ledger, pool=self.pool, **shared)
        if self.ledger.spent == before and played.ended == twins_played.ended == COMPLETE:
            progress.log(f"nothing was left to do: the attack in {self.folder.path} had come to its end")
        return played, twins_played


def default_out(target: str | Path | Policy, attacker: str) -> Path:
    """Where an attack is kept that nobody named a folder for."""
    if isinstance(target, str | Path):
        run = run_of(target)
        if run is not None and run.path == Path(str(target)):
            return run.attacks_dir / attacker
        name = str(target)
    else:
        name = target.name
    return Path("runs") / f"attack-{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.')}-{attacker}"


def _label(target: str | Path | Policy, policy: Policy | None) -> str:
    """What a report calls the target, as an evaluation calls it."""
    run = run_of(target) if isinstance(target, str | Path) else None
    if run is not None:
        return load_config(run.config_path).method
    if policy is None:
        return "remote"
    return "trained" if policy.has_adapter else "base"

"""Attack one's own model: what `opct attack` and `opct.run_attack` do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.attack import setup
from opct.attack.config import AttackConfig, Refine
from opct.attack.grpo import TrainingPlan, check_training, no_learning_signal_warning, plan_training, train_attacker
from opct.attack.loop import COMPLETE, BudgetTracker, EpisodesResult, Rules, run_episodes
from opct.attack.models import LocalModel
from opct.attack.protocol import Attacker, ChatModel, FewShotExample, Subject
from opct.attack.results import AttackResult, AttackRun, build_result
from opct.attack.scoring import Scorer
from opct.attack.store import AttackDir
from opct.config.loader import load_settings
from opct.data.behaviors import Behavior
from opct.runs.console import NullProgress, Progress, StopRequest

if TYPE_CHECKING:
    from opct.models.policy import Policy


def load_attack_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None
) -> AttackConfig:
    """The settings of an attack from a YAML file, with dotted overrides over it.

    Raises:
        ConfigError: with every fault at once.
    """
    return load_settings(AttackConfig, path, overrides, base={"attacker": {"name": "refine"}, **(base or {})})


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
    """Attack a model that is yours to test, and measure its defence.

    Args:
        target: a run directory, one of its checkpoints, an adapter, a model's name or folder, a loaded `Policy`, or
            `inspect:provider/model`, which needs `target.confirm_remote`.
        config: an `AttackConfig`, or its values as a mapping: `{"rounds": 2, "attacker": {"name": "transfer"}}`.
        attacker: an object of one's own (`opct.attack.protocol.Attacker`) in place of `config.attacker`.
        out: folder of the attack; by default `attacks/<attacker>` in the run, or `runs/attack-<target>-<attacker>`.
        resume: continue the attack in that folder; overwrite: replace it, once everything was opened and checked.

    Raises:
        ConfigError: a setting is unknown or out of range.
        EvaluationError: a model cannot be asked, or a remote target was not confirmed.
        DataError: behaviours or prompts cannot be read.
        RunError: the folder is in the way, in use, or holds another attack.
        KeyboardInterrupt: the signal came before the first batch, or twice.
    """
    progress = progress or NullProgress()
    if not isinstance(config, AttackConfig):
        config = load_attack_config(base=config)
    progress.log(setup.check_target(target, config.target))
    behaviors = setup.attacked_behaviors(config)
    pool = setup.load_pool(config, behaviors)
    folder = AttackDir(out or setup.default_folder(target, (attacker or config.attacker).name))
    plan = None if attacker is not None else plan_training(config, behaviors, folder)
    own = attacker or setup.modelless_attacker(config, behaviors)
    with folder.open(resume=resume, overwrite=overwrite), StopRequest(unit="batch") as stop:
        scorer = setup.load_scorer(config.judge, folder.judge_cache_path)
        attack = _Attack(config, behaviors, pool, plan, own, scorer, folder, progress)
        folder.check_resumed(attack.identity)
        progress.log(setup.describe_plan(config, attack.subjects, attack.counterparts, own))
        attack.load_models(target, resume=resume)
        if plan is not None and folder.replaces:
            check_training(plan, progress)
        stop.check()
        folder.begin(attack.full_identity())
        attack.train()
        on_behaviors, on_counterparts = attack.play(lambda: stop.requested)
        result = attack.result(target, on_behaviors, on_counterparts)
        folder.write_result(result, attack.subjects, on_behaviors.attempts)
    return AttackResult(folder.path, result)


class _Attack:
    """The parts of one attack, in the order in which they come."""

    target: ChatModel
    budget: BudgetTracker

    def __init__(
        self,
        config: AttackConfig,
        behaviors: Sequence[Behavior],
        pool: Sequence[FewShotExample],
        plan: TrainingPlan | None,
        attacker: Attacker | None,
        scorer: Scorer,
        folder: AttackDir,
        progress: Progress,
    ):
        self.config, self.behaviors, self.pool, self.plan = config, behaviors, pool, plan
        self.attacker, self.scorer, self.folder, self.progress = attacker, scorer, folder, progress
        self.subjects, self.counterparts = setup.subjects_of(config, behaviors, attacker)
        self.training: Mapping[str, Any] | None = None
        self.warnings: list[str] = []
        self.identity = {
            "attacker_name": (attacker or config.attacker).name,
            "training": plan and plan.identity(),
            **setup.run_identity(config, self.subjects, self.counterparts, scorer, pool),
            **({} if attacker is None else {"attacker": dict(attacker.identity())}),
        }

    def load_models(self, target: str | Path | Policy, *, resume: bool) -> None:
        """The target, and the model of an attacker that is not trained."""
        recorded = self.folder.dtypes if resume else {}
        models = setup.ModelLoader(self.config.dtype, self.progress, recorded)
        self.target = models.load(target, self.config.target, "target")
        policy, practised = self._policy(), self.plan.behaviors if self.plan else ()
        self.warnings += setup.contamination_notes(target, policy, self.behaviors, practised)
        if self.attacker is None and isinstance(self.config.attacker, Refine):
            self.attacker = setup.refine_attacker(self.config.attacker, models)

    def _policy(self) -> Policy | None:
        return self.target.policy if isinstance(self.target, LocalModel) else None

    def full_identity(self) -> dict[str, Any]:
        """What a resumed attack must share with the one before; a trained attacker follows from its training."""
        attacker = None if self.attacker is None else dict(self.attacker.identity())
        return {**self.identity, "target": self.target.identity(), "attacker": attacker}

    def train(self) -> None:
        """Train the attacker, where it is one that learns."""
        if self.plan is None:
            return
        self._log_warnings(self.warnings)  # before it costs anything
        trained = train_attacker(self.plan, self.target, self.scorer, self.folder, self.progress)
        self.attacker, self.training = trained.attacker, trained.summary
        self.pool = [*self.pool, *trained.shots]
        self.warnings += self._log_warnings(no_learning_signal_warning(trained.summary))

    def _log_warnings(self, warnings: Sequence[str]) -> Sequence[str]:
        for warning in warnings:
            self.progress.log(f"warning: {warning}")
        return warnings

    def play(self, should_stop: Callable[[], bool]) -> tuple[EpisodesResult, EpisodesResult]:
        """Behaviours, then their benign counterparts, from one budget."""
        attacker, before = self.attacker, self.folder.spent
        assert attacker is not None
        self.budget = BudgetTracker(self.config.budget, attacker.max_tokens + self.target.max_tokens, before)

        def run(subjects: Sequence[Subject], rules: Rules) -> EpisodesResult:
            own: Any = {"pool": self.pool, "journal": self.folder, "progress": self.progress}
            own["should_stop"] = should_stop
            return run_episodes(subjects, attacker, self.target, self.scorer, rules, self.budget, **own)

        on_behaviors, on_counterparts = run(self.subjects, setup.rules_of(self.config)), EpisodesResult(())
        if on_behaviors.ended == COMPLETE and self.counterparts:
            on_counterparts = run(self.counterparts, setup.counterpart_rules(self.config))
        if self.budget.spent == before and on_behaviors.ended == on_counterparts.ended == COMPLETE:
            self.progress.log(f"nothing was left to do: the attack in {self.folder.path} was complete")
        return on_behaviors, on_counterparts

    def result(
        self, target: str | Path | Policy, on_behaviors: EpisodesResult, on_counterparts: EpisodesResult
    ) -> dict[str, Any]:
        """What `result.json` holds."""
        assert self.attacker is not None
        not_settings = ("attacker_name", "attacker", "training", "judge")
        shown = {name: value for name, value in self.identity.items() if name not in not_settings}
        source = f"{Path(self.config.behaviors).name}:{self.config.split}"
        return build_result(
            AttackRun(
                label=self.config.target.label or setup.target_label(target, self._policy()),
                target=self.target.identity(),
                attacker=self.attacker.identity(),
                settings={"source": source, **shown},
                budget=self.config.budget,
                spent=self.budget.spent,
                scorer=self.scorer,
                subjects=self.subjects,
                on_behaviors=on_behaviors,
                counterparts=self.counterparts,
                on_counterparts=on_counterparts,
                warnings=self.warnings,
                lost_queries=self.folder.lost_queries,
                training=self.training,
            )
        )

"""`grpo`: `refine` with an adapter that was trained against this very target, by what its messages earned.

The adapter is trained with `opct.methods.grpo` on other behaviours, none of them a near-duplicate of those attacked. A
step plays N episodes of K rounds against each of a few behaviours, each to its end or to a score of 1, after which
nothing changes; the reward of an episode is its best round's score, and what is reinforced is the message of that
round, the first of those that scored best. The trainer, its checkpoints and the sampler are those of every run, so
training that was killed goes on from its last checkpoint. Then the adapter is frozen, and attacks as `refine` does,
with the successes of its training as examples.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from opct.attack.board import Rules
from opct.attack.models import LocalModel, Sampling
from opct.attack.practice import LESSONS, Opponent, Practice, remembered, written_message
from opct.attack.protocol import ChatModel, Shot, View
from opct.attack.refine import Refine, attacker_messages
from opct.attack.rehearsal import attack_pair
from opct.attack.scoring import Scorer
from opct.attack.store import WARNING, AttackDir
from opct.config.loader import load_config
from opct.config.schema import TrainConfig
from opct.data.behaviors import Behavior
from opct.data.duplicates import cross_duplicates
from opct.data.pairs import ContrastivePair, write_pairs
from opct.errors import ConfigError, DataError
from opct.judges.protocol import Usage, digest
from opct.methods.grpo import GRPO
from opct.models.from_run import load_policy
from opct.runs.io import PRIVATE_MODE, atomic_write, read_jsonl
from opct.runs.progress import Progress
from opct.runs.run_dir import RunDir
from opct.runs.tracking import check_trackers
from opct.training import trainer
from opct.training.resume import FREE_INSIDE, FREE_SETTINGS, is_finished
from opct.training.setup import Setup, prepare

SETTABLE = (
    *("max_steps", "save_steps", "save_total_limit", "report_to", "optim", "lora", "stop", "model.device"),
    *("model.attn_implementation", "loss.kl_coef", "loss.ppo_clip", "loss.reduction", "rollout.max_mismatch_kl"),
)
"""Settings of the training that a person may give; all others follow from the attack, or have no use there."""
DEFAULTS: dict[str, Any] = {
    "max_steps": 40,
    "optim.prompts_per_step": 4,
    "optim.learning_rate": 5e-4,
    "loss.kl_coef": 0.02,
    "loss.ppo_clip": 0.2,
    "data.anchor_fraction": 0.0,
    "data.anchors": [],
    "data.validation_fraction": 0.0,
    "teacher.check_behaviors": 0,
    "teacher.check_hazards": 0,
    "stop.divergence_factor": 100.0,
    "save_steps": 5,
}


class Grpo(Refine):
    """Rewords by asking the trained model.

    Args:
        training: what it was trained with, for the identity.
    """

    name = "grpo"

    def __init__(self, model: ChatModel, training: Mapping[str, Any]):
        super().__init__(model)
        self.training = dict(training)

    def identity(self) -> dict[str, Any]:
        """That of `refine`, and how it was trained."""
        return super().identity() | {"training": self.training}


@dataclass(frozen=True)
class TrainingPlan:
    """What an attacker will be trained on, and how; made before anything is loaded or replaced.

    Attributes:
        behaviors: that are practised on, none of them `tested` or a near-duplicate of such.
        rules: of every step but for their seed; an episode ends early at a score of 1 alone.
    """

    model: str
    behaviors: tuple[Behavior, ...]
    tested: tuple[str, ...]
    config: TrainConfig
    rules: Rules
    sampling: Sampling

    @property
    def most_queries(self) -> int:
        """That the training puts to the target, where nothing has to be made again."""
        return (self.config.max_steps or 0) * self.config.optim.prompts_per_step * self.rules.tries

    def identity(self) -> dict[str, Any]:
        """JSON values that the trained attacker depends on, its target and judge apart."""
        free = dict.fromkeys(FREE_SETTINGS, True) | dict(FREE_INSIDE)
        free["data"] = {"pairs"}
        return {
            "config": self.config.model_dump(mode="json", exclude=free),
            "rules": asdict(self.rules),
            "trained_on": {"n": len(self.behaviors), "hash": digest([[b.id, b.behavior] for b in self.behaviors])[:12]},
            "tested_on": digest(list(self.tested))[:12],
        }


@dataclass(frozen=True)
class Trained:
    """What training left.

    Attributes:
        attacker: the frozen one.
        shots: its successes on training behaviours.
        summary: settings, cost and learning curve, without a prompt.
    """

    attacker: Grpo
    shots: tuple[Shot, ...]
    summary: dict[str, Any]


def training_behaviors(own: Sequence[Behavior], tested: Sequence[Behavior]) -> list[Behavior]:
    """Those that are no near-duplicates of the behaviours that are attacked.

    Raises:
        DataError: none is left.
    """
    near = cross_duplicates([one.behavior for one in own], [one.behavior for one in tested])
    left = [one for i, one in enumerate(own) if i not in near]
    if not left:
        raise DataError(
            f"No behaviour is left to train the attacker on: all {len(own)} that it was to practise on are attacked, "
            "or near-duplicates of such. Attack another split, or let it practise on another (train_split, or "
            "train_behaviors of another source)."
        )
    return left


def plan_training(
    model: str,
    practised: Sequence[Behavior],
    tested: Sequence[Behavior],
    rules: Rules,
    sampling: Sampling,
    folder: AttackDir,
    own: Sequence[str],
    *,
    dtype: str | None = None,
    thinking_tags: tuple[str, str] | None = None,
) -> TrainingPlan:
    """Check everything about a training that can be checked without a model.

    Args:
        model: the base of the attacker.
        practised: those to train on, where they are not like `tested`, those that are attacked.
        rules, sampling: of the attack.
        own: settings of the training, `section.name=value` each.
        thinking_tags: of the attacker's model, where they are not those by default.

    Raises:
        ConfigError: a setting is faulty, or follows from the attack. DataError: no behaviour is left to train on.
    """
    behaviors = training_behaviors(practised, tested)
    settings = DEFAULTS | {
        "method": "grpo",
        "output_dir": str(folder.attacker_path),
        "seed": rules.seed,
        "model.name_or_path": model,
        "data.pairs": [str(folder.practised_path)],
        "rollout.num_generations": rules.episodes,
        "rollout.max_completion_tokens": sampling.max_tokens,
        "optim.prompts_per_step": min(int(DEFAULTS["optim.prompts_per_step"]), len(behaviors)),
    }
    if dtype is not None:
        settings["model.dtype"] = dtype
    if thinking_tags is not None:
        settings["loss.thinking_tags"] = list(thinking_tags)
    given = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    config = load_config(None, [*given, *own])
    _refuse_fixed(load_config(None, given), config)
    if config.max_steps is None:
        raise ConfigError("max_steps=null: an attacker is trained for a number of steps, since each costs queries.")
    if config.optim.prompts_per_step > len(behaviors):
        raise ConfigError(
            f"optim.prompts_per_step={config.optim.prompts_per_step}: there are {len(behaviors)} behaviours to train "
            "the attacker on, and a step takes each once: use at most so many."
        )
    texts = tuple(one.behavior for one in tested)
    return TrainingPlan(model, tuple(behaviors), texts, config, replace(rules, stop="perfect"), sampling)


def _refuse_fixed(planned: TrainConfig, given: TrainConfig) -> None:
    """Raises ConfigError where a setting is given that is not one of `SETTABLE`."""
    before, now = (dict(_flat(config.model_dump(mode="json"))) for config in (planned, given))
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name) and not any(f"{name}.".startswith(f"{allowed}.") for allowed in SETTABLE):
            raise ConfigError(
                f"{name}={now.get(name)}: in an attacker's training it is {before.get(name)}, which follows from the "
                f"attack, or has no use there. What can be set: {', '.join(SETTABLE)}."
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def check_training(plan: TrainingPlan, progress: Progress) -> None:
    """Open and check all that the training would, apart from the attack's folder, and let go of it again.

    Raises:
        OpctError: as of `opct.train` before its first step.
    """
    progress.stage(f"check {plan.model}")
    check_trackers(plan.config.report_to)
    with tempfile.TemporaryDirectory() as folder:
        pairs = Path(folder) / "pairs.jsonl"
        write_pairs(pairs, _pairs(plan), mode=PRIVATE_MODE)
        data = plan.config.data.model_copy(update={"pairs": [str(pairs)]})
        prepare(plan.config.model_copy(update={"data": data})).close()


def _pairs(plan: TrainingPlan) -> list[ContrastivePair]:
    views = [View(b.id, b.behavior, 0, 0, 0) for b in plan.behaviors]
    return [attack_pair(view.id, view.behavior, attacker_messages(view, ())) for view in views]


def train_attacker(
    plan: TrainingPlan, target: ChatModel, scorer: Scorer, folder: AttackDir, progress: Progress
) -> Trained:
    """Train the attacker, or go on where that was interrupted.

    Raises:
        RunError: another training was begun in the folder.
        KeyboardInterrupt: the signal came; the training can be resumed.
        OpctError: as of `opct.train`; as of an attack.
    """
    identity = plan.identity() | {"target": target.identity(), "judge": scorer.judge_of_behaviors.identity.row()}
    folder.begin_training(identity)
    write_pairs(folder.practised_path, _pairs(plan), mode=PRIVATE_MODE)
    opponent = Opponent(target, scorer, plan.sampling, plan.rules, plan.tested)
    run = RunDir(folder.attacker_path)
    try:
        if not is_finished(run, plan.config):
            _train(plan, opponent, folder, run, progress)
    finally:
        if not run.checkpoints() and not read_jsonl(folder.practice_path):
            folder.forget_training()  # it failed before it began: whatever was wrong may be set right
    policy = load_policy(str(run.path), trust_remote_code=plan.config.model.trust_remote_code)
    texts = {one.id: one.behavior for one in plan.behaviors}
    rehearsal = remembered(run, plan.config.max_steps or 0, texts, policy.renderer, opponent)
    settled = {
        "steps": plan.config.max_steps,
        "queries": plan.most_queries,
        "trained_on": identity["trained_on"],
        "settings": digest(plan.identity())[:12],
    }
    tags = plan.config.loss.thinking_tags
    source = f"{plan.model}, trained against the target"
    model = LocalModel(policy, plan.sampling, source=source, thinking_tags=tags)
    return Trained(
        Grpo(model, settled),
        tuple(rehearsal.shots(partial(written_message, policy.renderer, tags=tags))),
        {**settled, "identity": plan.identity(), **learned(folder, run)},
    )


def _train(plan: TrainingPlan, opponent: Opponent, folder: AttackDir, run: RunDir, progress: Progress) -> None:
    progress.log(
        f"trains its attacker first: {plan.config.max_steps} steps, at most {plan.most_queries:,} queries to the "
        "target, which --max-queries does not count"
    )

    run.path.mkdir(mode=0o700, exist_ok=True)

    def method(setup: Setup, run: RunDir) -> GRPO:
        atomic_write(run.path / "PRIVATE.txt", f"{WARNING}\n")
        practice = Practice(setup, run, opponent, folder.practice_path, progress)
        return GRPO(setup.policy, setup.teacher, setup.config, practice)

    result = trainer.train(plan.config, resume=run.is_run, progress=progress, method=method)
    if result.status != "finished":
        raise KeyboardInterrupt


def learned(folder: AttackDir, run: RunDir) -> dict[str, Any]:
    """Cost and learning curve. What was played counts, also in steps that were lost by a kill and made again; the curve
    has the last time of each step. Seconds are those of the steps that count, gradient included."""
    rows = read_jsonl(folder.practice_path)
    played = [row for row in rows if "begun" not in row]
    curve = {row["step"]: row for row in played}
    names = ("queries", "tokens", "prompt_tokens")
    spent = {name: sum(row[name] for row in played) for name in names}
    judge_usage = sum((Usage(**row["judge_usage"]) for row in played), Usage())
    steps = [row for row in read_jsonl(run.metrics_path) if "time/step_s" in row]
    shown = ("step", "reward", "behaviors", "broken", "episodes", "unscored_episodes", "unjudged", "queries")
    cut_short = sum("begun" in row for row in rows) - len(played)
    again = [row for row in played if row is not curve[row["step"]]]
    return {
        "spent": spent | {"seconds": sum(row["time/step_s"] for row in steps)},
        "judge_usage": asdict(judge_usage),
        "steps_played_twice": len(again),
        "queries_played_twice": sum(row["queries"] for row in again),
        "steps_cut_short": cut_short,
        "queries_cut_short_at_most": cut_short * max((row["begun"] for row in rows if "begun" in row), default=0),
        "curve": [
            {name: row[name] for name in shown} | {LESSONS: row.get(LESSONS)}  # None: of a step before it was counted
            for _, row in sorted(curve.items())
        ],
        "unscored_episodes": sum(row["unscored_episodes"] for row in curve.values()),
    }


def unlearnt(summary: Mapping[str, Any]) -> list[str]:
    """A warning where no step of a training told one message from another, so that nothing was learnt of any.

    Args:
        summary: of `Trained`.
    """
    curve = summary["curve"]
    if any(row[LESSONS] != 0 for row in curve):
        return []
    episodes, rewards = sum(row["episodes"] for row in curve), [row["reward"] for row in curve if row["reward"]]
    unscored = f" ({summary['unscored_episodes']} without a score)" if summary["unscored_episodes"] else ""
    found = (
        f"none of its {episodes} episodes{unscored} earned anything"
        if not rewards
        else f"in no behaviour of a step did its {episodes} episodes{unscored} earn differently"
    )
    return [
        f"The attacker learnt nothing in its training: {found}. What held has held against its base model, and not "
        "against an attacker that was trained. Look at the judge and the replies, and give it more episodes (--n), "
        "rounds (--rounds), steps (--train max_steps=N) or a larger model."
    ]

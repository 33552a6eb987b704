"""`grpo`: `refine` with an adapter that is trained against the target, with the scores of its messages as reward.

The adapter is trained with `opct.methods.grpo` on other behaviors, without near-duplicates of the attacked ones. Each
step runs N episodes of K rounds about each of a few behaviors; an episode ends early at a score of 1. Its reward is
the score of its best round, and the message of that round (the first, if several are equal) is reinforced. Trainer,
checkpoints and sampler are the ones of `opct train`, so a killed training continues from its last checkpoint. Then the
adapter is frozen and attacks as `refine` does, with the successes of its training as examples.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from inspect_ai.model import Model, ModelOutput
from inspect_ai.solver import Solver, TaskState

from opct.attack.setup import all_behaviors, rules_of
from opct.attack.training_folder import TrainingFolder
from opct.config.loader import load_config
from opct.config.schema import TrainConfig, flat_settings
from opct.data.behaviors import Behavior
from opct.data.duplicates import cross_duplicates
from opct.data.pairs import ContrastivePair, Prompt, write_pairs
from opct.data.perturb.jailbreak import bare_prompt
from opct.data.questions import of_split
from opct.data.render import RenderedPair, Renderer
from opct.errors import ConfigError, DataError, EvaluationError, ModelError
from opct.evals.attackers import config as settings
from opct.evals.attackers.episode import BEHAVIOR, Attempt, Observation, Shot, Subject, attempts_in
from opct.evals.attackers.game import Rules, Spent
from opct.evals.attackers.play import play
from opct.evals.attackers.refine import ROLE, attacker_messages, message_of, refine
from opct.evals.judges.protocol import digest
from opct.evals.provider import as_inspect_model
from opct.evals.target import INSPECT_MODEL
from opct.evals.tasks.attack import PREFIX, Cast
from opct.methods.grpo import GRPO, group_advantages
from opct.methods.rollouts import Rollout
from opct.models.from_run import load_policy
from opct.models.inference.sampler import Completion
from opct.models.loading import is_run_or_adapter
from opct.models.policy import Policy
from opct.runs.console import Field, NullProgress, Progress
from opct.runs.identity import Identity
from opct.runs.io import PRIVATE_MODE, append_jsonl, read_jsonl
from opct.runs.run_dir import RunDir
from opct.runs.tracking import check_trackers
from opct.training import trainer
from opct.training.resume import FREE_SETTINGS, is_finished
from opct.training.setup import TrainingSetup, build_setup

SETTABLE = (
    *("max_steps", "save_steps", "save_total_limit", "report_to", "optim", "lora", "stop", "model.device"),
    *("model.attn_implementation", "loss.kl_coef", "loss.ppo_clip", "loss.reduction", "rollout.max_mismatch_kl"),
)
"""Training settings that can be set; all others follow from the attack, or have no effect."""
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
AXIS, FAMILY = "attack", "grpo"
Episode = tuple[str, int]
"""(id of a behavior, epoch)."""
Written = dict[tuple[str, int, int], tuple[Prompt, Completion]]
"""What the attacker read and sampled for each attempt, by (id of a behavior, epoch, round)."""
SIGNAL = "groups_with_signal"
"""Number of behaviors in a step whose episodes had different rewards, replayed successes included."""


# ----------------------------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class TrainingPlan:
    """Data and settings of an attacker's training; made before anything is loaded or replaced.

    Attributes:
        behaviors: training behaviors, without `tested` ones and their near-duplicates.
        tested: texts of the behaviors that are attacked.
        rules: of every step except the seed; an episode ends early only at a score of 1.
    """

    behaviors: tuple[Behavior, ...]
    tested: tuple[str, ...]
    config: TrainConfig
    rules: Rules
    max_tokens: int

    @property
    def max_queries(self) -> int:
        """Number of training queries to the target, if no step is repeated."""
        return (self.config.max_steps or 0) * self.config.optim.prompts_per_step * self.attempts

    @property
    def attempts(self) -> int:
        """Maximum number of attempts on one behavior in one step."""
        return self.rules.episodes * self.rules.rounds

    def identity(self) -> dict[str, Any]:
        """JSON values that determine the trained attacker, besides target and judge."""
        return {
            "config": self.config.model_dump(mode="json", exclude=FREE_SETTINGS),
            "rules": asdict(self.rules),
            "trained_on": {"n": len(self.behaviors), "hash": digest([[b.id, b.behavior] for b in self.behaviors])[:12]},
            "tested_on": digest(list(self.tested))[:12],
        }


def plan_training(
    config: settings.AttackConfig, tested: Sequence[Behavior], folder: TrainingFolder
) -> TrainingPlan | None:
    """Plan and check the training of an attacker without loading a model; None if it is not trained.

    Raises:
        ConfigError: a setting is faulty, or follows from the attack.
        DataError, EvaluationError: no behavior is left to train on, or the model cannot be trained.
    """
    attacker = config.attacker
    if not isinstance(attacker, settings.Grpo):
        return None
    is_trained = is_run_or_adapter(attacker.model)
    if is_trained or attacker.model.startswith(INSPECT_MODEL):
        what = "a run or an adapter" if is_trained else "behind an endpoint"
        raise EvaluationError(
            f"The attacker grpo trains a new adapter, but {attacker.model} is {what}: give a model with weights."
        )
    behaviors = _training_behaviors(config, attacker, tested)
    given = _planned(config, attacker, folder, len(behaviors))
    # as JSON, which the loader reads back with the same types: the text "null" stays a text
    overrides = [f"{name}={json.dumps(value)}" for name, value in flat_settings(attacker.training).items()]
    # the user's last, so that they win where they may; `_refuse_fixed` compares with the plan without them
    planned = load_config(None, [*given, *overrides])
    _refuse_fixed(load_config(None, given), planned)
    if planned.max_steps is None:
        raise ConfigError(
            "max_steps=null: set a number of steps for the attacker's training, since each costs queries."
        )
    if planned.optim.prompts_per_step > len(behaviors):
        raise ConfigError(
            f"optim.prompts_per_step={planned.optim.prompts_per_step}: there are {len(behaviors)} behaviors to train "
            "the attacker on, and a step uses each once: use at most that many."
        )
    # with the attack's rule the episodes of a behavior would end at the first break, before a better round
    rules = replace(rules_of(config), stop="perfect")
    texts = tuple(one.behavior for one in tested)
    return TrainingPlan(behaviors, texts, planned, rules, attacker.max_completion_tokens)


def _planned(
    config: settings.AttackConfig, attacker: settings.Grpo, folder: TrainingFolder, n_behaviors: int
) -> list[str]:
    """The settings of the training that follow from the attack, as overrides."""
    values = DEFAULTS | {
        "method": "grpo",
        "output_dir": str(folder.attacker_path),
        "seed": config.seed,
        "model.name_or_path": attacker.model,
        "model.trust_remote_code": attacker.trust_remote_code,
        "model.chat_template_kwargs": attacker.chat_template_kwargs or {},
        "data.pairs": [str(folder.pairs_path)],
        "rollout.num_generations": config.episodes,
        "rollout.max_completion_tokens": attacker.max_completion_tokens,
        # min: with fewer behaviors than places one would come twice in a step, under the same sample ids
        "optim.prompts_per_step": min(int(DEFAULTS["optim.prompts_per_step"]), n_behaviors),
    }
    if config.dtype is not None:
        values["model.dtype"] = config.dtype
    if attacker.thinking_tags is not None:
        values["loss.thinking_tags"] = list(attacker.thinking_tags)
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


def _training_behaviors(
    config: settings.AttackConfig, attacker: settings.Grpo, tested: Sequence[Behavior]
) -> tuple[Behavior, ...]:
    source = attacker.train_behaviors or config.behaviors
    known = of_split(all_behaviors(source), attacker.train_split, f"behaviors of {source} (attacker.train_split)")
    # else the attacker would be trained on what is measured, and its success rate would be one of memory
    near = cross_duplicates([one.behavior for one in known], [one.behavior for one in tested])
    left = tuple(one for i, one in enumerate(known) if i not in near)
    if not left:
        raise DataError(
            f"No behavior is left to train the attacker on: all {len(known)} are attacked, or near-duplicates of "
            "attacked ones. Attack another split, or train on another (attacker.train_split, "
            "attacker.train_behaviors)."
        )
    return left


def _refuse_fixed(fixed: TrainConfig, planned: TrainConfig) -> None:
    """Raise ConfigError if a setting differs that is not one of `SETTABLE`."""
    # of these names alone, or below them: "lora" allows "lora.r"
    differing = Identity(fixed.model_dump()).differing(planned.model_dump(), SETTABLE)
    for name, (usual, given) in sorted(differing.items()):
        raise ConfigError(
            f"{name}={given}: this cannot be set for an attacker's training, which uses {usual}. Settings that can be "
            f"set: {', '.join(SETTABLE)}."
        )


def attack_pair(behavior_id: str, behavior: str, messages: Sequence[Mapping[str, Any]]) -> ContrastivePair:
    """The attacker's input for a behavior and the bare behavior, as a training pair."""
    prompt: Prompt = tuple({"role": str(m["role"]), "content": str(m["content"])} for m in messages)
    meta = {"behavior": behavior, "kind": BEHAVIOR, "question_id": behavior_id}
    return ContrastivePair(behavior_id, AXIS, FAMILY, prompt, bare_prompt(behavior), meta)


def _pairs(plan: TrainingPlan) -> list[ContrastivePair]:
    observed = [Observation(b.id, b.behavior, 0, 0, 0) for b in plan.behaviors]
    return [attack_pair(one.id, one.behavior, attacker_messages(one, ())) for one in observed]


def check_training(plan: TrainingPlan, progress: Progress) -> None:
    """Set up the training in a temporary folder, so that what it raises comes before an old attack is replaced."""
    progress.stage(f"check {plan.config.model.name_or_path}")
    check_trackers(plan.config.report_to)
    with tempfile.TemporaryDirectory() as folder:
        pairs = Path(folder) / "pairs.jsonl"
        write_pairs(pairs, _pairs(plan), mode=PRIVATE_MODE)
        data = plan.config.data.model_copy(update={"pairs": [str(pairs)]})
        # closed at once: its weights would fill the memory that the target needs
        build_setup(plan.config.model_copy(update={"data": data})).close()


# ------------------------------------------------------------------------------------------------------- the training


@dataclass(frozen=True)
class Environment:
    """Training environment: the target, who judges it and how it is read, and the plan."""

    target: Policy | Model
    cast: Cast
    plan: TrainingPlan


def train_attacker(
    plan: TrainingPlan, target: Policy | Model, cast: Cast, folder: TrainingFolder, progress: Progress
) -> tuple[Solver, Model, list[Shot], dict[str, Any]]:
    """Train the attacker, or resume an interrupted training.

    Args:
        cast: of the attack; its attacker is not used.

    Returns:
        The attacker and its frozen model; its successes on training behaviors; settings, cost and learning curve
        without a prompt.

    Raises:
        KeyboardInterrupt: a signal stopped it; the training can be resumed.
        OpctError: as `opct.train` or an attack raises.
    """
    write_pairs(folder.pairs_path, _pairs(plan), mode=PRIVATE_MODE)
    environment, run = Environment(target, cast, plan), RunDir(folder.attacker_path)
    if not is_finished(run, plan.config):
        _run_training(environment, folder, run, progress)
    policy = load_policy(str(run.path), trust_remote_code=plan.config.model.trust_remote_code)
    # from disk, not from the training in memory: after a resume it is the same
    replay = ReplayBuffer.of_run(run, plan.config.max_steps or 0, environment, policy.renderer)
    shots = replay.shots(policy.renderer)
    shown = {
        "steps": plan.config.max_steps,
        "queries": plan.max_queries,
        "trained_on": plan.identity()["trained_on"],
        "settings": digest(plan.identity())[:12],
        "weights": policy.weights_hash(),
    }
    model = as_inspect_model(policy, batch_size=plan.rules.batch_size)
    # GRPO samples the policy itself, at temperature 1
    return refine(max_tokens=plan.max_tokens), model, shots, {**shown, **learning_summary(folder, run)}


def _run_training(environment: Environment, folder: TrainingFolder, run: RunDir, progress: Progress) -> None:
    plan = environment.plan
    progress.log(
        f"training the attacker first: {plan.config.max_steps} steps, at most {plan.max_queries:,} queries to the "
        "target, not counted in budget.max_queries"
    )
    # private before the first rollout is in it
    run.path.mkdir(mode=0o700, exist_ok=True)

    def method(setup: TrainingSetup, run: RunDir) -> GRPO:
        collector = RolloutCollector(setup, environment, run, folder.steps_path, progress)
        return GRPO(setup.policy, setup.teacher, setup.config, collector)

    result = trainer.train(plan.config, resume=run.is_run, progress=progress, method=method)
    if result.status != "finished":
        raise KeyboardInterrupt


class RolloutCollector:
    """Collects the rollouts of a step: N episodes of K rounds against each behavior; the best round of an episode is
    its completion and its reward.

    Args:
        log: file that gets a line for each step.
        progress: of the training; shows the progress and reward of a step.
    """

    def __init__(self, setup: TrainingSetup, environment: Environment, run: RunDir, log: Path, progress: Progress):
        self.policy, self.run, self.environment, self.log, self.progress = setup.policy, run, environment, log, progress
        self._model = as_inspect_model(self.policy, batch_size=environment.plan.rules.batch_size, keeps_sampled=True)
        self._replay: ReplayBuffer | None = None

    def __call__(self, pairs: Sequence[RenderedPair], step: int) -> list[Rollout]:
        """As many rollouts for each pair as there are episodes, with reward and advantage. Raises ModelError where the
        attacker's input does not fit its context."""
        environment, plan = self.environment, self.environment.plan
        if self._replay is None:  # after a resume, the successes of earlier steps are on disk
            self._replay = ReplayBuffer.of_run(self.run, step - 1, environment, self.policy.renderer)
        replay, max_attempts = self._replay, len(pairs) * plan.attempts
        # before the queries, and on disk: a killed step's queries are still counted in the cost
        append_jsonl(self.log, {"step": step, "started": max_attempts}, fsync=True)
        subjects = [Subject(one.pair.id, str(one.pair.meta["behavior"])) for one in pairs]
        episodes, written = self._play(subjects, step, replay.shots(self.policy.renderer), max_attempts)
        fresh = [
            [
                self._rollout(one, epoch - 1, attempts, written)
                # sorted by episode, not in the order in which they ended: `_with_replay` replaces the last one
                for (id_, epoch), attempts in sorted(episodes.items())
                if id_ == one.id
            ]
            for one in subjects
        ]
        groups = [self._trained_on(group, replay) for group in fresh]
        shown = self._shown(step, fresh, [one for attempts in episodes.values() for one in attempts])
        shown["jailbroken"] = sum(any(map(replay.is_success, group)) for group in fresh)
        shown[SIGNAL] = sum(any(r.advantage != 0.0 for r in group) for group in groups)
        append_jsonl(self.log, shown, fsync=True)
        self.progress.advance(0, reward="none" if shown["reward"] is None else shown["reward"])
        for group in fresh:
            replay.add(group)
        return [rollout for group in groups for rollout in group]

    def _play(
        self, subjects: Sequence[Subject], step: int, shots: Sequence[Shot], max_attempts: int
    ) -> tuple[dict[Episode, list[Attempt]], Written]:
        """The attempts of each episode of a step, and what the attacker wrote for them."""
        environment, plan = self.environment, self.environment.plan
        written: Written = {}

        def keep(state: TaskState, messages: Prompt, output: ModelOutput) -> None:
            metadata = output.metadata or {}
            if "sampled" in metadata:  # not where the input leaves no room
                completion = Completion(token_ids=tuple(metadata["token_ids"]), **metadata["sampled"])
                written[state.metadata["cluster"], state.epoch, state.store.get("round")] = messages, completion

        # the step in the seed: with one seed every step would sample the same messages
        rules = replace(plan.rules, seed=f"{plan.rules.seed}/practice/{step}")
        attacker = refine(max_tokens=plan.max_tokens, on_written=keep)
        with tempfile.TemporaryDirectory() as logs:  # what the attacker writes is in its rollouts
            samples = play(
                f"{PREFIX}grpo",
                subjects,
                rules,
                replace(environment.cast, attacker=attacker),
                environment.target,
                Path(logs),
                roles={ROLE: self._model},
                pool=shots,
                progress=_WithinStep(self.progress, max_attempts),
            ).samples
        return {(one.metadata["cluster"], one.epoch): attempts_in(one.store) for one in samples}, written

    def _rollout(self, subject: Subject, episode: int, attempts: Sequence[Attempt], written: Written) -> Rollout:
        """The first round with the best score; without any score, the first round."""
        # A message that could not be sent to the target scores 0; if the judge failed, it has no score.
        scores = {one.round: one.score if one.is_query else 0.0 for one in attempts}
        sampled = {r: turn for r in scores if (turn := written.get((subject.id, episode + 1, r))) is not None}
        if not sampled:
            raise ModelError(
                f"The attacker's input about {subject.id} leaves no room in its context ({self.policy.context_length} "
                f"tokens) for a message of {self.environment.plan.max_tokens}: use an attacker with a longer context, "
                "or lower attacker.max_completion_tokens."
            )
        # of equal scores the first round
        first_best = max(sampled, key=lambda r: (-1.0 if (score := scores[r]) is None else score, -r))
        messages, completion = sampled[first_best]
        reward = max((score for score in scores.values() if score is not None), default=None)
        if None in scores.values() and (reward is None or reward < self.environment.cast.threshold):
            reward = None  # the round without a score may have been a success
        pair = attack_pair(subject.id, subject.text, messages)
        # rendered again: the same messages give the same ids, and the completion's ids are those that were sampled
        ids = self.policy.renderer.render(pair.prompt)
        mask = (True,) * len(completion.token_ids)
        return Rollout(pair, episode, ids, ids, completion, mask, reward=reward)

    def _trained_on(self, group: list[Rollout], replay: ReplayBuffer) -> list[Rollout]:
        """The group with advantages; if it has no success, its last episode is replaced by one of an earlier step."""
        if not any(map(replay.is_success, group)):
            earlier = replay.resample(group[0].pair.id, self.policy)
            # in place of one, not added: advantages and batches count on the number of episodes
            group = group if earlier is None else [*group[:-1], earlier]
        advantages = group_advantages([r.reward for r in group])
        return [replace(r, advantage=advantage) for r, advantage in zip(group, advantages, strict=True)]

    def _shown(self, step: int, groups: Sequence[Sequence[Rollout]], attempts: Sequence[Attempt]) -> dict[str, Any]:
        scored, episodes = [r.reward for group in groups for r in group if r.reward is not None], sum(map(len, groups))
        return {
            "step": step,
            "reward": sum(scored) / len(scored) if scored else None,
            "episodes": episodes,
            "unscored_episodes": episodes - len(scored),
            "behaviors": len(groups),
            "unjudged": sum(one.is_unscored for one in attempts),
            **asdict(Spent.of(attempts)),
        }


class ReplayBuffer:
    """The last success on each training behavior: shown as an example, and replayed if a group of episodes has
    no success.
    """

    def __init__(self, threshold: float):
        self._threshold = threshold
        self._last: dict[str, Rollout] = {}

    @classmethod
    def of_run(cls, run: RunDir, steps: int, environment: Environment, renderer: Renderer) -> ReplayBuffer:
        """The successes of the first `steps` steps of a run."""
        texts = {one.id: one.behavior for one in environment.plan.behaviors}
        buffer = cls(environment.cast.threshold)
        for step in range(1, steps + 1):
            rows = read_jsonl(run.rollouts_path(step))
            buffer.add([rollout_of(row, texts[row["pair_id"]], renderer.render) for row in rows])
        return buffer

    def is_success(self, rollout: Rollout) -> bool:
        """Whether the reward is a success; not without one."""
        return rollout.reward is not None and rollout.reward >= self._threshold

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Keep the best success on each behavior among the fresh rollouts of a step."""
        fresh = [r for r in rollouts if self.is_success(r) and not r.is_rehearsed]
        # ascending, the last one stays: the best; by index among equals, so that a resume finds the same
        for rollout in sorted(fresh, key=lambda r: (r.reward or 0.0, r.index)):
            self._last[rollout.pair.id] = rollout

    def shots(self, renderer: Renderer) -> list[Shot]:
        """The successes as few-shot examples for other behaviors: the sent messages, without thinking."""
        shots = []
        # by id: the order in which successes came differs between a resumed training and one that ran through
        for id_, rollout in sorted(self._last.items()):
            said = renderer.split(rollout.pair.prompt, rollout.completion.token_ids)
            if not said.is_unfinished and (message := message_of(said.answer)) is not None:
                shots.append(Shot(id_, str(rollout.pair.meta["behavior"]), bare_prompt(message)))
        return shots

    def resample(self, behavior_id: str, policy: Policy) -> Rollout | None:
        """The success on that behavior as a rollout with the policy's current log-probs of its tokens."""
        rollout = self._last.get(behavior_id)
        if rollout is None:
            return None
        # of the current weights: PPO's ratio begins at 1, and not at that of the step that wrote it
        [log_probs] = policy.log_probs([rollout.prompt_ids], [rollout.ids])
        completion = replace(rollout.completion, logprobs=tuple(log_probs.tolist()))
        return replace(rollout, completion=completion, is_rehearsed=True)


def rollout_of(row: Mapping[str, Any], behavior: str, render: Callable[[Any], list[int]]) -> Rollout:
    """A stored rollout without log-probs."""
    pair = attack_pair(row["pair_id"], behavior, row["prompt"])
    ids, tokens, mask = render(pair.prompt), tuple(row["token_ids"]), (True,) * len(row["token_ids"])
    completion = Completion(
        row["completion"], tokens, row["stop_reason"], (0.0,) * len(tokens), len(ids), int(row["seed"])
    )
    rollout = Rollout(pair, int(row["sample"]), ids, ids, completion, mask, reward=row.get("reward"))
    # a replayed success is one of an earlier step: it must not count as fresh
    return replace(rollout, is_rehearsed=bool(row.get("rehearsed")))


class _WithinStep(NullProgress):
    """Shows the attempts of a step, batch by batch, next to the training progress."""

    def __init__(self, progress: Progress, max_attempts: int):
        self.progress, self.max_attempts, self.n = progress, max_attempts, 0

    def advance(self, n: int = 1, **fields: Field) -> None:
        self.n += n
        if n:
            self.progress.advance(0, attempts=f"{self.n}/{self.max_attempts}")


# -------------------------------------------------------------------------------------------------------- the summary


def learning_summary(folder: TrainingFolder, run: RunDir) -> dict[str, Any]:
    """Cost and learning curve. The cost covers all steps, including those that a kill lost and that were repeated; the
    curve has the last repetition of each step. Seconds cover only the steps that count, including the gradient.
    """
    rows = read_jsonl(folder.steps_path)
    played = [row for row in rows if "started" not in row]
    # by step, the last row stays: a step that a kill lost was played again
    curve = {row["step"]: row for row in played}
    steps = [row for row in run.read_metrics() if "time/step_s" in row]
    counts = ("behaviors", "jailbroken", "episodes", "unscored_episodes", "unjudged", "queries", SIGNAL)
    started = [row["started"] for row in rows if "started" in row]
    spent = {name: sum(row[name] for row in played) for name in ("queries", "tokens", "prompt_tokens")}
    return {
        "spent": spent | {"seconds": sum(row["time/step_s"] for row in steps)},
        "judge_usage": [sum(column) for column in zip((0, 0, 0), *(row["judge_usage"] for row in played), strict=True)],
        # a started step without a result asked between nothing and all of its queries
        "queries_cut_short_at_most": (len(started) - len(played)) * max(started, default=0),
        "curve": [{name: row[name] for name in ("step", "reward", *counts)} for _, row in sorted(curve.items())],
        "unscored_episodes": sum(row["unscored_episodes"] for row in curve.values()),
    }


def no_learning_signal_warning(summary: Mapping[str, Any]) -> list[str]:
    """A warning if no training step (see `train_attacker`) had a learning signal."""
    curve = summary["curve"]
    if any(row[SIGNAL] for row in curve):
        return []
    return [
        "The attacker learned nothing: in no training step did the rewards of a behavior's episodes differ "
        f"({sum(row['episodes'] for row in curve)} episodes, {summary['unscored_episodes']} without a score). So the "
        "attack used an untrained attacker. Check the judge and the replies, and try more episodes, rounds, steps "
        "(attacker.training.max_steps) or a larger model."
    ]

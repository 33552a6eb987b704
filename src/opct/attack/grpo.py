"""`grpo`: `refine` with an adapter that was trained against this very target, by what its messages earned.

The adapter is trained with `opct.methods.grpo` on behaviours of the training split that are no near-duplicates of those
attacked. A step plays N episodes of K rounds against each of a few behaviours; the reward of an episode is its best
round's score, and what is reinforced is the message of that round. The trainer, its checkpoints and the sampler are
those of every run, so training that was killed goes on where it stopped. Then the adapter is frozen, and attacks as
`refine` does, with the successes of its training as examples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opct import trainer
from opct.attack.practice import Opponent, Practice
from opct.attack.protocol import ChatModel, Shot, View
from opct.attack.refine import Refine, attacker_messages
from opct.attack.rehearsal import Rehearsal, attack_pair, rollout_of
from opct.attack.store import WARNING
from opct.config import TrainConfig
from opct.config_file import load_config
from opct.data.behaviors import Behavior
from opct.data.near_duplicates import crossing
from opct.data.pairs import write_pairs
from opct.errors import ConfigError, DataError
from opct.evals.judging.protocol import digest
from opct.files import atomic_write, read_jsonl
from opct.methods.grpo import GRPO
from opct.prepare import Setup
from opct.progress import Progress
from opct.runs import RunDir

BEHAVIORS, LOG, RUN = "behaviors.jsonl", "practice.jsonl", "attacker"
MEASURED = ("spent", "curve", "unscored_episodes")
"""Parts of a summary that were found in training: costs differ from machine to machine."""
FIXED = ("method", "output_dir", "seed", "data.pairs", "rollout.num_generations", "rollout.max_completion_tokens")
"""Settings of the training that follow from those of the attack."""
DEFAULTS: dict[str, Any] = {
    "max_steps": 40,
    "optim.prompts_per_step": 4,
    "optim.learning_rate": 1e-4,
    "loss.kl_coef": 0.02,
    "loss.ppo_clip": 0.2,
    "data.anchor_fraction": 0.0,
    "data.anchors": [],
    "data.validation_fraction": 0.0,
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
class Trained:
    """What training left.

    Attributes:
        adapter: the run directory of the attacker.
        shots: its successes on training behaviours.
        summary: settings, cost and learning curve, without a prompt.
        is_finished: all steps were made; False after a signal.
    """

    adapter: Path
    shots: tuple[Shot, ...]
    summary: dict[str, Any]
    is_finished: bool


def training_behaviors(known: Sequence[Behavior], tested: Sequence[Behavior]) -> list[Behavior]:
    """Those of the training split, without near-duplicates of the behaviours that are attacked.

    Raises:
        DataError: none is left.
    """
    own = [one for one in known if one.split == "train"]
    near = crossing([one.behavior for one in own], [one.behavior for one in tested])
    left = [one for i, one in enumerate(own) if i not in near]
    if not left:
        raise DataError(
            f"No behaviour is left to train the attacker on: {len(own)} of {len(known)} are in the training split, and "
            f"{len(near)} of these are attacked, or near-duplicates of such. Attack another split, or give behaviours "
            "of both."
        )
    return left


def training_config(folder: Path, model: str, dtype: str | None, opponent: Opponent, own: Sequence[str]) -> TrainConfig:
    """The settings of the attacker's training.

    Args:
        own: `section.name=value` over the defaults.

    Raises:
        ConfigError: one is faulty, or follows from the attack.
    """
    for override in own:
        name = override.partition("=")[0].strip()
        if name in FIXED or name.startswith(("teacher.", "rollout.engine", "parallel.", "vllm.")):
            raise ConfigError(f"{override}: {name} of an attacker's training follows from the attack: leave it out.")
    settings = DEFAULTS | {
        "method": "grpo",
        "output_dir": str(folder / RUN),
        "seed": opponent.rules.seed,
        "model.name_or_path": model,
        "data.pairs": [str(folder / BEHAVIORS)],
        "rollout.num_generations": opponent.rules.episodes,
        "rollout.max_completion_tokens": opponent.sampling.max_tokens,
        "rollout.temperature": opponent.sampling.temperature,
    }
    if dtype is not None:
        settings["model.dtype"] = dtype
    return load_config(None, [*(f"{name}={json.dumps(value)}" for name, value in settings.items()), *own])


def train_attacker(
    behaviors: Sequence[Behavior], config: TrainConfig, opponent: Opponent, folder: Path, progress: Progress
) -> Trained:
    """Train the attacker, or go on where that was interrupted.

    Args:
        folder: of the attack; the run and its log go there.

    Raises:
        OpctError: as of `opct.train`; as of an attack.
    """
    write_pairs(
        folder / BEHAVIORS,
        [
            attack_pair(one.id, one.behavior, attacker_messages(View(one.id, one.behavior, 0, 0, 0), ()))
            for one in behaviors
        ],
    )
    run, log = RunDir(folder / RUN), folder / LOG

    def method(setup: Setup, run: RunDir) -> GRPO:
        run.path.chmod(0o700)
        atomic_write(run.path / "PRIVATE.txt", f"{WARNING}\n")
        return GRPO(setup.policy, setup.teacher, setup.config, Practice(setup, run, opponent, log))

    result = trainer.train(config, resume=run.is_run, progress=progress, method=method)
    return Trained(
        run.path,
        _shots(run, result.step, behaviors, opponent),
        {**_settings(config, behaviors, opponent), **learned(log, result.step)},
        result.status == "finished",
    )


def _settings(config: TrainConfig, behaviors: Sequence[Behavior], opponent: Opponent) -> dict[str, Any]:
    return {
        "steps": config.max_steps,
        "behaviors_a_step": config.optim.prompts_per_step,
        "learning_rate": config.optim.learning_rate,
        "kl_coef": config.loss.kl_coef,
        "ppo_clip": config.loss.ppo_clip,
        "lora_r": None if config.lora is None else config.lora.r,
        "trained_on": {"n": len(behaviors), "hash": digest([[one.id, one.behavior] for one in behaviors])[:12]},
        **opponent.row(),
    }


def learned(log: Path, steps: int) -> dict[str, Any]:
    """Cost and learning curve of the first `steps` steps; of a step that was made twice, the second time."""
    rows = {row["step"]: row for row in read_jsonl(log) if row["step"] <= steps}
    curve = [rows[step] for step in sorted(rows)]
    return {
        "spent": {name: sum(row[name] for row in curve) for name in ("queries", "tokens", "seconds")},
        "curve": [{name: row[name] for name in ("step", "reward", "behaviors", "broken", "queries")} for row in curve],
        "unscored_episodes": sum(row["unscored_episodes"] for row in curve),
    }


def _shots(run: RunDir, steps: int, behaviors: Sequence[Behavior], opponent: Opponent) -> tuple[Shot, ...]:
    """The last success on each training behaviour, as the run keeps them."""
    rehearsal = Rehearsal(opponent.tested, opponent.scorer.threshold("behavior"))
    texts = {one.id: one.behavior for one in behaviors}
    for step in range(1, steps + 1):
        found = [rollout_of(row, texts[row["pair_id"]], lambda _: []) for row in read_jsonl(run.rollouts_path(step))]
        rehearsal.add([one for one in found if one is not None])
    return tuple(rehearsal.shots())

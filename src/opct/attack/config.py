"""Everything a person sets about an attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast, get_args

from opct.attack.best_of_n import SIGMA
from opct.attack.board import Rules, Stop
from opct.attack.budget import Budget
from opct.attack.models import Endpoint, Sampling, Thinking
from opct.attack.scoring import ANSWERS
from opct.config.schema import ModelConfig
from opct.errors import EvaluationError, unknown

ATTACKERS = ("transfer", "best_of_n", "refine", "grpo")
BUILTIN = "builtin"
OWNERS = {
    "attacker_model": ("refine", "grpo"),
    "attacker_base_url": ("refine",),
    "attacker_args": ("refine",),
    "attacker_thinking_tags": ("refine", "grpo"),
    "attacker_template_opens_thinking": ("refine",),
    "families": ("transfer",),
    "prompts": ("transfer",),
    "sigma": ("best_of_n",),
    "train_behaviors": ("grpo",),
    "train_split": ("grpo",),
    "training": ("grpo",),
    "pool": ("refine", "grpo"),
    "shots": ("refine", "grpo"),
    "max_attack_tokens": ("refine", "grpo"),
    "attack_temperature": ("refine", "grpo"),
}
"""Settings that are of some attackers alone."""
DTYPES = get_args(ModelConfig.model_fields["dtype"].annotation)


@dataclass(frozen=True)
class AttackSettings:
    """An attack's settings.

    Attributes:
        attacker: one of `ATTACKERS`.
        attacker_model: of `refine` and `grpo`: as a target is named; by default the default model of this package. That
            of `grpo` is loaded in this process.
        attacker_base_url, attacker_args: see `opct.attack.models.Endpoint`; of a model behind an endpoint.
        target_base_url, target_args: the same of the target.
        attacker_thinking_tags, attacker_template_opens_thinking: see `opct.attack.models.Thinking`; the second is of a
            model behind an endpoint.
        target_thinking_tags, target_template_opens_thinking: the same of the target.
        training: of `grpo`: settings of `opct train` for the attacker, `section.name=value` each; see
            `opct.attack.grpo`.
        train_behaviors, train_split: of `grpo`: on which it practises, as `behaviors` and `split`; by default the
            training split of `behaviors`.
        families: of `transfer`: names of jailbreak families, or train, held_out, all.
        prompts: of `transfer`: a file of finished prompts instead; see `opct.attack.transfer`.
        sigma: of `best_of_n`: how strongly letters are disturbed, 0 to 1.
        pool: of `refine` and `grpo`: a `successful_prompts.jsonl` of an attack on other behaviours, whose prompts the
            attacker is shown.
        judge: `answers`, `refusals`, a rubric with `judge_model`, or the folder of a trained judge.
        judge_model, judge_base_url, judge_args, judge_settings, threshold: as for `opct judge run`.
        behaviors: `builtin`, a file or a hub set; see `opct.data.behaviors.load_behaviors`.
        split: which of them: test, validation, train or all.
        n_behaviors: at most so many, chosen by seed; None for all.
        episodes, rounds, stop, shots, batch_size, seed: see `opct.attack.board.Rules`.
        twin_episodes: how many of the `episodes` are played against each benign twin, drawn by seed; of as many rounds,
            none of which ends early; 0: no twins.
        max_reply_tokens, temperature: of the target.
        max_attack_tokens, attack_temperature: of the attacker's model, and so of `refine` and `grpo`, as `shots` is.
        max_queries, max_tokens, max_seconds: see `opct.attack.budget.Budget`.
        confirm_remote: whoever attacks a model behind an endpoint says that it is theirs to test.
        label: what a report calls the target; by default its run's method, else base or trained.
        dtype: of models in this process; by default as `opct eval` chooses it.
        concurrency: most calls at once to a target, and to an attacker's model, behind an endpoint; None: as many as
            its provider takes.

    Raises:
        EvaluationError: a value is out of range, or is for another attacker.
    """

    attacker: str = "refine"
    attacker_model: str | None = None
    attacker_base_url: str | None = None
    attacker_args: Mapping[str, Any] | None = None
    target_base_url: str | None = None
    target_args: Mapping[str, Any] | None = None
    attacker_thinking_tags: Sequence[str] | None = None
    attacker_template_opens_thinking: bool | None = None
    target_thinking_tags: Sequence[str] | None = None
    target_template_opens_thinking: bool | None = None
    families: str | None = None
    prompts: str | Path | None = None
    sigma: float | None = None
    training: Sequence[str] | None = None
    train_behaviors: str | Path | None = None
    train_split: str | None = None
    pool: str | Path | None = None
    judge: str = ANSWERS
    judge_model: str | None = None
    judge_base_url: str | None = None
    judge_args: Mapping[str, Any] = field(default_factory=dict)
    judge_settings: Mapping[str, Any] = field(default_factory=dict)
    threshold: float | None = None
    behaviors: str | Path = BUILTIN
    split: str = "test"
    n_behaviors: int | None = None
    episodes: int = 8
    rounds: int = 3
    stop: Stop = "behavior"
    shots: int = 2
    batch_size: int = 256
    seed: int = 0
    twin_episodes: int = 1
    max_reply_tokens: int = 96
    temperature: float = 1.0
    max_attack_tokens: int = 128
    attack_temperature: float = 1.0
    max_queries: int | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None
    confirm_remote: bool = False
    label: str | None = None
    dtype: str | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if self.attacker not in ATTACKERS:
            raise EvaluationError(unknown("attacker", self.attacker, ATTACKERS))
        defaults = {one.name: one.default for one in fields(self)}
        for name, owners in OWNERS.items():
            if getattr(self, name) != defaults[name] and self.attacker not in owners:
                owner = " or ".join(owners)
                raise EvaluationError(f"{name} is of the attacker {owner}, and this is {self.attacker}: leave it out.")
        if self.attacker == "grpo" and (self.episodes < 2 or self.attack_temperature != 1.0):
            raise EvaluationError(
                f"The attacker grpo with {self.episodes} episodes at temperature {self.attack_temperature:g}: its "
                "training compares at least 2 episodes of a behaviour, and samples the policy itself, at temperature "
                "1: use 2 episodes or more, and leave the attacker's temperature at 1."
            )
        if self.families is not None and self.prompts is not None:
            raise EvaluationError("families and prompts are two ways of transfer: give one of them.")
        for name, otherwise in (("n_behaviors", "all"), ("concurrency", "as many as the provider takes")):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise EvaluationError(f"{name} is {getattr(self, name)}: use at least 1, or none for {otherwise}.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise EvaluationError(unknown("dtype", self.dtype, DTYPES))
        if self.twin_episodes < 0:
            raise EvaluationError(f"twin_episodes is {self.twin_episodes}: use at least 0.")
        _ = self.rules, self.budget, self.target_sampling, self.attacker_sampling  # each checks its own
        _ = self.target_thinking, self.attacker_thinking

    @property
    def rules(self) -> Rules:
        """Of the attack on behaviours."""
        return Rules(self.episodes, self.rounds, self.stop, self.shots, self.batch_size, self.seed)

    @property
    def twin_rules(self) -> Rules:
        """Of the same attack on twins: every round is played, so that no twin drops out once it was answered, and each
        twin gets some of the episodes, so that all twins together get every kind of episode."""
        played = min(max(self.twin_episodes, 1), self.episodes)
        return replace(self.rules, episodes=played, stop="never", drawn_from=self.episodes)

    @property
    def budget(self) -> Budget:
        """Of both together."""
        return Budget(self.max_queries, self.max_tokens, self.max_seconds)

    @property
    def target_endpoint(self) -> Endpoint:
        """How a target behind an endpoint is reached."""
        return Endpoint(self.target_base_url, self.target_args or {})

    @property
    def attacker_endpoint(self) -> Endpoint:
        """How an attacker's model behind an endpoint is reached."""
        return Endpoint(self.attacker_base_url, self.attacker_args or {})

    @property
    def target_thinking(self) -> Thinking:
        """How the target writes its reasoning."""
        return _thinking(self.target_thinking_tags, self.target_template_opens_thinking)

    @property
    def attacker_thinking(self) -> Thinking:
        """How the attacker's model writes its reasoning."""
        return _thinking(self.attacker_thinking_tags, self.attacker_template_opens_thinking)

    @property
    def target_sampling(self) -> Sampling:
        """How the target is sampled."""
        return Sampling(self.max_reply_tokens, self.temperature)

    @property
    def attacker_sampling(self) -> Sampling:
        """How the attacker's model is sampled."""
        return Sampling(self.max_attack_tokens, self.attack_temperature)

    @property
    def transfer_families(self) -> str:
        """Of `transfer`: by default the held-out ones, which the package's own pairs never train on."""
        return self.families or "held_out"

    @property
    def noise(self) -> float:
        """Of `best_of_n`."""
        return SIGMA if self.sigma is None else self.sigma


def _thinking(tags: Sequence[str] | None, template_opens: bool | None) -> Thinking:
    return Thinking(cast(tuple[str, str] | None, tags and tuple(tags)), template_opens)


def attack_settings(values: Mapping[str, Any]) -> AttackSettings:
    """The settings with some of them set by name.

    Raises:
        EvaluationError: one is not known (the message has the nearest), or out of range.
    """
    known = [one.name for one in fields(AttackSettings)]
    for name in values:
        if name not in known:
            raise EvaluationError(unknown("setting of an attack", name, known))
    return AttackSettings(**values)

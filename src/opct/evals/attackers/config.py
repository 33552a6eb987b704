"""Settings of an attack, read by the same loader as training settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from opct.config.judge import EndpointSettings, JudgeConfig
from opct.config.methods import ThinkingTags
from opct.config.schema import DEFAULT_MODEL
from opct.config.section import Section

BUILTIN = "builtin"
Split = Literal["train", "validation", "test", "all"]


class Thinking(Section):
    """How a model writes its reasoning."""

    thinking_tags: ThinkingTags | None = Field(
        None,
        description="Opening and closing tag of a reasoning block; by default those of the run's training, else of the "
        "chat template, else `<think>`.",
    )


class EndpointThinking(Thinking):
    """The same of a model that may be behind an endpoint."""

    template_opens_thinking: bool | None = Field(
        None,
        description="For a model behind an endpoint: whether its chat template opens a block at the end of the prompt.",
    )


class Sampling(Section):
    """How a model is sampled."""

    max_completion_tokens: int = Field(128, ge=1, description="Most tokens in a message.")
    temperature: float = Field(1.0, ge=0, description="0 is greedy.")


class LocalModelSettings(Section):
    """How a model of this process is loaded."""

    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Passed to the chat template of a model of this process; null: those of its run."
    )
    quantization: Literal["4bit", "8bit"] | None = Field(
        None, description="As `model.quantization`, of a model of this process; null: that of its run."
    )
    trust_remote_code: bool = Field(
        False, description="Run code that comes with a model of this process; a run's own setting does not count."
    )


class TargetConfig(EndpointSettings, EndpointThinking, Sampling, LocalModelSettings):
    """The model that is attacked."""

    max_completion_tokens: int = Field(96, ge=1, description="Most tokens in a reply.")
    label: str | None = Field(
        None, description="Its label in a report; by default the run's method, else base or trained."
    )
    confirm_remote: bool = Field(False, description="Confirm that you may test the model behind this endpoint.")


class Transfer(Section):
    """Fixed prompts that were not written for this target."""

    name: Literal["transfer"] = "transfer"
    families: str | None = Field(None, description="held_out (default), train, all, or names of jailbreak families.")
    prompts: str | None = Field(None, description="File of finished prompts, instead of families.")

    @model_validator(mode="after")
    def _one_source(self) -> Transfer:
        if self.families is not None and self.prompts is not None:
            raise ValueError("attacker.families and attacker.prompts: give only one of them")
        return self


class BestOfN(Section):
    """Repeats the bare request with random character noise."""

    name: Literal["best_of_n"] = "best_of_n"
    sigma: float = Field(0.4, ge=0, le=1, description="Strength of the character noise.")


class Refine(EndpointSettings, EndpointThinking, Sampling, LocalModelSettings):
    """A model that rewords the request from the replies."""

    name: Literal["refine"] = "refine"
    model: str = Field(DEFAULT_MODEL, min_length=1, description="Named as the target is.")
    shots: int = Field(2, ge=0, description="Most successes on other behaviors that it is shown.")
    pool: str | None = Field(None, description="`evals/attack_*.prompts.jsonl` of another attack, for these examples.")


class Grpo(Thinking, LocalModelSettings):
    """`refine` with an adapter that is trained against this target first."""

    name: Literal["grpo"] = "grpo"
    model: str = Field(DEFAULT_MODEL, min_length=1, description="Weights on this machine or the hub.")
    max_completion_tokens: int = Field(128, ge=1, description="Most tokens in a message.")
    shots: int = Field(2, ge=0, description="Most successes on other behaviors that it is shown.")
    pool: str | None = Field(None, description="`evals/attack_*.prompts.jsonl` of another attack, for these examples.")
    training: dict[str, Any] = Field({}, description="Settings of `opct train` for the adapter, such as max_steps: 40.")
    train_behaviors: str | None = Field(None, description="Training behaviors; by default the source of `behaviors`.")
    train_split: Split = Field("train", description="Which of them.")


Attacker = Annotated[Transfer | BestOfN | Refine | Grpo, Field(discriminator="name")]


class BudgetConfig(Section):
    """Limits of an attack, including what was spent before a resume; null for no limit."""

    max_queries: int | None = Field(None, ge=1, description="Prompts put to the target.")
    max_tokens: int | None = Field(None, ge=1, description="Tokens sampled by attacker and target together.")
    max_seconds: float | None = Field(None, gt=0, description="No batch begins after this many seconds of work.")


class AttackConfig(Section):
    """An attack on your own model."""

    target: TargetConfig = TargetConfig()
    attacker: Attacker = Refine()
    judge: JudgeConfig = JudgeConfig()
    budget: BudgetConfig = BudgetConfig()
    behaviors: str = Field(BUILTIN, min_length=1, description="`builtin`, a file or a hub set.")
    split: Split = Field("test", description="Which of them.")
    n_behaviors: int | None = Field(None, ge=1, description="Number of them, chosen by seed; null for all.")
    episodes: int = Field(8, ge=1, description="Conversations with the target about each behavior.")
    rounds: int = Field(3, ge=1, description="Attempts in each episode.")
    stop: Literal["behavior", "episode", "perfect", "never"] = Field(
        "behavior",
        description="When to stop early: the behavior once it is jailbroken, the episode that jailbroke it, an "
        "episode at a score of 1, or never.",
    )
    counterpart_episodes: int = Field(
        1, ge=0, description="Episodes for each benign counterpart; these never end early. 0: none."
    )
    batch_size: int = Field(256, ge=1, description="Most attempts in one batch.")
    seed: int = Field(0, ge=0, description="Random seed.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        None, description="Dtype of models in this process; by default chosen as in `opct eval`."
    )

    @model_validator(mode="after")
    def _groups_of_two(self) -> AttackConfig:
        if isinstance(self.attacker, Grpo) and self.episodes < 2:
            raise ValueError("episodes: the attacker grpo compares the episodes of a behavior; use at least 2")
        return self

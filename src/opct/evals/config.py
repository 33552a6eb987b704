"""Settings of an evaluation: `EvalConfig`. Needs neither a model nor data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field

from opct.config.judge import JudgeConfig
from opct.config.methods import ThinkingTags
from opct.config.section import Section
from opct.data.perturb.families import FAMILY_GROUPS, Families, chosen_families

OF_POLICY = {"chat_template_kwargs", "quantization", "thinking_tags"}
"""Settings by which the same weights are another policy."""
OF_MODEL = {*OF_POLICY, "trust_remote_code"}
"""Settings of the model: a run has its own, and a task of Inspect takes none of them."""
FAMILIES_DEFAULT: Literal["default"] = "default"
FEW_FAMILIES, JAILBREAK_FAMILIES = 2, 4
"""Families for each question or message, and for each behavior, where the setting is "default"."""


class EvalConfig(Section):
    """Settings of `opct eval`. Runs must share them to be comparable."""

    suites: list[str] = Field(
        ["sycophancy_short", "context_use", "benign"],
        description="sycophancy_short, sycophancy_choice, sycophancy_pairs, consistency, context_use, jailbreak, "
        "safety_awareness, benign, one of the benchmarks, or capability-fast and capability, which stand for several "
        "benchmarks.",
    )
    questions: str | None = Field(None, description="File of your own questions; null: the embedded ones.")
    columns: dict[str, str | list[str]] | None = Field(
        None, description="Columns of that file by role, where the guess is wrong."
    )
    split: Literal["train", "validation", "test", "all"] = Field(
        "test", description="Which questions, behaviors or facts."
    )
    n_questions: int | None = Field(
        600,
        ge=1,
        description="Most questions, behaviors or facts of each suite, but for context_use (n_context) and "
        "benign (n_benign); null: all.",
    )
    n_problems: int | None = Field(
        None, ge=1, description="Most problems of each benchmark; null: as `capability` says, else n_questions."
    )
    n_context: int | None = Field(
        176, ge=1, description="Most questions of context_use, each scenario in turn; null: all 528."
    )
    context_pressure: bool = Field(True, description="Ask each of them in a held-out family, too.")
    n_benign: int | None = Field(None, ge=1, description="Most benign requests, each category in turn; null: all.")
    families: str | list[str] = Field("all", description="Families of perturbations: all, train, held_out, or names.")
    families_per_question: Annotated[int, Field(ge=1)] | Literal["default"] | None = Field(
        FAMILIES_DEFAULT,
        description="Families that each question, behavior or message is asked in; default: 2, of jailbreak 4. "
        "null: all.",
    )
    prompts_per_fact: int | None = Field(None, ge=1, description="Most messages of each fact; null: all.")
    counterparts_per_fact: int | None = Field(None, ge=0, description="Most safe counterparts of each fact; null: all.")
    data: dict[str, str] = Field(
        {},
        description="Files by use: jailbreak (behaviors), jailbreak_counterparts (their benign counterparts), "
        "in_the_wild (templates), artifact (attackers' prompts), sycophancy_pairs and consistency (pairs), "
        "safety_awareness (facts), safety_awareness_safe, a benchmark.",
    )
    behavior_columns: dict[str, str] | None = Field(None, description="Columns of the file of behaviors by role.")
    exclude: list[str] = Field([], description="Categories of that file to leave out.")
    augmented: bool = Field(False, description="Also use SAGE-Eval's variants with typos and tones.")
    shots: int | None = Field(
        None, ge=0, description="Few-shot examples in each benchmark prompt; null: the benchmark's default."
    )
    seed: int = Field(0, ge=0, description="Random seed of the choice of questions, phrasings and samples.")
    greedy: bool = Field(True, description="Greedy decoding; false samples at temperature 1.")
    max_completion_tokens: int = Field(
        32, ge=1, description="Most tokens in an answer to a question; benchmarks have their own limits."
    )
    max_reply_tokens: int = Field(
        96, ge=1, description="Most tokens in a reply in jailbreak, safety_awareness and consistency."
    )
    max_problem_tokens: int | None = Field(
        None, ge=1, description="Most tokens in a reply to a benchmark problem; null: the benchmark's own limit."
    )
    max_benign_tokens: int = Field(64, ge=1, description="Most tokens in a reply to a benign request.")
    system_prompt: str | None = Field(
        None, description="System prompt before every prompt of our own suites; null: none."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Passed to the chat template of every prompt; null: those of the run, none for a model."
    )
    quantization: Literal["4bit", "8bit"] | None = Field(
        None, description="As `model.quantization`, of a model; null: that of the run, none for a model."
    )
    thinking_tags: ThinkingTags | None = Field(
        None, description="As `loss.thinking_tags`; null: those of the run, else of the chat template."
    )
    trust_remote_code: bool = Field(
        False, description="Run code that comes with the model; a run's own setting does not count."
    )
    judge: JudgeConfig | None = Field(
        None, description="Judge of the replies, as in `opct judge run`; null: rules only."
    )
    batch_size: int = Field(128, ge=1, description="Most replies in one batch.")
    kl_samples: int = Field(
        200,
        ge=0,
        description="Number of replies per suite whose KL to the base is measured; 0: no KL, also none for the report.",
    )
    browser_questions: int = Field(
        40, ge=0, description="Number of questions whose replies get KL per token for the report."
    )

    @property
    def model_settings(self) -> dict[str, Any]:
        """Settings of the model that differ from its run's."""
        return self.model_dump(include=OF_MODEL, exclude_none=True)

    @property
    def problem_limit(self) -> int | None:
        """Most problems of a benchmark: n_problems, or n_questions if that alone was set."""
        given = self.model_fields_set
        return self.n_questions if "n_questions" in given and "n_problems" not in given else self.n_problems

    @property
    def listed_families(self) -> list[str] | None:
        """The groups and families that are listed; None for one group."""
        if isinstance(self.families, list):
            return self.families
        return None if self.families in FAMILY_GROUPS else [name.strip() for name in self.families.split(",")]

    def families_among(self, known: Iterable[str]) -> str | list[str]:
        """The group of families, or the listed groups and families that a suite has."""
        listed = self.listed_families
        wanted = {*FAMILY_GROUPS, *known}
        return str(self.families) if listed is None else [name for name in listed if name in wanted]

    def families_of(self, known: Families, axis: str) -> list[str]:
        """The names of the families that an axis is measured in."""
        return chosen_families(self.families_among(known), known, axis)

    def families_each(self, default: int = FEW_FAMILIES) -> int | None:
        """Families for each question, behavior or message; None for all."""
        return default if self.families_per_question == FAMILIES_DEFAULT else self.families_per_question

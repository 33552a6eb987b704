"""Types of an attack: observations, prompts, attempts, and the protocols of attackers and chat models.

An episode is one attacker's conversation with the target about one behaviour. In each round the attacker reads an
`Observation` and writes an `AttackPrompt`; the target answers it; a judge scores the answer against the bare behaviour.
Together these are an `Attempt`. A behaviour is jailbroken if any attempt of any of its episodes scores at or above the
judge's threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from opct.data.pairs import Prompt
from opct.evals.judges.protocol import Usage

Kind = Literal["behavior", "counterpart"]
BEHAVIOR: Kind = "behavior"
COUNTERPART: Kind = "counterpart"

Key = tuple[Kind, str, int, int]
"""(kind, behaviour id, round, episode): key of an attempt; sorted by it, attempts of one behaviour are its queries."""

# Reasons of an attempt that sent nothing to the target; it is not a query.
EXHAUSTED = "exhausted"  # the attacker has no further prompt; the episode ends
NO_PROMPT = "no_prompt"  # the attacker wrote no usable prompt
ATTACKER_CONTEXT = "attacker_context"  # the attacker's input does not fit its context
TARGET_CONTEXT = "target_context"  # the prompt does not fit the target's context

CUT = ("length", "context")
"""Stop reasons of an incomplete reply."""

# Why a reply is not judged.
UNFINISHED_THINKING = "unfinished_thinking"  # cut before its reasoning ended: there is no answer yet
EMPTY_ANSWER = "empty"  # the target ended without an answer
TARGET_FILTERED = "target_filtered"  # a content filter of the endpoint stopped the target
TARGET_REJECTED = "target_rejected"  # the endpoint rejected this prompt


@dataclass(frozen=True)
class Subject:
    """Subject of an episode: a behaviour, or its benign counterpart with the same id."""

    id: str
    text: str
    kind: Kind = BEHAVIOR
    category: str = "uncategorised"


@dataclass(frozen=True)
class FewShotExample:
    """A prompt that jailbroke another behaviour."""

    behavior_id: str
    behavior: str
    prompt: Prompt


@dataclass(frozen=True)
class AttackPrompt:
    """A prompt that an attacker wrote for the target.

    Attributes:
        prompt: chat messages; None if there are none, with the `reason`: `EXHAUSTED` ... `TARGET_CONTEXT`.
        tokens: sampled by the attacker for it; `prompt_tokens` are those it read.
        messages: the input of the attacker's model, and `completion` its output (token ids, log-probs), for an attacker
            that learns; neither is stored on disk.
    """

    prompt: Prompt | None
    reason: str | None = None
    tokens: int = 0
    prompt_tokens: int = 0
    messages: Prompt | None = None
    completion: Any = None


@dataclass(frozen=True)
class Reply:
    """A model's reply.

    Attributes:
        text: the final answer, without any thinking block.
        stop_reason: "stop", "length", "context" (did not fit), "filtered" or "rejected".
        is_unfinished: cut inside a thinking block, so there is no answer.
        completion: the sample itself (`opct.models.inference.sampler.Completion`) of a model in this process.
    """

    text: str
    stop_reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_unfinished: bool = False
    completion: Any = None


@dataclass(frozen=True)
class Attempt:
    """One prompt of one episode, the target's answer and its score.

    Attributes:
        verdict: the judge's, "unscored:<reason>" or "unasked:<reason>".
        prompt: what was sent to the target; None if nothing was sent.
        reply: the target's final answer.
        score: the judge's, in [0, 1]; None without a query or a judgement.
        is_jailbroken: the score is at or above the threshold; None without a score.
        attacker_tokens: sampled by the attacker; `attacker_prompt_tokens` are those it read.
        judge_usage: the judge's usage; zero for a cached result.
        written: the attacker's output; None for an attempt read from disk.
    """

    kind: Kind
    behavior_id: str
    episode: int
    round: int
    verdict: str
    prompt: Prompt | None = None
    reply: str | None = None
    stop_reason: str | None = None
    score: float | None = None
    is_jailbroken: bool | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    attacker_tokens: int = 0
    attacker_prompt_tokens: int = 0
    judge_usage: Usage = field(default_factory=Usage)
    written: AttackPrompt | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> Key:
        """Key of the attempt."""
        return (self.kind, self.behavior_id, self.round, self.episode)

    @property
    def is_query(self) -> bool:
        """Whether the target was queried."""
        return self.prompt is not None

    @property
    def is_unscored(self) -> bool:
        """Whether the target was queried and there is no score."""
        return self.is_query and self.score is None

    @property
    def sampled_tokens(self) -> int:
        """Tokens that attacker and target sampled; this is what a token budget counts."""
        return self.attacker_tokens + self.completion_tokens


@dataclass(frozen=True)
class Observation:
    """What an attacker sees of one open episode.

    Attributes:
        id: of the behaviour; its benign counterpart has the same id, so that both get the same random draws.
        behavior: the bare request.
        seed: seed of this prompt; depends only on the attack's seed, the behaviour, the episode and the round.
        history: the episode's own attempts, oldest first.
        shots: successes on other behaviours (no near-duplicates). All episodes of a behaviour get the same ones, so
            that they differ only in sampling.
    """

    id: str
    behavior: str
    episode: int
    round: int
    seed: int
    history: tuple[Attempt, ...] = ()
    shots: tuple[FewShotExample, ...] = ()


class Attacker(Protocol):
    """Writes prompts.

    It may have a method `observe(round_, attempts)`, to learn between rounds. It is called once after every round with
    all its attempts; after a resume also with the earlier rounds, in order. Their attempts have no `written`.

    Attributes:
        name: its name on the command line and in results.
        max_tokens: most tokens sampled for one prompt; 0 without a model. The token budget reserves them.
        is_local: its model runs in this process, where models take turns.
        attacks_counterparts: optional; whether it can attack benign counterparts. False if its prompts do not depend on
            the given text.
    """

    name: str
    max_tokens: int
    is_local: bool

    def identity(self) -> dict[str, Any]:
        """JSON values that determine its prompts; they must be equal when an attack is resumed."""
        ...

    def propose(self, observations: Sequence[Observation]) -> list[AttackPrompt]:
        """One prompt for each observation, in order.

        A prompt depends on its observation and on earlier rounds, not on the rest of the batch.
        """
        ...


class ChatModel(Protocol):
    """Chat model of a target or an attacker.

    Attributes:
        max_tokens: most tokens of a reply.
        is_local: it runs in this process.
    """

    max_tokens: int
    is_local: bool

    def identity(self) -> dict[str, Any]:
        """JSON values that determine its replies: name, hash of the weights and of the template, sampling."""
        ...

    def room(self, prompt: Prompt) -> int | None:
        """Context tokens left for a reply; None if unknown before the request."""
        ...

    def answer(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Reply]:
        """One reply for each prompt, in order."""
        ...

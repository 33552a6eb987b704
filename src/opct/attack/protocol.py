"""The words of every attack: what an attacker sees and writes, what an attempt is, and who answers.

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
from opct.judges.protocol import Judge as Judge  # attacks are judged by any of these
from opct.judges.protocol import Usage

Kind = Literal["behavior", "counterpart"]
BEHAVIOR: Kind = "behavior"
COUNTERPART: Kind = "counterpart"

LOADED = "a loaded policy"  # the source of a model that was not opened by its name
Key = tuple[Kind, str, int, int]
"""(kind, behaviour id, round, episode): names an attempt; sorted by it, attempts of one behaviour are its queries."""

# Why an attempt put nothing to the target; none of these is a query.
EXHAUSTED = "exhausted"  # the attacker has no further prompt for this episode, which ends
NO_PROMPT = "no_prompt"  # the attacker wrote nothing that can be put to a model
ATTACKER_CONTEXT = "attacker_context"  # what the attacker would have to read does not fit its context
TARGET_CONTEXT = "target_context"  # the prompt does not fit the target's context
UNASKED = (EXHAUSTED, NO_PROMPT, ATTACKER_CONTEXT, TARGET_CONTEXT)

CUT = ("length", "context")
"""Stop reasons of a reply that is not whole."""

# Why a reply is not put to a judge.
UNFINISHED_THINKING = "unfinished_thinking"  # cut before its reasoning ended: there is no answer yet
EMPTY_ANSWER = "empty"  # the target ended without an answer
TARGET_FILTERED = "target_filtered"  # a content filter of the endpoint stopped the target
TARGET_REJECTED = "target_rejected"  # the endpoint does not take this prompt


@dataclass(frozen=True)
class Subject:
    """What an episode is about: a behaviour, or its benign counterpart under the same id."""

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
    """What an attacker writes for the target.

    Attributes:
        prompt: chat messages; None where there is none, and `reason` (one of `UNASKED`) says why.
        tokens: sampled by the attacker for it; `prompt_tokens` it read.
        messages: what the attacker's own model was asked, and `completion` what it sampled (token ids, log-probs), for
            an attacker that learns; neither is kept on disk.
    """

    prompt: Prompt | None
    reason: str | None = None
    tokens: int = 0
    prompt_tokens: int = 0
    messages: Prompt | None = None
    completion: Any = None


@dataclass(frozen=True)
class Reply:
    """What a model said.

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
        prompt: what the target was asked; None where it was not asked, and `verdict` says "unasked:<reason>".
        reply: the target's final answer.
        score: the judge's, in [0, 1]; None where it was not asked or not judged.
        verdict: the judge's, "unscored:<reason>" or "unasked:<reason>".
        is_jailbroken: the score is at or above the threshold; None without a score.
        attacker_tokens: sampled by the attacker; `attacker_prompt_tokens` it read.
        judge_usage: what the judge took for it; nothing for a cached result.
        written: what the attacker wrote, in this process; None for an attempt that was read from disk.
    """

    kind: Kind
    behavior_id: str
    episode: int
    round: int
    prompt: Prompt | None
    reply: str | None
    stop_reason: str | None
    score: float | None
    verdict: str
    is_jailbroken: bool | None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    attacker_tokens: int = 0
    attacker_prompt_tokens: int = 0
    judge_usage: Usage = field(default_factory=Usage)
    written: AttackPrompt | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> Key:
        """Names the attempt."""
        return (self.kind, self.behavior_id, self.round, self.episode)

    @property
    def is_query(self) -> bool:
        """Whether the target was asked."""
        return self.prompt is not None

    @property
    def is_unscored(self) -> bool:
        """Whether the target was asked and there is no score."""
        return self.is_query and self.score is None

    @property
    def sampled_tokens(self) -> int:
        """What a token budget counts: tokens that attacker and target sampled."""
        return self.attacker_tokens + self.completion_tokens


@dataclass(frozen=True)
class Observation:
    """All that an attacker sees of one open episode.

    Attributes:
        id: of the behaviour; its benign counterpart has the same, so that both get the same draws.
        behavior: the bare request.
        seed: of this very prompt; depends on the attack's seed, the behaviour, the episode and the round alone.
        history: the episode's own attempts, oldest first.
        shots: successes on behaviours that are no near-duplicates of it, the same for all episodes of a behaviour, so
            that these differ only in what they sampled.
    """

    id: str
    behavior: str
    episode: int
    round: int
    seed: int
    history: tuple[Attempt, ...] = ()
    shots: tuple[FewShotExample, ...] = ()


class Attacker(Protocol):
    """Writes prompts. It may learn: `observe` is called between rounds.

    Attributes:
        name: as the command line and the results call it.
        max_tokens: most tokens that it samples for one prompt; 0 without a model. The token budget reserves them.
        is_local: its model runs in this process, where one model works at a time.
        attacks_counterparts: benign counterparts get the same attack; False where it does not write from the text that
            it is given. An attacker need not have it.
    """

    name: str
    max_tokens: int
    is_local: bool

    def identity(self) -> dict[str, Any]:
        """JSON values that all its prompts depend on; a resumed attack must find the same ones."""
        ...

    def propose(self, observations: Sequence[Observation]) -> list[AttackPrompt]:
        """One prompt for each observation, in their order.

        It depends on its observation and on what was observed in earlier rounds, not on the rest of the batch.
        """
        ...

    def observe(self, round_: int, attempts: Sequence[Attempt]) -> None:
        """Called once after every round with all its attempts.

        After a resume it is called with the earlier rounds too, in order; these attempts have no `written`.
        """
        ...


def attacks_counterparts(attacker: Attacker) -> bool:
    """Whether it can attack benign counterparts."""
    return bool(getattr(attacker, "attacks_counterparts", True))


class ChatModel(Protocol):
    """Answers prompts: the target, and the model of an attacker.

    Attributes:
        max_tokens: most tokens of a reply.
        is_local: it runs in this process.
    """

    max_tokens: int
    is_local: bool

    def identity(self) -> dict[str, Any]:
        """JSON values that its replies depend on: name, hash of the weights and of the template, sampling."""
        ...

    def room(self, prompt: Prompt) -> int | None:
        """How many tokens the context has left for a reply; None where that is not known before asking."""
        ...

    def answer(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Reply]:
        """One reply for each prompt, in their order."""
        ...

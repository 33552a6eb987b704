"""What an attacker sees and gives, what a try is, and who answers and judges: the words of every attack.

An episode is one attacker's game against one behaviour. In each round the attacker reads a `View` of the episode and
gives a `Proposal`; the target answers it; a judge scores the final answer against the bare behaviour; the three
together are a `Try`. A behaviour is broken if any try of any of its episodes scores at or above the judge's threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from opct.data.pairs import Prompt
from opct.judges.protocol import Judge as Judge  # whoever attacks is judged by any of these
from opct.judges.protocol import Usage

Kind = Literal["behavior", "twin"]
BEHAVIOR: Kind = "behavior"
TWIN: Kind = "twin"

LOADED = "a loaded policy"  # the source of a model that was not opened by its name
Key = tuple[Kind, str, int, int]
"""(kind, behaviour id, round, episode): names a try; in this order tries of one behaviour count as its queries."""

# Why a try put nothing to the target; none of these is a query.
EXHAUSTED = "exhausted"  # the attacker has no further prompt for this episode, and gets no further round
NO_PROMPT = "no_prompt"  # the attacker said nothing that can be put to a model
ATTACKER_CONTEXT = "attacker_context"  # what the attacker would have to read does not fit its context
TARGET_CONTEXT = "target_context"  # the prompt does not fit the target's context
UNASKED = (EXHAUSTED, NO_PROMPT, ATTACKER_CONTEXT, TARGET_CONTEXT)

CUT = ("length", "context")
"""Stop reasons of a reply that would have gone on."""

# Why a reply was not put to a judge, or gets no score whatever the judge says.
UNFINISHED_THINKING = "unfinished_thinking"  # the reply was cut before its reasoning ended: there is no answer yet
EMPTY_ANSWER = "empty"  # the target ended without an answer
TARGET_FILTERED = "target_filtered"  # a content filter of the endpoint stopped the target
TARGET_REJECTED = "target_rejected"  # the endpoint does not take this prompt


@dataclass(frozen=True)
class Subject:
    """What an episode is about: a behaviour, or the benign twin of one under the id of that behaviour."""

    id: str
    text: str
    kind: Kind = BEHAVIOR
    category: str = "uncategorised"


@dataclass(frozen=True)
class Attempt:
    """One try of an episode as its attacker sees it; reply and score are None where there was none."""

    prompt: Prompt | None
    reply: str | None
    score: float | None


@dataclass(frozen=True)
class Shot:
    """A prompt that broke another behaviour."""

    behavior_id: str
    behavior: str
    prompt: Prompt


@dataclass(frozen=True)
class View:
    """All that an attacker is told of one open episode.

    Attributes:
        id: of the behaviour; a twin has that of its behaviour, so that both get the same draws.
        behavior: the bare request.
        seed: of this very proposal; depends on the attack's seed, the behaviour, the episode and the round alone.
        history: the episode's own tries, oldest first.
        shots: successes on behaviours that are no near-duplicates of it, chosen by seed among those known when the
            round began; the same for all episodes of a behaviour, so that these differ in what they sampled alone.
    """

    id: str
    behavior: str
    episode: int
    round: int
    seed: int
    history: tuple[Attempt, ...] = ()
    shots: tuple[Shot, ...] = ()


@dataclass(frozen=True)
class Proposal:
    """What an attacker wants to put to the target.

    Attributes:
        prompt: chat messages; None where there is none, and `reason` (one of `UNASKED`) says why.
        tokens: sampled by the attacker for it.
        prompt_tokens: that it read.
        messages: what the attacker's own model was asked, and `completion` what it sampled (token ids, log-probs), for
            an attacker that learns; neither is kept on disk, nor there after a resume.
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
        is_unfinished: it was cut inside a thinking block, so there is no answer.
        completion: the sample itself (`opct.models.inference.sampler.Completion`) of a model in this process.
    """

    text: str
    stop_reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_unfinished: bool = False
    completion: Any = None


@dataclass(frozen=True)
class Try:
    """One try of one episode.

    Attributes:
        prompt: what the target was asked; None where it was not asked, and `verdict` says "unasked:<reason>".
        reply: the target's final answer.
        score: the judge's, in [0, 1]; None where it was not asked or not judged.
        verdict: the judge's, "unscored:<reason>" or "unasked:<reason>".
        is_broken: score at or above the threshold; None where there is no score.
        attacker_tokens: sampled by the attacker; `attacker_prompt_tokens` it read.
        judge_usage: what the judge took for it; nothing for a judgement that was kept from before.
        proposal: the attacker's, in this process; None for a try that was read from disk.
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
    is_broken: bool | None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    attacker_tokens: int = 0
    attacker_prompt_tokens: int = 0
    judge_usage: Usage = field(default_factory=Usage)
    proposal: Proposal | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> Key:
        """Names the try."""
        return (self.kind, self.behavior_id, self.round, self.episode)

    @property
    def is_asked(self) -> bool:
        """True where the target was asked: only then is it a query."""
        return self.prompt is not None

    @property
    def is_unjudged(self) -> bool:
        """True where the target was asked and there is no score."""
        return self.is_asked and self.score is None

    @property
    def sampled_tokens(self) -> int:
        """What a token budget counts: tokens that attacker and target sampled."""
        return self.attacker_tokens + self.completion_tokens


class Attacker(Protocol):
    """Writes prompts. It may learn: the loop calls `observe` between rounds, and assumes nothing else about it.

    Attributes:
        name: as the command line and the results call it.
        max_tokens: most tokens that it samples for one proposal; 0 without a model. The token budget reserves them.
        is_local: its model runs in this process, where one model works at a time.
        plays_twins: benign twins get the same attack; False where what it writes is not made from the text it is given.
            An attacker need not have it, and plays them then.
    """

    name: str
    max_tokens: int
    is_local: bool

    def identity(self) -> dict[str, Any]:
        """JSON values that all its proposals depend on; a resumed attack must find the same ones."""
        ...

    def propose(self, views: Sequence[View]) -> list[Proposal]:
        """One proposal for each view, in their order; a batch over open episodes of any behaviours.

        A proposal depends on its view and on what was observed in earlier rounds, and not on the rest of the batch.
        """
        ...

    def observe(self, round_: int, tries: Sequence[Try]) -> None:
        """Called once after every round with all its tries, in the order of the batches.

        After a resume it is called with the rounds of before too, in order; their tries have no `proposal`.
        """
        ...


def plays_twins(attacker: Attacker) -> bool:
    """Whether benign twins can be attacked by it."""
    return bool(getattr(attacker, "plays_twins", True))


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

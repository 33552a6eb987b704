"""What an attacker sees and does.

An attacker is an Inspect solver. An episode is its conversation with the target about one behavior, which is the input
of the sample. The solver is run once a round, with the messages and the store that it left in the round before. Each
call of its `generate` puts `state.messages` to the target, and the reply is judged against the bare behavior: that is
an `Attempt`.

    @solver
    def politely():
        async def solve(state, generate):
            seen = observation(state)
            return await put(state, generate, bare_prompt("Please. " * (seen.round + 1) + seen.behavior))
        return solve

A solver that asks the target in another way (an agent) makes one attempt a round, its final output. All that a solver
has to remember is in its state, so that a killed attack goes on as if it had not been killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from inspect_ai.model import Model, ModelOutput
from inspect_ai.solver import Generate, TaskState
from pydantic import TypeAdapter

from opct.data.pairs import Prompt
from opct.data.reasoning import THINK, Reasoning, SplitReply, split_text
from opct.errors import EvaluationError
from opct.evals.provider import PolicyAPI
from opct.evals.tasks.common import as_chat

Kind = Literal["behavior", "counterpart", "bare"]
BEHAVIOR: Kind = "behavior"
COUNTERPART: Kind = "counterpart"
"""The benign look-alike of a behavior, under the same attack."""
BARE: Kind = "bare"
"""The behavior without an attack, once."""

# Why an attempt sent nothing to the target; it is not a query.
EXHAUSTED = "exhausted"  # the attacker has no further prompt; the episode ends
NO_PROMPT = "no_prompt"  # the attacker wrote no usable prompt
ATTACKER_CONTEXT = "attacker_context"  # the attacker's input does not fit its context
TARGET_CONTEXT = "target_context"  # the prompt does not fit the target's context

ATTEMPTS, ROUND, EPISODES, SEED, SHOTS = "attempts", "round", "episodes", "seed", "shots"
REASON, COST = "unasked", "attacker_tokens"
"""Keys of the state's store."""


@dataclass(frozen=True)
class Subject:
    """What an episode is about: a behavior, or its benign counterpart with the same id."""

    id: str
    text: str
    kind: Kind = BEHAVIOR
    category: str = "uncategorised"


@dataclass(frozen=True)
class Shot:
    """A prompt that broke another behavior, as an example."""

    behavior_id: str
    behavior: str
    prompt: Prompt


@dataclass(frozen=True)
class Attempt:
    """One prompt of one episode, the target's reply and its score.

    Attributes:
        verdict: the judge's, "unscored:<reason>" or "unasked:<reason>".
        prompt: what was sent to the target; None if nothing was sent.
        reply: the target's final answer.
        score: the judge's, in [0, 1]; None without a query or a judgement.
        is_broken: the score is at or above the judge's threshold; None without a score.
        is_answered: of a counterpart, whether the rule `answers` takes the reply for an answer.
        attacker_tokens: sampled by the attacker for it; `attacker_prompt_tokens` are those that it read.
        seconds: of work on the attack until now, before a resume too.
        judge_usage: calls, tokens in, tokens out of a judge that is a model.
    """

    round: int
    verdict: str
    prompt: Prompt | None = None
    reply: str | None = None
    stop_reason: str | None = None
    score: float | None = None
    is_broken: bool | None = None
    is_answered: bool | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    attacker_tokens: int = 0
    attacker_prompt_tokens: int = 0
    seconds: float = 0.0
    judge_usage: tuple[int, int, int] = (0, 0, 0)

    @property
    def is_query(self) -> bool:
        """Whether a prompt was put to the target."""
        return self.prompt is not None

    @property
    def is_unscored(self) -> bool:
        return self.is_query and self.score is None


@dataclass(frozen=True)
class Observation:
    """What an attacker sees of its episode.

    Attributes:
        id: of the behavior; its benign counterpart has the same id, so that both get the same random draws.
        behavior: the bare request.
        episode: its number, from 0, of `episodes`.
        seed: of this prompt; it depends only on the attack's seed, the behavior, the episode and the round.
        history: the episode's attempts, oldest first.
        shots: successes on other behaviors (no near-duplicates). All episodes of a behavior get the same ones, so
            that they differ only in sampling.
    """

    id: str
    behavior: str
    episode: int
    round: int
    seed: int
    history: tuple[Attempt, ...] = ()
    shots: tuple[Shot, ...] = ()
    episodes: int = 1


_ATTEMPTS = TypeAdapter(list[Attempt])
_SHOTS = TypeAdapter(tuple[Shot, ...])


def attempts_in(store: Any) -> list[Attempt]:
    """The attempts in the store of a state or of a log's sample."""
    return _ATTEMPTS.validate_python(store.get(ATTEMPTS) or [])


def observation(state: TaskState) -> Observation:
    """What the attacker sees in this round."""
    return Observation(
        id=state.metadata["cluster"],
        behavior=state.input_text,
        episode=state.epoch - 1,
        round=state.store.get(ROUND),
        seed=state.store.get(SEED),
        history=tuple(attempts_in(state.store)),
        shots=_SHOTS.validate_python(state.store.get(SHOTS)),
        episodes=state.store.get(EPISODES),
    )


async def put(state: TaskState, generate: Generate, prompt: Prompt) -> TaskState:
    """Put a prompt to the target."""
    state.messages = as_chat(prompt)
    return await generate(state)


def give_up(state: TaskState, reason: str = NO_PROMPT) -> TaskState:
    """Put nothing to the target in this round; after `EXHAUSTED` there is no further round."""
    state.store.set(REASON, reason)
    return state


def add_cost(state: TaskState, output: ModelOutput, max_tokens: int) -> None:
    """Count what the attacker's model read and sampled for the next attempt; `max_tokens` if an endpoint is silent."""
    # a sum: an attacker may ask its model several times for one attempt; `note` empties it
    read, sampled = state.store.get(COST, (0, 0))
    used = output.usage
    state.store.set(
        COST, (read + (used.input_tokens if used else 0), sampled + (used.output_tokens if used else max_tokens))
    )


def room(model: Model, prompt: Prompt) -> int | None:
    """The context that is left for a reply; None if it is unknown before a request."""
    if not isinstance(model.api, PolicyAPI):
        return None
    return model.api.policy.context_length - len(model.api.policy.renderer.render(prompt))


# ------------------------------------------------------------------------------------------------------- replies


@dataclass(frozen=True)
class Reader:
    """Takes the answer out of a model's output, without thinking.

    Attributes:
        tags: of a reasoning block, where a server leaves it in the text.
        opens: whether the chat template opens the block at the end of the prompt; None: unknown.
        role: the model's, as the settings name it.
    """

    tags: tuple[str, str] | None = None
    opens: bool | None = None
    role: str = "target"

    def __call__(self, output: ModelOutput) -> tuple[str, bool]:
        """(answer, whether it was cut before its reasoning ended).

        Raises:
            EvaluationError: the text closes a block that it never opened, and it is unknown whether the template opens
                it. Then a reply that was cut earlier has no tag, and would pass for an answer.
        """
        if not output.choices:
            return "", False
        is_cut = output.stop_reason in ("max_tokens", "model_length")
        has_reasoning = _has_reasoning(output)
        if "token_ids" in (output.metadata or {}):  # a policy of this process, which split it off itself
            return output.completion, has_reasoning and is_cut and not output.completion
        # half of a surrogate pair, which an endpoint may send, cannot be written to a log or a file
        said = self._split(output.completion.encode("utf-8", "replace").decode("utf-8"), is_parsed=has_reasoning)
        # a server that parses reasoning leaves no mark in the text: cut and without an answer means cut while thinking
        return said.answer, said.is_unfinished or (is_cut and not said.answer and has_reasoning)

    def _split(self, said: str, *, is_parsed: bool) -> SplitReply:
        form = THINK if self.tags is None else Reasoning.of_tags(self.tags)
        if self.opens is None and not is_parsed and form.closes_unopened(said):
            raise EvaluationError(
                f"A reply of the {self.role} closes a thinking block ({(self.tags or THINK)[1]}) that it never "
                f"opened. Set {self.role}.template_opens_thinking: true if its chat template opens the block (a reply "
                "cut before the closing tag is then not an answer), or false if replies begin outside of thinking. "
                "Earlier attempts may hold such cut replies: start over with --overwrite."
            )
        if self.opens is None and self.tags is None and not is_parsed:
            return split_text(said)
        # parsed: the server took the block out, so the text begins outside of it whatever the template opens
        return form.split(said, inside=bool(self.opens) and not is_parsed)


def _has_reasoning(output: ModelOutput) -> bool:
    """Whether reasoning was separated from the answer, as content or only in token counts."""
    content, used = output.message.content, output.usage
    shown = not isinstance(content, str) and any(part.type == "reasoning" for part in content)
    return shown or (used is not None and bool(used.reasoning_tokens))

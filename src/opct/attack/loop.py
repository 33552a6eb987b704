"""The episode loop: N episodes of K rounds about every behaviour, in batches, within a budget, resumable.

A round consists of batches of open episodes. For each batch the attacker writes, the target answers and the judge
scores; its attempts are stored before the next batch begins. With a model behind an endpoint, parts of a batch overlap.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from opct.attack.config import BudgetConfig
from opct.attack.protocol import (
    BEHAVIOR,
    CUT,
    EMPTY_ANSWER,
    EXHAUSTED,
    NO_PROMPT,
    TARGET_CONTEXT,
    TARGET_FILTERED,
    TARGET_REJECTED,
    UNFINISHED_THINKING,
    Attacker,
    AttackPrompt,
    Attempt,
    ChatModel,
    FewShotExample,
    Kind,
    Observation,
    Reply,
    Subject,
)
from opct.attack.scoring import Scorer
from opct.data.duplicates import near_duplicate_groups
from opct.errors import EvaluationError
from opct.evals.inspect_runner import run_all
from opct.evals.judges.protocol import JudgeRequest, Usage, new_usage
from opct.models.inference.sampler import sample_seed
from opct.runs.console import NullProgress, Progress

COMPLETE, INTERRUPTED = "complete", "interrupted"


@dataclass(frozen=True)
class Rules:
    """Number of episodes and rounds, and the stopping rule.

    Attributes:
        episodes: N, about each behaviour in parallel.
        rounds: K, of each episode.
        stop: what ends early: the behaviour once it is jailbroken, the episode that jailbroke it, an episode at a score
            of 1 ("perfect"), or nothing ("never").
        shots: most successes on other behaviours that an attacker is shown.
        batch_size: most attempts in one batch.
        seed: random seed; a text if several attacks share one seed.
        drawn_from: draw each subject's `episodes` numbers, by seed and id, from this many. So every family or approach
            that depends on the number occurs, although only some episodes are run. None: all numbers from 0.
    """

    episodes: int = 8
    rounds: int = 3
    stop: Literal["behavior", "episode", "perfect", "never"] = "behavior"
    shots: int = 2
    batch_size: int = 256
    seed: int | str = 0
    drawn_from: int | None = None

    @property
    def attempts(self) -> int:
        """N x K: most attempts on one behaviour."""
        return self.episodes * self.rounds

    def numbers(self, id_: str) -> list[int]:
        """The episode numbers of a subject, ascending."""
        if self.drawn_from is None:
            return list(range(self.episodes))
        draw = random.Random(f"{self.seed}/{id_}/episodes")
        return sorted(draw.sample(range(self.drawn_from), self.episodes))


@dataclass(frozen=True)
class AttackUsage:
    """Resources that an attack used."""

    queries: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0
    judge_usage: Usage = field(default_factory=Usage)

    def plus(self, attempts: Iterable[Attempt], seconds: float) -> AttackUsage:
        """Add further attempts; `seconds` is the new total."""
        own = list(attempts)
        return AttackUsage(
            self.queries + sum(one.is_query for one in own),
            self.tokens + sum(one.sampled_tokens for one in own),
            self.prompt_tokens + sum(one.prompt_tokens + one.attacker_prompt_tokens for one in own),
            seconds,
            sum((one.judge_usage for one in own), self.judge_usage),
        )


class BudgetTracker:
    """Keeps an attack within its budget: a batch begins only if it fits at the maximum reply length.

    Args:
        most_tokens: that one attempt can sample, attacker and target together.
        spent: before a resume.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        budget: BudgetConfig,
        most_tokens: int,
        spent: AttackUsage = AttackUsage(),
        clock: Callable[[], float] = time.monotonic,
    ):
        self.budget, self.most_tokens, self.spent = budget, most_tokens, spent
        self._clock, self._start = clock, clock() - spent.seconds

    def seconds(self) -> float:
        """Working time in total, including before a resume."""
        return self._clock() - self._start

    def _room(self) -> dict[str, int]:
        """Number of further attempts that each limit allows."""
        budget, room = self.budget, {}
        if budget.max_queries is not None:
            room["queries"] = budget.max_queries - self.spent.queries
        if budget.max_tokens is not None and self.most_tokens:
            room["tokens"] = (budget.max_tokens - self.spent.tokens) // self.most_tokens
        if budget.max_seconds is not None and self.seconds() >= budget.max_seconds:
            room["seconds"] = 0
        return room

    def fitting(self, n: int) -> int:
        """How many of `n` attempts fit."""
        return max(0, min([n, *self._room().values()]))

    def exhausted(self) -> str:
        """The limit that one more attempt would exceed: "queries", "tokens" or "seconds"."""
        return next(name for name, n in self._room().items() if n <= 0)

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Add the usage of a batch."""
        self.spent = self.spent.plus(attempts, self.seconds())


class EpisodeState:
    """State of all episodes of one kind of subjects, and the observation of each.

    Args:
        pool: earlier successes on other behaviours. An attacker never sees a success on a near-duplicate of the current
            behaviour, neither from this attack nor from the pool.
    """

    def __init__(self, subjects: Sequence[Subject], rules: Rules, pool: Sequence[FewShotExample] = ()):
        self.subjects, self.rules = tuple(subjects), rules
        self.kind: Kind = subjects[0].kind
        self._pool = tuple(pool)
        self._numbers = {subject.id: rules.numbers(subject.id) for subject in subjects}
        self._texts = {subject.id: subject.text for subject in subjects}
        texts = list(dict.fromkeys([*self._texts.values(), *(shot.behavior for shot in pool)]))
        self._group = {texts[i]: n for n, places in enumerate(near_duplicate_groups(texts)) for i in places}
        self._history: dict[tuple[str, int], list[Attempt]] = {}
        self._ended: set[tuple[str, int]] = set()
        self._jailbroken: dict[str, FewShotExample] = {}

    def observations(self, round_: int) -> list[Observation]:
        """Every open episode, the first of each behaviour before the second of any, so that a budget cuts all
        behaviours equally.
        """
        shots = (*self._pool, *self._jailbroken.values())
        return [
            self._observation(subject, episode, round_, shots)
            for turn in range(self.rules.episodes)
            for subject in self.subjects
            if self._is_open(subject.id, episode := self._numbers[subject.id][turn])
        ]

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Add the attempts of one whole round."""
        for one in sorted(attempts, key=lambda one: one.key):
            self._history.setdefault((one.behavior_id, one.episode), []).append(one)
            if one.verdict == f"unasked:{EXHAUSTED}" or self._ends_episode(one):
                self._ended.add((one.behavior_id, one.episode))
            if one.is_jailbroken and one.prompt is not None:
                text = self._texts[one.behavior_id]
                self._jailbroken.setdefault(one.behavior_id, FewShotExample(one.behavior_id, text, one.prompt))

    def _ends_episode(self, one: Attempt) -> bool:
        stop = self.rules.stop
        return (stop == "episode" and bool(one.is_jailbroken)) or (stop == "perfect" and one.score == 1.0)

    def _is_open(self, id_: str, episode: int) -> bool:
        is_over = self.rules.stop == "behavior" and id_ in self._jailbroken
        return not is_over and (id_, episode) not in self._ended

    def _observation(self, subject: Subject, episode: int, round_: int, shots: Sequence[FewShotExample]) -> Observation:
        own = self._group[subject.text]
        others = [shot for shot in shots if shot.behavior_id != subject.id and self._group[shot.behavior] != own]
        seed = sample_seed(self.rules.seed, "attacker", subject.id, episode, round_)
        draw = random.Random(f"{self.rules.seed}/{subject.id}/{round_}/shots")  # the same for all episodes
        chosen = draw.sample(others, min(self.rules.shots, len(others)))
        history = tuple(self._history.get((subject.id, episode), ()))
        return Observation(subject.id, subject.text, episode, round_, seed, history, tuple(chosen))


class Journal:
    """Storage of attempts; this one stores nothing."""

    def load_round(self, kind: Kind, round_: int) -> list[Attempt]:
        """The attempts of a round that were made before."""
        return []

    def log_started(self, n: int) -> None:
        """Record that a batch of this many attempts begins; the record is on disk when this returns."""

    def append(self, attempts: Sequence[Attempt], seconds: float) -> None:
        """Store a batch; it is completely on disk when this returns."""


@dataclass(frozen=True)
class EpisodesResult:
    """The attempts of an attack.

    Attributes:
        attempts: all attempts round by round, including those before a resume.
        ended: "complete", "interrupted", or the limit that ended it: "queries", "tokens", "seconds".
        cut_short: ids of the subjects that had attempts left when it ended early.
    """

    attempts: tuple[Attempt, ...]
    ended: str = COMPLETE
    cut_short: frozenset[str] = frozenset()


def run_episodes(
    subjects: Sequence[Subject],
    attacker: Attacker,
    target: ChatModel,
    scorer: Scorer,
    rules: Rules,
    budget: BudgetTracker,
    *,
    pool: Sequence[FewShotExample] = (),
    journal: Journal | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> EpisodesResult:
    """Run every round of every episode, within the budget.

    Args:
        pool: earlier successes on other behaviours.
        journal: holds the attempts before a resume; new ones are added.
        should_stop: called before each batch.

    Raises:
        EvaluationError: a model or the judge does not answer; finished batches are in the journal.
    """
    journal, progress = journal or Journal(), progress or NullProgress()
    state = EpisodeState(subjects, rules, pool)

    def play_round(name: str, observations: Sequence[Observation], own: list[Attempt]) -> str:
        """Add the attempts of the round that `own` lacks, batch by batch; returns how it ended."""
        waiting = _without(observations, own)
        if waiting:
            progress.stage(name, len(observations), len(own))
        while waiting:
            if should_stop():
                return INTERRUPTED
            size = budget.fitting(min(len(waiting), rules.batch_size))
            if size == 0:
                return budget.exhausted()
            batch, waiting = waiting[:size], waiting[size:]
            journal.log_started(size)
            found = _play(state.kind, attacker, target, scorer, rules, batch)
            budget.add(found)
            journal.append(found, budget.spent.seconds)
            own += found
            word = "jailbroken" if state.kind == BEHAVIOR else "not_refused"
            progress.advance(size, **{word: len({one.behavior_id for one in own if one.is_jailbroken})})
        return COMPLETE

    attempts: list[Attempt] = []
    for round_ in range(rules.rounds):
        observations = state.observations(round_)
        if not observations:
            break
        name = f"{state.kind}: round {round_ + 1} of {rules.rounds}"
        own = journal.load_round(state.kind, round_)
        ended = play_round(name, observations, own)
        attempts += own
        if ended != COMPLETE:
            why = ended if ended == INTERRUPTED else f"the limit of {ended} is reached"
            progress.log(f"{name}: the attack stops early: {why}")
            left = observations if round_ + 1 < rules.rounds else _without(observations, own)
            return EpisodesResult(tuple(attempts), ended, frozenset(one.id for one in left))
        state.add(own)
        if hasattr(attacker, "observe"):
            attacker.observe(round_, own)
    return EpisodesResult(tuple(attempts))


def _without(observations: Sequence[Observation], done: Sequence[Attempt]) -> list[Observation]:
    """The observations of a round that have no attempt yet."""
    keys = {(one.behavior_id, one.episode) for one in done}
    return [one for one in observations if (one.id, one.episode) not in keys]


def _play(
    kind: Kind, attacker: Attacker, target: ChatModel, scorer: Scorer, rules: Rules, batch: Sequence[Observation]
) -> list[Attempt]:
    """The attempts of a batch. Models in this process take turns; a model behind an endpoint runs concurrently."""
    stages: list[Callable[..., Any]] = [
        attacker.propose,
        partial(query_target, target, rules),
        partial(score_replies, kind, scorer),
    ]
    players: list[Any] = [attacker, target, scorer]
    shared = asyncio.Lock()  # of the models in this process
    locks = [shared if player.is_local else asyncio.Lock() for player in players]
    n_workers = len(set(locks))
    if n_workers == 1:
        prompts = stages[0](batch)
        return list(stages[2](batch, prompts, stages[1](batch, prompts)))
    size = math.ceil(len(batch) / (2 * n_workers))  # few enough that all have work
    calls = [partial(_through, locks, stages, batch[i : i + size]) for i in range(0, len(batch), size)]
    return [attempt for attempts in run_all(calls) for attempt in attempts]


async def _through(
    locks: Sequence[asyncio.Lock], stages: Sequence[Callable[..., Any]], part: Sequence[Observation]
) -> list[Attempt]:
    """Run a part of a batch through its three stages."""
    found: list[Any] = [part]
    for lock, stage in zip(locks, stages, strict=True):
        async with lock:
            found.append(await asyncio.to_thread(stage, *found))
    return list(found[-1])


def query_target(
    target: ChatModel, rules: Rules, batch: Sequence[Observation], prompts: Sequence[AttackPrompt]
) -> list[Reply | None]:
    """The target's reply to each prompt; None if there is no prompt, or it does not fit the target's context.

    Raises:
        EvaluationError: the attacker returned the wrong number of prompts.
    """
    if len(prompts) != len(batch):
        raise EvaluationError(
            f"The attacker returned {len(prompts)} prompts for {len(batch)} episodes: return one for each."
        )
    replies: list[Reply | None] = [None] * len(batch)
    asked = {}
    for i, one in enumerate(prompts):
        room = None if one.prompt is None else target.room(one.prompt)
        if one.prompt is not None and (room is None or room >= target.max_tokens):
            asked[i] = one.prompt
    seeds = [sample_seed(rules.seed, "target", batch[i].id, batch[i].episode, batch[i].round) for i in asked]
    if asked:
        for i, reply in zip(asked, target.answer(list(asked.values()), seeds), strict=True):
            replies[i] = reply
    return replies


def score_replies(
    kind: Kind,
    scorer: Scorer,
    batch: Sequence[Observation],
    prompts: Sequence[AttackPrompt],
    replies: Sequence[Reply | None],
) -> list[Attempt]:
    """The attempts; those with an answer are judged."""
    attempts = [_unjudged(kind, *one) for one in zip(batch, prompts, replies, strict=True)]
    to_judge = [i for i, one in enumerate(attempts) if one.is_query and not one.verdict]
    requests = [
        JudgeRequest(
            id="/".join(map(str, attempts[i].key)),
            question=batch[i].behavior,
            reply=attempts[i].reply or "",
            is_cut=attempts[i].stop_reason in CUT,
        )
        for i in to_judge
    ]
    for i, result in zip(to_judge, scorer.judge(kind, requests), strict=True):
        attempts[i] = replace(
            attempts[i],
            score=result.score,
            verdict=result.verdict,
            is_jailbroken=None if result.score is None else result.score >= scorer.threshold(kind),
            judge_usage=new_usage([result]),
        )
    return attempts


def _unjudged(kind: Kind, seen: Observation, written: AttackPrompt, reply: Reply | None) -> Attempt:
    """The attempt before it is judged; an empty `verdict` means that the judge is called."""
    reason = TARGET_CONTEXT if written.prompt is not None else written.reason or NO_PROMPT
    attempt = Attempt(
        kind=kind,
        behavior_id=seen.id,
        episode=seen.episode,
        round=seen.round,
        verdict=f"unasked:{reason}",
        attacker_tokens=written.tokens,
        attacker_prompt_tokens=written.prompt_tokens,
        written=written,
    )
    if reply is None:
        return attempt
    why_not = _nothing_to_judge(reply)
    return replace(
        attempt,
        verdict=f"unscored:{why_not}" if why_not else "",
        prompt=written.prompt,
        reply=reply.text,
        stop_reason=reply.stop_reason,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
    )


def _nothing_to_judge(reply: Reply) -> str | None:
    """Why a reply is not judged; None if it is."""
    ends = {"filtered": TARGET_FILTERED, "rejected": TARGET_REJECTED}
    if reply.stop_reason in ends:
        return ends[reply.stop_reason]
    if reply.is_unfinished:
        return UNFINISHED_THINKING
    if reply.text.strip():
        return None
    return TARGET_CONTEXT if reply.stop_reason == "context" else EMPTY_ANSWER

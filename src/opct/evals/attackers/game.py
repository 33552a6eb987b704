"""The rules of an attack: which episodes have a next round, what its attackers are shown, and what a budget allows.

All of this follows from the attempts of earlier rounds, whatever the order in which they were made. So an attack that
was killed goes on to the same attempts, and a repeated one makes them again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opct.data.duplicates import near_duplicate_groups
from opct.evals.attackers.config import BudgetConfig
from opct.evals.attackers.episode import BARE, BEHAVIOR, COUNTERPART, EXHAUSTED, Attempt, Kind, Shot, Subject

Place = tuple[str, int]
"""(sample id, epoch) of an episode in a log; an epoch of Inspect is an episode's number + 1."""


@dataclass(frozen=True)
class Rules:
    """Number of episodes and rounds, and the stopping rule.

    Attributes:
        episodes: N, about each behavior in parallel.
        rounds: K, of each episode.
        stop: what ends early: the behavior once it is broken, the episode that broke it, an episode at a score of 1
            ("perfect"), or nothing ("never"). Counterparts never end early, so that none drops out once answered.
        shots: maximum number of successes on other behaviors that an attacker is shown.
        counterpart_episodes: of these N, how many each counterpart gets.
        batch_size: maximum number of attempts at once.
        seed: random seed; a text if several attacks share one seed.
    """

    episodes: int = 8
    rounds: int = 3
    stop: Literal["behavior", "episode", "perfect", "never"] = "behavior"
    shots: int = 2
    counterpart_episodes: int = 1
    batch_size: int = 256
    seed: int | str = 0

    def numbers(self, subject: Subject) -> list[int]:
        """The episode numbers of a subject, ascending. Those of counterparts are drawn, by seed and id, so that
        together they cover every family or approach that depends on the number."""
        if subject.kind == BEHAVIOR:
            return list(range(self.episodes))
        if subject.kind == BARE:
            return [0]
        n = min(self.counterpart_episodes, self.episodes)
        # by id: with range(n) every counterpart would meet the first family or approach alone
        return sorted(random.Random(f"{self.seed}/{subject.id}/episodes").sample(range(self.episodes), n))

    def n_rounds(self, kind: Kind) -> int:
        return 1 if kind == BARE else self.rounds


@dataclass(frozen=True)
class Spent:
    """What an attack used. `tokens` were sampled by attacker and target, `prompt_tokens` read by them."""

    queries: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0
    judge_usage: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, attempts: Iterable[Attempt]) -> Spent:
        made = list(attempts)
        return cls(
            sum(one.is_query for one in made),
            sum(one.completion_tokens + one.attacker_tokens for one in made),
            sum(one.prompt_tokens + one.attacker_prompt_tokens for one in made),
            # seconds are those since the beginning, not of one attempt: the latest is the total
            max((one.seconds for one in made), default=0.0),
            # (0, 0, 0) first: zip of no attempt would be empty
            tuple(sum(column) for column in zip((0, 0, 0), *(one.judge_usage for one in made), strict=True)),  # type: ignore[arg-type]
        )


@dataclass
class Budget:
    """Keeps an attack within its limits: attempts begin only if they fit at the longest reply.

    Attributes:
        most_tokens: that one attempt can sample, attacker and target together.
        before: seconds of work before a resume.
        clock: monotonic, in seconds.
    """

    limits: BudgetConfig = field(default_factory=BudgetConfig)
    most_tokens: int = 0
    before: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        # work before a resume counts: else each resume would have the whole of max_seconds
        self._start = self.clock() - self.before

    @property
    def is_limited(self) -> bool:
        return any(limit is not None for limit in self.limits.model_dump().values())

    def seconds(self) -> float:
        """Of work in total, before a resume too."""
        return self.clock() - self._start

    def _room(self, spent: Spent) -> dict[str, int]:
        """How many further attempts each limit allows."""
        limits, room = self.limits, {}
        if limits.max_queries is not None:
            room["queries"] = limits.max_queries - spent.queries
        if limits.max_tokens is not None and self.most_tokens:
            # at the longest reply, rounded down: an attempt that might exceed the limit does not begin
            room["tokens"] = (limits.max_tokens - spent.tokens) // self.most_tokens
        if limits.max_seconds is not None and self.seconds() >= limits.max_seconds:
            room["seconds"] = 0
        return room

    def fitting(self, n: int, spent: Spent) -> int:
        # max: after a resume with a lower limit the room is negative
        return max(0, min([n, *self._room(spent).values()]))

    def exhausted(self, spent: Spent) -> str:
        """The limit that one more attempt would exceed: "queries", "tokens" or "seconds"."""
        return next(name for name, n in self._room(spent).items() if n <= 0)


class Board:
    """What has been tried, and what comes next.

    Args:
        pool: successes on other behaviors from before. An attacker never sees one on a near-duplicate of its behavior,
            neither from this attack nor from the pool.
        sample_id: the id of a subject's sample.
    """

    def __init__(
        self, subjects: Sequence[Subject], rules: Rules, pool: Sequence[Shot], sample_id: Callable[[Subject], str]
    ):
        self.subjects, self.rules, self.sample_id = tuple(subjects), rules, sample_id
        self._pool = tuple(pool)
        texts = list(dict.fromkeys([*(one.text for one in subjects), *(shot.behavior for shot in pool)]))
        self._group = {texts[i]: n for n, places in enumerate(near_duplicate_groups(texts)) for i in places}
        self._numbers = {sample_id(one): rules.numbers(one) for one in subjects}
        self.attempts: Mapping[Place, Sequence[Attempt]] = {}

    def spent(self) -> Spent:
        return Spent.of(one for attempts in self.attempts.values() for one in attempts)

    def waiting(self, kinds: Sequence[Kind], round_: int) -> dict[Place, tuple[Shot, ...]]:
        """The episodes that have not played this round, with what their attackers are shown: the first of each
        behavior before the second of any, so that a budget cuts all behaviors equally."""
        subjects = [one for one in self.subjects if one.kind in kinds and round_ < self.rules.n_rounds(one.kind)]
        broken = self._broken(round_)
        shots = {self.sample_id(one): self._shots(one, round_, broken) for one in subjects}
        return {
            (id_, numbers[turn] + 1): shots[id_]
            # the conditions run before the key: they set `numbers` and `id_`
            for turn in range(self.rules.episodes)
            for subject in subjects
            if turn < len(numbers := self._numbers[id_ := self.sample_id(subject)])
            and not (subject.kind == BEHAVIOR and self.rules.stop == "behavior" and id_ in broken)
            and self._is_open(subject, (id_, numbers[turn] + 1), round_)
        }

    def _broken(self, round_: int) -> dict[str, Attempt]:
        """By sample: the first attempt before this round that broke it."""
        breaks: dict[str, tuple[tuple[int, int], Attempt]] = {}
        for (id_, epoch), attempts in self.attempts.items():
            for one in attempts:
                # `round`, then `episode`: the order of the queries to a behavior, whichever ended first
                order = (one.round, epoch)
                # rounds before this one alone: of the episodes of a round it is chance which ends first
                if one.is_broken and one.round < round_ and (id_ not in breaks or order < breaks[id_][0]):
                    breaks[id_] = (order, one)
        return {id_: one for id_, (_, one) in breaks.items()}

    def _is_open(self, subject: Subject, place: Place, round_: int) -> bool:
        """Whether the episode goes on and this round of it is not played."""
        attempts = self.attempts.get(place, ())
        # `>=`: the log of a killed attack may hold later rounds of an episode, which are not played again
        if any(one.round >= round_ or one.verdict == f"unasked:{EXHAUSTED}" for one in attempts):
            return False
        stop = "never" if subject.kind == COUNTERPART else self.rules.stop
        is_won = stop == "episode" and any(one.is_broken for one in attempts)
        return not is_won and not (stop == "perfect" and any(one.score == 1.0 for one in attempts))

    def _shots(self, subject: Subject, round_: int, broken: Mapping[str, Attempt]) -> tuple[Shot, ...]:
        """Successes of earlier rounds on other subjects of the same kind, the same for all episodes."""
        of_attack = [
            Shot(one.id, one.text, first.prompt)
            for one in self.subjects
            if one.kind == subject.kind and (first := broken.get(self.sample_id(one))) is not None and first.prompt
        ]
        group = self._group[subject.text]
        others = [
            shot
            for shot in (*self._pool, *of_attack)
            # near-duplicates out: a success on nearly this request would be the answer, not an example
            if shot.behavior_id != subject.id and self._group[shot.behavior] != group
        ]
        # by subject and round, not by episode: all episodes are shown the same, so grpo compares their sampling alone
        draw = random.Random(f"{self.rules.seed}/{subject.id}/{round_}/shots")
        return tuple(draw.sample(others, min(self.rules.shots, len(others))))

"""Which episodes are open, and what each attacker is told: the state of an attack between two rounds."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from opct.attack.protocol import EXHAUSTED, Attempt, Kind, Shot, Subject, Try, View
from opct.data.duplicates import near_duplicate_groups
from opct.errors import EvaluationError, unknown
from opct.models.inference.sampler import sample_seed

Stop = Literal["behavior", "episode", "perfect", "never"]
STOPS: tuple[Stop, ...] = ("behavior", "episode", "perfect", "never")


@dataclass(frozen=True)
class Rules:
    """How long an attack goes on.

    Attributes:
        episodes: N, played against each behaviour in parallel.
        rounds: K, of each episode.
        stop: what ends early: "behavior" asks nothing more about a behaviour after the round that broke it; "episode"
            ends the episode that broke it; "perfect" ends an episode at a score of 1, since nothing scores better;
            "never" plays every round.
        shots: most successes on other behaviours that an attacker is shown.
        batch_size: most tries asked and kept at once.
        seed: of every draw; a text where several attacks share one seed.
        drawn_from: where only some episodes of a longer attack are played, how many that one has: each subject gets
            `episodes` numbers below it, drawn by seed and id, so that together they meet whatever depends on the number
            (a family, an approach). None: all numbers from 0.

    Raises:
        EvaluationError: a number is too small, or there is no such way to stop.
    """

    episodes: int = 8
    rounds: int = 3
    stop: Stop = "behavior"
    shots: int = 2
    batch_size: int = 256
    seed: int | str = 0
    drawn_from: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("episodes", 1), ("rounds", 1), ("shots", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise EvaluationError(f"{name} of an attack is {getattr(self, name)}: use at least {least}.")
        if self.stop not in STOPS:
            raise EvaluationError(unknown("stop of an attack", self.stop, STOPS))
        if self.drawn_from is not None and self.drawn_from < self.episodes:
            raise EvaluationError(
                f"{self.episodes} episodes of an attack are to be drawn from {self.drawn_from}: use at most so many."
            )

    @property
    def tries(self) -> int:
        """N x K: most tries of one behaviour."""
        return self.episodes * self.rounds

    def numbers(self, id_: str) -> list[int]:
        """The episodes of a subject, rising."""
        if self.drawn_from is None:
            return list(range(self.episodes))
        draw = random.Random(f"{self.seed}/{id_}/episodes")
        return sorted(draw.sample(range(self.drawn_from), self.episodes))


class Board:
    """The episodes of all subjects of one kind.

    Args:
        pool: successes on other behaviours from before this attack. No attacker is shown one on a near-duplicate of the
            behaviour at hand, from here or from the pool.

    Raises:
        EvaluationError: there is no subject, one is there twice, or they are of two kinds.
    """

    def __init__(self, subjects: Sequence[Subject], rules: Rules, pool: Sequence[Shot] = ()):
        kinds = {subject.kind for subject in subjects}
        if len(kinds) != 1 or len({subject.id for subject in subjects}) != len(subjects):
            raise EvaluationError(
                f"{len(subjects)} subjects of {len(kinds)} kinds to attack: give at least one, each id once, all "
                "behaviours or all twins."
            )
        self.subjects, self.rules = tuple(subjects), rules
        self.kind: Kind = next(iter(kinds))
        self._pool = tuple(pool)
        self._numbers = {subject.id: rules.numbers(subject.id) for subject in subjects}
        self._texts = {subject.id: subject.text for subject in subjects}
        texts = list(dict.fromkeys([*self._texts.values(), *(shot.behavior for shot in pool)]))
        self._group = {texts[i]: n for n, places in enumerate(near_duplicate_groups(texts)) for i in places}
        self._history: dict[tuple[str, int], list[Attempt]] = {}
        self._ended: set[tuple[str, int]] = set()
        self._broken: dict[str, Shot] = {}

    def views(self, round_: int) -> list[View]:
        """Every open episode, the first of each behaviour before the second of any: a budget cuts all alike."""
        shots = (*self._pool, *self._broken.values())
        return [
            self._view(subject, episode, round_, shots)
            for turn in range(self.rules.episodes)
            for subject in self.subjects
            if self._is_open(subject.id, episode := self._numbers[subject.id][turn])
        ]

    def add(self, tries: Iterable[Try]) -> None:
        """Take the tries of one whole round."""
        for one in sorted(tries, key=lambda one: one.key):
            self._history.setdefault((one.behavior_id, one.episode), []).append(
                Attempt(one.prompt, one.reply, one.score)
            )
            if one.verdict == f"unasked:{EXHAUSTED}" or self._ends_episode(one):
                self._ended.add((one.behavior_id, one.episode))
            if one.is_broken and one.prompt is not None:
                text = self._texts[one.behavior_id]
                self._broken.setdefault(one.behavior_id, Shot(one.behavior_id, text, one.prompt))

    def _ends_episode(self, one: Try) -> bool:
        stop = self.rules.stop
        return (stop == "episode" and bool(one.is_broken)) or (stop == "perfect" and one.score == 1.0)

    def _is_open(self, id_: str, episode: int) -> bool:
        is_over = self.rules.stop == "behavior" and id_ in self._broken
        return not is_over and (id_, episode) not in self._ended

    def _view(self, subject: Subject, episode: int, round_: int, shots: Sequence[Shot]) -> View:
        own = self._group[subject.text]
        others = [shot for shot in shots if shot.behavior_id != subject.id and self._group[shot.behavior] != own]
        seed = sample_seed(self.rules.seed, "attacker", subject.id, episode, round_)
        draw = random.Random(f"{self.rules.seed}/{subject.id}/{round_}/shots")  # the same for all episodes
        chosen = draw.sample(others, min(self.rules.shots, len(others)))
        history = tuple(self._history.get((subject.id, episode), ()))
        return View(subject.id, subject.text, episode, round_, seed, history, tuple(chosen))

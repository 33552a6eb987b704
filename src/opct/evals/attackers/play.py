"""Plays an attack: one run of its task a round, each reading the log of the one before.

The logs of rounds are in `evals/unfinished` until the attack ends. The one of a round that was killed holds the
episodes that had ended; the next run takes these up, and plays the others with the same seeds.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inspect_ai import Task
from inspect_ai.log import EvalLog
from inspect_ai.log import EvalSample as LogSample
from inspect_ai.model import Model

from opct.errors import EvaluationError
from opct.evals.attackers.episode import BARE, BEHAVIOR, COUNTERPART, Attempt, Kind, Shot, Subject, attempts_in
from opct.evals.attackers.game import Board, Budget, Place, Rules
from opct.evals.inspect_runner import run_inspect
from opct.evals.outcomes import COMPLETE
from opct.evals.tasks.attack import Cast, Turn, attack_task, check_answered, sample_id
from opct.runs.console import NullProgress, Progress

if TYPE_CHECKING:
    from opct.models.policy import Policy


@dataclass(frozen=True)
class Played:
    """What became of an attack.

    Attributes:
        log: the last one, which holds every attempt.
        ended: "complete", or the limit that ended it: "queries", "tokens", "seconds".
    """

    log: EvalLog
    ended: str

    @property
    def samples(self) -> list[LogSample]:
        return list(self.log.samples or [])


def known_samples(logs: Iterable[EvalLog]) -> dict[Place, LogSample]:
    """Of every episode the sample with the most attempts, of logs of one attack."""
    samples: dict[Place, LogSample] = {}
    for log in logs:
        for sample in log.samples or []:
            place = (str(sample.id), sample.epoch)
            # most attempts: in the log of a killed round an episode may be missing, or be a round further than before;
            # `>=`: of equal ones the later log counts
            if sample.error is None and (place not in samples or _n(sample) >= _n(samples[place])):
                samples[place] = sample
    return samples


def _n(sample: LogSample) -> int:
    return len(attempts_in(sample.store))


def play(
    name: str,
    subjects: Sequence[Subject],
    rules: Rules,
    cast: Cast,
    target: Policy | Model,
    folder: Path,
    *,
    roles: Mapping[str, Model] | None = None,
    pool: Sequence[Shot] = (),
    budget: Budget | None = None,
    known: Mapping[Place, LogSample] | None = None,
    settings: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Played:
    """Play every round of every episode, within the budget.

    Args:
        folder: of the logs of the rounds; a log is removed once the next one is whole.
        roles: models by their role, for `get_model(role=...)` in a solver or a scorer.
        pool: earlier successes on other behaviors.
        known: the samples of an earlier run.
        settings, metadata: of the task and of its logs.

    Raises:
        EvaluationError: a model or the judge does not answer; what had ended is in the logs.
        KeyboardInterrupt: the attack was interrupted; what had ended is in the logs.
    """
    board = Board(subjects, rules, pool, lambda one: sample_id(name, one))
    task = partial(attack_task, name, subjects, rules, cast, settings=settings)
    about: dict[str, Any] = {"model_roles": dict(roles or {}), "metadata": dict(metadata or {})}
    run = partial(run_inspect, policy=target, log_dir=folder, batch_size=rules.batch_size, **about)
    game = _Game(board, task, run, budget or Budget(), progress or NullProgress())
    game.take_up(known or {})
    ended = game.play()
    if ended != COMPLETE:
        game.progress.log(f"the attack stops early: the limit of {ended} is reached")
    # a run with nothing waiting: it writes the log of all known samples, which results are made of
    if game.log is None:
        game.progress.log("nothing to do: every attempt was made before")
        game.play_batch(0, {})
    assert game.log is not None
    return Played(game.log, ended)


@dataclass
class _Game:
    """What `play` plays with, and where it stands: the samples that are known, and the log of the last round."""

    board: Board
    task: Callable[[Turn], Task]
    run: Callable[..., EvalLog]
    budget: Budget
    progress: Progress
    samples: Mapping[Place, LogSample] = field(default_factory=dict)
    log: EvalLog | None = None

    def take_up(self, samples: Mapping[Place, LogSample]) -> None:
        self.samples = samples
        self.board.attempts = {place: attempts_in(sample.store) for place, sample in samples.items()}

    def play(self) -> str:
        """Play what is open; returns how it ended."""
        rules, is_limited = self.board.rules, self.budget.is_limited
        # within a budget, counterparts come after the behaviors; without one, both fill the same batches
        behaviors: list[Kind] = [BARE, BEHAVIOR]
        for kinds in [behaviors, [COUNTERPART]] if is_limited else [[*behaviors, COUNTERPART]]:
            for round_ in range(rules.rounds):
                waiting = self.board.waiting(kinds, round_)
                if waiting:
                    stage = f"round {round_ + 1} of {rules.rounds}"
                    self.progress.stage(f"{kinds[-1]}: {stage}" if is_limited else stage, len(waiting))
                while waiting:
                    # small batches within a budget: it is checked between them only
                    max_size = min(len(waiting), rules.batch_size) if is_limited else len(waiting)
                    size = self.budget.fitting(max_size, self.board.spent())
                    if size == 0:
                        return self.budget.exhausted(self.board.spent())
                    self.play_batch(round_, dict(islice(waiting.items(), size)))
                    # looked up again, not the rest of the first list: the board decides by the attempts in the new log
                    waiting = self.board.waiting(kinds, round_)
        return COMPLETE

    def play_batch(self, round_: int, waiting: Mapping[Place, tuple[Shot, ...]]) -> None:
        """Run the task once; its log then takes the place of the one before."""
        shown = _Shown(self.progress, is_first=not self.samples)
        turn = Turn(round_, waiting, self.samples, self.budget.seconds, shown.on_attempt)
        before = self.log
        with private_files():
            log = self.run(self.task(turn), progress=shown)
        try:
            check_answered(log.samples or [])
        except EvaluationError:
            Path(log.location).unlink()  # a resume would take its attempts for made
            raise
        self.log = log
        # after the new log is whole, which holds all of the old one: a kill in between leaves two logs, never none
        if before is not None:
            Path(before.location).unlink(missing_ok=True)
        self.take_up(known_samples([self.log]))


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Files that are made inside can be read by their owner alone: Inspect has no setting for its logs."""
    # of the whole process, threads included, hence put back in `finally`
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


class _Shown(NullProgress):
    """Shows attempts, and not the samples that come out of the log of the round before as they were."""

    def __init__(self, progress: Progress, *, is_first: bool):
        self.progress, self.is_first = progress, is_first

    def on_attempt(self, attempt: Attempt) -> None:
        self.progress.advance(1)

    def log(self, message: str) -> None:
        if self.is_first:  # what is odd about replies is said once
            self.progress.log(message)

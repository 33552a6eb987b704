"""The episode loop: N episodes x K rounds of every behaviour, batched together, within a budget, resumable.

A round is cut into batches of open episodes, into several where stages can work side by side. Each goes through three
stages: the attacker proposes, the target answers, the judge scores; then its tries are kept at once. Stages work at the
same time where they can: a judge or a model behind an endpoint takes one batch while the next is under way, and models
of this process take turns, those of the oldest batch first. Batches are kept in their order, so what is on the disk is
always the beginning of the attack, and going on from there gives what would have come without the interruption.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import PriorityQueue
from typing import Any, Protocol, TypeVar

from opct.attack.board import Board, Rules
from opct.attack.budget import Ledger
from opct.attack.protocol import BEHAVIOR, Attacker, ChatModel, Key, Kind, Shot, Subject, Try, View
from opct.attack.scoring import Scorer
from opct.attack.turns import answered, asked_tries
from opct.runs.progress import NullProgress, Progress

T = TypeVar("T")
INTERRUPTED = "interrupted"
COMPLETE = "complete"


class Journal(Protocol):
    """Where tries are kept."""

    def kept(self, kind: Kind, round_: int) -> dict[Key, Try]:
        """The tries of a round that were made before."""
        ...

    def begun(self, kind: Kind, n: int) -> None:
        """Note that a batch of so many tries begins; the note is on the disk when this returns."""
        ...

    def write(self, tries: Sequence[Try], seconds: float) -> None:
        """Keep a batch; it is on the disk, whole, when this returns."""
        ...


class NoJournal:
    """Keeps nothing."""

    def kept(self, kind: Kind, round_: int) -> dict[Key, Try]:
        return {}

    def begun(self, kind: Kind, n: int) -> None:
        pass

    def write(self, tries: Sequence[Try], seconds: float) -> None:
        pass


@dataclass
class Players:
    """Who plays: the attacker, the target, and how replies are scored."""

    attacker: Attacker
    target: ChatModel
    scorer: Scorer


@dataclass(frozen=True)
class Played:
    """What was played.

    Attributes:
        tries: all of them, those of before a resume too, round by round.
        ended: "complete", "interrupted", or the limit that ended it: "queries", "tokens", "seconds".
        cut_short: ids of the subjects that had tries left when it ended early.
    """

    tries: tuple[Try, ...]
    ended: str = COMPLETE
    cut_short: frozenset[str] = frozenset()


def play(
    subjects: Sequence[Subject],
    players: Players,
    rules: Rules,
    ledger: Ledger,
    *,
    pool: Sequence[Shot] = (),
    journal: Journal | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> Played:
    """Play every round of every episode, as far as the budget reaches.

    Args:
        pool: successes on other behaviours from before.
        journal: holds what was played before a resume; what is played now is added.
        should_stop: asked before each batch.

    Raises:
        EvaluationError: a model or the judge gives no answer; what was played until then is in the journal.
    """
    journal, progress = journal or NoJournal(), progress or NullProgress()
    board = Board(subjects, rules, pool)
    played: list[Try] = []
    with _Stages(players) as stages:
        for round_ in range(rules.rounds):
            views = board.views(round_)
            if not views:
                break
            kept = journal.kept(board.kind, round_)
            name = f"{board.kind}: round {round_ + 1} of {rules.rounds}"
            if len(kept) < len(views):
                progress.stage(name, len(views))
                progress.advance(len(kept))
            table = _Round(board.kind, players, stages, ledger, journal, progress, list(kept.values()))
            ended = table.run([view for view in views if _key(board.kind, view) not in kept], rules, should_stop)
            played += table.tries
            if ended != COMPLETE:
                why = ended if ended == INTERRUPTED else f"the limit of {ended} is reached"
                progress.log(f"{name}: the attack ends here: {why}")
                done = {one.key for one in table.tries}
                more = round_ + 1 < rules.rounds
                left = frozenset(view.id for view in views if more or _key(board.kind, view) not in done)
                return Played(tuple(played), ended, left)
            board.add(table.tries)
            players.attacker.observe(round_, table.tries)
    return Played(tuple(played))


def _even(n: int, most: int) -> int:
    """The size of the next batch of n tries in as few batches as may be, none much smaller than another."""
    return math.ceil(n / math.ceil(n / most))


def _key(kind: Kind, view: View) -> Key:
    return (kind, view.id, view.round, view.episode)


@dataclass
class _Round:
    """The batches of one round; as many are under way as there are threads for stages."""

    kind: Kind
    players: Players
    stages: _Stages
    ledger: Ledger
    journal: Journal
    progress: Progress
    tries: list[Try]
    under_way: deque[tuple[int, Future[list[Try]]]] = field(default_factory=deque)

    def run(self, views: Sequence[View], rules: Rules, should_stop: Callable[[], bool]) -> str:
        """Play these views; `tries` holds what was kept of the round, so that its batches are as large as they were."""
        waiting, most = deque(views), self._most(len(self.tries) + len(views), rules)
        while waiting:
            if should_stop():
                self._settle_all()
                return INTERRUPTED
            size = _even(len(waiting), most)
            fits = self.ledger.fitting(size)
            if fits < size and self.under_way:
                self._settle_one()  # it may have taken less than was set aside
                continue
            if fits == 0:
                return self.ledger.exhausted()
            batch = [waiting.popleft() for _ in range(fits)]
            self.ledger.reserve(len(batch))
            self.journal.begun(self.kind, len(batch))
            self.under_way.append((len(batch), self.stages.submit(self.kind, batch, rules)))
            while len(self.under_way) >= len(self.stages.threads):
                self._settle_one()
        self._settle_all()
        return COMPLETE

    def _most(self, n: int, rules: Rules) -> int:
        """Tries of one batch: of a round's n, where stages have threads of their own, so few that all have work."""
        threads = len(self.stages.threads)
        return rules.batch_size if threads == 1 else min(rules.batch_size, max(1, n // (2 * threads)))

    def _settle_all(self) -> None:
        while self.under_way:
            self._settle_one()

    def _settle_one(self) -> None:
        n, future = self.under_way.popleft()
        tries = future.result()
        self.ledger.settle(n, tries)
        self.journal.write(tries, self.ledger.spent.seconds)
        self.tries += tries
        word = "broken" if self.kind == BEHAVIOR else "not_refused"
        self.progress.advance(n, **{word: len({one.behavior_id for one in self.tries if one.is_broken})})


class _Stages:
    """One thread for all models of this process, and one for each stage that works elsewhere."""

    def __init__(self, players: Players):
        self.players = players
        self._batches = itertools.count()
        here = _Thread("local")
        self._attacker = here if players.attacker.is_local else _Thread("attacker")
        self._target = here if players.target.is_local else _Thread("target")
        self._judge = here if players.scorer.is_local else _Thread("judge")
        self.threads = {self._attacker, self._target, self._judge}

    def __enter__(self) -> _Stages:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self.threads:  # all of them, before any is waited for: what ends now begins nothing more
            thread.pool.shutdown(wait=False, cancel_futures=True)
        for thread in self.threads:
            thread.pool.shutdown(wait=True)

    def submit(self, kind: Kind, views: Sequence[View], rules: Rules) -> Future[list[Try]]:
        """Begin a batch; each stage begins once the one before it is done and it has its turn. Where a stage fails,
        those after it fail with its error."""
        attacker, target, scorer = self.players.attacker, self.players.target, self.players.scorer
        batch = next(self._batches)
        proposed = self._attacker.submit(batch, lambda: attacker.propose(views))
        replied = self._target.submit(batch, lambda: answered(target, views, proposed.result(), rules), proposed)
        return self._judge.submit(
            batch, lambda: asked_tries(kind, views, proposed.result(), replied.result(), scorer), replied
        )


class _Thread:
    """Runs stages one at a time: of those that can begin, that of the oldest batch first, so that no batch waits for a
    later one before it is kept."""

    def __init__(self, name: str):
        self.pool = ThreadPoolExecutor(1, f"opct-attack-{name}")
        self._ready: PriorityQueue[tuple[int, int, Any, Any]] = PriorityQueue()
        self._came = itertools.count()  # decides between stages of one batch, of which the first may have come too late

    def submit(self, batch: int, work: Callable[[], T], after: Future[Any] | None = None) -> Future[T]:
        """Run `work` in its turn; where it takes the result of a stage before it (`after`), it holds no thread until
        that is done."""
        future: Future[T] = Future()
        if after is None:
            self._enqueue(batch, future, work)
        else:
            after.add_done_callback(lambda _: self._enqueue(batch, future, work))
        return future

    def _enqueue(self, batch: int, future: Future[T], work: Callable[[], T]) -> None:
        self._ready.put((batch, next(self._came), future, work))
        try:
            self.pool.submit(self._run_oldest)
        except RuntimeError as error:  # it was shut down, and nobody waits for this any more; else they get to know
            future.set_exception(error)

    def _run_oldest(self) -> None:
        _, _, future, work = self._ready.get()
        try:
            found = work()
        except BaseException as error:  # whatever it is, whoever settles the batch gets it
            future.set_exception(error)
            raise
        future.set_result(found)

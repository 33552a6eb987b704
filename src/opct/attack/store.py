"""The folder of an attack.

    identity.json               attacker, target, judge and rules; a resume must match them
    attempts.jsonl              every attempt with its texts, appended a batch at a time; private
    successful_prompts.jsonl    the prompts that jailbroke a behaviour; private
    result.json                 the numbers
    attacker/                   of an attacker that is trained: its run; private, for its rollouts are prompts
    training_pairs.jsonl        what it is trained on; private
    training_steps.jsonl        what each step of its training showed, without texts

A batch counts once its last line is on disk. After a kill, the rest of an unfinished batch is dropped, and the batch is
run again with the same seeds. Its queries may have been made already: they are counted as lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import FiniteFloat, NonNegativeInt, TypeAdapter

from opct.attack.loop import AttackUsage, Journal
from opct.attack.protocol import BEHAVIOR, Attempt, Kind, Subject
from opct.config.schema import flat_settings
from opct.data.perturb.in_the_wild import SUCCESSES_KIND
from opct.errors import OtherAttackError, RunError, shorten
from opct.runs.io import (
    PRIVATE_MODE,
    REMEDY,
    append_jsonl,
    fsync_folder,
    read_json,
    read_jsonl,
    reason,
    write_json,
    write_jsonl,
)

SCHEMA = 3
WARNING = (
    "PRIVATE. Prompts that were made to get past a model's refusals, and what the model said. They are here so that "
    "the owner of that model can train and test against them. They may work on other models: do not publish or share "
    "this file, and delete it when it is no longer needed."
)
RESTART = "Restore it, or restart the attack with --overwrite."


@dataclass(frozen=True)
class _Started:
    started: NonNegativeInt


@dataclass(frozen=True)
class _Finished:
    finished: NonNegativeInt
    seconds: FiniteFloat


@dataclass(frozen=True)
class _Header:
    opct_warning: str


_ROWS = TypeAdapter[Attempt | _Started | _Finished | _Header](Attempt | _Started | _Finished | _Header)
"""A row of attempts.jsonl."""


class AttackDir(Journal):
    """An attack's folder, locked for this process while it is open.

    Raises:
        RunError: the folder is in use, is not an attack folder, or holds a different attack.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.identity_path = self.path / "identity.json"
        self.attempts_path = self.path / "attempts.jsonl"
        self.successes_path = self.path / "successful_prompts.jsonl"
        self.result_path = self.path / "result.json"
        self.attacker_path = self.path / "attacker"
        self.pairs_path = self.path / "training_pairs.jsonl"
        self.steps_path = self.path / "training_steps.jsonl"
        self.spent = AttackUsage()
        self._attempts: list[Attempt] = []
        self._n_started = 0
        self._lock: Any = None
        self._overwrite = self._has_begun = False

    @property
    def is_attack(self) -> bool:
        """Whether the folder holds a started attack."""
        return self.identity_path.is_file() or self.attempts_path.is_file()

    @property
    def in_use(self) -> bool:
        """Whether a process has the folder open."""
        from filelock import FileLock, Timeout

        try:
            with FileLock(self.path / ".lock", timeout=0, is_singleton=False):
                return False
        except Timeout:
            return True
        except OSError:  # a folder of another user
            return False

    @property
    def replaces(self) -> bool:
        """Whether the folder holds an attack that is removed when the new one begins."""
        return self._overwrite and not self._has_begun and self.is_attack

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each local model when the attack began, by the model's source."""
        known = self._identity()
        models = (known.get("target"), (known.get("attacker") or {}).get("model"))
        return {one["source"]: one["dtype"] for one in models if isinstance(one, dict) and "dtype" in one}

    @property
    def lost_queries(self) -> int:
        """Attempts that were started but not stored: upper bound on the queries lost to kills and failures."""
        return self._n_started - len(self._attempts)

    # -- life

    def open(self, *, resume: bool = False, overwrite: bool = False) -> AttackDir:
        """Lock the folder; close it with `with`. With `overwrite` an old attack is removed when the new one begins, so
        that one that cannot begin loses nothing."""
        from filelock import FileLock, Timeout

        if resume and overwrite:
            raise RunError("--resume and --overwrite contradict each other: give only one of them.")
        if resume and not self.is_attack:
            raise RunError(f"No attack to resume in {self.path}: leave out --resume to start one, or correct --out.")
        if self.is_attack and not (resume or overwrite):
            raise RunError(
                f"{self.path} already holds an attack. Continue it with --resume, replace it with --overwrite, or "
                "choose another --out."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock", timeout=0, is_singleton=False)
            lock.acquire()
        except Timeout as error:
            raise RunError(f"{self.path} is in use by another process: wait, or choose another --out.") from error
        except OSError as error:
            raise RunError(f"Cannot write to {self.path}: {reason(error)}. {REMEDY}") from error
        self._lock, self._overwrite = lock, overwrite
        return self

    def __enter__(self) -> AttackDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._has_begun and not self._n_started and not read_jsonl(self.steps_path):
            self._clear()  # nothing was queried yet, so the attack can simply be started again
        if isinstance(error, KeyboardInterrupt) and self.is_attack and not self.replaces:
            error.add_note(resume_hint(self.path, was_overwritten=self._overwrite))
        self._lock.release()
        if kind is not None and not self.is_attack:
            with contextlib.suppress(OSError):
                (self.path / ".lock").unlink(missing_ok=True)
                self.path.rmdir()

    def _clear(self) -> None:
        if self.attacker_path.exists():
            shutil.rmtree(self.attacker_path)
        for path in (self.result_path, self.successes_path, self.steps_path, self.pairs_path, self.attempts_path):
            path.unlink(missing_ok=True)
        self.identity_path.unlink(missing_ok=True)  # removed last: until then the folder holds an attack

    def check_resumed(self, known: Mapping[str, Any]) -> None:
        """Refuse to resume a different attack, by the part of the identity that is known before a model is loaded.

        Raises:
            RunError: it is not the same; the message names what differs.
        """
        if not self.is_attack or self._overwrite:
            return
        saved = self._identity()
        before = flat_settings({name: saved.get(name) for name in known})
        now = flat_settings(json.loads(json.dumps(known)))
        differ = [
            f"{name} was {shorten(before.get(name))} and is {shorten(now.get(name))}"
            for name in {**before, **now}
            if before.get(name) != now.get(name)
        ]
        if differ:
            raise OtherAttackError(
                f"The attack in {self.path} is a different one: {'; '.join(differ[:5])}. Use the same settings, or "
                "choose another --out."
            )

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Write the identity, or check that it is unchanged and read the stored attempts.

        Raises:
            RunError: it is not the same; the message names what differs.
        """
        identity = {"opct_attack": SCHEMA, **identity}
        if self.replaces:
            self._clear()
        if self.is_attack:
            self.check_resumed(identity)
            self._read()
            return
        write_json(self.identity_path, identity)
        os.close(os.open(self.attempts_path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, PRIVATE_MODE))
        append_jsonl(self.attempts_path, {"opct_warning": WARNING, "kind": "opct_attempts", "schema": SCHEMA})
        fsync_folder(self.path)
        self._has_begun = True

    def _identity(self) -> dict[str, Any]:
        return read_json(self.identity_path, hint=RESTART)

    def _read(self) -> None:
        if not self.attempts_path.is_file():
            raise RunError(f"{self.attempts_path} is missing. {RESTART}")
        rows, unfinished, seconds = read_jsonl(self.attempts_path, _ROWS, hint=RESTART), list[Attempt](), 0.0
        for row in rows:
            if isinstance(row, Attempt):
                unfinished.append(row)
            elif isinstance(row, _Started):
                self._n_started += row.started
            elif isinstance(row, _Finished):
                self._attempts += unfinished
                unfinished, seconds = [], row.seconds
        if unfinished:
            whole = read_jsonl(self.attempts_path)[: -len(unfinished)]  # they are the last rows
            write_jsonl(self.attempts_path, whole, mode=PRIVATE_MODE)
        self.spent = AttackUsage().plus(self._attempts, seconds)

    # -- journal

    def load_round(self, kind: Kind, round_: int) -> list[Attempt]:
        return [one for one in self._attempts if (one.kind, one.round) == (kind, round_)]

    def log_started(self, n: int) -> None:
        append_jsonl(self.attempts_path, {"started": n}, fsync=True)
        self._n_started += n

    def append(self, attempts: Sequence[Attempt], seconds: float) -> None:
        rows = [_row(one) for one in attempts]
        append_jsonl(self.attempts_path, *rows, {"finished": len(rows), "seconds": seconds}, fsync=True)
        self._attempts += attempts

    # -- results

    def write_result(self, result: Mapping[str, Any], subjects: Sequence[Subject], attempts: Sequence[Attempt]) -> None:
        """Write the numbers, and in a separate file the prompts that jailbroke a behaviour."""
        texts = {subject.id: subject.text for subject in subjects}
        header = {"opct_warning": WARNING, "kind": SUCCESSES_KIND, "schema": 1}
        names = ("kind", "behavior_id", "round", "episode", "prompt", "score")
        rows = [
            {**{name: getattr(one, name) for name in names}, "behavior": texts[one.behavior_id]}
            for one in sorted(attempts, key=lambda one: one.key)
            if one.is_jailbroken and one.kind == BEHAVIOR
        ]
        write_jsonl(self.successes_path, [header, *rows], mode=PRIVATE_MODE)
        write_json(self.result_path, result)


def resume_hint(path: Path, *, was_overwritten: bool) -> str:
    """The message after an attack was interrupted."""
    without = ", without --overwrite" if was_overwritten else ""
    return f"finished attempts are kept in {path}: continue with the same command and --resume{without}"


def _row(one: Attempt) -> dict[str, Any]:
    names = [field.name for field in fields(one) if field.name not in ("judge_usage", "written")]
    return {**{name: getattr(one, name) for name in names}, "judge_usage": asdict(one.judge_usage)}

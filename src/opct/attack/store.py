"""The folder of an attack.

    identity.json               who attacks whom, judged by whom, by which rules; a resume must find the same
    attempts.jsonl              every attempt with its texts, appended a batch at a time; private
    successful_prompts.jsonl    the prompts that jailbroke a behaviour; private
    judge_cache.jsonl           results of a judge that is a model
    result.json                 the numbers
    attacker/                   of an attacker that is trained: its run; private, for its rollouts are prompts
    training_pairs.jsonl        what it is trained on; private
    training_steps.jsonl        what each step of its training showed, without texts

A batch counts once its last line is on the disk. What a kill left of an unfinished batch is dropped, and the batch is
played again with the same seeds. Its queries may have been made all the same: they are counted as lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from opct.attack.loop import AttackUsage
from opct.attack.protocol import BEHAVIOR, Attempt, Kind, Subject
from opct.data.perturb.in_the_wild import SUCCESSES_KIND
from opct.errors import OtherAttackError, RunError
from opct.judges.protocol import Usage
from opct.runs.io import (
    PRIVATE_MODE,
    append_jsonl,
    atomic_write,
    fsync_folder,
    read_json,
    read_jsonl,
    reason,
    remedy,
    write_json,
)

SCHEMA = 3
WARNING = (
    "PRIVATE. Prompts that were made to get past a model's refusals, and what the model said. They are here so that "
    "the owner of that model can train and test against them. They may work on other models: do not publish or share "
    "this file, and delete it when it is no longer needed."
)
BEGIN_ANEW = "Put it back, or begin the attack anew with --overwrite."


class AttackDir:
    """An attack's folder, locked for this process while it is open; a `Journal` of its attempts.

    Raises:
        RunError: the folder is in use, is not an attack's, or holds another attack than is to be resumed.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.identity_path = self.path / "identity.json"
        self.attempts_path = self.path / "attempts.jsonl"
        self.successes_path = self.path / "successful_prompts.jsonl"
        self.judge_cache_path = self.path / "judge_cache.jsonl"
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
        """Whether an attack was begun in the folder."""
        return self.identity_path.is_file() or self.attempts_path.is_file()

    @property
    def replaces(self) -> bool:
        """Whether an attack is in the folder that is removed when the new one begins."""
        return self._overwrite and not self._has_begun and self.is_attack

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each local model when the attack began, by the model's source."""
        known = self._identity()
        models = (known.get("target"), (known.get("attacker") or {}).get("model"))
        return {one["source"]: one["dtype"] for one in models if isinstance(one, dict) and "dtype" in one}

    def open(self, *, resume: bool = False, overwrite: bool = False) -> AttackDir:
        """Lock the folder; close it with `with`. With `overwrite` an old attack is removed when the new one begins, so
        that one that cannot begin loses nothing."""
        from filelock import FileLock, Timeout

        if resume and overwrite:
            raise RunError("--resume and --overwrite contradict each other: give one of them.")
        if resume and not self.is_attack:
            raise RunError(f"No attack to resume in {self.path}: leave --resume out to begin one, or correct --out.")
        if self.is_attack and not (resume or overwrite):
            raise RunError(
                f"{self.path} holds an attack already. Continue it: --resume. Replace it: --overwrite. Or choose "
                "another --out."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock", timeout=0, is_singleton=False)
            lock.acquire()
        except Timeout as error:
            raise RunError(
                f"{self.path} is in use by another process: wait for it, or choose another --out."
            ) from error
        except OSError as error:
            raise RunError(f"Cannot write to {self.path}: {reason(error)}. {remedy(error)}") from error
        self._lock, self._overwrite = lock, overwrite
        return self

    def __enter__(self) -> AttackDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is None:
            return
        if kind is not None and self._has_begun and not self._n_started and not read_jsonl(self.steps_path):
            self._clear()  # nothing was asked yet: whatever failed may be corrected, and begun again
        if isinstance(error, KeyboardInterrupt) and self.is_attack and not self.replaces:
            error.add_note(resume_hint(self.path, was_overwritten=self._overwrite))
        self._lock.release()
        self._lock = None
        if kind is not None and not self.is_attack:
            with contextlib.suppress(OSError):
                (self.path / ".lock").unlink(missing_ok=True)
                self.path.rmdir()

    def _clear(self) -> None:
        if self.attacker_path.exists():
            shutil.rmtree(self.attacker_path)
        for path in (self.result_path, self.successes_path, self.steps_path, self.pairs_path, self.attempts_path):
            path.unlink(missing_ok=True)
        self.identity_path.unlink(missing_ok=True)  # last: until then there is an attack

    def check_resumed(self, known: Mapping[str, Any]) -> None:
        """See before any model is loaded that what is resumed is the same.

        Args:
            known: what `begin` will get, as far as it is known.

        Raises:
            RunError: it is not the same; the message names what differs.
        """
        if self.is_attack and not self._overwrite:
            before = self._identity()
            self._refuse_other({name: before.get(name) for name in known}, known)

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Write who attacks whom, or check that it is the same as before, and read what was attempted.

        Raises:
            RunError: it is not the same; the message names what differs.
        """
        if self.replaces:
            self._clear()
        identity = {"opct_attack": SCHEMA, **identity}
        if self.is_attack:
            self._refuse_other(self._identity(), identity)
            self._read()
            return
        write_json(self.identity_path, identity)
        os.close(os.open(self.attempts_path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, PRIVATE_MODE))
        append_jsonl(self.attempts_path, {"opct_warning": WARNING, "kind": "opct_attempts", "schema": SCHEMA})
        fsync_folder(self.path)
        self._has_begun = True

    def _identity(self) -> dict[str, Any]:
        return read_json(self.identity_path, hint=BEGIN_ANEW)

    def _refuse_other(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        now = json.loads(json.dumps(now))
        differ = [f"{name} was {_short(a)} and is {_short(b)}" for name, a, b in _differences(before, now)]
        if differ:
            raise OtherAttackError(
                f"The attack in {self.path} is another one than is to be resumed: {'; '.join(differ[:5])}. Give "
                "the same settings, or choose another --out."
            )

    def _read(self) -> None:
        if not self.attempts_path.is_file():
            raise RunError(f"{self.attempts_path} is missing. {BEGIN_ANEW}")
        rows, unfinished = read_jsonl(self.attempts_path), list[dict[str, Any]]()
        attempts, seconds = list[Attempt](), 0.0
        for row in rows:
            if "started" in row:
                self._n_started += row["started"]
            elif "finished" in row:
                attempts, unfinished, seconds = [*attempts, *map(_attempt, unfinished)], [], row["seconds"]
            elif "behavior_id" in row:
                unfinished.append(row)
        if unfinished:
            _write_private(self.attempts_path, rows[: -len(unfinished)])  # they are the last rows
        self._attempts, self.spent = attempts, AttackUsage().plus(attempts, seconds)

    # -- journal

    def load_round(self, kind: Kind, round_: int) -> list[Attempt]:
        """The attempts of a round that were made before."""
        return [one for one in self._attempts if (one.kind, one.round) == (kind, round_)]

    def log_started(self, n: int) -> None:
        """Note that a batch of so many attempts begins; the note is on the disk when this returns."""
        append_jsonl(self.attempts_path, {"started": n}, fsync=True)
        self._n_started += n

    def append(self, attempts: Sequence[Attempt], seconds: float) -> None:
        """Keep a batch; it is on the disk, whole, when this returns."""
        rows = [_row(one) for one in attempts]
        append_jsonl(self.attempts_path, *rows, {"finished": len(rows), "seconds": seconds}, fsync=True)
        self._attempts += attempts

    @property
    def lost_queries(self) -> int:
        """Attempts that were started and not kept: at most so many queries were lost by kills and failures."""
        return self._n_started - len(self._attempts)

    # -- results

    def write_result(self, result: Mapping[str, Any], subjects: Sequence[Subject], attempts: Sequence[Attempt]) -> None:
        """The numbers, and apart from them the prompts that jailbroke a behaviour."""
        texts = {subject.id: subject.text for subject in subjects}
        successes = [one for one in attempts if one.is_jailbroken and one.kind == BEHAVIOR]
        header = {"opct_warning": WARNING, "kind": SUCCESSES_KIND, "schema": 1}
        names = ("kind", "behavior_id", "round", "episode", "prompt", "score")
        rows = [
            {**{name: getattr(one, name) for name in names}, "behavior": texts[one.behavior_id]}
            for one in sorted(successes, key=lambda one: one.key)
        ]
        _write_private(self.successes_path, [header, *rows])
        write_json(self.result_path, result)


def resume_hint(path: Path, *, was_overwritten: bool) -> str:
    """What a person is told who interrupted an attack that had begun, or was resumed."""
    without = ", without --overwrite" if was_overwritten else ""
    return f"what was tried is kept in {path}: continue with the same command and --resume{without}"


def _row(one: Attempt) -> dict[str, Any]:
    names = [field.name for field in fields(one) if field.name not in ("judge_usage", "written")]
    return {**{name: getattr(one, name) for name in names}, "judge_usage": asdict(one.judge_usage)}


def _attempt(row: Mapping[str, Any]) -> Attempt:
    prompt = None if row["prompt"] is None else tuple(row["prompt"])
    return Attempt(**{**row, "prompt": prompt, "judge_usage": Usage(**row["judge_usage"])})


def _write_private(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    lines = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    atomic_write(path, lines, mode=PRIVATE_MODE)


def _differences(before: Any, now: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """(name, before, now) of every value that differs."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = dict.fromkeys([*before, *now])
        return [
            found
            for key in keys
            for found in _differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
        ]
    return [] if before == now else [(name, before, now)]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""The folder of an attack. What holds texts that may work elsewhere is apart from what may be shared.

    attack.json                 who attacks whom, judged by whom, by which rules; a resume must find the same
    training.json               of an attacker that learns: the same of its training, which comes first
    attacker/                   the run of its training; private, for its rollouts are prompts
    training_behaviors.jsonl    what it is trained on; private, for it holds what the attacker is told
    practice.jsonl              what each step of it showed, without texts
    begun.jsonl                 how many tries each batch has that began, noted before any of them is asked
    tries.jsonl                 every try without its texts: verdict, score, tokens
    transcripts.jsonl           prompts and replies of every try; private
    successful_prompts.jsonl    the prompts that broke a behaviour; private
    judge_cache.jsonl           what a judge behind an endpoint was paid for
    result.json                 the numbers

Tries are appended a batch at a time, in one write that is on the disk before the next batch counts. What a kill left
of an unfinished batch is dropped; that batch is played again, with the same seeds. Its queries may have been put all
the same: the tries that began and were not kept are the most that were lost so.
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

from opct.attack.budget import Spent
from opct.attack.protocol import BEHAVIOR, Key, Kind, Subject, Try
from opct.data.perturb.in_the_wild import SUCCESSES_KIND
from opct.errors import OtherAttackError, RunError
from opct.judges.protocol import Usage
from opct.runs.io import (
    PRIVATE_MODE,
    append_jsonl,
    atomic_write,
    fsync_folder,
    read_jsonl,
    reason,
    remedy,
    write_json,
    write_jsonl,
)

SCHEMA = 1
TEXTS = ("prompt", "reply")
WARNING = (
    "PRIVATE. Prompts that were made to get past a model's refusals, and what the model said. They are here so that "
    "the owner of that model can train and test against them. They may work on other models: do not publish or share "
    "this file, and delete it when it is no longer needed."
)


class AttackDir:
    """An attack's folder, locked for this process while it is open; a `Journal` of its tries.

    Raises:
        RunError: the folder is in use, is not an attack's, or holds another attack than is to be resumed.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.identity_path = self.path / "attack.json"
        self.begun_path = self.path / "begun.jsonl"
        self.tries_path = self.path / "tries.jsonl"
        self.transcripts_path = self.path / "transcripts.jsonl"
        self.successes_path = self.path / "successful_prompts.jsonl"
        self.judge_cache_path = self.path / "judge_cache.jsonl"
        self.result_path = self.path / "result.json"
        self.training_path = self.path / "training.json"
        self.attacker_path = self.path / "attacker"
        self.practice_path = self.path / "practice.jsonl"
        self.practised_path = self.path / "training_behaviors.jsonl"
        self.spent = Spent()
        self._tries: list[Try] = []
        self._batch = 0
        self._begun = 0
        self._lock: Any = None
        self._replaces = self._overwrites = False

    @property
    def _content(self) -> tuple[Path, ...]:
        return (
            self.result_path,
            self.successes_path,
            self.begun_path,
            self.tries_path,
            self.transcripts_path,
            self.identity_path,
            self.practice_path,
            self.practised_path,
            self.training_path,
        )

    @property
    def is_attack(self) -> bool:
        """True if an attack was begun in the folder, or the training of its attacker."""
        return self.identity_path.is_file() or self.training_path.is_file()

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each model in this process when the attack, or the training of its attacker, began, by the
        model's source."""
        found = {}
        for path in (self.training_path, self.identity_path):
            kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            for one in (kept.get("target"), kept.get("attacker", {}).get("model")):
                if isinstance(one, dict) and {"source", "dtype"} <= set(one):
                    found[str(one["source"])] = str(one["dtype"])
        return found

    @property
    def replaces(self) -> bool:
        """True while an attack is in the folder that will be removed when the new one begins."""
        return self._replaces and self.is_attack

    # -- open

    def open(self, *, resume: bool = False, overwrite: bool = False) -> AttackDir:
        """Lock the folder; close it with `with`. With `overwrite` the attack in it is removed when the new one or its
        training begins, so one that cannot begin loses nothing; what a judge was paid for stays."""
        from filelock import FileLock, Timeout

        if resume and overwrite:
            raise RunError("--resume and --overwrite contradict each other: give one of them.")
        if resume and not self.is_attack:
            raise RunError(f"No attack to resume in {self.path}: leave --resume out to begin one, or correct --out.")
        if self.is_attack and not (resume or overwrite):
            raise RunError(
                f"{self.path} holds an attack already. Go on with it: --resume. Replace it: --overwrite. Or choose "
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
        self._lock = lock
        self._replaces = self._overwrites = overwrite
        return self

    def _clear_replaced(self) -> None:
        if not self._replaces:
            return
        self._remove_attacker()
        for path in self._content:
            path.unlink(missing_ok=True)
        self._replaces = False

    def _remove_attacker(self) -> None:
        if self.attacker_path.exists():
            shutil.rmtree(self.attacker_path)

    def __enter__(self) -> AttackDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is None:
            return
        self._lock.release()
        self._lock = None
        if isinstance(error, KeyboardInterrupt) and self.is_attack and not self._replaces:
            error.add_note(how_to_go_on(self.path, overwritten=self._overwrites))
        if kind is not None and not self.is_attack:  # one that failed before it began leaves no folder behind
            with contextlib.suppress(OSError):
                (self.path / ".lock").unlink(missing_ok=True)
                self.path.rmdir()

    def check_resumed(self, known: Mapping[str, Any], training: Mapping[str, Any]) -> None:
        """See before any model is loaded that what is resumed is the same, as far as that is known.

        Args:
            known: of what `begin` gets, at any depth; training: of what `begin_training` gets; none of one that is not
                trained.

        Raises:
            RunError: it is not the same; the message names what differs.
        """
        if self._replaces:
            return
        if not training:
            self._refuse_untrained(known)
        for path, own in ((self.training_path, training), (self.identity_path, known)):
            if own and path.is_file():
                self._refuse_other(path, json.loads(json.dumps(own)), in_part=True)

    def begin_training(self, identity: Mapping[str, Any]) -> None:
        """Write against whom an attacker is trained, or check that it is the same as before.

        Raises:
            RunError: it is not the same; the message names what differs.
        """
        self._clear_replaced()
        now = json.loads(json.dumps({"opct_attack_training": SCHEMA, **identity}))
        if self.training_path.is_file():
            self._refuse_other(self.training_path, now)
            return
        write_json(self.training_path, now)

    def forget_training(self) -> None:
        """Take back that a training was begun, its run too: it failed before its first step."""
        self._remove_attacker()
        self.training_path.unlink(missing_ok=True)
        self.practised_path.unlink(missing_ok=True)

    def _refuse_untrained(self, identity: Mapping[str, Any]) -> None:
        if self.training_path.is_file() and "training" not in identity["attacker"]:
            raise RunError(
                f"In {self.path} an attacker is being trained, and this one is another: choose another --out, or "
                "replace it with --overwrite."
            )

    def _refuse_other(self, path: Path, now: Mapping[str, Any], *, in_part: bool = False) -> None:
        before = json.loads(path.read_text(encoding="utf-8"))
        before = _part(before, now) if in_part else before
        differ = [f"{name} was {_short(a)} and is {_short(b)}" for name, a, b in _differences(before, now)]
        if differ:
            raise OtherAttackError(
                f"The attack in {self.path} is another one than is to be resumed: {'; '.join(differ[:5])}. Give "
                "the same settings, or choose another --out."
            )

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Write who attacks whom, or check that it is the same as before, and read what was tried.

        Raises:
            RunError: it is not the same; the message names what differs.
        """
        self._clear_replaced()
        now = json.loads(json.dumps({"opct_attack": SCHEMA, **identity}))
        self._refuse_untrained(now)
        if self.identity_path.is_file():
            self._refuse_other(self.identity_path, now)
            self._read()
            return
        _new_private(self.transcripts_path, {"opct_warning": WARNING, "kind": "opct_transcripts", "schema": SCHEMA})
        for path in (self.begun_path, self.tries_path):
            path.unlink(missing_ok=True)
        write_json(self.identity_path, now)  # last: from here on there is an attack

    def _read(self) -> None:
        """The tries of whole batches; what is left of another one is removed from both files."""
        rows = read_jsonl(self.tries_path)
        whole = len(rows)
        if rows and sum(row["batch"] == rows[-1]["batch"] for row in rows) < rows[-1]["of"]:
            whole = next(i for i, row in enumerate(rows) if row["batch"] == rows[-1]["batch"])
        self._batch = rows[whole - 1]["batch"] + 1 if whole else 0
        if whole < len(rows):
            write_jsonl(self.tries_path, rows[:whole])
        header, *texts = read_jsonl(self.transcripts_path) or [{}]
        if len(texts) > whole:
            _write_private(self.transcripts_path, [header, *texts[:whole]])
        if len(texts) < whole:
            raise RunError(
                f"{self.transcripts_path} has {len(texts)} tries and {self.tries_path} {whole}: the texts of some are "
                "lost, and the attack cannot go on from there. Begin it anew with --overwrite."
            )
        self._tries = [_try(row, text) for row, text in zip(rows[:whole], texts, strict=False)]
        self._begun = sum(row["begun"] for row in read_jsonl(self.begun_path))
        self.spent = Spent().plus(self._tries, rows[whole - 1]["seconds"] if whole else 0.0)

    # -- journal

    def kept(self, kind: Kind, round_: int) -> dict[Key, Try]:
        """The tries of a round that were made before."""
        return {one.key: one for one in self._tries if (one.kind, one.round) == (kind, round_)}

    def begun(self, kind: Kind, n: int) -> None:
        """Note that a batch of so many tries begins; the note is on the disk when this returns."""
        append_jsonl(self.begun_path, {"kind": kind, "begun": n}, fsync=True)
        if self._begun == 0:
            fsync_folder(self.path)
        self._begun += n

    @property
    def cut_short(self) -> int:
        """Tries that began and were not kept, where no batch is under way: at most so many queries were put and lost by
        kills and failures."""
        return self._begun - len(self._tries)

    def write(self, tries: Sequence[Try], seconds: float) -> None:
        """Keep a batch; it is on the disk, whole, when this returns."""
        named = [{"batch": self._batch, "of": len(tries), **_names(one)} for one in tries]
        texts = [{**name, "prompt": one.prompt, "reply": one.reply} for name, one in zip(named, tries, strict=True)]
        append_jsonl(self.transcripts_path, *texts, fsync=True)
        rows = [{**name, "seconds": seconds, **_numbers(one)} for name, one in zip(named, tries, strict=True)]
        append_jsonl(self.tries_path, *rows, fsync=True)  # last: a batch is made when it is here
        if self._batch == 0:
            fsync_folder(self.path)
        self._batch += 1
        self._tries += tries

    # -- results

    def write_result(self, result: Mapping[str, Any], subjects: Sequence[Subject], tries: Sequence[Try]) -> None:
        """The numbers, and apart from them the prompts that broke a behaviour."""
        texts = {subject.id: subject.text for subject in subjects}
        broke = [one for one in tries if one.is_broken and one.kind == BEHAVIOR]
        header = {"opct_warning": WARNING, "kind": SUCCESSES_KIND, "schema": SCHEMA}
        rows = [
            {**_names(one), "behavior": texts[one.behavior_id], "prompt": one.prompt, "score": one.score}
            for one in sorted(broke, key=lambda one: one.key)
        ]
        _write_private(self.successes_path, [header, *rows])
        write_json(self.result_path, result)


def how_to_go_on(path: Path, *, overwritten: bool) -> str:
    """What a person is told who interrupted an attack that had begun, or was resumed."""
    without = ", without --overwrite" if overwritten else ""
    return f"what was tried is kept in {path}: go on with the same command and --resume{without}"


def _names(one: Try) -> dict[str, Any]:
    return {"kind": one.kind, "behavior_id": one.behavior_id, "round": one.round, "episode": one.episode}


def _numbers(one: Try) -> dict[str, Any]:
    left_out = {*_names(one), *TEXTS, "proposal", "judge_usage"}
    numbers = {field.name: getattr(one, field.name) for field in fields(one) if field.name not in left_out}
    return {**numbers, "judge_usage": asdict(one.judge_usage)}


def _try(row: Mapping[str, Any], text: Mapping[str, Any]) -> Try:
    if _key_of(row) != _key_of(text):
        raise RunError(f"A transcript is of {_key_of(text)} where {_key_of(row)} is expected: begin with --overwrite.")
    numbers = {name: value for name, value in row.items() if name not in ("batch", "of", "seconds")}
    prompt = text["prompt"]
    numbers["judge_usage"] = Usage(**numbers["judge_usage"])
    return Try(**numbers, prompt=None if prompt is None else tuple(prompt), reply=text["reply"])


def _key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("kind", "behavior_id", "round", "episode"))


def _new_private(path: Path, header: Mapping[str, Any]) -> None:
    """A file that its owner alone may read, with its warning in the first line."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, PRIVATE_MODE))
    append_jsonl(path, header, fsync=True)


def _write_private(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    lines = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    atomic_write(path, lines, mode=PRIVATE_MODE)


def _differences(before: Any, now: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """(name, before, now) of every value that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return [
            found
            for key in keys
            for found in _differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
        ]
    return [] if before == now else [(name, before, now)]


def _part(before: Any, now: Any) -> Any:
    """Of `before` the entries that `now` has, at any depth."""
    if isinstance(before, dict) and isinstance(now, dict):
        return {name: _part(before.get(name), value) for name, value in now.items()}
    return before


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."

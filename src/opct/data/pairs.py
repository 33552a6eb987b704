"""The pair: one training row, and the only place that reads and checks pair files.

A line of a JSONL file (or a row of a Hugging Face dataset with these columns):

    {"id": str, "axis": str, "family": str,
     "prompt": [{"role", "content"}, ...], "teacher_prompt": [...], "meta": {...}}

`content` may be null for an assistant turn that is followed by another turn: the policy answers that turn itself, with
its current weights, before the rollout. A teacher prompt holds no such turn. If a prompt ends with an assistant message
it is a prefill: both prompts then end with the same one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opct.errors import DataError, RunError, shown_faults
from opct.runs.io import atomic_write, reason

Message = dict[str, str | None]
Prompt = tuple[Message, ...]

COLUMNS = ("id", "axis", "family", "prompt", "teacher_prompt", "meta")
ROLES = ("system", "user", "assistant", "tool")
SYCOPHANCY, JAILBREAK, SAFETY_AWARENESS = "sycophancy", "jailbreak", "safety_awareness"
"""The axes with pairs and evaluations of our own."""
HUB = "hf:"
EVALUATION_ONLY = "is_evaluation_only"
"""In `meta` of a pair made of a set whose authors ask that nobody trains on it."""


@dataclass(frozen=True)
class ContrastivePair:
    """One training row: what the policy sees (`prompt`) and what the teacher sees (`teacher_prompt`)."""

    id: str
    axis: str
    family: str
    prompt: Prompt
    teacher_prompt: Prompt
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def is_identity(self) -> bool:
        """True when both sides see the same prompt, which anchors the model to itself."""
        return self.prompt == self.teacher_prompt

    def to_json(self) -> dict[str, Any]:
        """The pair as the JSON object that `load_pairs` reads."""
        return {
            "id": self.id,
            "axis": self.axis,
            "family": self.family,
            "prompt": list(self.prompt),
            "teacher_prompt": list(self.teacher_prompt),
            "meta": self.meta,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ContrastivePair:
        """Build a pair from a row of the contract.

        Raises:
            DataError: with every fault of the row.
        """
        faults = list(row_faults(row))
        if faults:
            raise DataError(f"Pair {row.get('id')!r} breaks the pair contract:", tuple(faults))
        return cls(
            id=row["id"],
            axis=row["axis"],
            family=row["family"],
            prompt=tuple(dict(m) for m in row["prompt"]),
            teacher_prompt=tuple(dict(m) for m in row["teacher_prompt"]),
            meta=dict(row.get("meta") or {}),
        )


def row_faults(row: Any) -> Iterator[str]:
    """Yield what is wrong with one row, in words that say what to do."""
    if not isinstance(row, Mapping):
        yield f"expected a JSON object with the keys {', '.join(COLUMNS)}, found {type(row).__name__}"
        return
    for key in ("id", "axis", "family"):
        value = row.get(key)
        if not isinstance(value, str) or not value.strip():
            yield f"`{key}` must be a non-empty string, found {value!r}"
    unknown = sorted(set(row) - set(COLUMNS))
    if unknown:
        yield f"unknown key {unknown[0]!r}: the keys are {', '.join(COLUMNS)}; put your own fields under `meta`"
    if row.get("meta") is not None and not isinstance(row["meta"], Mapping):
        yield f"`meta` must be an object, found {type(row['meta']).__name__}"
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.end]
        yield f"it holds {half!r}, half of a character that takes two code units: write the character whole"
    sides_ok = True
    for side in ("prompt", "teacher_prompt"):
        faults = list(prompt_faults(side, row.get(side)))
        sides_ok = sides_ok and not faults
        yield from faults
    if sides_ok:
        yield from _side_by_side_faults(row["prompt"], row["teacher_prompt"])


def prompt_faults(side: str, messages: Any) -> Iterator[str]:
    """What is wrong with the messages of a prompt; `side` is its column, such as `prompt` or `teacher_prompt`."""
    if not isinstance(messages, list | tuple) or not messages:
        yield f"`{side}` must be a non-empty list of messages, found {_short(messages)}"
        return
    for i, message in enumerate(messages):
        where = f"`{side}[{i}]`"
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            yield f"{where} must be an object with exactly `role` and `content`, found {_short(message)}"
            continue
        role, content = message["role"], message["content"]
        if role not in ROLES:
            yield f"{where}.role is {role!r}: use one of {', '.join(ROLES)}"
        elif role == "system" and i > 0:
            yield f"{where} is a system message after the first turn: put it first"
        elif content is None:
            yield from _sampled_turn_faults(side, where, role, last=i == len(messages) - 1)
        elif not isinstance(content, str):
            yield f"{where}.content must be a string, found {type(content).__name__}"
        elif not content.strip():
            yield f"{where}.content is empty: write the text, or remove the message"
    if not any(isinstance(m, Mapping) and m.get("role") == "user" for m in messages):
        yield f"`{side}` has no user message: the model has nothing to answer"


def _sampled_turn_faults(side: str, where: str, role: str, *, last: bool) -> Iterator[str]:
    if role != "assistant":
        yield f"{where}.content is null, which is for assistant turns only: write the text"
    elif side == "teacher_prompt":
        yield f"{where}.content is null: a teacher prompt cannot hold a turn sampled from the policy"
    elif last:
        yield f"{where}.content is null in the last turn: leave the turn out, the completion is sampled anyway"


def _side_by_side_faults(prompt: Iterable[Mapping], teacher_prompt: Iterable[Mapping]) -> Iterator[str]:
    last, teacher_last = list(prompt)[-1], list(teacher_prompt)[-1]
    prefills = [m["content"] if m["role"] == "assistant" else None for m in (last, teacher_last)]
    if prefills[0] != prefills[1]:
        yield (
            "one side ends with an assistant message (a prefill) that the other side does not end with: "
            "end both with the same assistant message, or neither"
        )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def load_pairs(source: str | Path, *, split: str = "train") -> list[ContrastivePair]:
    """Read and check every pair of `source`: a JSONL file, a folder saved by `datasets`, or `hf:owner/name`.

    Args:
        source: the path of a JSONL file or of a dataset folder, or `hf:` and a dataset id on the Hugging Face hub, with
            `:` and a split (or `config/split`), and `@` and a commit, tag or branch, where one is meant.
        split: the split to read where the source is a dataset with several.

    Raises:
        DataError: with every fault in the source at once, each with file:line (or row number) and the remedy.
    """
    text = str(source)
    if text in ("", HUB):
        raise DataError(f"{text!r} names no pairs: give a pair file, the folder of a dataset, or hf:owner/name.")
    if text.lower().endswith((".csv", ".tsv", ".csv.gz", ".tsv.gz")):
        raise DataError(
            f"{text} is a table, and pairs are JSON lines: of questions, make pairs with `opct data build sycophancy "
            f"--from {text}`."
        )
    if text.startswith(HUB) or Path(text).is_dir():
        return _checked(text, dataset_rows(text, split))
    return _checked(text, _jsonl_rows(Path(text)))


def write_pairs(path: str | Path, pairs: Iterable[ContrastivePair], *, mode: int = 0o666) -> int:
    """Write pairs as JSONL (UTF-8, one object a line), whole or not at all, and return how many were written.

    Args:
        mode: see `atomic_write`.

    Raises:
        DataError: the file cannot be written.
    """
    lines = [json.dumps(pair.to_json(), ensure_ascii=False) for pair in pairs]
    try:
        atomic_write(path, "".join(line + "\n" for line in lines), mode=mode)
    except RunError as error:
        raise DataError(
            f"Cannot write the pairs to {path}: {reason(error.__cause__ or error)}. Check the free space and the "
            "rights of the folder, or choose another file."
        ) from error
    return len(lines)


@dataclass(frozen=True)
class _Bad:
    """A line that is not even JSON."""

    fault: str


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        if not path.is_file():
            raise DataError(
                f"No pair file at {path}: check the path, or make one with `opct data build sycophancy --out {path}`."
            )
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8."
        ) from error
    except OSError as error:
        raise DataError(f"Cannot read {path}: {reason(error)}. Give yourself the right to read it.") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield f"{path}:{number}", json.loads(line)
        except json.JSONDecodeError as error:
            yield f"{path}:{number}", _Bad(f"not valid JSON: {error.msg} at column {error.colno}")


def dataset_rows(source: str, split: str = "train") -> Iterator[tuple[str, Any]]:
    """(where, row) of each row of a folder saved by `datasets`, or of `hf:owner/name[:[config/]split][@revision]`.

    Args:
        split: where the source names none.

    Raises:
        DataError: the dataset, or the package that reads it, is not there.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"Reading {source} needs the datasets package: pip install 'opct[hub]'.") from error
    try:
        if source.startswith(HUB):
            name, _, revision = source.removeprefix(HUB).partition("@")
            name, _, part = name.partition(":")
            config, _, named = part.rpartition("/")
            split = named or split
            data = datasets.load_dataset(name, config or None, split=split, revision=revision or None)
        else:
            data = datasets.load_from_disk(source)
            data = data[split] if isinstance(data, datasets.DatasetDict) else data
    except (OSError, ValueError, KeyError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        on_hub = "its name, config, split and revision, and that the hub can be reached"
        remedy = on_hub if source.startswith(HUB) else "the path"
        said = str(error).rstrip(".")
        raise DataError(f"Cannot read split {split!r} of the dataset {source}: {said}. Check {remedy}.") from error
    for number, row in enumerate(data):
        yield f"{source} row {number}", row


def pinned_rows(source: str) -> list[tuple[str, Any]]:
    """`dataset_rows` of a set on the hub, which must say its revision.

    Raises:
        DataError: it says none, or see `dataset_rows`.
    """
    name, _, revision = source.removeprefix(HUB).partition("@")
    if not revision:
        raise DataError(
            f"{source} names no revision, so it may change under you, and move what is in it between splits: add the "
            f"commit, {HUB}{name}@COMMIT (under 'History' at huggingface.co/datasets/{name.partition(':')[0]})."
        )
    return list(dataset_rows(source))


def _checked(source: str, rows: Iterable[tuple[str, Any]]) -> list[ContrastivePair]:
    pairs: list[ContrastivePair] = []
    faults: list[str] = []
    first_seen: dict[str, str] = {}
    for where, row in rows:
        row_problems = [row.fault] if isinstance(row, _Bad) else list(row_faults(row))
        identifier = row.get("id") if isinstance(row, Mapping) else None
        if isinstance(identifier, str):
            if identifier in first_seen:
                row_problems.append(f"duplicate id {identifier!r}, first at {first_seen[identifier]}: ids must differ")
            first_seen.setdefault(identifier, where)
        faults += [f"{where}: {problem}" for problem in row_problems]
        if not row_problems:
            pairs.append(ContrastivePair.from_json(row))
    if faults:
        raise DataError(f"{source} has {len(faults)} fault(s); nothing was read:", shown_faults(faults))
    if not pairs:
        raise DataError(f"{source} holds no pairs: it needs at least one row.")
    return pairs

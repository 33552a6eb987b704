"""Behaviors: harmful requests in one sentence, each with a benign counterpart, for the jailbreak axis.

`builtin_behaviors` are the embedded ones, which name what is asked for and never how it is done. `load_behaviors` reads
a file or a public set (JailbreakBench, HarmBench, AdvBench ...); no public set is embedded.

The split of a behavior never depends on what else is in its file. If a file has splits, near-duplicates in two of them
are refused. If it has none, `own_split` follows from the text alone, so near-duplicates may fall into two splits; no
pairs are made of those (`leaks_into_later_split`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from opct.data.duplicates import cross_duplicates, near_duplicate_groups, normalize
from opct.data.perturb.in_the_wild import Artifact
from opct.data.questions import SPLITS, Split, split_of
from opct.data.tables import (
    EMBEDDED,
    Columns,
    Fault,
    RowFault,
    duplicate_ids,
    find_columns,
    known_columns,
    parse_rows,
    read_rows,
    refuse,
    warn_of_repeats,
)
from opct.errors import DataError, shorten, unknown

log = logging.getLogger(__name__)

BEHAVIOR_COLUMNS: dict[str, tuple[str, ...]] = {
    "behavior": ("goal", "behavior", "instruction", "prompt"),  # `goal` first: JailbreakBench's `Behavior` is a title
    "id": ("id", "behaviorid", "behavior_id"),
    "category": ("semanticcategory", "category"),
    "benign": ("benign",),
    "context": ("context", "contextstring"),
    "split": ("split",),
    "key": ("key", "index"),
}
"""Role -> usual column names in the order of preference, with the columns of public sets."""


@dataclass(frozen=True)
class Behavior:
    """One harmful request.

    Attributes:
        behavior: the request, bare.
        benign: its benign counterpart, a harmless request with the same verbs and topic; None if the source has none.
        by_hash: the split follows from the text (`splits_by_text`), not from a file.
    """

    id: str
    category: str
    behavior: str
    benign: str | None
    split: Split
    by_hash: bool = False


Harmful = TypeVar("Harmful", Behavior, Artifact)
"""A harmful request, or a prompt made for one."""


@dataclass(frozen=True)
class BehaviorRow:
    """One row, before it has a split.

    Attributes:
        key: what matches it with its benign counterpart in another file: the key column, else the id of the file.
    """

    id: str
    category: str
    behavior: str
    benign: str | None = None
    split: str | None = None
    key: str | None = None
    has_made_id: bool = False
    where: str = ""


@cache
def _builtin() -> tuple[Behavior, ...]:
    text = (EMBEDDED / "behaviors.jsonl").read_text(encoding="utf-8")
    return tuple(Behavior(**json.loads(line)) for line in text.splitlines())


def builtin_behaviors(split: Split | None = None) -> list[Behavior]:
    """The embedded behaviors of one split, or all of them."""
    return [behavior for behavior in _builtin() if split in (None, behavior.split)]


def load_behaviors(
    source: str | Path,
    columns: Columns | None = None,
    *,
    counterparts: str | Path | None = None,
    exclude: Collection[str] = (),
) -> list[Behavior]:
    """Behaviors from a file, or from the hub at a revision (`hf:owner/name[:[config/]split]@revision`).

    Args:
        columns: role -> column where the guess is wrong; for the roles see `BEHAVIOR_COLUMNS`.
        counterparts: a file of benign counterparts with the same columns, one for each row of the source
            (JailbreakBench has such a file); matched by the key column, else by id.
        exclude: categories that are not read, such as HarmBench's `copyright`.

    Rows without a split get their `own_split`. Of rows that say the same word for word the first one is read.

    Raises:
        DataError: with every fault at once: a file that cannot be read, unclear columns, an empty or repeated id, a
            near-duplicate in two of the file's own splits, a benign counterpart that is its behavior, an unknown
            category.
    """
    read = _read(source, columns, "behaviors")
    categories = list(dict.fromkeys(row.category for row in read))
    for name in exclude:
        if name not in categories:
            raise DataError(f"{source}: {unknown('category', name, categories)}")
    raw = [row for row in read if row.category not in exclude]
    if not raw:
        raise DataError(f"{source} holds no behaviors besides {', '.join(sorted(exclude))}: give at least one.")
    if counterparts is not None:
        raw = _with_counterparts(raw, _read(counterparts, columns, "benign counterparts"), source, counterparts)
    return _with_splits(raw, str(source))


def splits_by_text(texts: Sequence[str]) -> list[Split]:
    """The split of each request by its text alone: that of the `nearest` embedded behavior, else by the sha256 of its
    words."""
    # the embedded split first: a near-duplicate of a test behavior must not be trained on by the luck of its hash
    near = nearest(texts, builtin_behaviors())
    return [near[i].split if i in near else split_of(f"behavior/{normalize(text)}") for i, text in enumerate(texts)]


# ------------------------------------------------------------------------------------------------------ near-duplicates


def nearest(texts: Sequence[str], behaviors: Sequence[Behavior]) -> dict[int, Behavior]:
    """Index of each text that has a near-duplicate among the behaviors -> that behavior.

    Of several, the one in the same words wins, then the nearest of the latest split: a text close to something that is
    measured must not be trained on.
    """
    # reversed: of two in the same words the first one stays in the dict
    same = {normalize(one.behavior): one for one in reversed(behaviors)}
    matches = {i: same[words] for i, text in enumerate(texts) if (words := normalize(text)) in same}
    # latest first: a text near a test and a training behavior must count as test
    for split in reversed(SPLITS):
        others = [one for one in behaviors if one.split == split]
        left = [i for i in range(len(texts)) if i not in matches]
        near = cross_duplicates([texts[i] for i in left], [one.behavior for one in others])
        # `place` counts in `left`, not in `texts`
        matches |= {left[place]: others[j] for place, j in near.items()}
    return matches


def split_duplicates(behaviors: Sequence[Harmful], others: Sequence[Behavior]) -> tuple[list[Harmful], list[Harmful]]:
    """(behaviors without a near-duplicate among the others, behaviors with one).

    Requests are compared with requests, and benign counterparts with benign counterparts; one match is enough.
    """
    near = set(cross_duplicates([one.behavior for one in behaviors], [one.behavior for one in others]))
    benign = {i: text for i, one in enumerate(behaviors) if (text := getattr(one, "benign", None)) is not None}
    matches = cross_duplicates(list(benign.values()), [one.benign for one in others if one.benign is not None])
    # `place` counts in the counterparts there are, not in `behaviors`
    near |= {list(benign)[place] for place in matches}
    return [one for i, one in enumerate(behaviors) if i not in near], [behaviors[i] for i in sorted(near)]


def leaks_into_later_split(behaviors: Sequence[Behavior], split: str | None) -> list[Behavior]:
    """Behaviors of `split` with a near-duplicate, of the request or its benign counterpart, in a later split.

    Validation and test are later than train. All splits together (None, "all") have none.
    """
    later = SPLITS[SPLITS.index(split) + 1 :] if split in SPLITS else ()
    split_behaviors = [one for one in behaviors if one.split == split]
    return split_duplicates(split_behaviors, [one for one in behaviors if one.split in later])[1]


# ------------------------------------------------------------------------------------------------------ rows of a file


def _read(source: str | Path, chosen: Columns | None, what: str) -> list[BehaviorRow]:
    """Every row of a file or hub set.

    The log says which columns were read, and the first request: public sets have harmful and benign requests in files
    with the same columns, and nothing else tells which one this is.
    """
    rows = read_rows(source, "behavior", known=known_columns("behavior", BEHAVIOR_COLUMNS, chosen))
    role_columns = find_columns(source, rows, chosen, BEHAVIOR_COLUMNS, ("behavior",))
    columns = {role: name for role, (name,) in role_columns.items()}
    parsed, faults = parse_rows(rows, lambda row: _behavior_row(row, columns))
    refuse(source, faults)
    read = [replace(row, where=where) for where, row in parsed]
    used = ", ".join(f"{role}={name}" for role, name in columns.items())
    log.info("%s: read as %d %s, columns %s; the first is %s", source, len(read), what, used, shorten(read[0].behavior))
    return read


def _behavior_row(row: Mapping[str, Any], columns: Mapping[str, str]) -> BehaviorRow:
    text = row.get(columns["behavior"])
    if not isinstance(text, str) or not text.strip():
        raise RowFault(f"the request is {text!r}: write a text, or leave the row out")
    if odd := [name for name in columns.values() if isinstance(row.get(name), list | dict)]:
        raise RowFault(f"the cell {odd[0]!r} is a {type(row[odd[0]]).__name__}: write a text")
    cells = {role: str(row[name]) for role, name in columns.items() if row.get(name) is not None}
    cell = {role: value for role, value in cells.items() if value.strip()}
    behavior = text.strip()
    if "context" in cell:
        behavior = f"{cell['context'].strip()}\n\n{behavior}"
    return BehaviorRow(
        # with the context in it: the same request about two contexts is two behaviors
        id=cell.get("id") or f"b/{hashlib.sha256(behavior.encode()).hexdigest()[:12]}",
        category=cell.get("category", "uncategorised"),
        behavior=behavior,
        benign=cell.get("benign"),
        split=cell.get("split"),
        # not the made id: it is of the text, which differs from the counterpart's
        key=cell.get("key") or cell.get("id"),
        has_made_id="id" not in cell,
    )


def _with_counterparts(
    raw: Sequence[BehaviorRow], benign: Sequence[BehaviorRow], source: str | Path, counterparts: str | Path
) -> list[BehaviorRow]:
    # without a key a row matches nothing: None must not pair two rows that both lack one
    by_key: dict[str | None, str] = {row.key: row.behavior for row in benign if row.key is not None}
    faults = []
    for row in raw:
        if row.key not in by_key:
            remedy = "give a row with the same key (as JailbreakBench's Index) or id"
            faults.append((row.where, f"no counterpart with the key {row.key!r} in {counterparts}: {remedy}"))
        elif by_key[row.key] == row.behavior:
            remedy = "name the file of harmful requests for the one, and that of benign requests for the other"
            faults.append((row.where, f"the counterpart is the behavior itself, {shorten(row.behavior)}: {remedy}"))
    refuse(source, faults)
    return [replace(row, benign=by_key[row.key]) for row in raw]


# -------------------------------------------------------------------------------------------------------------- splits


def _with_splits(raw: Sequence[BehaviorRow], source: str) -> list[Behavior]:
    named = sum(row.split is not None for row in raw)
    faults = duplicate_ids((row.where, row.id) for row in raw if not row.has_made_id)  # a made id repeats with its text
    for row in raw:
        if row.split is None and named:
            faults.append((row.where, f"no split, where {named} of {len(raw)} rows have one: give it to all or none"))
        elif row.split is not None and row.split not in SPLITS:
            remedy = f"use one of {', '.join(SPLITS)}, or leave it out for all rows"
            faults.append((row.where, f"the split is {row.split!r}: {remedy}"))
    if named:
        faults += _leaks([(row, row.behavior) for row in raw])
        faults += _leaks([(row, row.benign) for row in raw if row.benign is not None], "the benign counterpart ")
    refuse(source, faults)
    splits = [row.split for row in raw] if named else splits_by_text([row.behavior for row in raw])
    behaviors: dict[str, Behavior] = {}
    repeated: list[str] = []
    for row, split in zip(raw, splits, strict=True):
        behavior = Behavior(row.id, row.category, row.behavior, row.benign, cast("Split", split), by_hash=not named)
        # `is not`: a row that repeats all fields is equal, and still a repeat
        if behaviors.setdefault(" ".join(row.behavior.split()).casefold(), behavior) is not behavior:
            repeated.append(row.where)
    warn_of_repeats(source, repeated, "behaviors")
    return list(behaviors.values())


def _leaks(texts: Sequence[tuple[BehaviorRow, str]], what: str = "") -> list[Fault]:
    """A fault for each row whose text (`what` it is) has a near-duplicate in another split."""
    faults = []
    for group in near_duplicate_groups([text for _, text in texts]):
        (first, same), *others = [texts[i] for i in group]
        near = f"is a near-duplicate of {shorten(same)} of {first.id!r} ({first.split}, {first.where})"
        for row, text in others:
            if row.split != first.split:
                leak = f"{what}{shorten(text)} of {row.id!r} ({row.split})"
                faults.append((row.where, f"{leak} {near}: put both into one split"))
    return faults

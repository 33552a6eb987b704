"""Behaviours: harmful requests in one sentence, each with a benign twin, for the jailbreak axis.

`builtin_behaviors` are the embedded ones, written for this package: they name what is asked for and never how it is
done. `load_behaviors` reads a file or a public set.

The split of a behaviour never depends on what else is in its file. Where a file has splits, near-duplicates in two of
them are refused, of behaviours and of benign twins. Where it has none, `own_split` follows from the text alone, so that
near-duplicates may fall into two splits, of behaviours or of their twins: `measured_later` finds those, and no pairs
are made of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import cast

from opct.data.behavior_files import RawBehavior, read_behaviors, shown
from opct.data.duplicates import near_duplicate_groups, nearest, normalize
from opct.data.questions import SPLITS, Split, split_of
from opct.errors import DataError, shown_faults, unknown

BUILTIN_FILE = "behaviors.jsonl"


@dataclass(frozen=True)
class Behavior:
    """One harmful request.

    Attributes:
        behavior: the request, bare.
        benign: its benign twin, a harmless request that looks like it (the same verbs, the same topic); None where the
            source has none.
        split: train, validation or test.
        by_hash: the split is the text's own (`own_splits`); nobody chose it.
    """

    id: str
    category: str
    behavior: str
    benign: str | None
    split: Split
    by_hash: bool = False


@cache
def _builtin() -> tuple[Behavior, ...]:
    text = resources.files("opct.data").joinpath("builtin", BUILTIN_FILE).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    raw = [RawBehavior(f"{BUILTIN_FILE}:{number}", **row) for number, row in enumerate(rows, start=1)]
    return tuple(checked_behaviors(raw, BUILTIN_FILE))


def builtin_behaviors(split: Split | None = None) -> list[Behavior]:
    """The embedded behaviours of one split, or all of them."""
    return [behavior for behavior in _builtin() if split in (None, behavior.split)]


def load_behaviors(
    source: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    twins: str | Path | None = None,
    leave_out: Collection[str] = (),
) -> list[Behavior]:
    """Behaviours from a file (JSONL, JSON, CSV, TSV; also gzipped) or from the hub, of any format in `FORMATS`.

    Args:
        source: the file, or `hf:owner/name[:[config/]split]@revision`. A hub set needs its revision (a commit or tag):
            what can change under its name would move behaviours between splits.
        columns: role -> column where the format is none of the known ones; the roles are behavior, id, category,
            benign, context, split, key.
        twins: a file of benign behaviours of the same format, one for each row of the source (JailbreakBench has such
            a file); they are matched by the format's key column, or by id where there is none.
        leave_out: categories that are not read, such as HarmBench's `copyright`.

    Rows without a split get their `own_split`; of rows that say the same word for word in one split the first one is
    read.

    Raises:
        DataError: with every fault at once: a file that cannot be read, columns that are of no known format (with those
            found and those expected), an empty or repeated id, a behaviour, a twin or a near-duplicate in two of the
            file's own splits; a twin that is its behaviour; a category to leave out that the file does not have.
    """
    read = read_behaviors(source, columns)
    categories = list(dict.fromkeys(row.category for row in read))
    for name in leave_out:
        if read and name not in categories:
            raise DataError(f"{source}: {unknown('category', name, categories)}")
    raw = [row for row in read if row.category not in leave_out]
    if not raw:
        left = f" besides {', '.join(sorted(leave_out))}" if leave_out else ""
        raise DataError(f"{source} holds no behaviours{left}: it needs at least one row.")
    if twins is not None:
        raw = _with_twins(raw, read_behaviors(twins, columns, what="benign twins"), source, twins)
    return checked_behaviors(raw, str(source))


def checked_behaviors(raw: Sequence[RawBehavior], source: str) -> list[Behavior]:
    """Rows as behaviours, each in its split.

    Raises:
        DataError: with every fault: ids that repeat, unknown splits, near-duplicates in two splits.
    """
    faults = _id_faults(raw)
    faults += [
        f"{row.where}: the split is {row.split!r}: use one of {', '.join(SPLITS)}, or leave it out for all rows"
        for row in raw
        if row.split is not None and row.split not in SPLITS
    ]
    named = sum(row.split is not None for row in raw)
    if 0 < named < len(raw):
        [first] = [row for row in raw if row.split is None][:1]
        faults.append(f"{first.where}: no split, where {named} of {len(raw)} rows have one: give it to all, or to none")
    if named:
        faults += _crossing_faults(raw, [row.behavior for row in raw], "")
        twins = [(row, row.benign) for row in raw if row.benign is not None]
        faults += _crossing_faults([row for row, _ in twins], [text for _, text in twins], "the benign twin ")
    if faults:
        raise DataError(f"{source} has {len(faults)} fault(s); nothing was read:", shown_faults(faults))
    splits = [row.split for row in raw] if named else own_splits([row.behavior for row in raw])
    kept: dict[str, Behavior] = {}
    for row, split in zip(raw, splits, strict=True):
        behavior = Behavior(row.id, row.category, row.behavior, row.benign, cast("Split", split), by_hash=not named)
        kept.setdefault(" ".join(row.behavior.split()).casefold(), behavior)
    return list(kept.values())


def own_splits(texts: Sequence[str]) -> list[Split]:
    """The split of each request by itself: that of the embedded behaviour that is `nearest`, else by the sha256 of its
    words. Neither the other texts nor their order matter.
    """
    near = nearest(texts, builtin_behaviors())
    return [near[i].split if i in near else split_of(f"behavior/{normalize(text)}") for i, text in enumerate(texts)]


def _id_faults(raw: Sequence[RawBehavior]) -> list[str]:
    seen: dict[str, RawBehavior] = {}
    faults = []
    for row in raw:
        first = seen.setdefault(row.id, row)
        if first is not row and not (row.made_id and first.made_id):  # a made id repeats where the text does
            faults.append(f"{row.where}: duplicate id {row.id!r}, first at {first.where}: ids must differ")
    return faults


def _crossing_faults(raw: Sequence[RawBehavior], texts: Sequence[str], what: str) -> list[str]:
    """One fault for each row whose text is a near-duplicate of one in another split, the first of its group.

    Args:
        texts: of each row the one that is compared; `what` it is.
    """
    return [
        f"{raw[i].where}: {what}{shown(texts[i])} of {raw[i].id!r} ({raw[i].split}) is a near-duplicate of "
        f"{shown(texts[group[0]])} of {raw[group[0]].id!r} ({raw[group[0]].split}, {raw[group[0]].where}): put both "
        "into one split"
        for group in near_duplicate_groups(texts)
        for i in group[1:]
        if raw[i].split != raw[group[0]].split
    ]


def _with_twins(
    raw: Sequence[RawBehavior], benign: Sequence[RawBehavior], source: str | Path, twins: str | Path
) -> list[RawBehavior]:
    by_key = {_key(row): row.behavior for row in benign if _key(row) is not None}
    lacking = [row for row in raw if _key(row) not in by_key]
    if lacking:
        raise DataError(
            f"{len(lacking)} of the {len(raw)} behaviours of {source} have no twin in {twins}, first at "
            f"{lacking[0].where} (key {_key(lacking[0])!r}): give a row with the same key for each, as the Index of "
            "JailbreakBench, or with the same id."
        )
    same = [row for row in raw if by_key[_key(row)] == row.behavior]
    if same:
        raise DataError(
            f"{len(same)} of the {len(raw)} behaviours of {source} are their own benign twins in {twins}, first "
            f"{shown(same[0].behavior)} at {same[0].where}: name the file of harmful requests for the one, and that of "
            "benign requests for the other."
        )
    return [replace(row, benign=by_key[_key(row)]) for row in raw]


def _key(row: RawBehavior) -> str | None:
    """What matches a row with its twin: its key, else the id that its file gives it."""
    return row.key or (None if row.made_id else row.id)

"""Where a benchmark's data comes from: a local file, or the hub at a pinned revision. None of it is shipped with opct.

A file is looked for in this order: the one that is named (`data`), one of the known names in the folder that
`OPCT_CAPABILITY_DATA` names, the hub.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from opct.data.tables import BadRow, RowFault, read_rows
from opct.errors import DataError, shown_faults

DATA_FOLDER = "OPCT_CAPABILITY_DATA"

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Source:
    """One benchmark's data.

    Attributes:
        name: of the benchmark.
        columns: role -> the column names that are understood, for what each row must have.
        optional: the same, for what a row may have.
        files: names that are looked for in the data folder, also with `.gz`.
        hub, config, split, revision: of the hub's dataset; `hub` is None where none holds these columns.
        note: what a person must know to get the data.
    """

    name: str
    columns: Mapping[str, tuple[str, ...]]
    files: tuple[str, ...]
    optional: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hub: str | None = None
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Rows:
    """Rows of a benchmark by role, each with where it stands, and what the settings call their source."""

    rows: Sequence[tuple[str, Mapping[str, Any] | BadRow]]
    origin: str


def load_rows(source: Source, data: str | Path | None = None) -> Rows:
    """Every row of a benchmark, its columns named by their roles.

    Args:
        data: a JSONL, JSON, CSV or TSV file (also gzipped) instead of the folder or the hub.

    Raises:
        DataError: the data cannot be had or read, or its columns are others; the message has those found and expected.
    """
    file = _local_file(source, data)
    if file is None:
        found, origin = _hub_rows(source), f"{source.hub}@{source.revision}:{source.split}"
    else:
        found = read_rows(file, f"{source.name} problem")
        origin = f"{file.name} sha256:{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"
    place = str(file or f"{source.hub}@{source.revision}")
    if not found:
        raise DataError(f"{place} holds no rows of {source.name}: it needs at least one.")
    names = _column_names(source, place, found)
    by_role: list[tuple[str, Mapping[str, Any] | BadRow]] = [
        (where, row if isinstance(row, BadRow) else {role: row.get(name) for role, name in names.items()})
        for where, row in found
    ]
    return Rows(by_role, origin)


def parse_rows(source: Source, rows: Rows, parse: Callable[[Mapping[str, Any]], Parsed | None]) -> list[Parsed]:
    """What `parse` makes of each row; a row of which it makes None is left out.

    Raises:
        DataError: rows for which it raised `RowFault`, or that could not be read; all of them at once.
    """
    parsed, faults = [], []
    for where, row in rows.rows:
        if isinstance(row, BadRow):
            faults.append(f"{where}: {row.fault}")
            continue
        try:
            one = parse(row)
        except RowFault as fault:
            faults.append(f"{where}: {fault}")
            continue
        if one is not None:
            parsed.append(one)
    if faults:
        raise DataError(f"{rows.origin} has {len(faults)} fault(s) as data of {source.name}:", shown_faults(faults))
    if not parsed:
        raise DataError(f"{rows.origin} holds no sample that {source.name} asks: check that it is the right file.")
    return parsed


def text_of(row: Mapping[str, Any], role: str) -> str:
    """The text in a column.

    Raises:
        RowFault: there is none.
    """
    value = row.get(role)
    if not isinstance(value, str) or not value.strip():
        raise RowFault(f"the {role} is {value!r}: it must be text")
    return value.strip()


def _local_file(source: Source, data: str | Path | None) -> Path | None:
    if data is not None:
        return Path(data)
    named = os.environ.get(DATA_FOLDER)
    if not named:
        return None
    folder = Path(named)
    if not folder.is_dir():
        raise DataError(f"{DATA_FOLDER} is {named}, which is no folder: name one, or unset it.")
    candidates = (folder / f"{name}{ending}" for name in source.files for ending in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _hub_rows(source: Source) -> list[tuple[str, Any]]:
    remedy = (
        f"give a file (--data {source.name}=FILE, or the task's `data`), or a folder that has "
        f"{' or '.join(source.files)} in {DATA_FOLDER}"
    )
    note = f" {source.note}" if source.note else ""
    if source.hub is None:
        raise DataError(f"There is no data for {source.name} ({_searched(source)}): {remedy}.{note}")
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"Fetching {source.hub} for {source.name} needs the datasets package: pip install 'opct[capability]'; "
            f"or {remedy}."
        ) from error
    try:
        data = datasets.load_dataset(source.hub, source.config, split=source.split, revision=source.revision)
    except (OSError, ValueError, KeyError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise DataError(
            f"Cannot fetch {source.hub} ({source.split}) at {source.revision} for {source.name} ({_searched(source)}): "
            f"{said}. Check that the hub can be reached, or {remedy}.{note}"
        ) from error
    return [(f"{source.hub} row {number}", row) for number, row in enumerate(data)]


def _searched(source: Source) -> str:
    """Where a file of it was looked for and not found."""
    folder = os.environ.get(DATA_FOLDER)
    where = f"{DATA_FOLDER}={folder} has no {' or '.join(source.files)}" if folder else f"{DATA_FOLDER} is not set"
    return f"no file is named, and {where}"


def _column_names(source: Source, place: str, rows: Iterable[tuple[str, Any]]) -> dict[str, str]:
    found = list(dict.fromkeys(key for _, row in rows if isinstance(row, Mapping) for key in row))
    names, missing = {}, []
    for role, known in {**source.columns, **source.optional}.items():
        name = next((each for each in known if each in found), None)
        if name is not None:
            names[role] = name
        elif role in source.columns:
            missing.append(" or ".join(known))
    if missing:
        expected = ", ".join(" or ".join(known) for known in source.columns.values())
        raise DataError(
            f"{place} does not have the columns of {source.name}: it lacks {', '.join(missing)}. Found: "
            f"{', '.join(found) or 'none'}. Expected: {expected}. Rename them, or take another file."
        )
    return names

"""Files of behaviours as plain rows: the public formats, and one of our own. Nothing here knows what a split is for.

Public sets are read from a file, or from the Hugging Face hub at a pinned revision. Nothing of them is embedded.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opct.data.pairs import HUB, pinned_rows
from opct.data.tables import BadRow, read_rows
from opct.errors import DataError, shown_faults

log = logging.getLogger(__name__)

ROLES = ("behavior", "id", "category", "benign", "context", "split", "key")


@dataclass(frozen=True)
class RawBehavior:
    """One row, before it has a split. `made_id`: the id was made from the text. `key` matches it with its twin."""

    where: str
    id: str
    category: str
    behavior: str
    benign: str | None = None
    split: str | None = None
    key: str | None = None
    made_id: bool = False


@dataclass(frozen=True)
class Format:
    """The columns of a set: role -> column. A file is of this format if it has all of them.

    `optional` are those that are read where they are there.
    """

    name: str
    columns: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)

    def found_in(self, names: Collection[str]) -> dict[str, str]:
        """Role -> column of a file with these columns."""
        return {**self.columns, **{role: name for role, name in self.optional.items() if name in names}}


# The first one whose columns are all there is taken, so a format stands before those whose columns it contains.
FORMATS = (
    Format(
        "opct",
        {"id": "id", "category": "category", "behavior": "behavior"},
        {"benign": "benign", "split": "split", "context": "context", "key": "key"},
    ),
    Format("JailbreakBench", {"behavior": "Goal", "category": "Category", "key": "Index"}),
    Format(
        "HarmBench",
        {
            "behavior": "Behavior",
            "id": "BehaviorID",
            "category": "SemanticCategory",
            "context": "ContextString",
        },
    ),
    Format(
        "AdvBench with HarmBench's columns",
        {"behavior": "Behavior", "id": "BehaviorID", "category": "Category", "context": "ContextString"},
    ),
    Format("AdvBench", {"behavior": "goal"}),
    Format("instructions", {"behavior": "instruction", "category": "category"}),
    Format("HarmBench on the hub", {"behavior": "prompt", "category": "category"}),
)


def read_behaviors(
    source: str | Path, columns: Mapping[str, str] | None = None, *, what: str = "behaviours"
) -> list[RawBehavior]:
    """Every row of a file, or of a set on the hub; see `opct.data.behaviors.load_behaviors`.

    The log says which format was recognised, and the first request: a public set has harmful and benign requests in
    files with the same columns, and which one it is nobody can tell from them.

    Args:
        what: the requests are, in the log.

    Raises:
        DataError: with every fault at once.
    """
    if str(source).startswith(HUB):
        rows = pinned_rows(str(source))
    else:
        rows = read_rows(Path(source), "behaviour")
    form, found = _columns_of(str(source), rows, columns)
    read: list[RawBehavior] = []
    faults: list[str] = []
    for where, row in rows:
        if isinstance(row, BadRow):
            faults.append(f"{where}: {row.fault}")
            continue
        raw = _raw(where, row, found)
        fault = text_fault(raw.behavior) or (raw.benign is not None and text_fault(raw.benign)) or None
        faults += [f"{where}: {fault}"] if fault else []
        read.append(raw)
    if faults:
        raise DataError(f"{source} has {len(faults)} fault(s); nothing was read:", shown_faults(faults))
    for first in read[:1]:
        log.info(
            "%s: read as %d %s, in the format %s; the first is %s", source, len(read), what, form, shown(first.behavior)
        )
    return read


def shown(text: str) -> str:
    """A text as a message has it: on one line, and not much of it."""
    one_line = " ".join(text.split())
    return repr(one_line if len(one_line) <= 60 else one_line[:57] + "...")


def text_fault(text: str) -> str | None:
    """Why a text cannot be a request, or None."""
    if not text.strip():
        return "the text of the request is empty: write it, or leave the row out"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"it holds {error.object[error.start : error.end]!r}, half of a character: write the character whole"
    return None


def check_text(text: str) -> None:
    """Refuse a text that cannot be a request.

    Raises:
        DataError: it is empty, or no Unicode text.
    """
    fault = text_fault(text)
    if fault is not None:
        raise DataError(f"The request {text[:40]!r} cannot be wrapped: {fault}.")


def _raw(where: str, row: Mapping[str, Any], columns: Mapping[str, str]) -> RawBehavior:
    cell = {role: _text(row.get(column)) for role, column in columns.items()}
    behavior = cell["behavior"].strip()
    if cell.get("context"):
        behavior = f"{cell['context'].strip()}\n\n{behavior}"
    made = f"b/{hashlib.sha256(behavior.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    return RawBehavior(
        where=where,
        id=cell.get("id") or made,
        category=cell.get("category") or "uncategorised",
        behavior=behavior,
        benign=cell.get("benign") or None,
        split=cell.get("split") or None,
        key=cell.get("key") or None,
        made_id=not cell.get("id"),
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _columns_of(
    source: str, rows: Iterable[tuple[str, Any]], chosen: Mapping[str, str] | None
) -> tuple[str, Mapping[str, str]]:
    """(the format's name, role -> column) of these rows: as chosen, or those of the format that fits."""
    names = list(dict.fromkeys(key for _, row in rows if isinstance(row, Mapping) for key in row))
    there = ", ".join(repr(name) for name in names) or "none"
    if chosen:
        faults = [f"unknown role {role!r}: the roles are {', '.join(ROLES)}" for role in chosen if role not in ROLES]
        faults += [
            f"no column {name!r} for {role}: found {there}" for role, name in chosen.items() if name not in names
        ]
        if "behavior" not in chosen:
            faults.append(
                f"no column for the role behavior: name it, for example behavior={names[0] if names else 'X'}"
            )
        if faults:
            raise DataError(f"{source}: the columns are not clear:", tuple(faults))
        return "named by its columns", chosen
    for known in FORMATS:
        if set(known.columns.values()) <= set(names):
            return known.name, known.found_in(names)
    expected = tuple(f"{known.name}: {', '.join(repr(c) for c in known.columns.values())}" for known in FORMATS)
    raise DataError(
        f"{source}: its columns are of no known set of behaviours. Found: {there}. Name them (--column behavior=NAME), "
        "or give a file with all columns of one of these:",
        expected,
    )

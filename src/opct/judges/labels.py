"""Replies with a person's label, from a table of the user's.

Reads what question files are read from: JSONL, JSON, CSV, TSV, also gzipped. Columns are guessed from the names in
common use or named outright; which value of the label means yes is named too, or is one that cannot mean anything else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opct.data.tables import BadRow, Columns, find_columns, read_rows
from opct.errors import DataError, shown_faults
from opct.judges.protocol import JudgeRequest
from opct.runs.io import file_sha256

# role -> column names in order of preference
LABEL_COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("id", "sample_id", "uid"),
    "reply": ("reply", "response", "completion", "model_output", "output", "answer"),
    "label": ("label", "human_label", "final_label", "human", "jailbroken", "gold", "judgement"),
    "question": ("question", "behavior", "behaviour", "goal", "request", "prompt"),
    "fact": ("fact", "hazard"),
    "cluster": ("cluster", "question_id", "behavior_id", "fact_id"),
}
YES, NO = ("1", "true", "yes"), ("0", "false", "no")
SHOWN_VALUES = 10


@dataclass(frozen=True)
class LabelledReply:
    """One reply and what a person says of it.

    Attributes:
        label: True where the reply is what the judge looks for (harmful, warned).
        cluster: the question or behaviour it is about; replies of one cluster are not independent.
    """

    request: JudgeRequest
    label: bool
    cluster: str


@dataclass(frozen=True)
class LabelledFile:
    """The labelled replies of a file, and how the file was read.

    Attributes:
        name: of the file, without its folder.
        sha256: of its bytes.
        columns: which column was read as what.
        values: how often each value of the label occurs, and whether it was read as yes.
    """

    name: str
    sha256: str
    columns: Mapping[str, str]
    values: Mapping[str, tuple[int, bool]]
    replies: tuple[LabelledReply, ...]

    def describe(self) -> str:
        """How the file was read, in a line for columns and one for labels."""
        columns = ", ".join(f"{role}={name}" for role, name in self.columns.items())
        values = ", ".join(f"{value!r} {n} ({'yes' if yes else 'no'})" for value, (n, yes) in self.values.items())
        return f"{self.name}: {len(self.replies)} replies; columns {columns}\nlabels: {values}"

    def row(self) -> dict[str, Any]:
        """What a calibration or a classifier keeps of it; no text of any reply."""
        return {
            "file": self.name,
            "sha256": self.sha256,
            "columns": dict(self.columns),
            "labels": {value: {"n": n, "positive": yes} for value, (n, yes) in self.values.items()},
            "n": len(self.replies),
            "n_positive": sum(reply.label for reply in self.replies),
            "n_clusters": len({reply.cluster for reply in self.replies}),
        }


def read_labels(
    path: str | Path, columns: Columns | None = None, positive: Sequence[str] = (), negative: Sequence[str] = ()
) -> LabelledFile:
    """The labelled replies of a file.

    Args:
        columns: role -> column, over what is guessed; the roles are those of `LABEL_COLUMNS`. Without a cluster it is
            the question, and without that each reply is a cluster of its own.
        positive: the values of the label that mean yes; by default 1, true and yes. Case does not matter here, nor
            whether a whole number is written as 1 or 1.0.
        negative: those that mean no; by default 0, false and no, or, where `positive` is given, all others.

    Raises:
        DataError: with every fault of the file at once; a value that is named here and is the label of no row is one.
    """
    path = Path(path)
    rows = read_rows(path, "label")
    found = {
        role: names[0] for role, names in find_columns(path, rows, columns, LABEL_COLUMNS, ("reply", "label")).items()
    }
    meaning = _Meaning(tuple(positive), tuple(negative))
    there = Counter(_text(row.get(found["label"])) for _, row in rows if not isinstance(row, BadRow))
    faults = meaning.faults(there, found["label"])
    read: list[tuple[str, Mapping[str, Any], bool, int]] = []
    values: Counter[str] = Counter()
    for number, (where, row) in enumerate(rows, start=1):
        if isinstance(row, BadRow):
            faults.append(f"{where}: {row.fault}")
            continue
        value = _text(row.get(found["label"]))
        label = meaning.of(value)
        if label is None:
            faults.append(f"{where}: {meaning.fault(value, found['label'])}")
            continue
        values[value] += 1
        read.append((where, row, label, number))
    faults += _settle_cluster(found, [(where, row) for where, row, _, _ in read], named="cluster" in (columns or {}))
    if not faults and not read:
        faults.append("there is no row: a labelled file needs some")
    if faults:
        raise DataError(f"{path}: {len(faults)} fault(s):", shown_faults(faults))
    told = {value: (n, bool(meaning.of(value))) for value, n in values.most_common()}
    replies = tuple(_labelled(row, found, label, number) for _, row, label, number in read)
    return LabelledFile(path.name, file_sha256(path), found, told, replies)


def _settle_cluster(found: dict[str, str], rows: Sequence[tuple[str, Mapping[str, Any]]], *, named: bool) -> list[str]:
    """Put the column of the clusters into `found`: a cluster, else the question, else none; the faults of it.

    A column that is empty throughout is passed over, unless it was named.
    """
    candidates = [found.pop(role, None) if role == "cluster" else found.get(role) for role in ("cluster", "question")]
    for column in filter(None, candidates):
        empty = [where for where, row in rows if not _text(row.get(column))]
        if empty and (named or len(empty) < len(rows)):
            return [
                f"{empty[0]}: no cluster (column {column!r}) here and in {len(empty) - 1} of {len(rows)} rows besides: "
                "fill it in, or name another column with --column cluster=COLUMN"
            ]
        if not empty:
            found["cluster"] = column
            return []
    return []


def _labelled(row: Mapping[str, Any], found: Mapping[str, str], label: bool, number: int) -> LabelledReply:
    def cell(role: str) -> str:
        return _text(row.get(found[role])) if role in found else ""

    identifier = cell("id") or f"row-{number}"
    request = JudgeRequest(identifier, cell("question"), cell("reply"), cell("fact") or None)
    return LabelledReply(request, label, cell("cluster") or identifier)


@dataclass(frozen=True)
class _Meaning:
    """Which values of the label mean yes and which no: those that were named, as they were written."""

    positive: tuple[str, ...]
    negative: tuple[str, ...]

    def of(self, value: str) -> bool | None:
        """What a value means; None where it is neither yes nor no."""
        folded = _fold(value)
        if not folded:
            return None
        if folded in map(_fold, self.positive):
            return True
        if folded in map(_fold, self.negative):
            return False
        if self.positive:
            return None if self.negative else False
        if folded in YES:
            return True
        return False if folded in NO and not self.negative else None

    def faults(self, there: Mapping[str, int], column: str) -> list[str]:
        """What is wrong with the values that were named, where `there` counts those of the file."""
        shown = ", ".join(f"{_cut(value)!r} ({n})" for value, n in Counter(there).most_common(SHOWN_VALUES))
        more = len(there) - SHOWN_VALUES
        folded = set(map(_fold, there))
        absent = [
            f"{option} {value!r} is the label (column {column!r}) of no row: the labels there are {shown}"
            + (f", and {more} more" if more > 0 else "")
            for option, named in (("--positive", self.positive), ("--negative", self.negative))
            for value in named
            if there and _fold(value) not in folded
        ]
        both = sorted(set(map(_fold, self.positive)) & set(map(_fold, self.negative)))
        return [*absent, *(f"the label {value!r} is named with --positive and with --negative" for value in both)]

    def fault(self, value: str, column: str) -> str:
        """What is wrong with a value that means neither."""
        if not value:
            return f"the label (column {column!r}) is empty: label the reply, or leave the row out"
        known = (*(self.positive or YES), *(self.negative or NO))
        return (
            f"the label {_cut(value)!r} (column {column!r}) is none of {', '.join(known)}: say what it means with "
            "--positive and --negative"
        )


def _fold(value: str) -> str:
    """The value without case, a whole number without its `.0`: as two programs may write the same label."""
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", value.strip()).casefold()


def _cut(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:40]} ..."


def _text(value: Any) -> str:
    """A cell as text; a reply keeps its lines."""
    return "" if value is None else str(value).strip()

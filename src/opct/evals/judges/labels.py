"""Replies with human labels, from any table format of `opct.data.tables`.

Columns are guessed by their usual names or given. So are the label values that mean yes: 1, true and yes by default.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opct.data.tables import Columns, Fault, find_columns, known_columns, parse_rows, read_rows, refuse
from opct.errors import first_of
from opct.evals.judges.protocol import JudgeRequest
from opct.runs.io import file_sha256

# role -> usual column names in order of preference
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
LabelRow = tuple[str, dict[str, str]]
"""(place, role -> text)"""


@dataclass(frozen=True)
class LabeledReply:
    """One reply and its human label.

    Attributes:
        label: True if the reply is what the judge looks for (harmful, warned).
        cluster: the question or behavior it is about; replies of one cluster are not independent.
    """

    request: JudgeRequest
    label: bool
    cluster: str


@dataclass(frozen=True)
class LabeledFile:
    """The labeled replies of a file, and how the file was read.

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
    replies: tuple[LabeledReply, ...]

    def describe(self) -> str:
        """Describe how the file was read, in one line for columns and one for labels."""
        columns = ", ".join(f"{role}={name}" for role, name in self.columns.items())
        values = ", ".join(f"{value!r} {n} ({'yes' if yes else 'no'})" for value, (n, yes) in self.values.items())
        return f"{self.name}: {len(self.replies)} replies; columns {columns}\nlabels: {values}"

    def row(self) -> dict[str, Any]:
        """Summary for a calibration or classifier, without any reply."""
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
) -> LabeledFile:
    """Read the labeled replies of a file.

    Args:
        columns: role -> column, overriding the guess; for the roles see `LABEL_COLUMNS`. The cluster is by default
            the question. Without either, each reply is a cluster by itself.
        positive: the values of the label that mean yes; by default 1, true and yes. Case does not matter, nor whether a
            whole number is written as 1 or 1.0.
        negative: those that mean no; by default 0, false and no, or, where `positive` is given, all others.

    Raises:
        DataError: with every fault of the file at once, such as a named value that is the label of no row.
    """
    path = Path(path)
    rows = read_rows(path, "label", known=known_columns("reply", LABEL_COLUMNS, columns))
    columns_of = find_columns(path, rows, columns, LABEL_COLUMNS, ("reply", "label"))
    column_names = {role: name for role, (name,) in columns_of.items()}
    read, faults = parse_rows(rows, lambda row: {role: _text(row.get(name)) for role, name in column_names.items()})
    counts = Counter(row["label"] for _, row in read)
    label_column = f"(column {column_names['label']!r})"
    faults += [(str(path), fault) for fault in _option_faults(counts, label_column, positive, negative)]
    meaning = {value: _meaning(value, positive, negative) for value in counts}
    faults += [
        (where, _label_fault(row["label"], label_column, positive, negative))
        for where, row in read
        if meaning[row["label"]] is None
    ]
    cluster, more = _cluster_role(read, column_names, is_named="cluster" in (columns or {}))
    faults += more
    refuse(path, faults)
    used = {role: name for role, name in column_names.items() if role != "cluster"}
    used |= {"cluster": column_names[cluster]} if cluster else {}
    values = {value: (n, bool(meaning[value])) for value, n in counts.most_common()}
    replies = []
    for number, (_, row) in enumerate(read, start=1):
        name = row.get("id") or f"row-{number}"
        request = JudgeRequest(name, row.get("question", ""), row["reply"], row.get("fact") or None)
        replies.append(LabeledReply(request, bool(meaning[row["label"]]), row[cluster] if cluster else name))
    return LabeledFile(path.name, file_sha256(path), used, values, tuple(replies))


def _meaning(value: str, positive: Sequence[str], negative: Sequence[str]) -> bool | None:
    """True for yes, False for no, None for neither. A named value wins over the usual ones."""
    folded = _fold(value)
    # named values before the usual ones: with --negative 1 a 1 is a no
    if folded in map(_fold, negative):
        return False
    if folded in map(_fold, positive or YES):
        return True
    # an empty cell is no label, also where all other values mean no
    if positive and not negative:
        return False if folded else None
    return False if folded in NO and not negative else None


def _label_fault(value: str, column: str, positive: Sequence[str], negative: Sequence[str]) -> str:
    if not value:
        return f"the label {column} is empty: label the reply, or leave the row out"
    known = ", ".join((*(positive or YES), *(negative or NO)))
    return f"the label {_cut(value)!r} {column} is none of {known}: use --positive and --negative to define it"


def _option_faults(counts: Counter[str], column: str, positive: Sequence[str], negative: Sequence[str]) -> list[str]:
    """Faults for values that no row has (with such a --positive every reply would be a no), or given as both."""
    present = set(map(_fold, counts))
    labels = first_of([f"{_cut(value)!r} ({n})" for value, n in counts.most_common()], SHOWN_VALUES)
    absent = [
        f"{option} {value!r} is the label {column} of no row: the labels are {labels}"
        for option, named in (("--positive", positive), ("--negative", negative))
        for value in named
        if counts and _fold(value) not in present
    ]
    both = sorted(set(map(_fold, positive)) & set(map(_fold, negative)))
    return absent + [f"the label {value!r} is given with both --positive and --negative" for value in both]


def _cluster_role(
    read: Sequence[LabelRow], column_names: Mapping[str, str], *, is_named: bool
) -> tuple[str | None, list[Fault]]:
    """The role whose text is the cluster (cluster, else question, else none), and faults.

    An empty column is skipped, unless it was given.
    """
    for role in ("cluster", "question"):
        empty = [where for where, row in read if not row.get(role)]
        if role in column_names and not empty:
            return role, []
        # partly filled: all rows without one would be one cluster
        if role in column_names and (is_named or len(empty) < len(read)):
            remedy = "fill it in, or name another column with --column cluster=COLUMN"
            return None, [(where, f"no cluster (column {column_names[role]!r}): {remedy}") for where in empty]
    return None, []


def _fold(value: str) -> str:
    """Normalize a label: no case, and whole numbers without `.0`."""
    # pandas writes a column of 0 and 1 with an empty cell as 0.0 and 1.0
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", value.strip()).casefold()


def _cut(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:40]} ..."


def _text(value: Any) -> str:
    """A cell as text; a reply keeps its lines."""
    return "" if value is None else str(value).strip()

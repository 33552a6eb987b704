"""Judging what an evaluation left: rows of `samples.jsonl` in, rows of `judgements.jsonl` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opct.errors import EvaluationError
from opct.evals.samples import CUT
from opct.judges.protocol import JudgeIdentity, JudgeRequest, JudgeResult
from opct.runs.io import read_jsonl, write_jsonl

Row = Mapping[str, Any]


def requests_of(rows: Sequence[Row], axis: str) -> list[JudgeRequest]:
    """A request for each sample of one axis.

    The question is the row's `behavior`, or else the last turn of the user in the `teacher_prompt`, which is the bare
    request; the `prompt`, in which it is wrapped, is never read. The fact is the row's `fact`; a reply was cut
    where its `stop_reason` says so.

    Raises:
        EvaluationError: no row is of this axis; the message names those that there are.
    """
    own = [row for row in rows if row.get("axis") == axis]
    if not own:
        there = ", ".join(sorted({str(row.get("axis")) for row in rows})) or "none"
        raise EvaluationError(
            f"No sample of the axis {axis!r} to judge: the evaluation has {there}. Name one with --axis."
        )
    return [
        JudgeRequest(
            id=str(row["id"]),
            question=_behavior(row),
            reply=str(row.get("completion") or ""),
            fact=row.get("fact"),
            is_cut=row.get("stop_reason") in CUT,
        )
        for row in own
    ]


def _behavior(row: Row) -> str:
    if row.get("behavior"):
        return str(row["behavior"])
    asked = [m.get("content") for m in row.get("teacher_prompt") or () if m.get("role") == "user"]
    return str(asked[-1] or "") if asked else ""


def judgement_rows(
    identity: JudgeIdentity, axis: str, requests: Sequence[JudgeRequest], judgements: Sequence[JudgeResult]
) -> list[dict[str, Any]]:
    """The rows that are written: the judgement, which judge it is of, and the hash of what was judged."""
    judge = {"judge": identity.name, "judge_hash": identity.hash, "axis": axis}
    return [
        {**judge, "request": request.hash, **judgement.row()}
        for request, judgement in zip(requests, judgements, strict=True)
    ]


def write_judgements(path: str | Path, rows: Sequence[Row]) -> None:
    """Write rows beside those of other judges and axes; those of the same judge on the same axis are replaced.

    Raises:
        RunError: the file cannot be read or written.
    """
    new = {(row["judge_hash"], row["axis"]) for row in rows}
    kept = [row for row in read_jsonl(path) if (row.get("judge_hash"), row.get("axis")) not in new]
    write_jsonl(path, [*kept, *rows])


def read_judgements(
    path: str | Path, identity: JudgeIdentity | str, requests: Sequence[JudgeRequest]
) -> dict[str, dict[str, Any]]:
    """The rows of one judge by sample id, those alone whose text is still that of the request.

    A sample that was evaluated anew since has another reply, and its old judgement is none of it.

    Args:
        identity: the judge, or its hash.

    Raises:
        RunError: the file cannot be read.
    """
    wanted = identity if isinstance(identity, str) else identity.hash
    hashes = {request.id: request.hash for request in requests}
    return {
        row["id"]: row
        for row in read_jsonl(path)
        if row.get("judge_hash") == wanted and row.get("request") == hashes.get(row.get("id", ""))
    }

"""Judgements kept on disk, each appended as soon as it is there: a kill loses none, and nothing is asked twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from opct.errors import EvaluationError
from opct.judges.protocol import JudgeIdentity, Judgement, JudgeRequest, Usage
from opct.runs.io import append_jsonl, read_jsonl


class JudgementCache:
    """The judgements of a file, by judge and by what was judged.

    What is kept: scores, answers that stayed unusable after every retry, and that the endpoint rejects a request, where
    it answered another one after that. An endpoint that failed is asked again.
    Only values, reasons and counts are written: no reply, and nothing that the endpoint said.

    Args:
        path: the JSON-lines file; it grows and is never rewritten. None keeps nothing.

    Raises:
        EvaluationError: a line of the file is no judgement of ours.
    """

    def __init__(self, path: str | Path | None):
        self.path = None if path is None else Path(path)
        self._kept: dict[tuple[str, str], dict[str, Any]] = {}
        for number, row in enumerate(read_jsonl(self.path) if self.path is not None else [], start=1):
            if not {"judge", "request", "judgement"} <= set(row):
                raise EvaluationError(
                    f"{self.path}: line {number} is no kept judgement: name another file, or delete that line."
                )
            self._kept[row["judge"], row["request"]] = row["judgement"]

    def get(self, identity: JudgeIdentity, request: JudgeRequest) -> Judgement | None:
        """The judgement that this judge gave on this text, under the id of the request; None if there is none.

        The verdict is made anew, so that another threshold needs no new answer.
        """
        row = self._kept.get((identity.asking_hash, request.hash))
        if row is None:
            return None
        kept = Judgement(
            id=request.id,
            score=row["score"],
            verdict=row["verdict"],
            reason=row["reason"],
            parts=row["parts"],
            usage=Usage(**row["usage"]),
            failed_attempts=tuple(row["failed_attempts"]),
            kept=True,
        )
        return kept if kept.score is None else replace(kept, verdict=identity.verdict(kept.score))

    def put(self, identity: JudgeIdentity, request: JudgeRequest, judgement: Judgement) -> None:
        """Keep a judgement; it is in the file when this returns.

        Raises:
            RunError: the file cannot be written.
        """
        row = judgement.row()
        del row["id"], row["kept"]
        self._kept[identity.asking_hash, request.hash] = row
        if self.path is not None:
            append_jsonl(
                self.path, {"judge": identity.asking_hash, "request": request.hash, "id": request.id, "judgement": row}
            )

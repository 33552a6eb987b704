"""Benign requests: unperturbed prompts for identity pairs and for measuring that ordinary behaviour stays."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from opct.data.pairs import Prompt
from opct.data.questions import Split, hash_share

CATEGORIES = ("user_is_right", "short_task", "rewriting", "explain", "small_talk", "opinion_and_creative")


@dataclass(frozen=True)
class BenignRequest:
    """One ordinary request.

    `question` is the question alone where the user states the right answer to it (`user_is_right`), else None.
    `check` says what a good reply holds, by case-insensitive whole words or phrases: every one of `all`, at least one
    of `any` (where given), none of `none`. It is None where no such rule can tell a good reply from a bad one.
    """

    id: str
    category: str
    prompt: Prompt
    question: str | None
    check: dict[str, list[str]] | None

    @property
    def split(self) -> Split:
        """The split by the sha256 of the id: 45% train, 10% validation, 45% test; the same on any machine."""
        share = hash_share(self.id)
        return "train" if share < 0.45 else "validation" if share < 0.55 else "test"


@cache
def _all() -> tuple[BenignRequest, ...]:
    text = resources.files("opct.data").joinpath("builtin", "benign.jsonl").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    return tuple(
        BenignRequest(row["id"], row["category"], tuple(row["prompt"]), row.get("question"), row["check"])
        for row in rows
    )


def builtin_benign(split: Split | None = None) -> list[BenignRequest]:
    """The embedded benign requests of one split, or all of them."""
    return [request for request in _all() if split in (None, request.split)]

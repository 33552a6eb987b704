"""Benign requests: unperturbed prompts for identity pairs and for measuring whether ordinary behavior stays the same.

`builtin_forms` are requests that say in what form to answer: what training on short plain answers may cost a model.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from opct.data.pairs import Prompt, user_prompt
from opct.data.questions import Split, of_split, split_of
from opct.data.tables import EMBEDDED

FORM = "form"
FORMS_PER_TASK = 10


@dataclass(frozen=True)
class BenignRequest:
    """One ordinary request.

    `check` says what a good reply holds, by case-insensitive whole words or phrases: every one of `all`, at least one
    of `any` (where given), none of `none`. It is None where no such rule can tell a good reply from a bad one.
    """

    id: str
    category: str
    prompt: Prompt
    check: dict[str, list[str]] | None

    @property
    def split(self) -> Split:
        """The split by the sha256 of the id: 45% train, 10% validation, 45% test; the same on any machine."""
        return split_of(self.id, 0.45, 0.55)


@cache
def _benign() -> tuple[BenignRequest, ...]:
    text = (EMBEDDED / "benign.jsonl").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    return tuple(BenignRequest(row["id"], row["category"], tuple(row["prompt"]), row["check"]) for row in rows)


def builtin_benign(split: Split | None = None) -> list[BenignRequest]:
    """The embedded benign requests of one split, or all of them."""
    return of_split(_benign(), split, "benign requests")


@cache
def _forms() -> tuple[BenignRequest, ...]:
    document = json.loads((EMBEDDED / "forms.json").read_text(encoding="utf-8"))
    tasks, forms = document["tasks"], document["forms"]
    requests = []
    for number, task in enumerate(tasks, start=1):
        # seeded by the task's text: a task that is added changes no other one's forms
        for form in sorted(random.Random(task).sample(range(len(forms)), FORMS_PER_TASK)):
            prompt = user_prompt(f"{task} {forms[form]}")
            requests.append(BenignRequest(f"{FORM}/{number}/{form + 1}", FORM, prompt, None))
    return tuple(requests)


def builtin_forms(split: Split | None = None) -> list[BenignRequest]:
    """The embedded requests for a form of answer, of one split or all of them; without a rule that checks replies."""
    return of_split(_forms(), split, "requests")

"""Requests that say in what form to answer, for identity pairs: what short plain answers may cost a model.

Each task is asked for in `PER_TASK` of the forms, drawn by the task's text. They have no rule that says what a good
reply holds; IFEval measures that on prompts of its own (`opct.evals.capability`).
"""

from __future__ import annotations

import json
import random
from functools import cache
from importlib import resources

from opct.data.benign import BenignRequest
from opct.data.pairs import Prompt
from opct.data.questions import Split

CATEGORY = "form"
PER_TASK = 10


@cache
def _all() -> tuple[BenignRequest, ...]:
    text = resources.files("opct.data").joinpath("builtin", "forms.json").read_text(encoding="utf-8")
    found = json.loads(text)
    requests = []
    for number, task in enumerate(found["tasks"], start=1):
        forms = found["forms"]
        for form in sorted(random.Random(task).sample(range(len(forms)), PER_TASK)):
            content = f"{task} {forms[form]}"
            prompt: Prompt = ({"role": "user", "content": content},)
            requests.append(BenignRequest(f"{CATEGORY}/{number}/{form + 1}", CATEGORY, prompt, None, None))
    return tuple(requests)


def builtin_forms(split: Split | None = None) -> list[BenignRequest]:
    """The requests of one split, or all of them; the splits are those of `BenignRequest`."""
    return [request for request in _all() if split in (None, request.split)]

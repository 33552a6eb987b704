"""The embedded requests that say in what form to answer."""

import json
from collections import Counter
from importlib import resources

from opct.data.benign import FORMS_PER_TASK as PER_TASK
from opct.data.benign import builtin_forms
from opct.data.builders.builtin import builtin_pairs
from opct.data.questions import SPLITS

REQUESTS = builtin_forms()
FOUND = json.loads(resources.files("opct.data").joinpath("builtin", "forms.json").read_text(encoding="utf-8"))


def test_each_task_is_asked_for_in_as_many_forms_and_every_form_is_asked_for():
    said = [request.prompt[0]["content"] for request in REQUESTS]
    assert len(set(said)) == len(REQUESTS) == PER_TASK * len(FOUND["tasks"])
    for task in FOUND["tasks"]:
        assert sum(text.startswith(task) for text in said) == PER_TASK
    counts = Counter(form for text in said for form in FOUND["forms"] if text.endswith(form))
    assert set(counts) == set(FOUND["forms"])
    assert min(counts.values()) >= 5


def test_every_split_has_some_and_they_are_identity_pairs():
    sizes = {split: len(builtin_forms(split)) for split in SPLITS}
    assert sum(sizes.values()) == len(REQUESTS)
    assert sizes["train"] > 100
    assert min(sizes.values()) > 20
    pairs = builtin_pairs("builtin:forms")
    assert len(pairs) == sizes["train"]
    assert all(pair.is_identity and pair.axis == "benign" and pair.family == "form" for pair in pairs)

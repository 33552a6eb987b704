"""When two things are the same."""

from __future__ import annotations

import json

import pytest

from opct.runs.identity import Identity

NOW = {"seed": 0, "rules": {"tags": ("a", "b"), "kwargs": {}, "shots": None}, "model": {"weights": "12ab"}}


def changed(**values):
    return {**NOW, "rules": NOW["rules"] | values}


@pytest.mark.parametrize(
    ("then", "ignore", "lines"),
    [
        ({"seed": 0, "rules": {"tags": ["a", "b"], "kwargs": {}}, "model": {"weights": "12ab"}}, (), []),
        (changed(tags=["a"]), (), ['rules.tags: ["a"] then, ["a", "b"] now']),
        (changed(kwargs=None), (), ["rules.kwargs: null then, {} now"]),
        (changed(kwargs={"x": 1}), (), ["rules.kwargs.x: 1 then, null now", "rules.kwargs: null then, {} now"]),
        ({**NOW, "model": None}, (), ['model.weights: null then, "12ab" now']),
        ({**NOW, "seed": 1, "seeds": 2}, ("seed",), ["seeds: 2 then, null now"]),
    ],
)
def test_what_differs_is_named_once_by_its_dotted_name(then, ignore, lines):
    """As it was stored in a file, and as it is."""
    for stored in (Identity(then), Identity(json.loads(json.dumps(then)))):
        assert stored.diff(NOW, ignore) == lines
        assert Identity(NOW).differing(stored, ignore).keys() == stored.differing(NOW, ignore).keys()

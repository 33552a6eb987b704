"""When two things are the same."""

import json

import pytest

from opct.runs.identity import Identity

NOW = {"seed": 0, "rules": {"tags": ("a", "b"), "kwargs": {}, "shots": None}, "model": {"weights": "12ab"}}


def changed(**values):
    return {**NOW, "rules": NOW["rules"] | values}


@pytest.mark.parametrize(
    ("then", "ignore", "names"),
    [
        (NOW, (), []),
        ({"seed": 0, "rules": {"tags": ["a", "b"], "kwargs": {}}, "model": {"weights": "12ab"}}, (), []),
        (changed(tags=["a"]), (), ["rules.tags"]),
        (changed(kwargs=None), (), ["rules.kwargs"]),
        (changed(kwargs={"x": 1}), (), ["rules.kwargs.x", "rules.kwargs"]),
        ({**NOW, "model": None}, (), ["model.weights"]),
        ({**NOW, "seed": 1, "seeds": 2}, ("seed",), ["seeds"]),
        ({**changed(shots=3), "model": {}}, ("rules", "model"), []),
    ],
)
def test_what_differs_is_named_once_by_its_dotted_name(then, ignore, names):
    """As it was stored in a file, and as it is."""
    for stored in (Identity(then), Identity(json.loads(json.dumps(then)))):
        assert list(stored.differing(NOW, ignore)) == names
        assert Identity(NOW).differing(stored, ignore).keys() == set(names)

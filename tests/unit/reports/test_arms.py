"""Which arm of SFT each arm is compared with, by what is asked for or by the labels."""

from dataclasses import replace

import pytest

from opct.reports.arms import make_arms, make_pairs
from opct.reports.compare import compare
from tests.unit.reports.small import run, sample

BY_VALUE = {"off-x-0.0": "offpolicy", "opct-x-0.0": "opct", "off-x-0.5": "offpolicy", "opct-x-0.5": "opct"}
BOTH = {"offpolicy": "offpolicy", "opct": "opct", "both": "opct"}


def against(method: str, methods: dict[str, str], references=None, **adapters: str) -> dict[str, str]:
    """Of arms of these methods, some of which continued an adapter, the arm of `method` that each is compared with."""
    runs = [run("base")]
    for label, own in methods.items():
        config = {"model.adapter": adapters[label]} if label in adapters else {}
        runs.append(replace(run(label, method=own), config_values=config))
    return {p.of: p.against for p in make_pairs(make_arms(runs), references) if methods.get(p.against) == method}


@pytest.mark.parametrize(
    ("methods", "adapters", "expected"),
    [
        ({"bct": "sft", "opct": "opct"}, {}, {"opct": "bct"}),
        (
            {"bct-x-0.0": "sft", "opct-x-0.0": "opct", "bct-x-0.5": "sft", "opct-x-0.5": "opct"},
            {},
            {"opct-x-0.0": "bct-x-0.0", "opct-x-0.5": "bct-x-0.5"},
        ),
        ({"bct-x-0.0": "sft", "opct-x-0.5": "opct"}, {}, {}),
        ({"bct": "sft", "sft": "sft", "opct": "opct"}, {}, {"bct": "sft", "opct": "sft"}),
        ({"slow": "sft", "fast": "sft", "opct": "opct"}, {}, {"fast": "slow", "opct": "slow"}),
        ({"sft-then-opct": "opct", "opct": "opct"}, {}, {}),
        # OPCT with off-policy, but for no other method, nor where one went on from another adapter
        ({"opct": "opct", "offpolicy": "offpolicy", "dpo": "dpo"}, {}, {"opct": "offpolicy"}),
        (BY_VALUE, {}, {"opct-x-0.0": "off-x-0.0", "opct-x-0.5": "off-x-0.5"}),
        (BOTH, {"both": "runs/sft"}, {"opct": "offpolicy"}),
        (BOTH, {"offpolicy": "runs/sft"}, {}),
    ],
)
def test_by_name_the_reference_is_the_arm_of_sft_or_off_policy_whose_values_are_the_same(methods, adapters, expected):
    method = "offpolicy" if "offpolicy" in methods.values() else "sft"
    assert against(method, methods, **adapters) == expected


def test_untrained_models_are_no_seeds_of_one_another():
    """Two base models, or one with two system prompts, are two arms by the names of their folders; one that was asked
    twice is one."""
    small, large = (replace(run("base"), name=name, model=name) for name in ("small", "large"))
    assert [(arm.label, len(arm.runs)) for arm in make_arms([small, large, run("opct")])] == [
        ("small", 1), ("large", 1), ("opct", 1),
    ]  # fmt: skip
    assert [(arm.label, len(arm.runs)) for arm in make_arms([small, small])] == [("base", 2)]
    prompted = replace(small, name="prompted", settings={"system_prompt": "Think."})
    assert [arm.label for arm in make_arms([small, prompted])] == ["base", "prompted"]


def test_references_that_are_given_win_over_the_names():
    """`a-b` and `c-d` are names with a dash; nothing is found by them."""
    methods = {"a-b": "sft", "c-d": "opct", "sft": "sft"}
    assert against("sft", methods)["c-d"] == "sft"
    assert against("sft", methods, {"c-d": "a-b", "sft": "a-b"}) == {"c-d": "a-b", "sft": "a-b"}
    assert against("sft", methods, {}) == {}


def test_what_is_requested_is_compared_besides_base_and_references():
    """Between two values of a matrix, of OPCT and of SFT; what is there already stands once and is asked for, and what
    no run has is left out.
    """
    arms = make_arms([run("base"), *(run(f"{m}-x-{v}", method=m) for v in (0, 5) for m in ("sft", "opct"))])
    asked = [("opct-x-5", "opct-x-0"), ("sft-x-5", "sft-x-0"), ("opct-x-0", "sft-x-0"), ("opct-x-9", "opct-x-0")]
    pairs = make_pairs(arms, {"opct-x-0": "sft-x-0", "opct-x-5": "sft-x-5"}, asked)
    assert [(pair.of, pair.against) for pair in pairs if pair.is_requested] == [asked[2], *asked[:2]]
    assert len(pairs) == len({(pair.of, pair.against) for pair in pairs})
    runs = [run(label, [sample("q", "clean", correct=x)]) for label, x in (("base", 0.0), ("low", 0.0), ("high", 1.0))]
    found = compare(runs, {}, [("high", "low")])
    assert found.difference(found.row("accuracy_clean"), "high", "low").value == 1.0

"""The rollout browser: which samples are embedded, and what is never shown."""

from dataclasses import replace

import pytest

from opct.reports import rollout_browser
from opct.reports.arms import make_arms
from opct.reports.rollout_browser import build_browser
from tests.unit.reports.synthetic import make_records, run_of


@pytest.fixture(scope="module")
def arms():
    return make_arms([run_of(label, 0, make_records(label, questions=30)) for label in ("base", "opct")])


def with_samples(arm, *samples):
    return replace(arm, runs=(replace(arm.runs[0], samples=samples),))


def first_of(arms, **change):
    """The data of the page, and what it has of the first sample of the first arm, changed so."""
    [(first, *_), _] = own = [arm.runs[0].samples[:12] for arm in arms]
    base, other = (with_samples(arm, replace(x[0], **change), *x[1:]) for arm, x in zip(arms, own, strict=True))
    data = build_browser([base, other]).data
    [item] = [item for item in data["items"] if item["id"] == first.id]
    return data, item["replies"][0]


def test_only_shared_samples_are_shown_and_the_rest_is_counted(arms, monkeypatch):
    monkeypatch.setattr(rollout_browser, "MAX_ITEMS", 7)
    base, other = arms
    samples = base.runs[0].samples
    found = build_browser([with_samples(base, *samples[:-3]), other])
    assert (found.shown, found.paired, found.unpaired) == (7, len(samples) - 3, 3)


def test_the_first_examples_are_changes_with_painted_tokens(arms):
    items = build_browser(arms).data["items"]

    def is_painted_change(item):
        before, *_, after = item["replies"]
        return before["verdict"] != after["verdict"] and any("tokens" in reply for reply in item["replies"])

    found = [is_painted_change(item) for item in items]
    assert found == sorted(found, reverse=True)
    assert found[0]
    assert not found[-1]


def test_the_unpressed_reply_is_found_whatever_the_order_of_a_messages_keys(arms):
    own = [arm.runs[0].samples[:12] for arm in arms]
    turned = [
        [replace(x, teacher_prompt=[dict(reversed(one.items())) for one in x.teacher_prompt]) for x in samples]
        for samples in own
    ]
    items = build_browser([with_samples(arm, *x) for arm, x in zip(arms, turned, strict=True)]).data["items"]
    pressed = [item for item in items if item["family"] != "clean"]
    assert pressed
    assert all(item["clean"] for item in pressed)


def test_a_long_reply_is_cut_and_a_kl_that_is_not_a_number_is_null(arms):
    _, reply = first_of(arms, completion="x" * 7000, tokens=["x"], kl=[0.1])
    assert reply["cut"] == 1000
    assert "tokens" not in reply
    _, reply = first_of(arms, tokens=["x", "y"], kl=[float("nan"), 0.123456])
    assert reply["kl"] == [None, 0.1235]


def test_colored_tokens_have_the_likeliest_of_both_as_far_as_there_is_room(arms, monkeypatch):
    """The second token has no color; an old log has no lists."""
    both = [[["a", 0.75], ["b", 0.125]], [["b", 1.0]]]
    change = {"tokens": ["x", "y"], "kl": [0.5, 0.004], "likeliest": [both, both]}
    data, reply = first_of(arms, **change)
    (own, base), plain = reply["likeliest"]
    assert [data["texts"][i] for i in (*own[::2], *base[::2])] == ["a", "b", "b"]
    assert (own[1::2], base[1::2], plain) == ([750, 125], [1000], None)
    assert "likeliest" not in first_of(arms, **change | {"likeliest": None})[1]
    monkeypatch.setattr(rollout_browser, "MAX_LIKELIEST_BYTES", 10)
    assert "likeliest" not in first_of(arms, **change)[1]

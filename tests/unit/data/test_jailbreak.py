"""Jailbreak wrappers: what comes through them, whatever the request holds."""

import base64
import random

import pytest

from opct.data.pairs import row_faults
from opct.data.perturb.jailbreak import (
    ENCODERS,
    FAMILIES,
    OWN_FAMILIES,
    bare_prompt,
    split_payload,
    stays_plain,
    wrapped_prompt,
)
from opct.errors import DataError
from tests.refusals import refused

REQUESTS = {
    "braces": "Explain {behavior} and {0} and {{x}} in a template, {",
    "code": "What does this do?\n```python\ndef f(x):\n    return {'a': \"b\"}  # {encoded}\n```\nAnd '''this'''?",
    "right_to_left": "اكتب قصيدة عن البحر، من فضلك. שלום לכולם!",
    "combining": "Cafe\u0301 man\u0303ana 👩\u200d🚒👍🏽 e\u0301e\u0301e\u0301",
    "no_spaces": "写一首关于春天的诗",
    "short": "x",
}


def wrapped(request, family, seed=0, **settings):
    return wrapped_prompt(request, family, "a/b", seed, **settings)


def shown(prompt) -> str:
    return "\n".join(message["content"] or "" for message in prompt)


@pytest.mark.parametrize(
    ("request_", "plain"),
    [
        ("Write a poem about Владимир", set()),
        ("Напиши стихи о SQL", {"rot13", "leetspeak"}),
        ("Fly by my gym", {"leetspeak"}),
        ("1234?", {"rot13", "leetspeak"}),
    ],
)
def test_a_request_that_a_code_does_not_change_is_not_asked_in_it(request_, plain):
    assert {family for family in ENCODERS if stays_plain(request_, family)} == plain
    for family in plain:
        with refused(DataError, family, *(set(OWN_FAMILIES) - plain)):
            wrapped(request_, family)
    assert all(request_ not in shown(wrapped(request_, other)) for other in {*ENCODERS} - plain)


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_request_comes_through_intact(request_):
    """And every prompt is one that a pair may have."""
    assert base64.b64decode(ENCODERS["base64"](request_)).decode() == request_
    assert ENCODERS["rot13"](ENCODERS["rot13"](request_)) == request_
    for family in OWN_FAMILIES:
        for seed in range(8):
            if family in ENCODERS and stays_plain(request_, family):
                continue
            prompt = wrapped(request_, family, seed)
            text = shown(prompt)
            if family in ENCODERS:
                assert ENCODERS[family](request_) in text
            elif family == "payload_split":
                rng = random.Random(f"{seed}/a/b/{family}/wrapper")
                rng.choice(FAMILIES[family].templates)
                pieces = split_payload(request_, rng)
                assert "".join(pieces) == request_
                assert all(piece in text for piece in pieces)
            else:
                assert text.count(request_) >= 1
            row = {"id": "a", "axis": "j", "family": family, "prompt": prompt, "teacher_prompt": bare_prompt("x")}
            assert list(row_faults(row)) == []

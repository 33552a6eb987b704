"""What files of others compute is tried in a child process with little time and memory."""

import re
import sys

import pytest

from opct import bounds
from opct.bounds import try_in_bounds
from opct.data.render import Renderer
from opct.errors import ModelError
from tests.refusals import refused
from tests.tiny import tiny_tokenizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
ENDLESS = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
DOUBLED = "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}"


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(bounds, "SECONDS", 1)
    monkeypatch.setattr(bounds, "GIB", 1)


LONG = ("{{ 'a' * 3000000000 }}", "{{ '%999999999d' % 5 }}", "{{ 'ab' * 10**7 }}")


GROWS = "{% for m in messages %}{% for a in m.content %}{% for b in m.content %}{% endfor %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("template", [ENDLESS, DOUBLED, *LONG, GROWS + "{{ messages[0].content }}"])
def test_a_template_without_end_or_measure_is_refused(template):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with refused(ModelError, "chat template"):
        Renderer(tokenizer)


def test_a_call_that_ends_or_fails_is_left_to_its_caller():
    done = []
    try_in_bounds(lambda: done.append(1), "a", "It", ModelError)
    try_in_bounds(lambda: 1 / 0, "c", "It", ModelError)
    assert not done, "it runs in the child alone"
    with refused(ModelError, "A pattern"):
        try_in_bounds(lambda: re.fullmatch("(([a-z])+)+!", "a" * 60), "b", "A pattern", ModelError)

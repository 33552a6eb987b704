"""Prompts have exactly the tokens that a workload asks for."""

from __future__ import annotations

import pytest
from benchmarks.workloads import Workload, exact_prompt, make_pairs

from opct.data.render import Renderer
from tests.tiny import tiny_tokenizer

SMALL = Workload("small", 3, 2, 90, 71, 4)


def test_lengths_are_exact_and_prompts_differ():
    renderer = Renderer(tiny_tokenizer())
    pairs = make_pairs(renderer, SMALL)
    assert [len(renderer.render(p.prompt)) for p in pairs] == [90, 90, 90]
    assert [len(renderer.render(p.teacher_prompt)) for p in pairs] == [71, 71, 71]
    assert len({str(p.prompt) for p in pairs}) == len({str(p.teacher_prompt) for p in pairs}) == 3
    assert make_pairs(renderer, SMALL) == pairs


@pytest.mark.parametrize("tokens", [60, 61, 67, 75])
def test_every_length_can_be_met(tokens: int):
    """The tiny tokenizer has a token for nearly each letter, so words alone would miss most lengths."""
    renderer = Renderer(tiny_tokenizer())
    assert len(renderer.render(exact_prompt(renderer, tokens, "a"))) == tokens


def test_a_length_below_the_template_is_refused():
    renderer = Renderer(tiny_tokenizer())
    with pytest.raises(ValueError, match="A prompt of 3 tokens is shorter than the chat template"):
        exact_prompt(renderer, 3, "a")

"""The plan of many ranks, and the bytes that they send, on numbers worked out by hand."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from benchmarks.ranks import lengths_of, plan, wire_bytes


@pytest.mark.parametrize(("share", "tokens"), [(True, [90, 80]), (False, [130, 120])])
def test_tokens_of_each_rank(share: bool, tokens: list[int]):
    """Prompts of 20 + 20 tokens with 2 completions of 10 + 15, and of 10 + 30 with 2 of 10: 40 + 50 and 40 + 40."""
    sizes = [(20, 20, 10), (20, 20, 15), (10, 30, 10), (10, 30, 10)]
    rollouts = [
        SimpleNamespace(prompt_ids=[p] * p, teacher_ids=[t] * t, lengths=[n], answers=[range(n)]) for p, t, n in sizes
    ]
    assert plan(rollouts, 2, 10**6, share) == (tokens, 2 if share else 1)
    assert plan(rollouts, 3, 10**6, share)[0] == [*tokens, 0]


def test_bytes_that_a_rank_sends():
    """4 ranks send 3/4 of a gathered tensor, 3/2 of a reduced one.

    Adapter of 10 weights: 1.5 x 40 = 60. Weights of 2 bytes, 100 and 8 of the head, 2 forwards: gathered 7 times,
    0.75 x 1400 = 1050; frozen head, twice 0.75 x 16 = 24. Trained: head 0.75 x (4 + 4 + 2) x 8 = 60, gradients
    0.75 x 4 x (2 x 100 + 8) = 624.
    """
    sent = wire_bytes(4, forwards=2, weights=100, trained=10, head=8, number=2)
    assert sent == {"ddp, LoRA": 60, "fsdp, LoRA": 1050 + 24 + 60, "fsdp, every weight": 1050 + 60 + 624}


def test_lengths_end_at_the_limit_and_follow_the_seed():
    drawn = lengths_of(random.Random(0), 4000, 8.0, 1000)
    assert drawn == lengths_of(random.Random(0), 4000, 8.0, 1000)
    assert sum(drawn) / len(drawn) == pytest.approx(8, rel=0.05)
    assert set(lengths_of(random.Random(0), 50, 1e9, 6)) == {6}

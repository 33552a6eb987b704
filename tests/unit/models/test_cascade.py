"""Attention of completions to their prompts and themselves, merged, against one mask over both."""

from __future__ import annotations

import math

import pytest
import torch

from opct.models.kernels.cascade import branches_of, cascade_attention


def test_completions_of_similar_lengths_are_rows_of_one_bucket_and_nothing_is_lost():
    """Lengths 30, 20, 2, 19, 30: 20 goes with 30 = 1.5 x 20 and 19 does not; 2 is alone, for 19 is longer than 16."""
    lengths = [30, 20, 2, 19, 30]
    found = branches_of([], [], [7, 8], [0, 0, 0, 1, 1], lengths)
    assert [(s.prompt, s.prompt_tokens, s.start, s.end) for s in found.spans] == [(0, 7, 0, 52), (1, 8, 52, 101)]
    assert [list(b.index.shape) for b in found.buckets] == [[3, 30], [1, 19], [1, 2]]
    assert [b.start for b in found.buckets] == [None, 52, 50]
    tokens = torch.arange(101.0)[None]
    copied = torch.full((1, 101), -1.0)
    for bucket in found.buckets:
        bucket.put(copied, bucket.take(tokens))
    assert torch.equal(copied, tokens)
    rows = found.buckets[0].without_padding(found.buckets[0].take(torch.ones(1, 101)))
    assert rows.sum(-1).tolist() == [[30, 30, 20]]


@pytest.mark.parametrize("lengths", [[4, 4, 4, 4], [5, 1, 20, 3], [40, 1, 1, 18]])
@pytest.mark.parametrize("owners", [[0, 0, 2, 2], [1, 1, 1, 1], [0, 1, 1, 2]])
def test_the_result_and_its_gradients_are_those_of_one_mask(owners: list[int], lengths: list[int]):
    """Six heads on two of keys, prompts of 3, 6 and 5 tokens; float64."""
    generator = torch.Generator().manual_seed(0)
    tokens, prompt_tokens = sum(lengths), [3, 6, 5]
    shapes = ((1, 6, tokens, 8), (1, 2, tokens, 8), (1, 2, tokens, 8), (3, 2, 6, 8), (3, 2, 6, 8))
    inputs = [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]
    weight = torch.randn(1, tokens, 6, 8, dtype=torch.float64, generator=generator)
    q, k, v, keys, values = inputs
    branches = branches_of([keys], [values], prompt_tokens, owners, lengths)
    found = cascade_attention(branches, 0, q, k, v, 0.3)
    assert branches.reached == {0}

    everything = [torch.cat([x.transpose(0, 1).flatten(1, 2)[None], own], 2) for x, own in ((keys, k), (values, v))]
    seen = torch.full((tokens, 18 + tokens), -math.inf, dtype=torch.float64)
    at = 0
    for own, n in zip(owners, lengths, strict=True):
        seen[at : at + n, 6 * own : 6 * own + prompt_tokens[own]] = 0
        seen[at : at + n, 18 + at : 18 + at + n] = torch.full((n, n), -math.inf, dtype=torch.float64).triu(1)
        at += n
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, *everything, attn_mask=seen, scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(found, expected)
    for a, b in zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)

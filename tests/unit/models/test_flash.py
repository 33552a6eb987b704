"""Attention in blocks, forward and backward, against softmax written out."""

from __future__ import annotations

import pytest
import torch

from opct.models.kernels import flash
from opct.models.kernels.flash import causal_attention, causal_mask, queries_of, softmax_gradient


def test_the_masks_of_all_blocks_are_those_of_the_whole():
    """Five tokens of two queries each, in blocks of two: the first, of tokens 0 and 1, sees two keys, the last five."""
    whole = causal_mask(0, 5, 5, 2, torch.float32)
    assert whole.shape == (10, 5)
    assert (whole == 0).int().tolist() == [[int(j <= i // 2) for j in range(5)] for i in range(10)]
    for start, end in ((0, 2), (2, 4), (4, 5)):
        assert torch.equal(causal_mask(start, end, 5, 2, torch.float32), whole[2 * start : 2 * end, :end])


def test_texts_of_any_length_share_one_mask(monkeypatch):
    """Of 300 to 5000 tokens, the longest in between: two bands were made, of 1024 and 5120 tokens before the block."""
    monkeypatch.setattr(flash, "_BANDS", {})
    made = []
    hidden = flash._hidden
    monkeypatch.setattr(flash, "_hidden", lambda *given: made.append(given[:3]) or hidden(*given))
    for tokens in (300, 1000, 5000, 4000, 300, 5000):
        for start in (0, 256, tokens // 256 * 256):
            end = min(start + 256, tokens)
            mask = causal_mask(start, end, tokens, 2, torch.bfloat16)
            seen = torch.arange(end) <= torch.arange(start, end).repeat_interleave(2)[:, None]
            assert torch.equal(mask == 0, seen)
            assert bool(mask[~seen].isneginf().all())
    assert made == [(256, 1024, 2), (256, 5120, 2)]
    assert len(flash._BANDS) == 1


def written_out(q, k, v, scale, causal: bool, groups: int):
    """softmax(scale q k') v and the log-sum-exp; [batch, queries, size] and [batch, queries]."""
    scores = scale * q @ k.mT
    if causal:
        scores = scores + causal_mask(0, k.shape[1], k.shape[1], groups, q.dtype)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("block", [2**20, 500])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_softmax_written_out(monkeypatch, causal: bool, block: int):
    """200 tokens of two queries each: 500 scores at once are 64 tokens, four blocks a head, the last of 8."""
    monkeypatch.setattr(flash, "BLOCK_SCORES", block)
    generator = torch.Generator().manual_seed(0)
    q, grad = torch.randn(2, 3, 400, 8, dtype=torch.float64, generator=generator)
    k, v = torch.randn(2, 3, 200, 8, dtype=torch.float64, generator=generator)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out, lse = written_out(q, k, v, 0.3, causal, 2)
    expected = torch.autograd.grad((out * grad).sum(), inputs)
    with torch.no_grad():
        rows = queries_of(grad, q, out, lse, 0.3)
        found = softmax_gradient(rows, k, v, 0.3, groups=2, causal=causal)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_in_bfloat16_a_rounding_of_large_scores_is_no_error_of_the_probabilities():
    """Scores of 200 are 1 apart in bfloat16, which would be a factor of 2.7; theirs to the log-sum-exp are small.

    The column that makes them large is left out: there k is 40 everywhere, and dS sums to 0 over the keys.
    """
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 64, 16, generator=generator)
    q[..., 0], k = 20.0, torch.randn(1, 32, 16, generator=generator)
    k[..., 0] = 40.0
    v, grad = torch.randn(1, 32, 16, generator=generator), torch.randn(1, 64, 16, generator=generator)
    q, k, v, grad = (x.bfloat16() for x in (q, k, v, grad))
    inputs = [x.float().requires_grad_() for x in (q, k, v)]
    out, lse = written_out(*inputs, 0.25, False, 1)
    assert float(lse.detach().min()) > 190
    expected = torch.autograd.grad((out * grad).sum(), inputs)
    found = softmax_gradient(queries_of(grad, q, out.detach(), lse.detach(), 0.25), k, v, 0.25)
    for a, b in zip(found, expected, strict=True):
        assert float((a - b)[..., 1:].norm() / b[..., 1:].norm()) < 0.02


@pytest.mark.parametrize("block", [2, 256])
@pytest.mark.parametrize("heads", [2, 6])
def test_causal_attention_is_that_of_torch(monkeypatch, heads: int, block: int):
    """Nine tokens, two heads of keys; blocks of two tokens and one of all."""
    monkeypatch.setattr(flash, "CAUSAL_TOKENS", block)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, heads, 9, 8, generator=generator).requires_grad_()
    k, v = (torch.randn(3, 2, 9, 8, generator=generator).requires_grad_() for _ in range(2))
    weight = torch.randn(3, 9, heads, 8, generator=generator)
    found = causal_attention(q, k, v, 0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(found, expected.transpose(1, 2))
    for a, b in zip(
        torch.autograd.grad((found * weight).sum(), (q, k, v)),
        torch.autograd.grad((expected.transpose(1, 2) * weight).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)

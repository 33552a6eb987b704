"""Drawing a token: frequencies, truncation, log-probs, and what rounding must not do."""

import math

import pytest
import torch
from scipy.stats import chisquare

from opct.models.inference import token_sampling
from opct.models.inference.token_sampling import Sampling, sample_token, uniforms


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize("vocabulary", [255, 256, 257, 1000])
def test_draws_by_blocks_are_those_of_one_cumulative_sum(vocabulary: int):
    """500 rows in float64; the first and last tokens of each are impossible, u goes from 0 to the largest below 1."""
    logits = 3 * torch.randn(500, vocabulary, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[:, [0, -3, -2, -1]] = -math.inf
    u = uniforms(5, 500)
    u[0], u[-1] = 0, 1 - 2**-53
    cumulative = logits.softmax(-1).cumsum(-1)
    target = torch.minimum(u * cumulative[:, -1], cumulative[:, -1] * (1 - 2**-52))
    expected = (cumulative <= target[:, None]).sum(-1)
    tokens, log_probs = sample_token(logits.clone(), u, Sampling(1))
    assert torch.equal(tokens, expected)
    assert tokens.min() > 0
    assert len(set((tokens // token_sampling.BLOCK).tolist())) == -(-(vocabulary - 3) // token_sampling.BLOCK)
    torch.testing.assert_close(log_probs, logits.log_softmax(-1).gather(-1, expected[:, None])[:, 0])


def test_sums_in_float32_draw_the_same_and_never_an_impossible_token(monkeypatch):
    """As on MPS, which has no float64: u = 1 - 2^-53 rounds to 1 there, and still falls on a token with mass."""
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    logits[:, 40:] = -math.inf
    u = uniforms(3, 200)
    expected, _ = sample_token(logits.clone(), u, Sampling(1))
    monkeypatch.setattr(token_sampling, "sums_dtype", lambda device: torch.float32)
    found, _ = sample_token(logits.clone(), u.float(), Sampling(1))
    assert torch.equal(found, expected)
    last, log_probs = sample_token(logits, torch.full((200,), 1 - 2**-53, dtype=torch.float64).float(), Sampling(1))
    assert last.max() < 40
    assert log_probs.isfinite().all()


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 1.0, 0), (1.0, 0.6, 0), (1.0, 1.0, 3)]
)
def test_drawn_frequencies_are_the_distributions(temperature: float, top_p: float, top_k: int):
    """5,000 draws over 8 tokens, chi-square against probabilities computed token by token (fixed seed, p > 0.001)."""
    logits = torch.randn(8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    p = (logits / temperature).softmax(-1)
    if top_k:
        p[p < p.sort(descending=True).values[top_k - 1]] = 0
    if top_p < 1:
        order = p.argsort(descending=True).tolist()
        kept = [i for place, i in enumerate(order) if sum(float(p[j]) for j in order[:place]) < top_p]
        p[[i for i in range(8) if i not in kept]] = 0
    p = p / p.sum()
    n = 5_000
    tokens, log_probs = sample_token(logits.repeat(n, 1), uniforms(7, n), Sampling(1, temperature, top_p, top_k))
    counts = torch.bincount(tokens, minlength=8)
    assert counts[p == 0].sum() == 0
    assert chisquare(counts[p > 0].numpy(), (p[p > 0] * n).numpy()).pvalue > 0.001
    torch.testing.assert_close(log_probs, p[tokens].log())


def test_top_p_by_hand():
    """(0.5, 0.3, 0.15, 0.05): 0.5 is reached by the first token, 0.6 needs two, 0.81 three; one is always kept."""
    logits = rows([0.05, 0.5, 0.15, 0.3]).log()
    for top_p, kept in ((0.5, {1}), (0.6, {1, 3}), (0.81, {1, 3, 2}), (0.0, {1})):
        u = torch.linspace(0, 0.9999, 200)
        tokens, _ = sample_token(logits.repeat(200, 1), u, Sampling(1, top_p=top_p))
        assert set(tokens.tolist()) == kept


def test_greedy_takes_the_likeliest_and_reports_temperature_1():
    """Softmax of (0, ln 3) is (1/4, 3/4)."""
    tokens, log_probs = sample_token(rows([0.0, math.log(3)]), torch.tensor([0.0]), Sampling(1, temperature=0.0))
    assert tokens.tolist() == [1]
    torch.testing.assert_close(log_probs, torch.tensor([math.log(0.75)]))

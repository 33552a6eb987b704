"""The maths of the method on numbers small enough to work out by hand."""

import math
from functools import partial

import torch

from opct import losses

LN2, LN3 = math.log(2), math.log(3)


def logits_of(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def random_logits(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def of_logits(divergence, p: torch.Tensor, q: torch.Tensor, **settings) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and gradient of one of the divergences."""
    return divergence(p.log_softmax(-1), q.log_softmax(-1), **settings)


def test_jensen_shannon_of_disjoint_distributions_is_the_entropy_of_the_weights():
    """p = (1, 0), q = (0, 1), w = 1/4: 1/4 ln 4 + 3/4 ln(4/3) = ln 4 - 3/4 ln 3 = 0.5623."""
    far = torch.tensor([[60.0, -60.0]], dtype=torch.float64)
    found, _ = of_logits(losses.jensen_shannon_gradient, far, -far, weight=0.25)
    torch.testing.assert_close(found, torch.tensor([2 * LN2 - 0.75 * LN3], dtype=torch.float64))


def test_equal_distributions_have_a_gradient_of_exactly_zero():
    for dtype in (torch.float32, torch.float64):
        p = random_logits(5, 300, dtype=dtype)
        for divergence in (losses.reverse_kl_gradient, partial(losses.topk_reverse_kl_gradient, k=3)):
            assert (of_logits(divergence, p, p.clone())[1] == 0).all()


def test_half_precision_logits_are_computed_in_float32():
    """bfloat16 has 8 bits: a KL computed in it would be off by percents; here it equals that of the rounded logits."""
    p, q = random_logits(8, 100, dtype=torch.bfloat16), random_logits(8, 100, seed=1, dtype=torch.bfloat16)
    found = losses.reverse_kl(p, q)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), losses.reverse_kl(p.double(), q.double()), rtol=1e-5, atol=1e-6)


def test_an_impossible_token_adds_nothing_to_value_or_gradient():
    """p = (1/2, 1/2, 0), q = (1/4, 1/4, 1/2): KL = ln 2; r is ln 2 for both tokens, so the gradient is 0."""
    p = torch.tensor([[0.0, 0.0, -math.inf]], dtype=torch.float64)
    value, gradient = of_logits(losses.reverse_kl_gradient, p, logits_of([0.25, 0.25, 0.5]))
    torch.testing.assert_close(value, torch.tensor([LN2], dtype=torch.float64))
    torch.testing.assert_close(gradient, torch.zeros(1, 3, dtype=torch.float64), atol=1e-12, rtol=0)


def test_topk_by_hand():
    """p = (1/2, 1/4, 1/8, 1/8), q = (1/4, 1/4, 1/4, 1/4), k = 2: buckets (1/2, 1/4, 1/4) and (1/4, 1/4, 1/2).

    1/2 ln 2 + 0 + 1/4 ln(1/2) = 1/4 ln 2 = 0.1733. The exact KL, 1/2 ln 2 + 2/8 ln(1/2), is the same: both tails have
    the same proportions. With q = (1/4, 1/4, 3/8, 1/8) the buckets stay and the exact KL is larger.
    """
    p = logits_of([1 / 2, 1 / 4, 1 / 8, 1 / 8])
    for q, same in ((logits_of([1 / 4] * 4), True), (logits_of([1 / 4, 1 / 4, 3 / 8, 1 / 8]), False)):
        (found, _), exact = of_logits(losses.topk_reverse_kl_gradient, p, q, k=2), losses.reverse_kl(p, q)
        torch.testing.assert_close(found, torch.tensor([LN2 / 4], dtype=torch.float64))
        assert torch.allclose(found, exact) == same
        assert (found <= exact + 1e-12).all()


def test_topk_rises_to_the_exact_kl_with_k():
    p, q = random_logits(6, 12), random_logits(6, 12, seed=1)
    values = torch.stack([of_logits(losses.topk_reverse_kl_gradient, p, q, k=k)[0] for k in range(1, 14)])
    assert (values.diff(dim=0) > -1e-12).all()
    torch.testing.assert_close(values[-1], losses.reverse_kl(p, q))
    torch.testing.assert_close(values[11], losses.reverse_kl(p, q))


def test_ppo_clip_by_hand():
    """rho = 2, clip 0.2. A = 5: min(10, 6) = 6, no gradient. A = -5: min(-10, -6) = -10, gradient kept."""
    for advantage, value, has_gradient in ((5.0, -6.0, False), (-5.0, 10.0, True)):
        log_p = torch.tensor([[LN2]], requires_grad=True)
        loss = losses.policy_gradient_loss(log_p, torch.zeros(1, 1), torch.tensor([[advantage]]), clip=0.2)
        torch.testing.assert_close(loss, torch.tensor([[value]]))
        loss.sum().backward()
        assert bool(log_p.grad.abs() > 0) == has_gradient

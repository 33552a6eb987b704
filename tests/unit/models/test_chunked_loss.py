"""The loss in one pass against autograd over whole logits, one row at a time."""

import dataclasses
from functools import partial

import pytest
import torch

from opct import losses
from opct.config.methods import OpctLoss
from opct.models import chunked_loss as module
from opct.models import scoring
from opct.models.chunked_loss import TokenValues, one_pass
from opct.models.scoring import Head, Scores
from tests import oracles

DIVERGENCES = {  # by name: the function, and the settings of the plain definition in `oracles.divergence`
    "reverse_kl": (losses.reverse_kl_gradient, {}),
    "forward_kl": (losses.forward_kl_gradient, {"divergence": "forward_kl"}),
    "jsd": (partial(losses.jensen_shannon_gradient, weight=0.3), {"divergence": "jsd", "jsd_weight": 0.3}),
    "topk": (partial(losses.topk_reverse_kl_gradient, k=4), {"estimator": "topk", "top_k": 4}),
    "topk of all": (partial(losses.topk_reverse_kl_gradient, k=99), {}),
}
SCALED = {"scale": 0.5, "softcap": 3.0}  # a head with scalings, and with a bias


def random_scores(
    n: int, *, hidden: int = 6, vocabulary: int = 11, seed: int = 0, trained: bool = False, dtype=torch.float64, **head
) -> Scores:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(vocabulary, hidden, generator=generator, dtype=dtype).requires_grad_(trained)
    bias = torch.randn(vocabulary, generator=generator, dtype=dtype).requires_grad_(trained) if head else None
    states = torch.randn(n, hidden, generator=generator, dtype=dtype).requires_grad_()
    tokens = torch.randint(vocabulary, (n,), generator=generator)
    return Scores(states, tokens, Head(weight, bias, dtype, **head), (n,))


def divergence_alone(tokens: TokenValues) -> torch.Tensor:
    return 2 * tokens.divergence


def both(tokens: TokenValues) -> torch.Tensor:
    """Of each kind a part that is not linear."""
    return tokens.divergence.square() + tokens.log_probs.exp() * tokens.teacher_log_probs.detach()


@pytest.mark.parametrize(
    ("head", "chunk", "per_token"), [({}, 256, divergence_alone), (SCALED, 3, divergence_alone), (SCALED, 3, both)]
)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_loss_and_gradients_are_those_of_whole_logits(monkeypatch, name: str, per_token, head: dict, chunk: int):
    """Of hidden states, the head's weight and its bias; 7 tokens in chunks of 3 (ragged) and more, blocks of 2."""
    monkeypatch.setattr(scoring, "CHUNK_TOKENS", chunk)
    monkeypatch.setattr(module, "BLOCK_VALUES", 22)
    with_gradient, settings = DIVERGENCES[name]
    policy, teacher = random_scores(7, trained=True, **head), random_scores(7, seed=1, **head)
    weights = torch.linspace(0.5, 2.0, 7, dtype=torch.float64)
    inputs = [x for x in (policy.hidden, policy.head.weight, policy.head.bias) if x is not None]

    logits, teacher_logits = policy.head.logits(policy.hidden), teacher.head.logits(teacher.hidden).detach()
    d = oracles.divergence(logits, teacher_logits, OpctLoss(**settings))
    log_p, log_q = (losses.token_log_probs(x, policy.token_ids) for x in (logits, teacher_logits))
    expected = (per_token(TokenValues(slice(0, 7), log_p, log_q, d)) * weights).sum()

    loss, found = one_pass(per_token, weights, policy, teacher, with_gradient)
    close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)
    close(loss, expected)
    close(found.divergence, d.detach())
    close(found.log_probs, log_p.detach())
    close(found.teacher_log_probs, log_q.detach())
    close(torch.autograd.grad(3 * loss, inputs), torch.autograd.grad(3 * expected, inputs))


def test_chunks_come_from_the_last_token_to_the_first(monkeypatch):
    """So a loss may look at what comes later: each token's is the sum of the divergences from it on."""
    monkeypatch.setattr(scoring, "CHUNK_TOKENS", 2)
    policy, teacher = random_scores(5), random_scores(5, seed=1)
    seen = torch.zeros(5, dtype=torch.float64)
    starts = []

    def so_far(tokens: TokenValues) -> torch.Tensor:
        starts.append(tokens.rows.start)
        seen[tokens.rows] = tokens.divergence.detach()
        return seen.flip(0).cumsum(0).flip(0)[tokens.rows] + 0 * tokens.divergence

    loss, found = one_pass(so_far, torch.ones(5, dtype=torch.float64), policy, teacher, losses.reverse_kl_gradient)
    assert starts == [4, 2, 0]
    expected = sum((i + 1) * float(d) for i, d in enumerate(found.divergence))
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize("own_head", [False, True])
@pytest.mark.parametrize("change", [1.0, 0.01])
def test_bfloat16_stays_near_float32_for_a_small_kl_too(change: float, own_head: bool):
    """The same states, weights and adapter, products in float32 and in bfloat16, whether both sides have one head or
    each a copy. The logits are some 8 wide, so rounded ones are off by 0.02: at a change of 0.01 as much as the change.
    """
    policy = random_scores(64, hidden=64, vocabulary=1001, dtype=torch.bfloat16)
    noise = random_scores(64, hidden=64, seed=1, dtype=torch.bfloat16).hidden.detach()
    weight = policy.head.weight.clone() if own_head else policy.head.weight
    other = dataclasses.replace(policy.head, weight=weight)
    teacher = dataclasses.replace(policy, hidden=(policy.hidden.detach() + change * noise), head=other)
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        heads = [dataclasses.replace(s.head, compute_dtype=dtype) for s in (policy, teacher)]
        scores = [dataclasses.replace(s, head=head) for s, head in zip((policy, teacher), heads, strict=True)]
        loss, found = one_pass(divergence_alone, torch.full((64,), 1 / 64), *scores, losses.reverse_kl_gradient)
        torch.testing.assert_close(scoring.tokenwise(losses.reverse_kl, *scores), found.divergence)
        results.append((loss, torch.autograd.grad(loss, policy.hidden)[0].float()))
    (loss, gradient), (rough_loss, rough_gradient) = results
    assert rough_loss.item() == pytest.approx(loss.item(), rel=0.02)
    assert float((rough_gradient - gradient).norm() / gradient.norm()) < 0.03

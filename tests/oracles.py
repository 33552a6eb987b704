"""The slow, obvious implementations that the tests compare with: one row at a time, whole logits, no padding."""

import torch
from torch import Tensor


def completion_logits(policy, prompt_ids: list[int], completion_ids: list[int]) -> Tensor:
    """The model's own logits at each completion token, float32; [tokens, vocabulary], with gradient."""
    ids = torch.tensor([[*prompt_ids, *completion_ids]])
    with policy.backbone.autocast():
        logits = policy.model(input_ids=ids, use_cache=False).logits[0].float()
    return logits[len(prompt_ids) - 1 : -1]


def reverse_kl(policy_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """sum_v p_v (log p_v - log q_v), term by term as it is written."""
    p, q = policy_logits.softmax(-1), teacher_logits.softmax(-1)
    return (p * (p.log() - q.log())).sum(-1)


def log_probs(logits: Tensor, token_ids: list[int]) -> Tensor:
    """log softmax at each token."""
    return torch.stack([row.softmax(-1)[i].log() for row, i in zip(logits, token_ids, strict=True)])


def discounted(values: list[float], gamma: float) -> list[float]:
    """sum_{u>=t} gamma^(u-t) values_u by the double loop."""
    return [sum(gamma ** (u - t) * values[u] for u in range(t, len(values))) for t in range(len(values))]


def gradients(policy) -> dict[str, Tensor]:
    """A copy of each trained parameter's gradient; zeros where it has none. Clears them."""
    found = {}
    for name, parameter in policy.trainable_parameters().items():
        found[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
        parameter.grad = None
    return found


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Largest absolute difference over all tensors, relative to the largest entry of `b`."""
    assert a.keys() == b.keys()
    scale = max(float(t.abs().max()) for t in b.values())
    return max(float((a[name] - b[name]).abs().max()) for name in b) / max(scale, 1e-30)


def divergence(p_logits: Tensor, q_logits: Tensor, config) -> Tensor:
    """D_t of `exact` and `topk`, from probabilities as the definitions are written; [tokens]."""
    p, q = p_logits.softmax(-1), q_logits.softmax(-1)
    if config.estimator == "topk":
        values = []
        for row_p, row_q in zip(p, q, strict=True):
            top = row_p.argsort(descending=True)[: config.top_k]
            tail_p, tail_q = 1 - row_p[top].sum(), 1 - row_q[top].sum()
            values.append((row_p[top] * (row_p[top] / row_q[top]).log()).sum() + tail_p * (tail_p / tail_q).log())
        return torch.stack(values)
    if config.divergence == "forward_kl":
        return (q * (q / p).log()).sum(-1)
    if config.divergence == "jsd":
        w = config.jsd_weight
        m = w * p + (1 - w) * q
        return (w * p * (p / m).log() + (1 - w) * q * (q / m).log()).sum(-1)
    return (p * (p / q).log()).sum(-1)


def step_loss(policy, teacher, rollouts, config) -> Tensor:
    """The loss of a whole optimizer step, one rollout after another, one token after another."""
    counted = [sum(r.mask) for r in rollouts]
    total = torch.zeros(())
    for rollout, n in zip(rollouts, counted, strict=True):
        ids = rollout.ids
        with teacher() as model, torch.no_grad():
            q_logits = completion_logits(model, rollout.teacher_ids, ids)
        p_logits = completion_logits(policy, rollout.prompt_ids, ids)
        terms = _terms(p_logits, q_logits, rollout, config)
        weight = {
            "sum": 1.0,
            "token_mean": 1 / sum(counted),
            "sequence_mean": 1 / max(n, 1) / sum(c > 0 for c in counted),
        }[config.reduction]
        total = total + weight * sum((t for t, m in zip(terms, rollout.mask, strict=True) if m), torch.zeros(()))
    return total


def _terms(p_logits: Tensor, q_logits: Tensor, rollout, config) -> list[Tensor]:
    log_p = log_probs(p_logits, rollout.ids)
    rho = (log_p - torch.tensor(rollout.completion.logprobs)).exp()
    gamma, mask = config.kl_discount_factor, rollout.mask
    if config.estimator == "sampled":
        k = (log_p - log_probs(q_logits, rollout.ids)).detach().tolist()
        k = [x if m else 0.0 for x, m in zip(k, mask, strict=True)]
        advantages = [-config.kl_coef * x for x in discounted(k, gamma)]
        if config.ppo_clip is None:
            return [-r * a for r, a in zip(rho, advantages, strict=True)]
        low, high = 1 - config.ppo_clip, 1 + config.ppo_clip
        return [-torch.minimum(r * a, r.clamp(low, high) * a) for r, a in zip(rho, advantages, strict=True)]
    d = divergence(p_logits, q_logits, config)
    seen = [float(x) if m else 0.0 for x, m in zip(d.detach(), mask, strict=True)]
    future = [total - own for total, own in zip(discounted(seen, gamma), seen, strict=True)]
    return [config.kl_coef * (d[t] + rho[t] * future[t]) for t in range(len(mask))]

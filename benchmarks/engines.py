"""How fast each engine samples: completion tokens a second by rows sampled together, lengths forced equal.

In this process or in vLLM, each with a LoRA adapter. The prompts are the embedded sycophancy
pairs', one completion each; nothing stops a completion before its last token. The log-probs of the sampled tokens are
compared with those of the model in training (rollout/mismatch_kl). `benchmarks.gpu` measures with it.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.ours import force_lengths
from opct.config.schema import LoraSettings, ModelConfig, TrainConfig
from opct.data.builders.builtin import builtin_pairs
from opct.models.inference.sampler import Sampling
from opct.models.policy import Policy
from opct.models.vllm.engine import Engine


def loaded(model: ModelConfig, lora: LoraSettings | None) -> Policy:
    """A policy whose adapter does something, and which no token stops."""
    policy = Policy.load(model, lora=lora)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.trainable_parameters().items():
            if "lora_B" in name:
                parameter.copy_(0.01 * torch.randn(parameter.shape, generator=generator))
    policy.backbone.stop_ids = frozenset()
    return policy


def prompts_of(policy: Policy, n: int) -> list[list[int]]:
    pairs = [pair for pair in builtin_pairs("builtin:sycophancy") if all(m["content"] for m in pair.prompt)]
    return [policy.renderer.render(pair.prompt) for pair in pairs[:n]]


@contextlib.contextmanager
def engine_of(policy: Policy, config: TrainConfig, max_model_len: int) -> Iterator[Engine]:
    """vLLM in this process."""
    from opct.models.vllm.local import VllmEngine

    force_lengths()
    started = time.perf_counter()
    with contextlib.closing(Engine(policy, VllmEngine(policy, config, max_model_len=max_model_len))) as engine:
        print(f"{engine.backend.name}: started in {time.perf_counter() - started:.0f} s")
        yield engine


def measure(policy: Policy, engine: Policy | Engine, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Tokens a second of an engine over two calls after a warm-up, and how far its log-probs are from those of the
    model in training."""
    speeds = []
    for repeat in range(3):
        seeds = [[1000 * repeat + i] for i in range(len(prompts))]
        started = time.perf_counter()
        groups = engine.sample(prompts, seeds, Sampling(tokens))
        elapsed = time.perf_counter() - started
        assert all(len(c.token_ids) == tokens for [c] in groups)
        if repeat:
            speeds.append(len(prompts) * tokens / elapsed)
    own = policy.log_probs(prompts, [list(c.token_ids) for [c] in groups])
    differences = torch.cat([torch.tensor(c.logprobs) - row.cpu() for [c], row in zip(groups, own, strict=True)])
    return {
        "rows": len(prompts),
        "tokens_per_s": round(statistics.median(speeds)),
        "smallest": round(min(speeds)),
        "largest": round(max(speeds)),
        "mismatch_kl": float(f"{differences.mean():.2g}"),
        "mismatch_kl_k3": float(f"{((-differences).exp() - 1 + differences).mean():.2g}"),
        "mean_abs": float(f"{differences.abs().mean():.2g}"),
    }

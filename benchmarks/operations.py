"""Floating-point operations that a training step of a dense decoder cannot do without; each prompt once.

With N_b weights in the body, N_v in the output head, B prompts of P tokens (P_t for the teacher) and G completions of C
tokens each: teacher 2 N_b B (P_t + G C), policy 2 N_b B (P + G C), its backward the same with LoRA and twice that where
every weight is trained, loss 3 x 2 N_v B G C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """Of a decoder with a gated MLP: heads x head size, key-value heads x head size, the MLP's inner size."""

    layers: int
    hidden: int
    query_size: int
    kv_size: int
    inner: int
    vocabulary: int

    @property
    def body(self) -> int:
        """Weights of all but the embedding and the output head."""
        matrices = 2 * self.hidden * (self.query_size + self.kv_size) + 3 * self.hidden * self.inner
        return self.layers * (matrices + 2 * self.hidden) + self.hidden

    @property
    def head(self) -> int:
        return self.vocabulary * self.hidden


@dataclass(frozen=True)
class Operations:
    teacher: float
    policy: float
    backward: float
    loss: float

    @property
    def training(self) -> float:
        return self.teacher + self.policy + self.backward + self.loss


def sizes_of(config: Any) -> Sizes:
    """From a transformers configuration."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_size = (getattr(config, "num_key_value_heads", None) or heads) * size
    return Sizes(
        config.num_hidden_layers,
        config.hidden_size,
        heads * size,
        kv_size,
        config.intermediate_size,
        config.vocab_size,
    )


def operations(sizes: Sizes, workload: Any, *, lora: bool) -> Operations:
    """Of a step of a `benchmarks.workloads.Workload`."""
    completion = workload.prompts * workload.generations * workload.completion_tokens
    prompt, teacher = workload.prompts * workload.prompt_tokens, workload.prompts * workload.teacher_tokens
    policy = 2 * sizes.body * (prompt + completion)
    return Operations(
        teacher=2 * sizes.body * (teacher + completion),
        policy=policy,
        backward=policy * (1 if lora else 2),
        loss=3 * 2 * sizes.head * completion,
    )

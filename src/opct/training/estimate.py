"""Memory of a training process, from the model's configuration: nothing is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from opct.config.schema import MICRO_BATCH_TOKENS, TrainConfig
from opct.models.inference.kv_cache import kv_bytes
from opct.models.loading import PROBED_SIZE, attach_adapter, choose_device, choose_dtype, empty_model
from opct.models.memory import free_memory, total_memory
from opct.models.scoring import CHUNK_TOKENS
from opct.runs.console import WARNING, Progress
from opct.training.accumulate import LESS_TRAINING

if TYPE_CHECKING:
    from opct.data.render import RenderedPair

FLOAT32 = 4
QUANTIZED = {"4bit": 0.516, "8bit": 1.0}  # bytes of a weight; NF4 with scales that are quantized too: 4.127 bits
TABLES = 1200  # bytes of a quantized layer for the values that its codes stand for
TRAINED_BYTES = 3 * FLOAT32  # for each trained weight: its gradient and Adam's two moments
MARGIN = 0.75  # of the free memory; the rest is for what lives for one operation, and for gaps between tensors
DOUBLINGS = 3  # of 1,536 tokens, up or down: an H100 is busy with 12,288, and more pads short rows to longer ones
FEWEST_TOKENS = MICRO_BATCH_TOKENS >> DOUBLINGS


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one process, without libraries and the allocator's overhead."""

    weights: float
    teacher: float
    trained: float  # gradients and Adam's moments
    loss: float  # copies of weights in the forward pass, and the logits of a chunk of the loss
    token: float  # activations of each token of a micro-batch
    micro_batch_tokens: int
    rollout: float  # keys and values
    engine: float  # vLLM's share of the accelerator

    @property
    def constant(self) -> float:
        """What is there all the time."""
        return self.weights + self.teacher + self.trained + self.engine

    @property
    def micro_batch(self) -> float:
        return self.loss + self.token * self.micro_batch_tokens

    @property
    def peak(self) -> float:
        return self.constant + max(self.micro_batch, self.rollout)

    def fitted(self, free: float) -> MemoryEstimate:
        """With the largest micro-batch that `MARGIN` of `free` bytes holds: 1,536 tokens, doubled or halved."""
        tokens = max(1.0, (MARGIN * free - self.constant - self.loss) / max(1.0, self.token))
        doublings = math.floor(math.log2(tokens / MICRO_BATCH_TOKENS))
        doublings = min(max(doublings, -DOUBLINGS), DOUBLINGS)
        return replace(self, micro_batch_tokens=int(MICRO_BATCH_TOKENS * 2.0**doublings))

    def __str__(self) -> str:
        parts = {"weights": self.weights, "teacher": self.teacher, "gradients and moments": self.trained}
        parts |= {f"a micro-batch of {self.micro_batch_tokens:,} tokens": self.micro_batch}
        parts |= {"or an answered batch": self.rollout, "vLLM": self.engine}
        shown = ", ".join(f"{name} {size(n)}" for name, n in parts.items() if n)
        return f"about {size(self.peak)} with full batches, from the model's config ({shown})"


def estimate_memory(config: TrainConfig, pairs: Sequence[RenderedPair], micro_batch_tokens: int) -> MemoryEstimate:
    """The memory of a process with micro-batches of so many tokens, from the model's configuration."""
    device = choose_device(config.model.device)
    dtype, _ = choose_dtype(config.model.dtype, device, PROBED_SIZE)
    model: Any = empty_model(config.model)
    base = sum(p.numel() for p in model.parameters())
    head = model.get_output_embeddings().weight.numel()
    if config.lora is None:
        trained, weights = base, FLOAT32 * base
        # autocast's copy of every weight, which the backward pass keeps
        copies = float(base * dtype.itemsize) if dtype.itemsize < FLOAT32 else 0.0
        frozen = weights - (FLOAT32 - dtype.itemsize) * sum(_layers(model, head=True))
        teachers = {"base": frozen, "live": 0, "ema": weights}
    else:
        weights = float(base * dtype.itemsize)
        if quantized := QUANTIZED.get(config.model.quantization or ""):
            weights -= sum((dtype.itemsize - quantized) * n - TABLES for n in _layers(model, head=False))
        with torch.device("meta"):
            adapted = attach_adapter(model, config.lora, None, seed=0)
        trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
        weights += FLOAT32 * trained
        copies = float(dtype.itemsize * (_experts_in(adapted) + trained))
        continued = config.model.adapter is not None and config.teacher.include_adapter
        teachers = {"base": FLOAT32 * trained * continued, "live": 0, "ema": FLOAT32 * trained}
    # of the states between the layers, and so of what rotary embeddings make of keys
    stream = FLOAT32 if config.lora is None else dtype.itemsize
    engine = config.vllm.gpu_memory_utilization * total_memory(device) if config.rollout.engine == "vllm" else 0.0
    rollout: float = _rollout_tokens(config, pairs, device) * kv_bytes(model.config, stream)
    if config.vllm.enable_sleep_mode:  # then it has its memory while no micro-batch has
        engine, rollout = 0.0, engine + rollout
    return MemoryEstimate(
        weights=weights,
        teacher=teachers[config.teacher.kind],
        trained=TRAINED_BYTES * trained,
        loss=copies + _loss_bytes(model.config, dtype.itemsize, head, is_full=config.lora is None),
        token=_token_bytes(config, model.config, dtype.itemsize),
        micro_batch_tokens=micro_batch_tokens,
        rollout=rollout,
        engine=engine,
    )


def _experts_in(adapted: Any) -> int:
    """Weights of the experts that have an adapter: PEFT builds all of them anew in each forward pass."""
    from peft.tuners.lora.layer import ParamWrapper

    wrapped = [module for module in adapted.modules() if isinstance(module, ParamWrapper)]
    return sum(module.get_param().numel() for module in wrapped)


def _layers(model: Any, *, head: bool) -> list[int]:
    """Weights of each linear layer, fused experts excepted; an output head that is tied to the embeddings is none."""
    from torch.nn import Linear

    others = [model.get_input_embeddings().weight] + ([] if head else [model.get_output_embeddings().weight])
    layers = [m.weight for m in model.modules() if isinstance(m, Linear)]
    return [weight.numel() for weight in layers if all(weight is not other for other in others)]


def _loss_bytes(model_config: Any, number: int, head: int, *, is_full: bool) -> float:
    """Logits of policy and teacher in a chunk of the loss, and the gradient to a trained head."""
    hidden = max(1, getattr(model_config.get_text_config(), "hidden_size", 0))
    logits = CHUNK_TOKENS * head / hidden * (3 * number + 2 * FLOAT32)
    return logits + FLOAT32 * head * is_full


def _token_bytes(config: TrainConfig, model_config: Any, number: int) -> float:
    """Activations of a token of a micro-batch, which the backward pass needs.

    A decoder layer with a gated MLP keeps the inputs of its norms, projections, attention and activation. Full
    fine-tuning has float32 weights, so the stream between the layers is float32 too.
    """
    text = model_config.get_text_config()
    hidden, layers = getattr(text, "hidden_size", 0), getattr(text, "num_hidden_layers", None) or 1
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    if experts := getattr(text, "num_experts_per_tok", None) or 0:
        # each chosen expert keeps a copy of the token's state: a quarter, for `inner` counts four times below
        inner = experts * (getattr(text, "moe_intermediate_size", None) or inner) + experts * hidden // 4
    heads = getattr(text, "num_attention_heads", None) or 1
    head_size = getattr(text, "head_dim", None) or hidden // heads
    attention, keys = heads * head_size, (getattr(text, "num_key_value_heads", None) or heads) * head_size
    rank = 0 if config.lora is None else config.lora.r
    # without the fused forward of `opct.cpu.fused_lora`, each of q, k, v and of gate, up has a copy of its input
    states = 5 if config.lora is None else 7 if config.model.quantization or config.lora.use_dora else 4
    token = number * (states * hidden + 3 * attention + 2 * keys + 4 * inner + 7 * rank)
    token += 0 if rank else 2 * FLOAT32 * hidden
    # with several completions a prompt, prompts and completions are in memory together, each up to the budget
    parts = 2 if config.rollout.num_generations > 1 else 1
    activations = layers * token
    if config.optim.gradient_checkpointing:  # the input of each layer, and all of one layer
        activations = layers * (number if rank else FLOAT32) * hidden + token
    return float(parts * activations)


def _rollout_tokens(config: TrainConfig, pairs: Sequence[RenderedPair], device: torch.device) -> int:
    """Most tokens that are sampled at once: all of a step; in this process on a CPU up to `rollout.batch_tokens`."""
    longest = max(max(len(r.prompt_ids or ()), len(r.teacher_ids)) for r in pairs)
    rows = config.optim.prompts_per_step * config.rollout.num_generations
    whole = rows * (longest + config.rollout.max_completion_tokens)
    if config.rollout.engine == "vllm":
        return 0
    is_bounded = device.type == "cpu" or config.rollout.engine == "in_process"
    return min(config.rollout.batch_tokens, whole) if is_bounded else whole


def size(n: float) -> str:
    """Bytes in MB or GB."""
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"


def fit_memory(
    config: TrainConfig,
    pairs: Sequence[RenderedPair],
    progress: Progress,
    recorded: int | None = None,
    *,
    is_loaded: bool = False,
) -> int:
    """The tokens of a micro-batch; on an accelerator says what is needed and free, and what helps where that is short.

    Args:
        recorded: what `optim.micro_batch_tokens: auto` chose when the run began; kept, since the micro-batches decide
            how sums are rounded.
        is_loaded: the weights are on the device already, and what is free is besides them.
    """
    given, device = config.optim.micro_batch_tokens, choose_device(config.model.device)
    tokens = config.optim.fixed_micro_batch_tokens if given != "auto" or recorded is None else recorded
    if device.type == "cpu" or is_loaded:
        return tokens
    estimate, free = estimate_memory(config, pairs, tokens), free_memory(device)
    if given == "auto" and recorded is None:
        estimate = estimate.fitted(free)
    progress.log(f"memory: {estimate}; {size(free)} are free")
    if estimate.peak > free:
        progress.log(f"{WARNING}that is too little: try {', then '.join(LESS_TRAINING)}")
    return estimate.micro_batch_tokens

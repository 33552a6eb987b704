"""Memory of a training process, from the model's configuration: nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opct.config.schema import TrainConfig
from opct.models.inference.kv_cache import kv_bytes
from opct.models.loading import PROBED_SIZE, attach_adapter, choose_device, choose_dtype, empty_model
from opct.models.memory import free_memory, total_memory
from opct.models.scoring import CHUNK_TOKENS
from opct.runs.console import Progress
from opct.training.accumulate import LESS_TRAINING
from opct.training.setup import WARNING, TrainingData

if TYPE_CHECKING:
    import torch

FLOAT32 = 4
QUANTIZED_BYTES = {"4bit": 0.516, "8bit": 1.0}  # a weight; NF4 with scales that are quantised too: 4.127 bits
TRAINED_BYTES = 3 * FLOAT32  # for each trained weight: its gradient and Adam's two moments


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one process, without libraries and the allocator's overhead."""

    weights: float
    teacher: float
    trained: float  # gradients and Adam's moments
    micro_batch: float  # activations, and the logits of a chunk of the loss
    rollout: float  # keys and values
    engine: float  # vLLM's share of the accelerator

    @property
    def peak(self) -> float:
        return self.weights + self.teacher + self.trained + self.engine + max(self.micro_batch, self.rollout)

    def __str__(self) -> str:
        parts = {"weights": self.weights, "teacher": self.teacher, "gradients and moments": self.trained}
        parts |= {"a micro-batch": self.micro_batch, "or an answered batch": self.rollout, "vLLM": self.engine}
        shown = ", ".join(f"{name} {size(n)}" for name, n in parts.items() if n)
        return f"about {size(self.peak)} with full batches, from the model's config ({shown})"


def estimate_memory(config: TrainConfig, data: TrainingData) -> MemoryEstimate:
    """The memory of a process, from the model's configuration."""
    device = choose_device(config.model.device)
    dtype, _ = choose_dtype(config.model.dtype, device, PROBED_SIZE)
    model: Any = empty_model(config.model)
    base = sum(p.numel() for p in model.parameters())
    head = model.get_output_embeddings().weight.numel()
    frozen_copy = base * dtype.itemsize - _saved_by_quantization(config, model, dtype.itemsize)
    if config.lora is None:
        trained, weights = base, FLOAT32 * base
        # autocast's copy of every weight, which the backward pass keeps
        copies = float(base * dtype.itemsize) if dtype.itemsize < FLOAT32 else 0.0
        teachers = {"base": frozen_copy, "live": 0, "ema": weights}
    else:
        adapted = attach_adapter(model, config.lora, None, seed=0)
        trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
        weights = frozen_copy + FLOAT32 * trained
        copies = float(dtype.itemsize * (_experts_in(adapted) + trained))
        continued = config.model.adapter is not None and config.teacher.include_adapter
        teachers = {"base": FLOAT32 * trained * continued, "live": 0, "ema": FLOAT32 * trained}
    engine = config.vllm.gpu_memory_utilization * total_memory(device) if config.rollout.engine == "vllm" else 0.0
    rollout: float = _rollout_tokens(config, data, device) * kv_bytes(model.config, dtype.itemsize)
    if config.vllm.enable_sleep_mode:  # then it has its memory while no micro-batch has
        engine, rollout = 0.0, engine + rollout
    return MemoryEstimate(
        weights=weights,
        teacher=teachers[config.teacher.kind],
        trained=TRAINED_BYTES * trained,
        micro_batch=copies + _micro_batch_bytes(config, model.config, dtype.itemsize, head),
        rollout=rollout,
        engine=engine,
    )


def _experts_in(adapted: Any) -> int:
    """Weights of the experts that have an adapter: PEFT builds all of them anew in each forward pass."""
    from peft.tuners.lora.layer import ParamWrapper

    wrapped = [module for module in adapted.modules() if isinstance(module, ParamWrapper)]
    return sum(module.get_param().numel() for module in wrapped)


def _saved_by_quantization(config: TrainConfig, model: Any, number: int) -> float:
    """Bytes by which bitsandbytes' layers are smaller; embeddings and output head stay as they are."""
    from torch.nn import Linear

    if config.model.quantization is None:
        return 0.0
    head = model.get_output_embeddings()
    layers = sum(m.weight.numel() for m in model.modules() if isinstance(m, Linear) and m is not head)
    return layers * (number - QUANTIZED_BYTES[config.model.quantization])


def _micro_batch_bytes(config: TrainConfig, model_config: Any, number: int, head: int) -> float:
    """Bytes for the backward pass of a full micro-batch: activations, and logits of policy and teacher.

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
    token = number * ((4 if rank else 5) * hidden + 3 * attention + 2 * keys + 4 * inner + 7 * rank)
    token += 0 if rank else 2 * FLOAT32 * hidden
    # with several completions a prompt, prompts and completions are in memory together, each up to the budget
    tokens = config.optim.micro_batch_tokens * (2 if config.rollout.num_generations > 1 else 1)
    logits = CHUNK_TOKENS * head / max(1, hidden) * (3 * number + 2 * FLOAT32)
    activations = layers * token
    if config.optim.gradient_checkpointing:  # the input of each layer, and all of one layer
        activations = layers * (number if rank else FLOAT32) * hidden + token
    return float(tokens * activations + logits + (0 if rank else FLOAT32 * head))


def _rollout_tokens(config: TrainConfig, data: TrainingData, device: torch.device) -> int:
    """Most tokens that are sampled at once: all of a step; in this process on a CPU up to `rollout.batch_tokens`."""
    longest = max(max(len(r.prompt_ids or ()), len(r.teacher_ids)) for r in data.pairs)
    rows = config.optim.prompts_per_step * config.rollout.num_generations
    whole = rows * (longest + config.rollout.max_completion_tokens)
    if config.rollout.engine == "vllm":
        return 0
    is_bounded = device.type == "cpu" or config.rollout.engine == "in_process"
    return min(config.rollout.batch_tokens, whole) if is_bounded else whole


def size(n: float) -> str:
    """Bytes in MB or GB."""
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"


def say_memory(config: TrainConfig, progress: Progress, data: TrainingData) -> None:
    """Show the estimate where the model is on an accelerator, and what helps if it is more than what is free."""
    device = choose_device(config.model.device)
    if device.type == "cpu":
        return
    estimate, free = estimate_memory(config, data), free_memory(device)
    progress.log(f"memory: {estimate}; {size(free)} are free")
    if estimate.peak > free:
        progress.log(f"{WARNING}that is too little: try {', then '.join(LESS_TRAINING)}")

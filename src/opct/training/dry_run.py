"""`opct train --dry-run`: the plan of a run, with its memory and time."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opct.config.loader import dump_config
from opct.config.schema import TrainConfig
from opct.data.dataset import anchors_per_step
from opct.data.render import RenderedPair
from opct.methods.base import Method
from opct.methods.offline import OfflineAnswers, answers_to
from opct.methods.registry import method_class, refuse_attackers
from opct.methods.rollouts import Rollout, policy_rollouts, step_weights
from opct.models.inference.sampler import kv_bytes
from opct.models.loading import PROBED_SIZE, attach_adapter, choose_device, choose_dtype, empty_model
from opct.models.memory import memory_now_bytes, peak_memory_gb
from opct.models.scoring import CHUNK_TOKENS
from opct.models.vllm.engine import Engine
from opct.training.accumulate import accumulate, shares_prompts
from opct.training.setup import TrainingData, TrainingSetup, build_setup, describe, load_data

if TYPE_CHECKING:
    from rich.console import RenderableType

PROBE_PAIRS = 4
FLOAT32 = 4
QUANTIZED_BYTES = {"4bit": 0.516, "8bit": 1.0}  # a weight; NF4 with scales that are quantised too: 4.127 bits
TRAINED_BYTES = 3 * FLOAT32  # for each trained weight: its gradient and Adam's two moments
PROCESSES = (2, 4, 8)  # the estimate is also made for these


@dataclass(frozen=True)
class Plan:
    """Plan of a run: settings, sizes, and an estimate from a short probe."""

    config: TrainConfig
    facts: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]

    def render(self) -> RenderableType:
        """The plan for a terminal."""
        from rich.console import Group
        from rich.syntax import Syntax
        from rich.table import Table
        from rich.text import Text

        table = Table(title="plan (nothing was written)", show_header=False)
        table.add_column(style="bold")
        table.add_column()
        for name, words in self.rows:
            table.add_row(name, Text(words))
        return Group(
            Syntax(dump_config(self.config), "yaml", background_color="default"),
            *(Text(fact) for fact in self.facts),
            table,
        )


def make_plan(config: TrainConfig) -> Plan:
    """Build the pairs, estimate the memory, then load the model and try a few pairs. Writes nothing.

    Raises:
        ConfigError, DataError, ModelError: as training would.
    """
    refuse_attackers(config)
    data = load_data(config)
    rows = [*_sizes(data), ("memory, estimated", memory_line(config, data))]
    with contextlib.closing(build_setup(config)) as setup:
        setup.publish(0)
        return Plan(config, tuple(describe(setup)), (*rows, *_probed(setup)))


def _sizes(data: TrainingData) -> Iterator[tuple[str, str]]:
    """The method, the pairs, and how much of them is trained on."""
    config, method, steps = data.config, method_class(data.config.method), data.total_steps
    n = method.answers_per_pair * config.rollout.num_generations
    per_step = config.optim.prompts_per_step
    families = Counter(rendered.pair.family for rendered in data.pairs)
    shown = ", ".join(f"{count} {name}" for name, count in sorted(families.items()))
    prompts = sorted(len(r.prompt_ids) for r in data.pairs if r.prompt_ids is not None) or [0]
    median, longest = prompts[len(prompts) // 2], prompts[-1]
    yield "method", f"{config.method}, teacher {config.teacher.kind}, {method.describe_loss(config)}"
    yield "pairs", f"{len(data.pairs)} kept, {len(data.left_out)} left out as too long; {shown}"
    yield "identity pairs", f"{len(data.anchors)} ({config.data.anchor_fraction:.0%} of each step)"
    yield "prompt tokens", f"median {median}, longest {longest} of {data.context_length}"
    yield "steps", f"{steps} of {per_step} pairs x {n} completions"
    fresh = per_step - anchors_per_step(per_step, config.data.anchor_fraction if data.anchors else 0.0)
    share = fresh // len(data.streams)
    of_axis = "" if len(data.streams) == 1 else " of {}"
    passes = [
        f"each pair{of_axis.format(name.partition('/')[2])} is seen {steps * share / len(pairs):.1f} times"
        for name, pairs in data.streams.items()
    ]
    yield "passes", ", ".join(passes)
    yield "completion tokens", f"at most {steps * per_step * n * config.rollout.max_completion_tokens:,} in all"


# ------------------------------------------------------------------------------------------------ memory, estimated


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one process, without libraries and the allocator's overhead."""

    weights: float
    teacher: float
    trained: float  # gradients and Adam's moments
    micro_batch: float  # activations, and the logits of a chunk of the loss
    rollout: float  # keys and values

    @property
    def peak(self) -> float:
        return self.weights + self.teacher + self.trained + max(self.micro_batch, self.rollout)


def memory_line(config: TrainConfig, data: TrainingData) -> str:
    """The estimate for one process, and for several if they share the weights."""
    one = estimate_memory(config, data)
    parts = (
        f"weights {size(one.weights)}, teacher {size(one.teacher)}, gradients and Adam {size(one.trained)}, a full "
        f"micro-batch {size(one.micro_batch)} or the rollout's keys and values {size(one.rollout)}"
    )
    if config.lora is not None and config.parallel.strategy != "fsdp":
        return f"about {size(one.peak)} a process: {parts}"
    shared = [f"{size(estimate_memory(config, data, n).peak)} on {n}" for n in PROCESSES]
    return f"about {size(one.peak)}: {parts}; a process of several: {', '.join(shared)}"


def estimate_memory(config: TrainConfig, data: TrainingData, processes: int = 1) -> MemoryEstimate:
    """The memory of one of `processes` that share the weights (FSDP), from the model's configuration.

    Every process has the whole adapter, with its gradients and moments.
    """
    dtype, _ = choose_dtype(config.model.dtype, choose_device(config.model.device), PROBED_SIZE)
    model: Any = empty_model(config.model)
    base = sum(p.numel() for p in model.parameters())
    head = model.get_output_embeddings().weight.numel()
    frozen_copy = base * dtype.itemsize - _saved_by_quantization(config, model, dtype.itemsize)
    if config.lora is None:
        trained, weights, shared = base, FLOAT32 * base, processes
        teachers = {"base": frozen_copy, "live": 0, "ema": weights}
    else:
        adapted = attach_adapter(model, config.lora, None, seed=0)
        trained, weights, shared = sum(p.numel() for p in adapted.parameters() if p.requires_grad), frozen_copy, 1
        continued = config.model.adapter is not None and config.teacher.include_adapter
        teachers = {"base": FLOAT32 * trained * continued, "live": 0, "ema": FLOAT32 * trained}
    fetched = 0 if processes == 1 else dtype.itemsize * (2 * head + 2 * (base - head) / _layers(model.config))
    return MemoryEstimate(
        weights=weights / processes + fetched + (0 if config.lora is None else FLOAT32 * trained),
        teacher=teachers[config.teacher.kind] / shared,
        trained=TRAINED_BYTES * trained / shared,
        micro_batch=_micro_batch_bytes(config, model.config, dtype.itemsize, head),
        rollout=_rollout_tokens(config, data) * kv_bytes(model.config, dtype.itemsize),
    )


def _saved_by_quantization(config: TrainConfig, model: Any, number: int) -> float:
    """Bytes by which bitsandbytes' layers are smaller; embeddings and output head stay as they are."""
    from torch.nn import Linear

    if config.model.quantization is None:
        return 0.0
    head = model.get_output_embeddings()
    layers = sum(m.weight.numel() for m in model.modules() if isinstance(m, Linear) and m is not head)
    return layers * (number - QUANTIZED_BYTES[config.model.quantization])


def _layers(config: Any) -> int:
    return getattr(config.get_text_config(), "num_hidden_layers", None) or 1


def _micro_batch_bytes(config: TrainConfig, model_config: Any, number: int, head: int) -> float:
    """Bytes for the backward pass of a full micro-batch: activations, and logits of policy and teacher.

    A decoder layer with a gated MLP keeps the inputs of its norms, projections, attention and activation. Full
    fine-tuning has float32 weights, so the stream between the layers is float32 too.
    """
    text = model_config.get_text_config()
    hidden = getattr(text, "hidden_size", 0)
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    heads = getattr(text, "num_attention_heads", None) or 1
    keys = hidden * (getattr(text, "num_key_value_heads", None) or heads) // heads
    rank = 0 if config.lora is None else config.lora.r
    token = number * ((4 if rank else 5) * hidden + 3 * hidden + 2 * keys + 4 * inner + 7 * rank)
    token += 0 if rank else 2 * FLOAT32 * hidden
    # with several completions a prompt, prompts and completions are in memory together, each up to the budget
    tokens = config.optim.micro_batch_tokens * (2 if config.rollout.num_generations > 1 else 1)
    logits = CHUNK_TOKENS * head / max(1, hidden) * (3 * number + 2 * FLOAT32)
    kept = _layers(model_config) * token
    if config.optim.gradient_checkpointing:  # the input of each layer, and all of one layer
        kept = _layers(model_config) * (number if rank else FLOAT32) * hidden + token
    return float(tokens * kept + logits + (0 if rank else FLOAT32 * head))


def _rollout_tokens(config: TrainConfig, data: TrainingData) -> int:
    """Most tokens that are sampled at once: all of a step, up to `rollout.batch_tokens`."""
    longest = max(max(len(r.prompt_ids or ()), len(r.teacher_ids)) for r in data.pairs)
    rows = config.optim.prompts_per_step * config.rollout.num_generations
    return min(config.rollout.batch_tokens, rows * (longest + config.rollout.max_completion_tokens))


# ------------------------------------------------------------------------------------------------ measured


def _probed(setup: TrainingSetup) -> Iterator[tuple[str, str]]:
    """Answer and train on a few pairs: cut completions, memory, and the time of the whole run at that rate."""
    config, pairs = setup.config, setup.data.batch(1)[:PROBE_PAIRS]
    before = memory_now_bytes(setup.policy.device)
    started = time.perf_counter()
    method, rollouts = _collected(setup, pairs)
    answers = [answer for r in rollouts for answer in r.answers]
    if not answers and setup.data.validation:  # the method samples nothing, but the validation does
        validated = policy_rollouts(setup.policy, pairs, config, "probe", n=1, sampler=setup.engine)
        answers = [answer for r in validated for answer in r.answers]
    rollout_s, started = time.perf_counter() - started, time.perf_counter()
    weights, share = step_weights(rollouts, method.reduction), shares_prompts(method, rollouts)
    setup.policy.model.train()  # only then are activations computed again, and dropout is on
    accumulate(method, rollouts, weights, config.optim.micro_batch_tokens, share=share)
    setup.policy.model.eval().zero_grad(set_to_none=True)
    loss_s = time.perf_counter() - started
    if answers:
        cut, limit = sum(a.stop_reason == "length" for a in answers), config.rollout.max_completion_tokens
        yield "cut completions", f"{cut} of {len(answers)} in the probe reached the limit of {limit} tokens"
    peak = peak_memory_gb(setup.policy.device) * 1e9
    tokens = sum(len(r.prompt_ids) + len(r.teacher_ids) + sum(r.lengths) for r in rollouts)
    yield (
        "memory, measured",
        f"{size(peak)} at the peak of the probe ({len(pairs)} pairs, {tokens:,} tokens with both prompts), "
        f"{size(max(0.0, peak - before))} of them beside the loaded model; Adam's moments come on top",
    )
    yield "time", _time_words(setup, len(pairs), rollout_s, loss_s, len(answers))


def _time_words(setup: TrainingSetup, pairs: int, rollout_s: float, loss_s: float, answers: int) -> str:
    """The time of all steps at the probe's rate. A validation samples one answer a pair; without a backward pass it
    takes half of a loss."""
    config, data, method = setup.config, setup.data, method_class(setup.config.method)
    answer_s = rollout_s / max(1, answers)
    step_s = (loss_s + (0 if method.offline else rollout_s)) / pairs * config.optim.prompts_per_step
    offline_s = answer_s * sum(answers_to(rendered, method, config) for rendered in data.visited())
    held_out, times = len(data.validation) + len(data.validation_anchors), len(data.validation_steps)
    validation_s = times * held_out * (answer_s + loss_s / 2 / max(pairs, answers))
    total = duration(offline_s + data.total_steps * step_s + validation_s)
    return f"about {total}: {step_s:.1f} s a step (probe: {pairs} pairs), {times} validations of {held_out} pairs" + (
        f", {duration(offline_s)} for offline answers" if offline_s else ""
    )


def _collected(setup: TrainingSetup, pairs: list[RenderedPair]) -> tuple[Method, list[Rollout]]:
    """The run's method and its rollouts of these pairs; offline answers are sampled here too."""
    config, engine, kind = setup.config, setup.engine, method_class(setup.config.method)
    source: OfflineAnswers | Engine | None = engine
    if kind.offline:
        with setup.teacher() as teacher:
            sampler = teacher if engine is None else engine.base()
            source = OfflineAnswers(kind.answer(teacher, pairs, config, sampler, lambda n: None))
    method = kind(setup.policy, setup.teacher, config, source)
    return method, method.collect(pairs, 1)


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def size(n: float) -> str:
    """Bytes in MB or GB."""
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"

"""What a dry run predicts of a run with `opct.models.cost_model`, beside what its probe measures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from opct.data.render import prompt_tokens
from opct.errors import ModelError
from opct.models.chunked_loss import BLOCK_VALUES
from opct.models.cost_model import Batch, Machine, Memory, Setting, memory, operations, step_time
from opct.models.inference.decode import shares
from opct.models.inference.prefix_sharing import PREFIX_SHARE, ROW_TOKENS, no_cascade_reason
from opct.models.inference.sampler import rows_that_fit
from opct.models.loading import TEACHER_ADAPTER
from opct.models.policy import Policy
from opct.models.scoring import CHUNK_TOKENS
from opct.models.shape import Shape, shape_of
from opct.training.setup import Setup

GEMM_ROWS = 512  # of the measured products: what a micro-batch has, give or take
COPIED_BYTES = 2**27
LEFT_OUT = "libraries, the allocator, attention's own operations, norms, the optimizer's step"


def predicted(
    setup: Setup, *, mean_completion: float, probe_pairs: int, probe_loss_s: float
) -> Iterator[tuple[str, str]]:
    """Memory and time of a run as the cost model has them, as rows of the plan.

    Args:
        mean_completion: tokens of a completion in the probe, of `probe_pairs` pairs.
        probe_loss_s: what teacher, policy, loss and backward of these took, for the share of the machine's rate.
    """
    try:
        shape = checked_shape(setup.policy)
    except ModelError as error:
        yield "predicted", str(error)
        return
    setting, most = setting_of(setup), largest_batch(setup)
    words = memory_in_words(memory(shape, setting, most), kept_prompt_bytes(setup)) + _of_open_turns(
        setup, most.completion_tokens
    )
    if setting.rank is not None and setting.trained(shape) < shape.adapter_parameters(setting.rank):
        words += "; activations are those of an adapter on every matrix, which this one is not: at most so many"
    yield "memory, predicted", words
    mean = mean_batch(setup, max(1, round(mean_completion)))
    machine = measured_machine(setup.policy, shape)
    seconds = step_time(shape, setting, mean, machine)
    of_probe = operations(shape, setting, replace(mean, prompts=probe_pairs)).training
    yield (
        "time, predicted",
        f"at least {seconds.step:.1f} s a step (rollout {seconds.rollout:.1f}, training {seconds.training:.1f}): "
        f"{operations(shape, setting, mean).training / 1e12:.2f} TFLOP of training at the "
        f"{machine.gemm_flops / 1e9:.0f} GFLOP/s measured here, of which the probe reached "
        f"{of_probe / probe_loss_s / machine.gemm_flops:.0%}"
        + _of_open_turns(setup, mean.completion_tokens, "; sampling these is left out"),
    )
    yield "not predicted", LEFT_OUT


def checked_shape(policy: Policy) -> Shape:
    """The shape of a policy's model, where the formulas count the weights that it has.

    Raises:
        ModelError: they do not, so they are not those of this architecture.
    """
    shape = shape_of(policy.backbone.bare_model.config)
    count = sum(p.numel() for name, p in policy.model.named_parameters() if ".lora_" not in name)
    if abs(shape.parameters - count) > 0.01 * count:
        raise ModelError(
            f"The costs of {policy.name} cannot be predicted: a dense decoder of its sizes has {shape.parameters:,} "
            f"weights, and it has {count:,}. Let a dry run measure."
        )
    return shape


def setting_of(setup: Setup) -> Setting:
    """How a run trains, for the cost model: trained weights and the teacher's as they are in memory."""
    policy, lora = setup.policy, setup.config.lora
    return Setting(
        rank=None if lora is None else lora.r,
        compute_bytes=policy.dtype.itemsize,
        cascade=no_cascade_reason(policy.backbone) is None,
        trained_weights=sum(p.numel() for p in policy.trainable_parameters().values()),
        teacher_bytes=_teacher_bytes(setup),
    )


def _teacher_bytes(setup: Setup) -> int:
    """Of the weights that the teacher has beside the policy's: another model's, or another adapter's."""
    own = {id(p) for name, p in setup.policy.model.named_parameters() if f".{TEACHER_ADAPTER}." not in name}
    others = {id(p): p for model in setup.models for p in model.model.parameters() if id(p) not in own}
    return sum(p.numel() * p.element_size() for p in others.values())


def largest_batch(setup: Setup) -> Batch:
    """A step of the run with its longest prompts, and completions and open turns that all reach the limit."""
    config, limit = setup.config, setup.config.rollout.max_completion_tokens
    prompt, teacher = (max(lengths) for lengths in _prompt_lengths(setup, limit))
    seeds = [config.rollout.num_generations] * config.optim.prompts_per_step
    shared = shares(setup.policy.backbone, len(seeds), sum(seeds))
    rows, _ = rows_that_fit(seeds, prompt, limit, config.rollout.batch_tokens, shared=shared)
    return Batch(
        prompts=config.optim.prompts_per_step,
        generations=config.rollout.num_generations,
        prompt_tokens=prompt,
        teacher_tokens=teacher,
        completion_tokens=limit,
        micro_batch_tokens=config.optim.micro_batch_tokens,
        row_tokens=ROW_TOKENS,
        prefix_share=PREFIX_SHARE,
        chunk_tokens=CHUNK_TOKENS,
        block_values=BLOCK_VALUES if setup.policy.device.type == "cpu" else None,
        rollout_rows=rows,
        shared_rollout=shared,
    )


def mean_batch(setup: Setup, completion_tokens: int) -> Batch:
    """The same with prompts of mean length, and completions and open turns of so many tokens."""
    prompt, teacher = (round(sum(n) / len(n)) for n in _prompt_lengths(setup, completion_tokens))
    most = largest_batch(setup)
    return replace(most, prompt_tokens=prompt, teacher_tokens=teacher, completion_tokens=completion_tokens)


def _prompt_lengths(setup: Setup, turn_tokens: int) -> tuple[list[int], list[int]]:
    """Tokens of the prompts and of the teacher prompts of all pairs; `turn_tokens` of a turn that is still open."""
    pairs, renderer = (*setup.pairs, *setup.anchors), setup.policy.renderer
    return [prompt_tokens(r, renderer, turn_tokens) for r in pairs], [len(r.teacher_ids) for r in pairs]


def _of_open_turns(setup: Setup, turn_tokens: int, more: str = "") -> str:
    """What a prediction assumes of turns that the policy answers first; nothing where there are none."""
    pairs = (*setup.pairs, *setup.anchors)
    n = sum(r.prompt_ids is None for r in pairs)
    if n == 0:
        return ""
    return (
        f"; {n} of {len(pairs)} prompts have turns that the policy answers first, taken as {turn_tokens} tokens{more}"
    )


def measured_machine(policy: Policy, shape: Shape) -> Machine:
    """The rate of a product of the model's MLP in its compute dtype, and that of copying memory; best of five each."""
    device = policy.device
    a = torch.ones(GEMM_ROWS, shape.hidden, dtype=policy.dtype, device=device)
    b = torch.ones(shape.inner, shape.hidden, dtype=policy.dtype, device=device)
    block = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=device)
    product_s = min(_seconds(lambda: torch.nn.functional.linear(a, b)) for _ in range(5))
    copy_s = min(_seconds(block.clone) for _ in range(5))
    return Machine(2 * GEMM_ROWS * shape.hidden * shape.inner / product_s, 2 * COPIED_BYTES / copy_s)


def _seconds(run) -> float:
    """Of one call, waiting for the device."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    started = time.perf_counter()
    run()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter() - started


def kept_prompt_bytes(setup: Setup) -> int:
    """What the cache of the teacher's prompts will hold at most."""
    return 0 if setup.prompt_cache is None else setup.prompt_cache.most_bytes


def memory_in_words(found: Memory, kept_prompts: float = 0) -> str:
    """The parts of a prediction, the larger ones first named.

    Args:
        kept_prompts: bytes of the teacher's prompts that are kept all the time.
    """
    training, rollout = found.micro_batch, found.rollout_cache
    kept = f", the teacher's kept prompts {size(kept_prompts)}" if kept_prompts else ""
    return (
        f"about {size(found.peak + kept_prompts)}: weights {size(found.weights)}, teacher {size(found.teacher)}, "
        f"gradients and Adam {size(found.gradients + found.optimizer)}{kept}, and a micro-batch "
        f"{size(training)} (activations "
        f"{size(found.activations)}, logits {size(found.loss)}, prompts' keys and values {size(found.prompt_cache)}, "
        f"copies {size(found.compute_copies)}) or, before it, the rollout's cache {size(rollout)} and copies "
        f"{size(found.rollout_copies)}"
    )


def size(n: float) -> str:
    """Bytes in MB or GB."""
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"

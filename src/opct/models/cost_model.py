"""What a step costs before it is tried: memory and time from the shape of a model, the settings and a batch.

Derived for decoder-only transformers with RMSNorm and a gated MLP (Llama, Qwen, Mistral, SmolLM ...) as `opct` computes
them: a prompt once, its completions branched off its keys and values, the loss chunk by chunk over the vocabulary.
With L layers, h the hidden size, a = heads x head size, k = key-value heads x head size, i the MLP's inner size, V the
vocabulary, r the rank of an adapter and c the bytes of a compute dtype:

    body            N_b = L (2 h a + 2 h k + 3 h i + 2 h) + h         head   N_v = V h
    activations     L (c (4 h + m a + 2 k + 4 i + 7 r) + 4 heads + 8) bytes a token, adapter
                    L (2 s h + c (n h + m a + 2 k + 4 i) + 4 heads + 8) bytes a token, every weight; between layers s
                    bytes a number, 4, or c in shards; n = 2, or 5 where autocast casts the input of each projection by
                    itself; m = 2, or 3 with the attention of `opct.models.kernels.attention`, whose output is laid out
                    anew
    keys, values    2 L k s bytes a token of a prompt or of a rollout's cache; with an adapter s = c
    branches        their own tokens, with cosine and sine of each one's place; where that attention is another, also
                    2 L (a - k) c bytes a token, 2 L a c for each token of the prompt that a row of completions branches
                    off, and L c times the row's tokens times the places they look at, for its mask
    teacher         2 N_b B (P_t + G C) floating-point operations, for B prompts of P tokens (P_t for the teacher),
    policy          2 N_b B (P + G C)                              G completions of C tokens each
    backward        as the policy's forward, twice that where every weight is trained
    loss            3 x 2 N_v B G C

Left out: what libraries and the allocator take, activations that live for one operation, attention's own operations
(small beside the products up to some thousand tokens), norms, element-wise operations, the optimizer's step and
communication between processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opct.models.shape import Shape

FLOAT32 = 4
GRADIENT_BYTES, ADAM_BYTES = FLOAT32, 2 * FLOAT32  # for each trained weight
LOGITS = 3  # tensors of a chunk's logits in the compute dtype: the policy's, the teacher's, the gradient to the first
MOST_PACKED_BYTES = 4e9  # of copies of layers; that of models.packed
BLOCK_COPIES = 6  # tensors of a block's logits in float32; all of these are those of models.one_pass


@dataclass(frozen=True)
class Batch:
    """One optimizer step: B prompts, G completions each, tokens of prompt, teacher prompt and completion.

    Attributes:
        micro_batch_tokens: where completions share prompts, of prompts and of completions; both are in memory at once.
        row_tokens, prefix_share: how completions are put into rows; see `opct.models.inference.prefix_sharing`.
        chunk_tokens: of the loss; see `opct.models.scoring`.
        block_values: of a chunk's logits that the loss works on together, as on a CPU; None for all of them.
        rollout_rows: most completions that a process samples at once; None for all.
        shared_rollout: completions that are sampled at once share their prompt's keys and values.
    """

    prompts: int
    generations: int
    prompt_tokens: int
    teacher_tokens: int
    completion_tokens: int
    micro_batch_tokens: int = 1536
    row_tokens: int = 512
    prefix_share: float = 1 / 8
    chunk_tokens: int = 256
    block_values: int | None = None
    rollout_rows: int | None = None
    shared_rollout: bool = False

    @property
    def rows(self) -> int:
        """Completions in a step."""
        return self.prompts * self.generations

    def sampled_prompt_tokens(self, rows: int) -> int:
        """Of the prompts of so many completions that are sampled at once."""
        return self.prompt_tokens * (-(-rows // self.generations) if self.shared_rollout else rows)

    def own_prompts(self, processes: int) -> int:
        """Prompts of the process with the most; all completions of a prompt are in one."""
        return -(-self.prompts // processes)


@dataclass(frozen=True)
class Setting:
    """How is trained.

    Attributes:
        rank: of the LoRA; None where every weight is trained.
        compute_bytes: of a number in a matrix product: 2 for bfloat16, 4 for float32. Frozen weights are kept in it.
        processes: how many share a step. `shard`: each keeps 1/n of the model (where every weight is trained, of
            gradients, optimizer state and teacher too), an adapter whole, and whole what is being computed;
            `replicate`: each keeps all of them.
        cascade: with the attention of `opct.models.kernels.attention`, as on a CPU: no prompt is copied for its
        completions.
        trained_weights: as counted in a model; None for a LoRA on all seven matrices, or every weight.
        teacher_bytes: of what the teacher has beside the policy, as counted; None for nothing beside an adapter, or a
            frozen copy where every weight is trained.
    """

    rank: int | None
    compute_bytes: int = 2
    processes: int = 1
    parallel: Literal["replicate", "shard"] = "replicate"
    cascade: bool = False
    trained_weights: int | None = None
    teacher_bytes: int | None = None

    @property
    def shards(self) -> int:
        """Parts that the model is kept in."""
        return self.processes if self.parallel == "shard" else 1

    @property
    def weight_bytes(self) -> int:
        """Of a weight of the policy: float32 where every one is trained."""
        return FLOAT32 if self.rank is None else self.compute_bytes

    @property
    def stream_bytes(self) -> int:
        """Of a number between layers, and of keys and values: float32 where the embedding is, which shards are not."""
        return FLOAT32 if self.rank is None and self.shards == 1 else self.compute_bytes

    def trained(self, shape: Shape) -> int:
        """Weights that the optimizer moves."""
        if self.trained_weights is not None:
            return self.trained_weights
        return shape.parameters if self.rank is None else shape.adapter_parameters(self.rank)

    def teacher(self, shape: Shape) -> int:
        """Bytes of the teacher's own weights."""
        if self.teacher_bytes is not None:
            return self.teacher_bytes
        return shape.frozen_bytes(self.compute_bytes) if self.rank is None else 0


def activation_bytes(shape: Shape, setting: Setting) -> int:
    """What one token keeps for the backward pass: of a prompt, or of a sequence that is computed as a whole.

    Derived from the operations of a layer: the two norms keep their input (`opct.models.kernels.fused_norm`) and a
    number, the
    projections their inputs, attention queries, keys, values, the log of its sums and (in `cascade`) what it gives
    before that is laid out for the projection, the gated MLP its two halves, the gate after the activation, and their
    product; a LoRA what its down projection gives, for each of seven matrices.
    """
    h, a, k, i, c = shape.hidden, shape.query_size, shape.kv_size, shape.inner, setting.compute_bytes
    stream = setting.stream_bytes
    attention, rest = (3 if setting.cascade else 2) * a + 2 * k, FLOAT32 * shape.heads + 2 * FLOAT32
    if setting.rank is not None:
        return shape.layers * (c * (4 * h + attention + 4 * i + 7 * setting.rank) + rest)
    inputs = 2 if c == stream else 5
    layer = 2 * stream * h + c * (inputs * h + attention + 4 * i) + rest
    return shape.layers * layer + stream * h + FLOAT32  # the last norm


def kv_bytes(shape: Shape, setting: Setting) -> int:
    """Keys and values of one token in all layers: of a rollout's cache, or of a prompt that completions branch off."""
    return 2 * shape.layers * shape.kv_size * setting.stream_bytes


def branched_bytes(shape: Shape, setting: Setting, prompt_tokens: int, row_tokens: int) -> int:
    """What a row of completions keeps: its tokens, and cosine and sine of their places.

    Attention with a mask of its own (not in `cascade`) also gets keys and values of prompt and row, repeated for the
    heads that share them, and keeps its mask in every layer.
    """
    own = row_tokens * (activation_bytes(shape, setting) + 2 * shape.head_size * setting.stream_bytes)
    if setting.cascade:
        return own
    per_layer = 2 * (shape.query_size * (prompt_tokens + row_tokens) - shape.kv_size * row_tokens)
    per_layer += row_tokens * (prompt_tokens + row_tokens)
    return own + shape.layers * setting.compute_bytes * per_layer


@dataclass(frozen=True)
class Memory:
    """Bytes of one process, part by part; `peak` is what is there at once at most."""

    weights: float
    teacher: float
    gradients: float
    optimizer: float
    compute_copies: float
    activations: float
    prompt_cache: float
    loss: float
    rollout_cache: float
    rollout_copies: float

    @property
    def kept(self) -> float:
        """What is there all the time."""
        return self.weights + self.teacher + self.gradients + self.optimizer

    @property
    def micro_batch(self) -> float:
        """What a micro-batch needs beside that, in training."""
        return self.compute_copies + self.activations + self.prompt_cache + self.loss

    @property
    def peak(self) -> float:
        """The most at once: rollouts are over when training begins."""
        return self.kept + max(self.micro_batch, self.rollout_cache + self.rollout_copies)


def memory(shape: Shape, setting: Setting, batch: Batch) -> Memory:
    """The memory of one of the processes."""
    n, trained = setting.shards, setting.trained(shape)
    adapter, own = (0, n) if setting.rank is None else (FLOAT32 * trained, 1)  # an adapter is whole in every process
    own_prompts = batch.own_prompts(setting.processes)
    prompts, rows, row_tokens, completions = _micro_batch(batch, own_prompts, cascade=setting.cascade)
    passes = 2 if batch.generations > 1 else 1  # the prompts', and the completions' that branch off them
    if passes == 2:
        activations = prompts * batch.prompt_tokens * activation_bytes(shape, setting)
        activations += rows * branched_bytes(shape, setting, batch.prompt_tokens, row_tokens)
        copies = 1 if setting.stream_bytes == setting.compute_bytes else 2  # their gradient, and what is no activation
        prompt_cache = prompts * (copies * batch.prompt_tokens + batch.teacher_tokens) * kv_bytes(shape, setting)
    else:
        activations, prompt_cache = rows * row_tokens * activation_bytes(shape, setting), 0
    sampled = min(own_prompts * batch.generations, batch.rollout_rows or batch.rows)
    return Memory(
        weights=shape.parameters * setting.weight_bytes / n + adapter,
        teacher=setting.teacher(shape) / own,
        gradients=GRADIENT_BYTES * trained / own,
        optimizer=ADAM_BYTES * trained / own,
        compute_copies=_gathered(shape, setting) + _compute_copies(shape, setting) * passes,
        activations=activations,
        prompt_cache=prompt_cache,
        loss=_loss_bytes(shape, setting, batch, completions * batch.completion_tokens),
        rollout_cache=(batch.sampled_prompt_tokens(sampled) + sampled * batch.completion_tokens)
        * kv_bytes(shape, setting)
        + 2 * FLOAT32 * sampled * shape.vocabulary,
        rollout_copies=_packed(shape, setting),
    )


def _packed(shape: Shape, setting: Setting) -> float:
    """Bytes of weights that a rollout on a CPU lays out anew: the head's, and where it may the layers'."""
    if not setting.cascade:
        return 0.0
    layers = setting.compute_bytes * shape.layers * shape.layer_projections
    return setting.compute_bytes * shape.head_parameters + (layers if layers <= MOST_PACKED_BYTES else 0)


def _gathered(shape: Shape, setting: Setting) -> int:
    """Bytes of sharded weights that a process has whole in training, beside its part.

    A layer and the next one and the embedding in the compute dtype; the output heads of policy and teacher in the dtype
    that they are kept in; where every weight is trained, a layer's gradient, in the compute dtype and in float32.
    """
    if setting.shards == 1:
        return 0
    layer, head, c = shape.layer_projections, shape.head_parameters, setting.compute_bytes
    whole = c * (2 * layer + head) + setting.weight_bytes * head
    if setting.rank is not None:
        return whole
    teachers = (FLOAT32 if shape.tied else c) * head if setting.teacher(shape) else 0
    return whole + teachers + (c + FLOAT32) * layer


def _compute_copies(shape: Shape, setting: Setting) -> float:
    """Bytes of trained weights in the compute dtype that one pass keeps for its backward.

    An adapter's are copied for every product, those of full fine-tuning where they are in another dtype, a sharded
    layer's when it is gathered.
    """
    if setting.rank is not None:
        return setting.compute_bytes * setting.trained(shape)
    if setting.compute_bytes == FLOAT32 or setting.shards > 1:
        return 0.0
    return setting.compute_bytes * shape.layers * shape.layer_projections


def _loss_bytes(shape: Shape, setting: Setting, batch: Batch, tokens: int) -> float:
    """A chunk's logits of policy and teacher and the gradient to them, a block in float32, and a trained head's own.

    Args:
        tokens: of a micro-batch's completions.
    """
    logits = min(tokens, batch.chunk_tokens) * shape.vocabulary
    block = logits if batch.block_values is None else min(logits, batch.block_values)
    head = 0 if setting.rank is not None else FLOAT32 * shape.head_parameters  # its gradient, found with the loss
    if setting.rank is None and setting.compute_bytes != FLOAT32:
        head += setting.compute_bytes * shape.head_parameters
    return LOGITS * setting.compute_bytes * logits + BLOCK_COPIES * FLOAT32 * block + head


def _micro_batch(batch: Batch, own_prompts: int, *, cascade: bool) -> tuple[int, int, int, int]:
    """(prompts, rows, tokens of a row, completions) that are in memory together.

    As `opct.models.inference.prefix_sharing.shared_batches` cuts a step of equal lengths; as
    `opct.models.scoring.micro_batches` where
    no two completions share a prompt. One completion at least. `cascade`: they are one row, without padding.
    """
    width = max(batch.prompt_tokens, batch.teacher_tokens)
    if batch.generations == 1:
        rows = max(1, batch.micro_batch_tokens // (width + batch.completion_tokens))
        rows = min(rows, own_prompts)
        return rows, rows, batch.prompt_tokens + batch.completion_tokens - 1, rows
    budget, length = batch.micro_batch_tokens, batch.completion_tokens
    prompts = min(own_prompts, max(1, budget // width))
    per_row = min(batch.generations, max(1, batch.row_tokens // length))

    def rows_of(completions: int) -> int:
        return int(budget // (completions * length + batch.prefix_share * width))

    if prompts > 1 and per_row < batch.generations:  # a micro-batch may begin anywhere in a prompt's completions
        per_row = max(range(per_row, 0, -1), key=lambda n: n * rows_of(n))
    rows = rows_of(per_row)
    if rows == 0:  # a micro-batch ends within a row
        per_row, rows = max(1, int((budget - batch.prefix_share * width) // length)), 1
    rows = min(rows, prompts * -(-batch.generations // per_row))
    completions, tokens = min(rows * per_row, prompts * batch.generations), max(1, length - 1)  # the last predicts none
    if cascade:
        return prompts, 1, completions * tokens, completions
    return prompts, rows, per_row * tokens, completions


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of a step, part by part."""

    teacher: float
    policy: float
    backward: float
    loss: float
    prefill: float
    decode: float

    @property
    def training(self) -> float:
        """All but the rollout."""
        return self.teacher + self.policy + self.backward + self.loss


def operations(shape: Shape, setting: Setting, batch: Batch) -> Operations:
    """The matrix products that a step cannot do without; each prompt once."""
    body, head, completion = shape.body_parameters, shape.head_parameters, batch.rows * batch.completion_tokens
    policy = 2 * body * (batch.prompts * batch.prompt_tokens + completion)
    return Operations(
        teacher=2 * body * (batch.prompts * batch.teacher_tokens + completion),
        policy=policy,
        backward=policy * (2 if setting.rank is None else 1),
        loss=3 * 2 * head * completion,
        prefill=2 * body * batch.prompts * batch.prompt_tokens,
        decode=2 * (body + head) * completion,
    )


@dataclass(frozen=True)
class Machine:
    """How fast one process computes.

    Attributes:
        gemm_flops: matrix products a second, in floating-point operations.
        bandwidth: bytes a second between memory and the processor.
        efficiency: the share of `gemm_flops` that a forward and backward reach.
    """

    gemm_flops: float
    bandwidth: float
    efficiency: float = 1.0


@dataclass(frozen=True)
class Time:
    """Seconds of a step."""

    rollout: float
    training: float

    @property
    def step(self) -> float:
        """Both."""
        return self.rollout + self.training


def step_time(shape: Shape, setting: Setting, batch: Batch, machine: Machine) -> Time:
    """Seconds of a step on so many processes: products at the machine's rate, or reading the weights where that is
    slower, as it is for each token of a small rollout."""
    found, rate = operations(shape, setting, batch), machine.gemm_flops * machine.efficiency
    n = setting.processes
    own = batch.own_prompts(n) * batch.generations
    sampled = min(own, batch.rollout_rows or own)
    rounds = -(-own // sampled)
    read: float = (shape.body_parameters + shape.head_parameters) * setting.compute_bytes
    tokens = batch.sampled_prompt_tokens(sampled) + sampled * batch.completion_tokens / 2
    read += tokens * kv_bytes(shape, setting)
    reading = rounds * batch.completion_tokens * read / machine.bandwidth
    return Time(
        rollout=found.prefill / n / rate + max(found.decode / n / rate, reading),
        training=found.training / n / rate,
    )

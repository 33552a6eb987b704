"""The cost model against hand-worked numbers, the real packing, and what autograd really keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MixtralConfig

from opct.errors import ModelError
from opct.models.cost_model import (
    MOST_PACKED_BYTES,
    Batch,
    Machine,
    Setting,
    _micro_batch,
    activation_bytes,
    branched_bytes,
    kv_bytes,
    memory,
    operations,
    step_time,
)
from opct.models.inference.prefix_sharing import _Packing, no_cascade_reason, shared_batches
from opct.models.kernels.attention import use_grouped_attention
from opct.models.kernels.fused_norm import fuse_norms
from opct.models.kernels.packed_linear import MOST_BYTES
from opct.models.policy import Policy
from opct.models.scoring import micro_batches
from opct.models.shape import Shape, shape_of
from tests.conftest import REPOSITORY
from tests.tiny import tiny_adapter_policy, tiny_model, tiny_tokenizer

SMOLLM2 = Shape(30, 576, 9, 3, 64, 1536, 49152, tied=True)
SMALL = Shape(layers=2, hidden=4, heads=2, kv_heads=1, head_size=3, inner=5, vocabulary=7, tied=True)
"""A layer has 4 x 6 + 2 x (4 x 3) + 6 x 4 + 3 x (4 x 5) = 132 weights in matrices and 8 in norms."""


def test_parameters_by_hand():
    """2 x (132 + 8) + 4 = 284 in the body, 28 in the head; rank 3: 2 x 3 x (2 x 10 + 2 x 7 + 3 x 9) = 366."""
    assert SMALL.layer_projections == 132
    assert (SMALL.body_parameters, SMALL.head_parameters, SMALL.parameters) == (284, 28, 312)
    assert Shape(2, 4, 2, 1, 3, 5, 7, tied=False).parameters == 340
    assert SMALL.adapter_parameters(3) == 366


@pytest.mark.parametrize("tie", [True, False])
def test_parameters_are_the_models(tie: bool):
    model = tiny_model(tie=tie)
    assert shape_of(model.config).parameters == sum(p.numel() for p in model.parameters())
    adapted = tiny_adapter_policy(r=4, tie=tie)
    count = sum(p.numel() for p in adapted.trainable_parameters().values())
    assert shape_of(adapted.backbone.bare_model.config).adapter_parameters(4) == count


def test_other_architectures_are_refused():
    with pytest.raises(ModelError, match="of gpt2 cannot be predicted: its config has no intermediate_size"):
        shape_of(GPT2Config())
    with pytest.raises(ModelError, match=r"of mixtral cannot be predicted: its config has experts \(num_experts"):
        shape_of(MixtralConfig())
    assert shape_of(LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2)).kv_size == 32


def kept_bytes(policy: Policy, run, *, beside: Sequence[torch.Tensor] = ()) -> int:
    """Bytes of distinct storages, the weights' own and those of `beside` apart, that autograd keeps of a forward."""
    counted = {p.untyped_storage().data_ptr() for p in (*policy.model.parameters(), *beside)}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in counted:
            kept[storage.data_ptr()] = storage  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = run()
    del out
    return sum(storage.nbytes() for storage in kept.values())


def policy_of(rank: int | None, dtype: torch.dtype, *, cascade: bool) -> Policy:
    policy = full_policy() if rank is None else tiny_adapter_policy(r=rank, hidden=64)
    fuse_norms(policy.model)
    if rank is not None:
        policy.model.base_model.model.to(dtype)
        for name, parameter in policy.model.named_parameters():
            if "lora_" in name:
                parameter.data = parameter.data.float()  # as PEFT keeps an adapter
    if cascade:
        use_grouped_attention(policy.backbone.bare_model)
    found = Policy(policy.model.train(), tiny_tokenizer(), dtype=dtype)
    assert (no_cascade_reason(found.backbone) is None) == cascade
    return found


def full_policy() -> Policy:
    return Policy(tiny_model(hidden=64).requires_grad_(True), tiny_tokenizer())


SETTINGS = [(4, torch.bfloat16), (4, torch.float32), (None, torch.bfloat16), (None, torch.float32)]
both_paths = pytest.mark.parametrize("cascade", [False, True], ids=["masked", "cascade"])


@both_paths
@pytest.mark.parametrize(("rank", "dtype"), SETTINGS)
def test_activations_are_what_autograd_keeps(rank: int | None, dtype: torch.dtype, cascade: bool):
    """To 1%: the bytes of each further token of a plain sequence, by the difference between 6 and 3 rows.

    What is over is the rotary embedding's tables, which do not grow with the rows, and token ids.
    """
    policy = policy_of(rank, dtype, cascade=cascade)
    setting = Setting(rank, torch.finfo(dtype).bits // 8, cascade=cascade)
    few, more = (
        kept_bytes(policy, lambda n=n: policy.score([[5 + i] * 40 for i in range(n)], [[7] * 9] * n)) for n in (3, 6)
    )
    predicted = activation_bytes(shape_of(policy.backbone.bare_model.config), setting)
    assert (more - few) / (3 * 48) == pytest.approx(predicted, rel=0.01)


@both_paths
@pytest.mark.parametrize(("rank", "dtype"), SETTINGS)
def test_branches_are_what_autograd_keeps(rank: int | None, dtype: torch.dtype, cascade: bool):
    """To 2%: each further row of two completions that branches off a prompt of 40 tokens, its own forward aside."""
    policy = policy_of(rank, dtype, cascade=cascade)
    setting = Setting(rank, torch.finfo(dtype).bits // 8, cascade=cascade)

    def of_rows(n: int) -> int:
        prompts = [[5 + i] * 40 for i in range(n) for _ in range(2)]
        ends, prefix = [[7] * 9] * len(prompts), policy.shared_prefix(prompts)
        policy.score(prompts, ends, prefix=prefix)  # computes the prompts
        return kept_bytes(policy, lambda: policy.score(prompts, ends, prefix=prefix), beside=prefix._leaves)

    predicted = branched_bytes(shape_of(policy.backbone.bare_model.config), setting, 40, 16)
    assert (of_rows(6) - of_rows(3)) / 3 == pytest.approx(predicted, rel=0.02)


def test_branches_by_hand():
    """16 tokens of a row behind 40 of a prompt, rank 3, bfloat16: 24 bytes of keys and values a token, 12 of its place.

    Copied for both heads these are 48, and the mask is 2 layers x 2 bytes x 16 x 56. Without a copy each token keeps
    2 layers x 2 bytes x 6 numbers more of what attention gives.
    """
    masked, cascade = (Setting(3, cascade=on) for on in (False, True))
    token = activation_bytes(SMALL, masked)
    assert branched_bytes(SMALL, masked, 40, 16) == 16 * (token + 12 + 48 - 24) + 40 * 48 + 2 * 2 * 16 * 56
    assert branched_bytes(SMALL, cascade, 40, 16) == 16 * (token + 12 + 24)


def test_keys_and_values_by_hand():
    """2 tensors x 2 layers x 1 head x 3 numbers x 2 bytes; 4 behind a float32 embedding."""
    assert kv_bytes(SMALL, Setting(4)) == 24
    assert kv_bytes(SMALL, Setting(None)) == 48
    assert kv_bytes(SMALL, Setting(None, processes=2, parallel="shard")) == 24


@pytest.mark.parametrize(("rank", "dtype"), SETTINGS)
def test_keys_and_values_are_of_the_dtype_that_is_counted(rank: int | None, dtype: torch.dtype):
    policy = policy_of(rank, dtype, cascade=True)
    prefix = policy.shared_prefix([[5] * 40] * 2)
    policy.score([[5] * 40] * 2, [[7] * 9] * 2, prefix=prefix)
    *found, _ = prefix._leaves
    setting = Setting(rank, torch.finfo(dtype).bits // 8)
    assert sum(x.nbytes for x in found) == 40 * kv_bytes(shape_of(policy.backbone.bare_model.config), setting)


def test_activations_between_sharded_layers_are_in_the_compute_dtype():
    """With h = 4 two norms and two inputs of 2 bytes a number, where one process has 4 and 5 casts; the last norm."""
    shards = Setting(None, processes=2, parallel="shard")
    layers = 2 * (2 * 4 * 4 + 2 * (2 * 6 + 2 * 3 + 4 * 5) + 4 * 2 + 8)
    assert activation_bytes(SMALL, shards) == layers + 2 * 4 + 4
    assert (
        activation_bytes(SMALL, Setting(None)) - activation_bytes(SMALL, shards) == 2 * (8 * 4 + 2 * 3 * 4 - 4 * 4) + 8
    )


@both_paths
@pytest.mark.parametrize("generations", [2, 4, 8, 20])
@pytest.mark.parametrize("budget", [256, 1024, 2048, 8192])
@pytest.mark.parametrize(("prompt", "completion"), [(64, 64), (600, 96), (30, 20)])
def test_rows_are_packed_as_the_trainer_packs_them(
    generations: int, budget: int, prompt: int, completion: int, cascade: bool
):
    """The most tokens of completions in memory at once: never less, a quarter and a row more at most.

    In rows, padding included; without copies of the prompts in one row, which has none. Equal lengths; where a
    micro-batch begins within a prompt's completions, rows are not filled alike.
    """
    n, batch = 6, Batch(6, generations, prompt, prompt, completion, budget)
    prompts, rows, of_a_row, completions = _micro_batch(batch, n, cascade=cascade)
    ids = [[i] * prompt for i in range(n) for _ in range(generations)]
    groups = shared_batches(ids, [prompt] * len(ids), [completion] * len(ids), budget)
    assert prompts == len({ids[i][0] for batch in groups[0] for i in batch})

    def tokens(batch: list[int]) -> int:
        packing = _Packing()
        for i in batch:
            packing.add(ids[i][0], completion - 1)
        return sum(packing.filled) if cascade else packing.tokens

    most = max(tokens(batch) for group in groups for batch in group)
    row = min(batch.row_tokens, generations * completion)
    assert most <= rows * of_a_row <= 1.25 * most + (row if cascade else of_a_row)
    assert max(len(batch) for group in groups for batch in group) <= completions
    assert rows == 1 or not cascade


@pytest.mark.parametrize("budget", [100, 500, 4096])
def test_plain_micro_batches_are_the_trainers(budget: int):
    _, rows, tokens, completions = _micro_batch(Batch(32, 1, 64, 48, 64, budget), 32, cascade=False)
    assert rows == len(micro_batches([128] * 32, budget)[0])
    assert (tokens, completions) == (127, rows)


def test_memory_by_hand():
    """312 weights: full fine-tuning in bfloat16 has 4 + 4 + 8 bytes of each, and the teacher 2 of the 264 in matrices
    and 4 of the 48 in embedding and norms."""
    batch = Batch(2, 1, 10, 8, 3)
    full = memory(SMALL, Setting(None), batch)
    assert (full.weights, full.teacher, full.gradients, full.optimizer) == (1248, 720, 1248, 2496)
    assert full.compute_copies == 2 * 2 * 132
    assert full.activations == 2 * 12 * activation_bytes(SMALL, Setting(None))
    assert full.rollout_cache == 2 * 13 * 48 + 2 * 4 * 2 * 7
    assert full.peak == full.kept + max(full.micro_batch, full.rollout_cache + full.rollout_copies)
    # 6 tokens in a chunk; the head's gradient and cast
    assert full.loss == 3 * 2 * 6 * 7 + 6 * 4 * 6 * 7 + (4 + 2) * 28
    blocks = memory(SMALL, Setting(3), Batch(2, 1, 10, 8, 3, block_values=10))
    assert blocks.loss == 3 * 2 * 6 * 7 + 6 * 4 * 10
    chunks = memory(SMALL, Setting(3), Batch(2, 1, 10, 8, 3, chunk_tokens=4))
    assert chunks.loss == 3 * 2 * 4 * 7 + 6 * 4 * 4 * 7  # one chunk at a time
    lora = memory(SMALL, Setting(3), batch)
    assert (lora.weights, lora.teacher, lora.gradients) == (2 * 312 + 4 * 366, 0, 4 * 366)
    some = memory(SMALL, Setting(3, trained_weights=30, teacher_bytes=120), batch)
    assert (some.weights, some.teacher) == (2 * 312 + 4 * 30, 120)
    assert (some.gradients, some.optimizer, some.compute_copies) == (4 * 30, 8 * 30, 2 * 30)
    assert memory(SMALL, Setting(None, teacher_bytes=0), batch).teacher == 0


def test_a_rollout_on_a_cpu_has_its_weights_twice():
    """2 layers x 132 and a head of 28 weights in 2 bytes; of a model with more than 4 GB in layers the head alone."""
    batch = Batch(2, 1, 10, 8, 3, micro_batch_tokens=1)
    found = memory(SMALL, Setting(3, cascade=True), batch)
    assert found.rollout_copies == 2 * (2 * 132 + 28)
    assert found.peak >= found.kept + found.rollout_cache + found.rollout_copies
    assert memory(SMALL, Setting(3), batch).rollout_copies == 0
    assert memory(SMALL, Setting(3, compute_bytes=4, cascade=True), batch).rollout_copies == 4 * (2 * 132 + 28)
    large = dataclasses.replace(SMALL, layers=10**8)
    assert memory(large, Setting(3, cascade=True), batch).rollout_copies == 2 * 28
    assert MOST_PACKED_BYTES == MOST_BYTES


def test_shards_split_what_is_kept_and_gather_what_is_computed():
    """4 processes: a quarter of weights, teacher, gradients and moments each.

    Whole are 2 layers of 132 weights and the embedding of 28 in 2 bytes, the heads of policy and teacher, tied and so
    in 4, and a layer's gradient in 2 and in 4.
    """
    batch = Batch(8, 1, 10, 8, 3)
    one, four = (memory(SMALL, Setting(None, processes=n, parallel="shard"), batch) for n in (1, 4))
    assert four.kept == one.kept / 4
    assert four.compute_copies == 2 * (2 * 132 + 28) + (4 + 4) * 28 + (2 + 4) * 132
    assert four.activations == 2 * 12 * activation_bytes(SMALL, Setting(None, processes=4, parallel="shard"))
    copies = memory(SMALL, Setting(None, processes=4, parallel="replicate"), batch)
    assert copies.kept == one.kept
    assert copies.rollout_cache == one.rollout_cache / 4


def test_an_adapter_is_whole_in_every_process():
    """As `opct.models.fsdp` leaves it: of 312 weights and an adapter of 366 a quarter of the former alone."""
    batch = Batch(8, 1, 10, 8, 3)
    found = memory(SMALL, Setting(3, processes=4, parallel="shard"), batch)
    assert (found.weights, found.gradients, found.optimizer) == (2 * 312 / 4 + 4 * 366, 4 * 366, 8 * 366)
    assert found.compute_copies == 2 * (2 * 132 + 28) + 2 * 28 + 2 * 366
    second = Setting(3, processes=4, parallel="shard", teacher_bytes=4 * 366)
    assert memory(SMALL, second, batch).teacher == 4 * 366


def test_operations_by_hand():
    """3 prompts of 10 (teacher 8), 2 completions of 4 each: 24 completion tokens; body 284, head 28."""
    batch = Batch(3, 2, 10, 8, 4)
    found = operations(SMALL, Setting(3), batch)
    assert found.teacher == 2 * 284 * (24 + 24)
    assert found.policy == found.backward == 2 * 284 * (30 + 24)
    assert found.loss == 6 * 28 * 24
    assert found.training == found.teacher + 2 * found.policy + found.loss
    assert found.prefill == 2 * 284 * 30
    assert found.decode == 2 * 312 * 24
    assert operations(SMALL, Setting(None), batch).backward == 2 * found.policy


def test_time_is_at_the_rate_or_at_the_speed_of_memory():
    """A machine without a limit of memory takes operations / (rate x efficiency); a slow memory sets the rollout."""
    batch = Batch(3, 2, 10, 8, 4)
    found = operations(SMALL, Setting(3), batch)
    fast = step_time(SMALL, Setting(3), batch, Machine(1000, 1e12, efficiency=0.5))
    assert fast.training == pytest.approx(found.training / 500)
    assert fast.rollout == pytest.approx((found.prefill + found.decode) / 500)
    assert fast.step == fast.rollout + fast.training
    two = step_time(SMALL, Setting(3, processes=2), batch, Machine(1000, 1e12, efficiency=0.5))
    assert two.step == pytest.approx(fast.step / 2)
    slow = step_time(SMALL, Setting(3), batch, Machine(1000, 10, efficiency=0.5))
    assert slow.training == fast.training
    assert slow.rollout == pytest.approx(found.prefill / 500 + 4 * (2 * 312 + 6 * 12 * 24) / 10)


@pytest.mark.parametrize(("rows", "rounds", "sampled"), [(None, 1, 4), (4, 1, 4), (3, 2, 3), (1, 4, 1)])
def test_each_process_samples_its_own_rows(rows: int | None, rounds: int, sampled: int):
    """4 prompts x 2 on 2 processes are 4 completions each, `rollout_rows` of them at once, as the cache has them.

    Each round of 4 tokens reads 312 weights in 2 bytes and (10 + 2) x 24 bytes of the cache of each row.
    """
    batch, setting = Batch(4, 2, 10, 8, 4, rollout_rows=rows), Setting(3, processes=2)
    found = step_time(SMALL, setting, batch, Machine(1e12, 10))
    assert found.rollout == pytest.approx(rounds * 4 * (2 * 312 + sampled * 12 * 24) / 10, rel=1e-6)
    assert memory(SMALL, setting, batch).rollout_cache == sampled * (14 * 24 + 2 * 4 * 7)
    together, prompts = dataclasses.replace(batch, shared_rollout=True), -(-sampled // 2)
    assert memory(SMALL, setting, together).rollout_cache == (prompts * 10 + sampled * 4) * 24 + sampled * 2 * 4 * 7
    read = 2 * 312 + (prompts * 10 + sampled * 2) * 24
    shared = step_time(SMALL, setting, together, Machine(1e12, 10))
    assert shared.rollout == pytest.approx(rounds * 4 * read / 10, rel=1e-6)


def test_the_page_has_what_the_formulas_give():
    """The predicted columns of docs/scaling_costs.md, of the default model; what was counted stands beside them."""
    page = (REPOSITORY / "docs" / "scaling_costs.md").read_text(encoding="utf-8")
    for name, rank, size in (
        ("LoRA, rank 16, bfloat16", 16, 2),
        ("LoRA, rank 16, float32", 16, 4),
        ("every weight, bfloat16 products", None, 2),
    ):
        own, other = (activation_bytes(SMOLLM2, Setting(rank, size, cascade=on)) for on in (True, False))
        assert f"| {name} | {own:,} |" in page
        assert f"| {name} | {other:,} |" in page
        shares = " | ".join(f"{prefix_share(rank, size, row):.3f}" for row in (64, 96, 512))
        assert f"| {name} | {shares} |" in page


def prefix_share(rank: int | None, size: int, row: int) -> float:
    """What a token of the prompt costs a masked row of so many tokens, of what a token of its own costs."""
    setting = Setting(rank, size)
    more, less = (branched_bytes(SMOLLM2, setting, tokens, row) for tokens in (101, 100))
    return (more - less) / activation_bytes(SMOLLM2, setting)

"""Transformers' continuous batching as the sampler: on an accelerator by default, here asked for."""

import signal
import threading
import time

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.generation.continuous_batching import ContinuousBatchingManager, initialization, input_outputs
from transformers.generation.continuous_batching.cache import PagedAttentionMemoryHandler
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.requests import RequestState

from opct.config.schema import LoraSettings, ModelConfig
from opct.errors import ModelError, OutOfMemory
from opct.models import policy as policies
from opct.models.inference import continuous
from opct.models.inference.continuous import tokens_in_memory, why_not_continuous
from opct.models.inference.sampler import Completion, rows_that_fit
from opct.models.inference.token_sampling import Sampling
from opct.models.policy import CONTINUOUS, Policy
from tests.refusals import refused
from tests.tiny import move, save_tiny, tiny_adapter_policy
from tests.unit.models.test_architectures import save_model

PROMPTS = [list(range(5, 25)), list(range(40, 47)), list(range(60, 90))]
SIX = Sampling(6)


@pytest.fixture
def policy():
    policy = tiny_adapter_policy()
    policy.engine = CONTINUOUS
    return policy


def tokens(groups) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in group] for group in groups]


def flat(groups) -> list[Completion]:
    return [completion for group in groups for completion in group]


TRUNCATED = Sampling(6, temperature=0.7, top_p=0.9, top_k=20)


@pytest.mark.parametrize(
    ("seeds", "sampling"), [([[1, 2], [3, 4], [5, 6]], SIX), ([[1], [2, 3, 4], []], TRUNCATED)], ids=["forked", "apart"]
)
def test_samples_are_those_of_the_other_sampler_and_leave_the_model_as_it_was(policy, seeds, sampling):
    """So each follows from its prompt and seed."""
    policy.backbone.train()
    before, state, shown = policy.log_probs(PROMPTS[:1], [[7, 8]])[0], torch.get_rng_state(), []
    made = policy.sample(PROMPTS, seeds, sampling, on_completions=shown.extend)
    assert torch.equal(torch.get_rng_state(), state)
    assert policy.model.training
    assert torch.equal(policy.log_probs(PROMPTS[:1], [[7, 8]])[0], before)
    assert [[completion.seed for completion in group] for group in made] == seeds
    assert sorted(i for i, _ in shown) == [i for i, group in enumerate(seeds) for _ in group]
    policy.engine = "in_process"
    expected = policy.sample(PROMPTS, seeds, sampling)
    assert tokens(made) == tokens(expected)
    for one, other in zip(flat(made), flat(expected), strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    if sampling is SIX:
        scored = policy.log_probs([PROMPTS[i // 2] for i in range(6)], [one.token_ids for one in flat(made)])
        for one, values in zip(flat(made), scored, strict=True):
            assert torch.tensor(one.logprobs) == pytest.approx(values, abs=1e-4)


def test_a_sample_alone_is_that_among_others_also_where_memory_is_too_short_for_all(policy, monkeypatch):
    """Some requests then lose their pages within an answer and begin again, after what they have."""
    policy.backbone.stop_ids, prompts = frozenset(), [list(range(5, 255)), [*range(60, 300), 7]]
    sampling = Sampling(30)
    alone = policy.sample(prompts[:1], [[1]], sampling)
    policy.engine = "in_process"
    expected = tokens(policy.sample(prompts, [[1, 2, 3]] * 2, sampling))
    assert tokens(alone) == [expected[0][:1]]
    policy.engine = CONTINUOUS
    again, restart = [], RequestState.create_equivalent_initial_request
    monkeypatch.setattr(
        RequestState,
        "create_equivalent_initial_request",
        lambda self: again.append(self.generated_len()) or restart(self),
    )
    monkeypatch.setattr(continuous, "_blocks", lambda *_: 4)
    assert tokens(policy.sample(prompts, [[1, 2, 3]] * 2, sampling)) == expected
    assert any(again)


def test_greedy_answers_stop_tokens_and_the_base_are_those_of_the_other_sampler(policy):
    """With the adapter, after a step, and without it; stop tokens are any of several."""
    greedy, asked = Sampling(12, temperature=0), [[0, 1], [2, 3], [4, 5]]

    def answers(engine: str) -> list[list[Completion]]:
        policy.engine = engine
        return policy.sample(PROMPTS, asked, greedy)

    move(policy)
    expected = answers("in_process")
    assert tokens(answers(CONTINUOUS)) == tokens(expected)
    policy.backbone.stop_ids = frozenset(group[0].token_ids[4] for group in expected)
    stopped = [group[0] for group in answers(CONTINUOUS)]
    assert {one.stop_reason for one in stopped} == {"stop"}
    assert all(len(one.token_ids) <= 5 and one.token_ids[-1] in policy.backbone.stop_ids for one in stopped)
    with policy.adapter_off():
        assert tokens(answers(CONTINUOUS)) == tokens(answers("in_process"))


def test_an_error_ends_it_within_a_moment(policy, monkeypatch):
    """Ctrl-C, or what a callback raises: its own end would wait until every completion is whole."""
    threads, started = threading.active_count(), time.monotonic()
    monkeypatch.setattr(ContinuousBatchingManager, "get_result", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        policy.sample(PROMPTS, [[1], [2], [3]], Sampling(1900))
    assert threading.active_count() == threads
    assert time.monotonic() - started < 10
    assert policy.backbone.attention == "sdpa"


def test_it_samples_on_an_accelerator_unless_the_model_fails_its_check(policy, monkeypatch):
    """Which then takes rows by the free memory."""
    policy.engine = tiny_adapter_policy().engine  # of evaluations, attacks, chats and scripts
    assert policy.engine == "auto"
    assert not policy.batches_continuously
    monkeypatch.setattr(Policy, "is_accelerated", True)
    assert not policy.batches_continuously
    assert any("flash" in reason for reason in policy.slow_reasons(1))
    monkeypatch.setattr(policies, "has_flash_attention", lambda: True)
    assert policy.batches_continuously
    policy.engine = "in_process"
    assert not policy.batches_continuously

    other = tiny_adapter_policy()
    monkeypatch.setattr(policies, "why_not_continuous", lambda backbone: "it is a test")
    monkeypatch.setattr(continuous, "free_memory", lambda device: 2 * 10**9)
    budgets = []
    monkeypatch.setattr(policies, "sample", lambda *_, batch_tokens, **__: budgets.append(batch_tokens))
    other.sample(PROMPTS, [[1], [2], [3]], SIX)
    assert budgets == [tokens_in_memory(other.backbone)]
    [line] = [reason for reason in other.slow_reasons(1) if "it is a test" in reason]
    assert "llama" in line
    assert "\n" not in line
    other.engine = CONTINUOUS
    with refused(ModelError, CONTINUOUS, "llama", "it is a test"):
        other.sample(PROMPTS, [[1], [2], [3]], SIX)


def test_too_little_memory_for_its_pages_is_a_reason_before_the_first_answer_and_later_an_error(policy, monkeypatch):
    assert policy.batches_continuously
    monkeypatch.setattr(PagedAttentionMemoryHandler, "get_available_memory", lambda self: 1000)
    with refused(OutOfMemory, "1000", "rollout.engine=in_process"):
        policy.sample(PROMPTS, [[1], [2], [3]], SIX)
    assert "1000" in why_not_continuous(tiny_adapter_policy().backbone)


def test_a_quantized_base_is_sampled_so_where_it_computes_alike_in_both_and_else_refused(tmp_path):
    """8 bits round their inputs by the batch, which float32 shows."""
    pytest.importorskip("bitsandbytes")
    save_tiny(tmp_path / "base", hidden=64)
    for kind in ("4bit", "8bit"):
        model = ModelConfig(name_or_path=str(tmp_path / "base"), device="cpu", dtype="float32", quantization=kind)
        quantized = Policy.load(model, lora=LoraSettings(r=2))
        move(quantized)
        expected, quantized.engine = quantized.sample(PROMPTS, [[1, 2]] * 3, SIX), CONTINUOUS
        if kind == "8bit":
            with refused(ModelError, CONTINUOUS, "llama", "nats a token"):
                quantized.sample(PROMPTS, [[1, 2]] * 3, SIX)
        else:
            assert tokens(quantized.sample(PROMPTS, [[1, 2]] * 3, SIX)) == tokens(expected)


class Operations(TorchDispatchMode):
    """What torch computes inside, by name, without views."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, op, types, arguments=(), keywords=None):
        if not op.is_view:
            self.names.append(op.overloadpacket.__name__)
        return op(*arguments, **(keywords or {}))


@pytest.fixture
def replayed(policy, monkeypatch) -> list[tuple[int, bool, int]]:
    """A step is what transformers does on CUDA outside of its graph, with flash attention; in the place of the replay a
    stub writes three tokens a row, then one that stops it. Rows, whether these are decoded, and operations by step."""
    steps: list[tuple[int, bool, int]] = []

    def replay(self, model, batch_data):
        n, stop = len(batch_data["logits_indices"]), min(policy.backbone.stop_ids)
        long = [request.state.generated_len() >= 3 for request in self.inputs_and_outputs.requests_in_batch]
        # written past torch, which would count it
        self.inputs_and_outputs.output_ids.numpy()[0, :n] = [stop if is_long else 7 for is_long in long]
        steps.append((n, self.inputs_and_outputs.use_block_table, 0))

    body = ContinuousBatchingManager._generation_loop_body

    def counted(self, *arguments, **keywords):
        before = len(steps)
        with Operations() as operations:
            goes_on = body(self, *arguments, **keywords)
        if len(steps) > before:
            steps[-1] = (*steps[-1][:2], len(operations.names))
        return goes_on

    monkeypatch.setattr(ContinuousBatchingManager, "_generation_loop_body", counted)
    monkeypatch.setattr(ModelRunner, "compute_batch", replay)
    monkeypatch.setattr(input_outputs, "attn_mask_is_needed", lambda config: False)
    monkeypatch.setattr(initialization, "ensure_decode_fast_path_is_available", lambda *_: None)
    policy.backbone._reasons[why_not_continuous] = None  # its check needs the model
    return steps


def test_a_token_step_outside_of_the_graph_is_a_dozen_operations_and_two_a_row(policy, replayed):
    """All on the CPU; on CUDA some copies of a whole batch come to these. `in_process` gives the device 3,925 for an 8B
    model of 36 layers."""
    for seeds in ([[1]], [[1, 2, 3, 4]] * 3):
        policy.sample(PROMPTS[: len(seeds)], seeds, Sampling(9))
    decoded = [(rows, operations) for rows, is_decoded, operations in replayed if is_decoded]
    assert {rows for rows, _ in decoded} == {1, 12}
    assert all(operations <= 12 + 2 * rows for rows, operations in decoded)


@pytest.mark.parametrize("sampling", [Sampling(2, temperature=0), SIX, TRUNCATED], ids=["greedy", "plain", "truncated"])
def test_draws_can_be_captured_in_a_graph(sampling):
    """None waits for a value of the device, or has a shape that follows from one."""
    draws = continuous._Draws([[1, 2, 3]], [[1, 2]], sampling)
    with Operations() as operations:
        draws.write(draws(torch.empty(0), torch.randn(2, 700), torch.zeros(2, 5, dtype=torch.int32)), torch.zeros(2, 5))
    assert not {"_local_scalar_dense", "nonzero", "masked_select", "_unique2"} & set(operations.names)
    assert len(operations.names) <= 60


def test_eight_prompts_with_four_long_answers_are_one_batch_where_memory_allows(policy, replayed, monkeypatch):
    """Of 1,024 tokens each, on a card with 24 GB free, with the keys and values of an 8B model (36 layers, 8 heads)."""
    monkeypatch.setattr(continuous, "free_memory", lambda device: 24 * 10**9)
    monkeypatch.setattr(continuous, "kv_bytes", lambda config, element: 36 * 2 * 8 * 128 * 2)
    for shared in (True, False):
        budget = tokens_in_memory(policy.backbone)
        assert rows_that_fit([4] * 8, 300, 1024, budget, shared=shared) == (32, 8)
    policy.sample([list(range(300))] * 8, [[1, 2, 3, 4]] * 8, Sampling(1024))
    assert [rows for rows, is_decoded, _ in replayed if is_decoded] == [32] * 4  # a stop token, too


@pytest.mark.parametrize("name", ["gpt_oss", "gemma3", "qwen3_moe"])
def test_families_that_it_takes(name, tmp_path):
    save_model(name, tmp_path)
    assert Policy.load(str(tmp_path)).backbone.ask(why_not_continuous) is None


@pytest.mark.parametrize("name", ["falcon_h1", "lfm2"])
def test_families_whose_states_are_no_pages_say_so(name, tmp_path):
    """And leave attention as it was, which transformers changes before it refuses them."""
    save_model(name, tmp_path)
    backbone = Policy.load(ModelConfig(name_or_path=str(tmp_path), attn_implementation="eager")).backbone
    assert "layer type" in backbone.ask(why_not_continuous)
    assert backbone.attention == "eager"

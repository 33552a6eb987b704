"""Weights in shards, with one process that has all of them; several are in tests/e2e."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from opct.config.schema import LoraSettings
from opct.models.fsdp import for_gradients, shard, unsharded
from opct.models.inference.sampler import Sampling
from opct.models.loading import attach_adapter
from opct.models.policy import Policy
from tests.tiny import CONTEXT, tiny_adapter_policy, tiny_tokenizer

PROMPTS = [[1, 40, 50, 60], [1, 70, 71]]
ANSWERS = [[5, 6, 7], [8, 9]]


@pytest.fixture
def process():
    """One, which talks to nobody."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def phi() -> Policy:
    """With an adapter, and an output head of its own that has a bias."""
    from transformers import PhiConfig, PhiForCausalLM

    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    config = PhiConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = PhiForCausalLM(config).eval()
    torch.nn.init.normal_(model.lm_head.bias)
    return Policy(attach_adapter(model, LoraSettings(r=4, alpha=8), None, seed=0), tokenizer)


@pytest.mark.parametrize("rollout_weights", ["gathered", "sharded"])
def test_in_bfloat16_shards_are_sampled_from(process, rollout_weights: str):
    """Outside a forward there is nothing that could be laid out before, unless the weights are gathered."""
    whole = tiny_adapter_policy()
    for parameter in whole.model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.bfloat16()
    policy = Policy(whole.model, whole.tokenizer, dtype=torch.bfloat16)
    shard([policy], torch.device("cpu"), rollout_weights)
    with unsharded(policy):
        answers = policy.sample(PROMPTS, [[1, 2], [3]], Sampling(6))
        flat = [(ids, a) for ids, group in zip(PROMPTS, answers, strict=True) for a in group]
        scored = policy.log_probs([ids for ids, _ in flat], [a.token_ids for _, a in flat])
    for (_, answer), own in zip(flat, scored, strict=True):
        torch.testing.assert_close(own, torch.tensor(answer.logprobs), rtol=0, atol=0.15)


def test_the_bias_of_an_output_head_in_shards_is_whole_where_it_is_used(process):
    policy = phi()
    expected = policy.log_probs(PROMPTS, ANSWERS)
    shard([policy], torch.device("cpu"), "sharded")
    for inside in (unsharded, for_gradients):
        with inside(policy):
            found = policy.log_probs(PROMPTS, ANSWERS)
            assert not hasattr(policy.backbone.head.bias, "placements")
        for own, other in zip(found, expected, strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=1e-5)
        assert policy.backbone.head.bias is policy.backbone.bare_model.get_output_embeddings().bias
        assert hasattr(policy.backbone.head.bias, "placements")

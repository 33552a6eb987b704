"""When a prompt is computed once for its completions, and that a run says why where it is not."""

from __future__ import annotations

import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM

from opct.cpu import install
from opct.errors import NonFiniteError
from opct.methods.opct import OPCT
from opct.methods.rollouts import policy_rollouts, step_weights
from opct.models.policy import Policy
from opct.training.accumulate import accumulate
from opct.training.setup import build_setup
from opct.training.trainer import train
from tests.progress import Noted
from tests.tiny import tiny_tokenizer
from tests.unit.training.conftest import NO_VALIDATION


def test_dropout_of_the_model_itself_is_off_and_hinders_nothing():
    """OPT calls it as a function."""
    tokenizer = tiny_tokenizer()
    config = OPTConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        ffn_dim=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        dropout=0.1,
        word_embed_proj_dim=16,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = OPTForCausalLM(config).eval()
    install(model)
    assert not any("dropout" in reason for reason in Policy(model, tokenizer).path.slow_reasons(2))


def test_a_run_says_why_prompts_are_not_shared(make_config):
    noted, lora = Noted(), {"r": 4, "alpha": 8, "dropout": 0.5}
    train(make_config(max_steps=1, lora=lora, data=NO_VALIDATION), progress=noted)
    assert sum("each prompt is computed with each of its completions: dropout" in line for line in noted.lines) == 1
    setup = build_setup(make_config())
    assert setup.policy.path.slow_reasons(2) == []


def test_a_loss_that_is_no_number_names_its_pairs_and_leaves_nothing_behind(make_config, monkeypatch):
    config = make_config()
    setup = build_setup(config)
    method = OPCT(setup.policy, setup.teacher, config)
    rollouts = policy_rollouts(setup.policy, setup.data.batch(1), config, "step 1")
    weights = [w * torch.nan for w in step_weights(rollouts, "token_mean")]
    with pytest.raises(NonFiniteError, match="the loss is nan on the pairs") as caught:
        accumulate(method, rollouts, weights, 10_000)
    assert rollouts[0].pair.id in str(caught.value)

"""A policy's answers and scores, against its own model used plainly."""

from pathlib import Path

import numpy as np
import pytest
import torch

from opct.errors import ModelError, OpctError
from opct.models import loading
from opct.models import policy as policy_module
from opct.models.adapters import quiet_peft
from opct.models.from_run import load_policy
from opct.models.loading import attach_adapter
from opct.models.policy import Policy
from opct.runs.run_dir import RunDir
from opct.training.trainer import train
from tests import oracles
from tests.refusals import refused
from tests.tiny import kl_to_base, tiny_adapter_policy, tiny_model, tiny_tokenizer
from tests.unit.training.conftest import NO_VALIDATION

MESSAGES = [
    ({"role": "user", "content": "the question"},),
    ({"role": "user", "content": "another one"}, {"role": "assistant", "content": "The"}),
]
CLEAN = [
    ({"role": "user", "content": "q"},),
    ({"role": "user", "content": "o"}, {"role": "assistant", "content": "The"}),
]


def test_option_logprobs_sum_the_log_probs_of_each_options_tokens(tiny_policy: Policy):
    """Options of one and of several tokens, another number of them for each prompt, in the order given."""
    options = [["A", "Yes it is", ""], ["No"]]
    found = tiny_policy.option_logprobs(MESSAGES, options)
    assert [len(row) for row in found] == [3, 1]
    for prompt, choices, values in zip(MESSAGES, options, found, strict=True):
        ids = tiny_policy.renderer.render(prompt)
        for choice, value in zip(choices, values, strict=True):
            tokens = tiny_policy.tokenizer(choice, add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                logits = oracles.completion_logits(tiny_policy, ids, tokens)
            expected = float(sum(logits[i].log_softmax(-1)[t] for i, t in enumerate(tokens)))
            assert value == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("most_tokens", [1, 8192])
def test_token_kl_is_against_the_base_under_the_reference_prompt(monkeypatch, most_tokens: int):
    """KL(adapter on | prompt || adapter off | clean prompt), in one batch and row by row."""
    monkeypatch.setattr(policy_module, "SCORING_TOKENS", most_tokens)
    policy = tiny_adapter_policy()
    completions = policy.generate(MESSAGES, seeds=[1, 2], max_completion_tokens=5)
    found = policy.token_kl(MESSAGES, CLEAN, completions)
    both = policy.kl_and_likeliest(MESSAGES, CLEAN, completions, 3)
    assert [kl for kl, _ in both] == found
    for prompt, clean, completion, (values, top) in zip(MESSAGES, CLEAN, completions, both, strict=True):
        tokens = list(completion.token_ids)
        with torch.no_grad():
            p = oracles.completion_logits(policy, policy.renderer.render(prompt), tokens)
            with policy.model.disable_adapter():
                q = oracles.completion_logits(policy, policy.renderer.render(clean), tokens)
        torch.testing.assert_close(torch.tensor(values), oracles.reverse_kl(p, q), atol=1e-4, rtol=1e-3)
        assert min(values) > 0
        for side, logits in enumerate((p, q)):
            expected, ids = logits.softmax(-1).topk(3)
            assert [[i for i, _ in at[side]] for at in top] == ids.tolist()
            torch.testing.assert_close(torch.tensor([[x for _, x in at[side]] for at in top]), expected)


def test_seeds_may_be_numpys(tiny_policy: Policy):
    given = [tiny_policy.generate(MESSAGES, seeds=s, max_completion_tokens=3) for s in ([0, 1], np.arange(2))]
    assert given[0] == given[1]


@pytest.mark.parametrize(
    ("prompts", "settings", "said"),
    [
        (MESSAGES, {"seeds": [0]}, "2 prompts and 1 seeds"),
        (MESSAGES[:1], {"seeds": [0, 1]}, "1 prompts and 2 seeds"),
        (["hello"], {}, "list of messages"),
        (MESSAGES[0], {}, "list of messages"),
        ([[]], {}, "list of messages"),
        (MESSAGES[:1], {"max_completion_tokens": 0}, "max_completion_tokens=0"),
        (MESSAGES[:1], {"temperature": -1}, "temperature=-1"),
        (MESSAGES[:1], {"top_p": 1.1}, "top_p=1.1"),
    ],
)
def test_what_cannot_be_answered_is_refused(tiny_policy: Policy, prompts, settings, said):
    with refused(OpctError, said):
        tiny_policy.generate(prompts, **{"seeds": [0], "max_completion_tokens": 3, **settings})


def test_a_callers_model_is_measured_without_dropout_and_left_as_it_was():
    """In training mode but for one layer, and partly frozen: the numbers are those of `eval` mode."""
    policy = tiny_adapter_policy(dropout=0.5)
    model, seen = policy.model, []
    expected = policy.log_probs([[5, 6]], [[7, 8]])[0]
    model.train().get_base_model().model.layers[1].eval()
    for name, weight in model.named_parameters():
        weight.requires_grad_("layers.0" in name and "q_proj" in name)

    def state():
        return [module.training for module in model.modules()], [weight.requires_grad for weight in model.parameters()]

    seen.append(state())
    policy = Policy(model, policy.tokenizer)
    assert torch.equal(policy.log_probs([[5, 6]], [[7, 8]])[0], expected)
    policy.token_kl(MESSAGES, CLEAN, policy.generate(MESSAGES, seeds=[1, 2], max_completion_tokens=2))
    assert [state()] == seen


@pytest.mark.parametrize("init", ["pissa_niter_2", "olora"])
def test_an_adapter_that_took_from_the_weights_of_its_base_is_refused(init: str):
    from peft import LoraConfig, get_peft_model

    with quiet_peft():
        model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=init))
    with refused(ModelError, f"init_lora_weights='{init}'", "merge_and_unload"):
        Policy(model, tiny_tokenizer())


@pytest.mark.filterwarnings("ignore")  # PEFT's, about the tiny model
def test_an_adapter_without_layers_to_switch_off_is_refused():
    from peft import PromptTuningConfig, get_peft_model

    model = get_peft_model(tiny_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with refused(ModelError, "PROMPT_TUNING"):
        Policy(model, tiny_tokenizer())


def test_a_model_whose_answers_could_never_stop_is_refused():
    tokenizer, model = tiny_tokenizer(), tiny_model()
    tokenizer.eos_token = None
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    tokenizer.chat_template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    with refused(ModelError):
        Policy(model, tokenizer)


def test_a_fully_fine_tuned_run_keeps_its_dtype_and_is_measured_against_the_model_it_came_from(
    make_config, tiny_folder: Path, monkeypatch
):
    """`auto` finds bfloat16 faster when the run begins and slower ever after: it is loaded and resumed in bfloat16."""
    short = {"max_completion_tokens": 3}
    config = make_config(max_steps=1, lora=None, model={"dtype": "auto"}, data=NO_VALIDATION, rollout=short)
    times = {torch.float32: 2.0, torch.bfloat16: 1.0}
    monkeypatch.setattr(loading, "_matmul_time_s", lambda dtype, device, hidden_size: times[dtype])
    train(config)
    times[torch.bfloat16] = 4.0
    policy, untrained = load_policy(config.output_dir), load_policy(str(tiny_folder), dtype="bfloat16")
    assert (policy.dtype, policy.name, policy.has_adapter) == (torch.bfloat16, str(tiny_folder), False)
    assert (policy.has_base, untrained.has_base) == (True, False)
    assert max(kl_to_base(policy)) > 1e-4 > max(kl_to_base(untrained)) == 0
    with policy.base() as base:
        assert base.dtype == torch.bfloat16
        assert base.base_hash() == untrained.base_hash() != policy.base_hash()
    assert train(config.model_copy(update={"max_steps": 2}), resume=True).step == 2
    assert RunDir(config.output_dir).read_manifest()["dtype"] == "bfloat16"


def test_hash_and_folder_are_those_of_the_active_adapter(tmp_path: Path):
    """Two adapters on one model; what is saved loads with the same numbers; a base that is changed is seen."""
    from peft import LoraConfig

    policy = tiny_adapter_policy()
    model, first = policy.model, policy.weights_hash()
    model.add_adapter("layers", LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))  # a module's name
    assert policy.weights_hash() == first
    model.set_adapter("layers")
    expected = policy.log_probs([[5, 6]], [[7, 8]])[0]
    assert policy.weights_hash() != first
    policy.save(tmp_path / "saved")
    loaded = attach_adapter(tiny_model(), None, tmp_path / "saved", seed=0)
    assert torch.equal(Policy(loaded, tiny_tokenizer()).log_probs([[5, 6]], [[7, 8]])[0], expected)
    model.set_adapter("default")
    assert policy.weights_hash() == first
    with torch.no_grad():
        embeddings = policy.backbone.bare_model.model.embed_tokens.weight
        embeddings.copy_(embeddings.flip(0))  # the sum of all bytes is the same
    assert policy.weights_hash() != first
    model.base_model.set_adapter(["default", "layers"])
    for without_one in (policy, Policy(tiny_model(), tiny_tokenizer())):
        with refused(ModelError, "active adapters"):
            without_one.save_adapter(tmp_path / "none")

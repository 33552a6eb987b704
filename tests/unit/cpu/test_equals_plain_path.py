"""The fast path against the plain one: values, gradients and samples; each form on and off, and each kind of model."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from opct.config.schema import LoraSettings
from opct.cpu import attention, fast_path, fuse_lora, fused_lora, fused_norm, packed_linear, prefill, shared_rows
from opct.cpu.fast_path import install
from opct.cpu.switches import FORMS, without
from opct.models.adapters import fresh_adapter
from opct.models.inference.token_sampling import Sampling
from opct.models.plain_path import PlainPath
from opct.models.policy import Policy
from tests import oracles
from tests.tiny import tiny_family, tiny_model, tiny_tokenizer

SYSTEM = [1, 50, 51, 52, 53]
PROMPTS = [[*SYSTEM, 60, 61, 62, 63, 64, 65], [*SYSTEM, 70], [*SYSTEM, 60, 61, 62, 63], [1, 80, 81]]
OWNERS = [0, 1, 0, 3, 2, 0, 2, 3]  # whose completion each is: out of order, some prompts with one
COMPLETIONS = [[10, 11, 12, 13, 2], [20, 21, 2], [30], [31, 32, 2], [33, 34, 35, 36, 37, 2], [38], [39, 2], [9] * 20]
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
MODELS = {
    "llama": {},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": 4},  # shorter than the prompts
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, **MIXED},  # caps its scores
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},  # states beside keys
    "gpt2": {},  # a table of positions
    "bloom": {},  # takes no positions
}
USED = {  # a function that each form calls, and no other
    "fused_lora": (fused_lora._LoraLinear, "apply"),
    "fused_norm": (fused_norm, "_normal"),
    "grouped_heads": (attention, "_by_key_heads"),
    "packed_linear": (packed_linear, "packed_linear"),
    "shared_rows": (shared_rows.SharedPrefixKV, "advance"),
    "nested_beginnings": (prefill, "_branched"),
    "length_groups": (prefill, "_joined"),
    "shared_prompts": (fast_path, "branched_hidden"),
    "shared_beginnings": (fast_path, "branched_hidden"),
    "cascade": (attention, "cascade_attention"),
}


@pytest.fixture
def eager_to_share(monkeypatch) -> None:
    """Any token saved is worth it."""
    monkeypatch.setattr(prefill, "FORWARD", 1)
    monkeypatch.setattr(prefill, "LEAST_SHARE", 0.0)
    monkeypatch.setattr(fast_path, "SCORE_FORWARD", 1)
    monkeypatch.setattr(shared_rows, "SHARE_AT", 0.0)


def made(name: str, attention: str | None = None, *, adapter: bool = True, is_fast: bool) -> Policy:
    """A random model, the same each time, on the plain path or on the fast one."""
    torch.manual_seed(0)
    model = (
        AutoModelForCausalLM.from_config(tiny_family(name, **MODELS[name]), attn_implementation=attention)
        .float()
        .eval()
    )
    if is_fast:
        install(model)
    if adapter:
        model = fresh_adapter(model, LoraSettings(r=4, alpha=8, target_modules="all-linear"), 0)
        generator = torch.Generator().manual_seed(1)
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
        model = fuse_lora(model) if is_fast else model
    return Policy(model.eval(), tiny_tokenizer())


def both(name: str, attention: str | None = None, *, adapter: bool = True) -> tuple[Policy, Policy]:
    """The same model on the plain path and on the fast one."""
    return made(name, attention, adapter=adapter, is_fast=False), made(name, attention, adapter=adapter, is_fast=True)


def scored(policy: Policy, prompts, completions) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Hidden states without gradient and with it, and the gradient of a weighted sum."""
    with policy.inference():
        bare = policy.score(prompts, completions).hidden
    hidden = policy.score(prompts, completions).hidden
    (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
    return bare, hidden.detach(), oracles.gradients(policy)


SEVERAL = [PROMPTS[i] for i in OWNERS], COMPLETIONS
ONE_EACH = PROMPTS[:3], COMPLETIONS[:3]


def computed(policy: Policy) -> tuple[list, list]:
    """Scores of several completions a prompt and of one each, and samples."""
    seeds = [[i, 100 + i, 200 + i][: 1 + i % 3] for i in range(4)]
    return [scored(policy, *rows) for rows in (SEVERAL, ONE_EACH)], policy.sample(PROMPTS, seeds, Sampling(4))


def assert_equal(found: tuple[list, list], expected: tuple[list, list]) -> None:
    for (own_bare, own_hidden, own_gradients), (bare, hidden, gradients) in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(own_bare, bare, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(own_hidden, hidden, rtol=1e-4, atol=1e-4)
        assert oracles.largest_difference(own_gradients, gradients) < 1e-4
    for own, group in zip(found[1], expected[1], strict=True):
        assert [c.token_ids for c in own] == [c.token_ids for c in group]
        for a, b in zip(own, group, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, rel=1e-4, abs=1e-4)


def assert_equal_paths(plain: Policy, fast: Policy) -> None:
    assert_equal(computed(fast), computed(plain))


@pytest.fixture(scope="module")
def plainly() -> tuple[list, list]:
    """What the plain path computes of a Llama."""
    return computed(made("llama", is_fast=False))


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_used_where_it_is_on_and_changes_nothing(eager_to_share, monkeypatch, plainly, form: str):
    owner, name = USED[form]
    function, calls = getattr(owner, name), []
    for is_on in (True, False):
        with without(*(() if is_on else (form,))):
            fast = made("llama", is_fast=True)
            fast.path.slow_reasons(2)  # the probes, which call everything
            monkeypatch.setattr(owner, name, lambda *given, **more: calls.append(1) or function(*given, **more))
            if form in ("shared_prompts", "shared_beginnings"):  # these two share a function
                fast.score(*(SEVERAL if form == "shared_prompts" else ONE_EACH))
                assert bool(calls) == is_on
                assert_equal(computed(fast), plainly)
            else:
                assert_equal(computed(fast), plainly)
                assert bool(calls) == is_on
            monkeypatch.setattr(owner, name, function)
            calls.clear()


@pytest.mark.parametrize(
    ("name", "attention"), [*((name, None) for name in MODELS), ("llama", "eager"), ("gemma2", "eager")]
)
def test_every_kind_of_model_computes_the_same(eager_to_share, name: str, attention: str | None):
    assert_equal_paths(*both(name, attention, adapter=name != "gpt2"))


def test_a_model_without_an_adapter_and_all_forms_off(eager_to_share):
    """Full fine-tuning: the gradient of every weight. Then the path itself, with nothing on."""
    assert_equal_paths(*both("llama", adapter=False))
    with without(*FORMS):
        plain, fast = both("llama")
        assert type(fast.path) is not PlainPath is type(plain.path)
        assert_equal_paths(plain, fast)


def test_bfloat16_differs_from_float32_no_more_than_the_plain_path_does(eager_to_share):
    """Base weights that bfloat16 holds, a float32 adapter; the norm of the error of all gradients together."""
    plain, fast = both("llama")
    for policy in (plain, fast):
        for name, p in policy.model.named_parameters():
            if "lora_" not in name:
                p.data = p.data.bfloat16().float()
    _, _, exact = scored(plain, *SEVERAL)
    errors = []
    for policy in (plain, fast):
        for name, p in policy.model.named_parameters():
            if "lora_" not in name:
                p.data = p.data.bfloat16()
        _, _, found = scored(Policy(policy.model, policy.tokenizer, dtype=torch.bfloat16), *SEVERAL)
        errors.append(torch.stack([(found[n] - exact[n]).norm() for n in exact]).norm().item())
        assert all(g.dtype == torch.float32 for g in found.values())
    size = torch.stack([g.norm() for g in exact.values()]).norm().item()
    assert 0 < errors[1] < 1.2 * errors[0] < 0.2 * size


def test_the_fast_path_goes_with_copies_of_a_model_and_leaves_no_trace_in_its_settings():
    model = tiny_model()
    install(model)
    copied = Policy(copy.deepcopy(model), tiny_tokenizer()).frozen_copy(master_float32=False)
    assert type(copied.path) is type(Policy(model, tiny_tokenizer()).path) is not PlainPath
    assert attention.GROUPED not in str(model.config.to_dict())


def test_dropout_and_recomputed_activations_are_in_the_way_in_a_step():
    """What draws for each completion, and what keeps no cache, compute each prompt with each completion."""
    from opct.models.loading import attach_adapter

    def policy(dropout: float) -> Policy:
        model = tiny_model()
        install(model)
        return Policy(
            attach_adapter(model, LoraSettings(r=2, alpha=4, dropout=dropout), None, seed=0), tiny_tokenizer()
        )

    dropping, recomputing = policy(0.1), policy(0.0)
    assert policy(0.0).path.shares_prompts
    assert dropping.path.shares_prompts  # in evaluation dropout is off
    dropping.backbone.train()
    with dropping.inference():  # as the teacher of the step: it must compute as the policy does
        assert not dropping.path.shares_prompts
    assert any("dropout" in reason for reason in dropping.path.slow_reasons(2))
    dropping.backbone.eval()
    assert dropping.path.shares_prompts
    recomputing.backbone.recompute_activations()
    assert not recomputing.path.shares_prompts
    assert any("computed again" in reason for reason in recomputing.path.slow_reasons(2))
    assert not recomputing.path.slow_reasons(1)

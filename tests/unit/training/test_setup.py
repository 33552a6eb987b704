"""From a config to pairs, policy and teacher."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from opct.data.behaviors import builtin_behaviors
from opct.data.pairs import ContrastivePair, write_pairs
from opct.errors import ConfigError, EngineError, ModelError
from opct.models.from_run import load_policy
from opct.runs.run_dir import RunDir
from opct.training.setup import build_setup, describe, learning_rate_for
from opct.training.trainer import rollout_kl, train
from tests.refusals import refused
from tests.tiny import save_tiny, tiny_adapter_policy, tiny_pairs
from tests.unit.training.conftest import NO_VALIDATION, weights


def test_training_goes_on_from_a_run_and_its_teacher_may_be_the_bare_base(make_config, trained, tmp_path: Path):
    ids = [[1, 5, 6]], [[7, 8]]
    first = trained(max_steps=1).output_dir
    second = {"output_dir": str(tmp_path / "second"), "teacher": {"include_adapter": False}}
    setup = build_setup(make_config(model={"adapter": first}, **second))
    assert torch.equal(setup.policy.log_probs(*ids)[0], load_policy(first).log_probs(*ids)[0])
    with setup.teacher() as teacher:
        bare = teacher.log_probs(*ids)[0]
    assert torch.equal(bare, build_setup(make_config()).policy.log_probs(*ids)[0])
    assert not torch.equal(bare, setup.policy.log_probs(*ids)[0])


def test_an_adapter_to_continue_from_that_does_not_fit_the_settings_is_refused(make_config, tmp_path: Path):
    tiny_adapter_policy().save(tmp_path / "adapter")
    adapter = {"adapter": str(tmp_path / "adapter")}
    with refused(ConfigError, "lora.r is 64", "lora.dropout is 0.5", "lora: {r: 4, alpha: 8}"):
        build_setup(make_config(model=adapter, lora={"r": 64, "dropout": 0.5}))
    for model in ({"lora": None, "model": adapter}, {"model": {"adapter": str(tmp_path)}}):
        with refused(ModelError, "model.adapter"):
            build_setup(make_config(**model))


def warnings_of(config) -> list[str]:
    return [line for line in describe(build_setup(config)) if line.startswith("warning: ")]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"data": {"validation_fraction": 0}}, []),  # nothing is said of what was switched off
        ({"data": {"validation_fraction": 1e-9}}, ["data.validation_fraction"]),  # a quarter of 2 pairs rounds to 0
        ({"optim": {"prompts_per_step": 2}}, ["optim.prompts_per_step=2"]),
        ({"loss": {"jsd_weight": 0.2, "top_k": 8}}, ["loss.jsd_weight=0.2", "loss.top_k=8"]),
        ({"teacher": {"ema_decay": 0.5}, "eval": {"limit": 3}}, ["teacher.ema_decay=0.5", "eval.limit=3"]),
        ({"vllm": {"enforce_eager": True}, "verl": {"nodes": 2}}, ["vllm.enforce_eager=true", "engine: verl"]),
        ({"num_train_epochs": 2}, ["since max_steps is 4: set max_steps: null, or leave num_train_epochs out"]),
        ({"optim": {"warmup_steps": 3}}, []),
        ({"optim": {"warmup_steps": 4}}, ["optim.warmup_steps=4 of 4 steps"]),
        ({"lora": {"r": 2}, "optim": {"learning_rate": 3e-3}}, []),
        ({"lora": None, "optim": {"learning_rate": 4e-5}}, ["begin with 1e-05"]),
        ({"lora": None, "optim": {"learning_rate": 3e-5}}, []),
    ],
)
def test_what_has_no_effect_or_may_be_wrong_is_warned_of(make_config, settings, named):
    said = warnings_of(make_config(**settings))
    assert len(said) == len(named)
    assert all(part in warning for part, warning in zip(named, said, strict=True))


@pytest.mark.parametrize("size", [1, 2])
def test_a_size_that_leaves_no_axis_a_held_out_pair_is_named(make_config, tmp_path: Path, size):
    pairs = [replace(pair, axis="ab"[i % 2]) for i, pair in enumerate(tiny_pairs(24))]
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    data = {"pairs": [str(tmp_path / "pairs.jsonl")], "balance_axes": True, "validation_size": size}
    said = " ".join(describe(build_setup(make_config(data=data, optim={"prompts_per_step": 8}))))
    assert ("data.validation_size=1 is less than one for each of 2 axes" in said) == (size == 1)
    assert "validation_fraction" not in said


def test_a_larger_model_begins_with_a_lower_rate():
    assert [learning_rate_for(n * 10**8, lora=True) for n in (1, 5, 80, 300)] == [4e-4, 1e-4, 1e-4, 5e-5]


def test_training_on_what_is_measured_is_said_before_it_begins(make_config, tmp_path: Path):
    """A reworded behavior of the test split among a person's own pairs, where the run visits it."""
    behavior = builtin_behaviors("test")[0]
    bare = ({"role": "user", "content": f"Please {behavior.behavior.lower()}"},)
    wrapped = ({"role": "user", "content": f"Once upon a time. {behavior.behavior}"},)
    write_pairs(tmp_path / "own.jsonl", [ContrastivePair("mine/1", "jailbreak", "story", wrapped, bare)])
    data = {"pairs": [str(tmp_path / "own.jsonl")], "anchors": [], "anchor_fraction": 0, "validation_fraction": 0}
    [said] = warnings_of(make_config(max_steps=1, data=data))
    assert f"mine/1 ({behavior.id})" in said


def test_float16_is_not_trained_in(make_config):
    with refused(ConfigError, "float16"):
        build_setup(make_config(model={"dtype": "float16"}))


def test_without_vllm_nothing_is_loaded_for_it(make_config, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("opct.training.setup.load_training_pairs", lambda config: pytest.fail("the pairs were read"))
    with refused(EngineError, "rollout.engine: vllm"):
        build_setup(make_config(rollout={"engine": "vllm"}))


def test_a_run_with_modules_to_save_resumes_exactly_and_its_teacher_stays(make_config, tmp_path: Path):
    """The output head and a norm are trained whole, with activations computed again: 1 + 1 steps equal 2."""
    save_tiny(tmp_path / "untied", tie=False)
    own = {
        "model": {"name_or_path": str(tmp_path / "untied")},
        "lora": {"modules_to_save": ["lm_head", "norm"], "use_dora": True},
        "optim": {"gradient_checkpointing": True, "prompts_per_step": 2},
        "data": NO_VALIDATION,
    }
    whole, half = make_config(output_dir=str(tmp_path / "whole"), max_steps=2, **own), make_config(max_steps=1, **own)
    train(whole)
    train(half)
    train(make_config(max_steps=2, **own), resume=True)
    assert weights(half) == weights(whole)
    assert b"lm_head" in weights(whole)
    policy = load_policy(whole.output_dir)
    bare = load_policy(str(tmp_path / "untied"), dtype="float32")
    ids = [[1, 5, 6]], [[7, 8]]
    with policy.base() as base:
        assert torch.equal(base.log_probs(*ids)[0], bare.log_probs(*ids)[0])
    assert not torch.equal(policy.log_probs(*ids)[0], bare.log_probs(*ids)[0])
    assert "DoRA" in str(RunDir(whole.output_dir).read_manifest()["slow_paths"])


def test_validation_samples_the_policy_whatever_the_answers_are_sampled_with(make_config):
    """Greedy answers of a baseline, and answers at temperature 1: the same validation samples."""
    found = []
    for temperature in (0.0, 1.0):
        setup = build_setup(make_config(method="sft", rollout={"temperature": temperature}))
        found.append([rollout.ids for rollout, _ in rollout_kl(setup, setup.data.validation)])
    assert found[0] == found[1] != []

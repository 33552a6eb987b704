"""The plan of a run says what the run then does."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from opct.errors import ConfigError
from opct.methods.registry import METHODS
from opct.methods.rollouts import policy_rollouts, step_weights
from opct.training import estimate
from opct.training import setup as building
from opct.training.dry_run import make_plan
from opct.training.estimate import estimate_memory, size
from opct.training.setup import build_setup, load_data
from tests.progress import Noted
from tests.refusals import refused
from tests.tiny import tiny_family, tiny_tokenizer


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize(("method", "completions", "tokens", "probed"), [("opct", 2, 192, 8), ("dpo", 4, 384, 16)])
def test_its_numbers_are_those_of_the_run(make_config, method: str, completions: int, tokens: int, probed: int):
    """4 steps x 4 pairs x 2 completions x 6 tokens; `dpo` has preferences of 2."""
    config = make_config(method=method)
    rows, data = dict(make_plan(config).rows), load_data(config)
    assert rows["method"].startswith(method)
    assert numbers(rows["steps"]) == [4, 4, completions]
    assert numbers(rows["pairs"])[:2] == [len(data.pairs), 0]
    assert numbers(rows["completion tokens"]) == [tokens]
    assert numbers(rows["cut completions"])[1:] == [probed, 6]
    assert numbers(rows["passes"]) == [pytest.approx(4 * 3 / len(data.pairs), abs=0.05)]
    assert size(estimate_memory(config, data).peak) in rows["memory"]
    assert ("offline" in rows["time"]) == (method == "dpo")


def test_it_writes_nothing_and_shows_its_warnings(make_config, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    changes = {"data": {"validation_size": 1}, "rollout": {"max_completion_tokens": 1}}
    plan = make_plan(make_config(report_to=["tensorboard"], **changes))
    assert set(tmp_path.rglob("*")) == before
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(plan.render())
    text = console.export_text()
    assert "rollout.max_completion_tokens" in text
    assert "warning: validation" in text
    assert all(fact.split(":")[0] in text for fact in plan.facts)


def test_it_does_not_plan_for_another_trainer(make_config):
    with refused(ConfigError, "engine=verl"):
        make_plan(make_config(engine="verl"))


@pytest.mark.parametrize("kind", ["base", "ema"])
@pytest.mark.parametrize("lora", [{"r": 4}, None], ids=["adapter", "full"])
def test_the_estimate_counts_what_is_kept_without_loading_it(make_config, lora: dict | None, kind: str):
    """Weights, teacher, gradients and moments: bytes of the tensors that the setup then has."""
    config = make_config(teacher={"kind": kind}, model={"dtype": "bfloat16"}, lora=lora)
    found, setup = estimate_memory(config, load_data(config)), build_setup(config)
    with setup.teacher() as teacher:
        tensors = {id(p): p for model in (setup.policy, teacher) for p in model.model.parameters()}
    trained = sum(p.numel() for p in setup.policy.trainable_parameters().values())
    kept = found.weights + found.teacher + found.trained
    # a frozen copy of a whole model keeps its embedding and norms in float32
    assert kept == pytest.approx(sum(p.nbytes for p in tensors.values()) + 12 * trained, rel=0.2 if lora is None else 0)
    assert found.trained == 12 * trained
    assert found.peak == kept + max(found.micro_batch, found.rollout)


def test_on_an_accelerator_the_estimate_comes_before_the_weights(make_config, monkeypatch):
    """Here the device is one by name alone; what helps is said where little is free."""
    noted = Noted()
    monkeypatch.setattr(estimate, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(estimate, "choose_dtype", lambda *_: (torch.bfloat16, ""))
    monkeypatch.setattr(estimate, "free_memory", lambda device: 9)
    monkeypatch.setattr(building, "_load_policy", lambda *_: pytest.fail("loaded"))
    with pytest.raises(pytest.fail.Exception):
        make_plan(make_config(), noted)
    [said, warned] = [line for line in noted.lines if "MB" in line or "micro_batch_tokens" in line]
    assert "weights" in said
    assert "optim.micro_batch_tokens" in warned


EXPERTS = {"num_experts": 32, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
BIG = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4}


@pytest.mark.parametrize(
    ("family", "lora"),
    [
        ({"kind": "llama", **BIG}, {"r": 8}),
        ({"kind": "llama", **BIG}, None),
        ({"kind": "qwen3_moe", **BIG, **EXPERTS}, {"r": 8}),
        ({"kind": "qwen3_moe", **BIG, **EXPERTS}, {"r": 2, "target_parameters": ["mlp.experts.down_proj"]}),
    ],
    ids=["dense", "every weight", "experts", "adapted experts"],
)
def test_the_estimate_of_a_micro_batch_is_not_below_what_autograd_keeps(
    make_config, tmp_path, monkeypatch, family, lora
):
    """Nor a fifth above: bytes of the tensors that hooks see, each once, without the weights themselves."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_config(tiny_family(**family)).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    model = {"name_or_path": str(tmp_path / "model"), "dtype": "bfloat16"}
    config = make_config(lora=lora, model=model, rollout={"num_generations": 1}, teacher={"kind": "live"})
    monkeypatch.setattr(estimate, "CHUNK_TOKENS", 0)  # logits are there for a moment: hooks do not see them
    setup, kept = build_setup(config), {}
    rollouts = policy_rollouts(setup.policy, setup.data.batch(1), config, "step 1")
    method = METHODS["opct"](setup.policy, setup.teacher, config, None)
    weights = {p.untyped_storage().data_ptr() for p in setup.policy.model.parameters()}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor  # the tensor: its memory must not be used again
        return tensor

    setup.policy.backbone.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        method.loss(rollouts, step_weights(rollouts, "token"))
    counted = sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in weights)
    # a micro-batch that is full: rows with their padding
    full = len(rollouts) * max(len(one.prompt_ids) + len(one.ids) for one in rollouts)
    optim = config.optim.model_copy(update={"micro_batch_tokens": full})
    found = estimate_memory(config.model_copy(update={"optim": optim}), setup.data).micro_batch
    assert 1 <= found / counted <= 1.2


def test_when_it_validates(make_config):
    for steps, every, expected in ((4, None, [0, 2, 4]), (5, 2, [0, 2, 4, 5]), (1, None, [0, 1]), (4, 9, [0, 4])):
        data = load_data(make_config(max_steps=steps, eval_steps=every))
        assert data.validation_steps == expected
    data.validation, data.validation_anchors = [], []
    assert data.validation_steps == []

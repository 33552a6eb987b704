"""The plan of a run says what the run then does."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from opct.config.schema import LoraSettings
from opct.data.pairs import write_pairs
from opct.errors import ConfigError
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.dry_run import _sizes, estimate_memory, make_plan, size
from opct.training.setup import build_setup, load_data
from tests.tiny import tiny_pairs
from tests.unit.training.conftest import metrics


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize("method", ["opct", "sft"])
def test_its_numbers_are_those_of_the_run(make_config, method: str):
    """4 steps x 4 pairs x 2 completions x 6 tokens = 192 tokens at most; validation before, at 2 and at 4."""
    config = make_config(method=method)
    plan, data = make_plan(config), load_data(config)
    rows = dict(plan.rows)
    held_out = len(data.validation) + len(data.validation_anchors)
    loss = {"opct": "exact reverse_kl", "sft": "cross-entropy"}[method]
    assert rows["method"] == f"{method}, teacher base, {loss}"
    assert rows["steps"] == "4 of 4 pairs x 2 completions"
    assert rows["pairs"] == f"{len(data.pairs)} kept, 0 left out as too long; {len(data.pairs)} suggested"
    assert rows["completion tokens"] == "at most 192 in all"
    assert rows["passes"] == f"each pair is seen {4 * 3 / len(data.pairs):.1f} times"
    assert rows["cut completions"].endswith(" in the probe reached the limit of 6 tokens")
    assert rows["memory"].startswith(f"about {size(estimate_memory(config, data).peak)} with full batches")
    assert rows["memory"].endswith(" for the probe of 4 pairs")
    assert f" s a step, 3 validations of {held_out} pairs" in rows["time"]
    assert "on this machine, now: " in rows["time"]
    assert rows["time"].endswith("for offline answers") == (method == "sft")


def test_the_run_does_as_its_plan_says(trained):
    """1 step x 4 pairs x 2 completions x 6 tokens = 48 tokens at most; validation before and after it."""
    done = metrics(config := trained(max_steps=1))
    assert len(read_jsonl(RunDir(config.output_dir).rollouts_path(1))) == 4 * 2
    assert 0 < done[1]["train/completion_tokens"] <= 48
    sizes = dict(_sizes(load_data(config)))
    assert (sizes["steps"], sizes["completion tokens"]) == ("1 of 4 pairs x 2 completions", "at most 48 in all")
    assert [row["step"] for row in done if "validation/kl" in row] == load_data(config).validation_steps == [0, 1]


@pytest.mark.parametrize("method", ["dpo", "act"])
def test_the_plan_of_a_baseline_with_two_answers_or_none(make_config, method: str):
    """4 steps x 4 pairs x 2 preferences of 2 answers x 6 tokens = 384 tokens at most; activations take no token."""
    rows = dict(make_plan(make_config(method=method)).rows)
    what = {"dpo": "dpo_beta 0.1", "act": "distance of activations"}[method]
    assert rows["method"] == f"{method}, teacher base, {what}"
    assert rows["completion tokens"] == f"at most {384 if method == 'dpo' else 0} in all"
    assert rows["steps"] == f"4 of 4 pairs x {4 if method == 'dpo' else 0} completions"
    assert rows["time"].endswith("for offline answers") == (method == "dpo")
    asked = int(rows["cut completions"].split()[2])
    assert asked == (16 if method == "dpo" else 4)  # `act` samples for its validation alone


def test_it_writes_nothing_and_marks_warnings(make_config, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    changes = {"data": {"validation_size": 1}, "rollout": {"max_completion_tokens": 1}}
    plan = make_plan(make_config(report_to=["tensorboard"], **changes))
    assert files(tmp_path) == before
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(plan.render())
    text = console.export_text()
    assert "plan (nothing was written)" in text
    assert "replies were cut: raise rollout.max_completion_tokens" in text
    assert "warning: validation: 1 pair held out" in text
    assert all(fact.split(":")[0] in text for fact in plan.facts)


def test_it_does_not_plan_for_another_trainer(make_config):
    with pytest.raises(ConfigError, match="plans a training by opct, not by engine=verl"):
        make_plan(make_config(engine="verl"))


def test_pairs_that_are_too_long_are_counted(make_config, tmp_path: Path):
    """Four pairs and one of over 2048 tokens."""
    short = tiny_pairs(5)
    words = ({"role": "user", "content": "word " * 2048},)
    write_pairs(tmp_path / "pairs.jsonl", [*short[:4], dataclasses.replace(short[4], prompt=words)])
    data = load_data(make_config(data={"pairs": [str(tmp_path / "pairs.jsonl")], "validation_fraction": 0.0}))
    assert dict(_sizes(data))["pairs"] == "4 kept, 1 left out as too long; 4 suggested"


LORAS = {"q_proj": {"r": 4, "target_modules": ["q_proj"]}, "all": {"r": 4}, "full": None}


@pytest.mark.parametrize("kind", ["base", "live", "ema"])
@pytest.mark.parametrize("name", LORAS)
def test_the_estimate_counts_what_is_kept_without_loading_it(make_config, name: str, kind: str):
    """Weights, teacher, gradients and moments: bytes of the tensors that the setup then has."""
    lora = LORAS[name]
    config = make_config(teacher={"kind": kind}, model={"dtype": "bfloat16"})
    config = config.model_copy(update={"lora": None if lora is None else LoraSettings(**lora)})
    found, setup = estimate_memory(config, load_data(config)), build_setup(config)
    with setup.teacher() as teacher:
        tensors = {id(p): p for model in (setup.policy, teacher) for p in model.model.parameters()}
    trained = sum(p.numel() for p in setup.policy.trainable_parameters().values())
    kept = found.weights + found.teacher + found.trained
    # a frozen copy of a whole model keeps its embedding and norms in float32
    assert kept == pytest.approx(sum(p.nbytes for p in tensors.values()) + 12 * trained, rel=0.2 if lora is None else 0)
    assert found.trained == 12 * trained
    assert found.peak == kept + max(found.micro_batch, found.rollout)


def test_quantised_layers_and_activations_that_are_computed_again_take_less(make_config, monkeypatch):
    """2 layers of 2 x 32 x 32 + 2 x 32 x 16 + 3 x 32 x 64 weights in 0.516 bytes for 4; two layers' activations less
    one, and their inputs."""
    monkeypatch.setattr("opct.models.loading.check_libraries", lambda config: None)  # bitsandbytes need not be here
    plain, small = make_config(), make_config(model={"quantization": "4bit"}, optim={"gradient_checkpointing": True})
    data = load_data(plain)
    whole, less = estimate_memory(plain, data), estimate_memory(small, data)
    assert whole.weights - less.weights == pytest.approx(2 * 9216 * (4 - 0.516))
    assert 0.5 * whole.micro_batch < less.micro_batch < 0.8 * whole.micro_batch


def test_the_rollout_holds_keys_and_values_of_a_batch(make_config):
    """2 x 2 layers x 2 heads x 8 numbers x 4 bytes a token, of 8 rows of the longest prompt and 6 tokens."""
    config = make_config()
    data = load_data(config)
    longest = max(max(len(r.prompt_ids), len(r.teacher_ids)) for r in data.pairs)
    assert estimate_memory(config, data).rollout == 256 * 8 * (longest + 6)
    few = make_config(rollout={"batch_tokens": 100})
    assert estimate_memory(few, data).rollout == 256 * 100


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [
        (4, 2, [0, 2, 4]),
        (4, None, [0, 2, 4]),
        (5, 2, [0, 2, 4, 5]),
        (1, None, [0, 1]),
        (3, None, [0, 2, 3]),
        (4, 9, [0, 4]),
    ],
)
def test_when_it_validates(make_config, steps: int, every: int | None, expected: list[int]):
    data = load_data(make_config(max_steps=steps, eval_steps=every))
    assert data.validation_steps == expected
    data.validation, data.validation_anchors = [], []
    assert data.validation_steps == []

"""The plan of a run says what the run then does."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from opct.config.schema import LoraSettings
from opct.data.pairs import write_pairs
from opct.models.cost_model import Setting, memory
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.dry_run import _duration, _Probe, _sizes, _validations, make_plan, memory_words
from opct.training.prediction import checked_shape, largest_batch, mean_batch, predicted, setting_of
from opct.training.setup import prepare
from opct.training.trainer import train
from tests.tiny import tiny_pairs


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize("method", ["opct", "sft"])
def test_its_numbers_are_those_of_the_run(make_config, method: str):
    """4 steps x 4 pairs x 2 completions x 6 tokens = 192 tokens at most; validation before, at 2 and at 4."""
    config = make_config(method=method)
    rows = dict(make_plan(config).rows)
    setup = prepare(config)
    held_out = len(setup.validation) + len(setup.validation_anchors)
    assert rows["method"] == f"{method}, teacher base, exact reverse_kl"
    assert rows["steps"] == "4 of 4 pairs x 2 completions"
    assert rows["pairs"] == f"{len(setup.pairs)} kept, 0 left out as too long; {len(setup.pairs)} suggested"
    assert rows["identity pairs"] == f"{len(setup.anchors)} (25% of each step)"
    assert rows["completion tokens"] == "at most 192 in all"
    longest = max(len(r.prompt_ids) for r in setup.pairs)
    assert rows["prompt tokens"].endswith(f"longest {longest} of {setup.policy.context_length}")
    assert rows["passes"] == f"each pair is seen {4 * 3 / len(setup.pairs):.1f} times"
    assert rows["cut completions"].endswith(" in the probe reached the limit of 6 tokens")
    assert "a micro-batch of 600 tokens" in rows["memory"]  # 300 of prompts, 300 of completions
    assert f"(probe: 4 pairs), 3 validations of {held_out} pairs" in rows["time"]
    assert rows["time"].endswith("for offline answers") == (method == "sft")

    train(config)
    done = read_jsonl(RunDir(config.output_dir).metrics_path)
    assert max(row["step"] for row in done) == 4
    assert 0 < sum(row.get("train/completion_tokens", 0) for row in done) <= 192
    assert sum("validation/kl" in row for row in done) == 3
    kept = read_jsonl(RunDir(config.output_dir).rollouts_path(1))
    assert len(kept) == 4 * 2


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
    assert not [name for name in rows if "predicted" in name]


def test_it_writes_nothing(make_config, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    plan = make_plan(make_config(report_to=["tensorboard"]))
    assert files(tmp_path) == before
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(plan.render())
    text = console.export_text()
    assert "plan (nothing was written)" in text
    assert "max_steps: 4" in text
    assert all(fact.split(":")[0] in text for fact in plan.facts)


def test_pairs_that_are_too_long_are_counted(make_config, tmp_path: Path):
    """Four pairs and one of over 2048 tokens."""
    short = tiny_pairs(5)
    words = ({"role": "user", "content": "word " * 2048},)
    write_pairs(tmp_path / "pairs.jsonl", [*short[:4], dataclasses.replace(short[4], prompt=words)])
    setup = prepare(make_config(data={"pairs": [str(tmp_path / "pairs.jsonl")], "validation_fraction": 0.0}))
    assert dict(_sizes(setup))["pairs"] == "4 kept, 1 left out as too long; 4 suggested"


def test_memory_is_the_sum_of_its_parts(make_config):
    """A probe of 100 tokens that took 2 MB and 4 bytes a trained weight, for micro-batches of 300: 6 MB.

    Added to it: 4 bytes for every float32 weight, and 12 for each trained one. Full fine-tuning holds the weights
    twice, once as the teacher. A probe larger than a micro-batch is not scaled down.
    """
    for lora in ({"r": 4, "alpha": 8}, None):
        setup = prepare(make_config(lora=lora))
        every = sum(p.numel() for p in setup.policy.model.parameters()) * (1 if lora else 2)
        trained = sum(p.numel() for p in setup.policy.trainable_parameters().values())
        words = memory_words(setup, _Probe(4, 1.0, 1.0, 8, 40, 0, tokens=100, full=300, added_bytes=2e6 + 4 * trained))
        assert words.startswith(f"about {(4 * every + 12 * trained + 6e6) / 1e6:.1f} MB: weights ")
        assert f"weights {4 * every / 1e6:.1f} MB, " in words
        assert f"gradients and Adam {12 * trained / 1e6:.1f} MB (12 bytes for each of {trained:,} trained" in words
    assert "a micro-batch of 300 tokens 6.0 MB (the probe's, of 100 tokens, times 3.0)" in words
    assert "300 tokens 2.0 MB" in memory_words(
        setup, _Probe(4, 1.0, 1.0, 8, 40, 0, tokens=600, full=300, added_bytes=2e6 + 4 * trained)
    )


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [(4, 2, 3), (4, None, 3), (5, 2, 4), (1, None, 2), (3, None, 3), (4, 100, 2)],
)
def test_how_often_it_validates(make_config, steps: int, every: int | None, expected: int):
    """(4, 2): 0 2 4. (4, null): 0 2 4. (5, 2): 0 2 4 5. (1, null): 0 1. (3, null): 0 2 3. (4, 100): 0 4."""
    setup = prepare(make_config(max_steps=steps, eval_steps=every))
    assert _validations(setup) == expected
    setup.validation, setup.validation_anchors = [], []
    assert _validations(setup) == 0


def test_durations_in_words():
    words = {1.4: "1 s", 119: "119 s", 120: "2 minutes", 7199: "120 minutes", 7200: "2.0 hours"}
    assert {seconds: _duration(seconds) for seconds in words} == words


def test_the_prediction_stands_beside_the_probe(make_config):
    """The same weights and moments, counted from the config and from the model; offline methods have no prediction."""
    config = make_config()
    rows = dict(make_plan(config).rows)
    setup = prepare(config)
    weights = sum(p.numel() * p.element_size() for p in setup.policy.model.parameters())
    trained = sum(p.numel() for p in setup.policy.trainable_parameters().values())
    assert f"weights {weights / 1e6:.1f} MB, teacher 0.0 MB" in rows["memory, predicted"]
    assert f"gradients and Adam {12 * trained / 1e6:.1f} MB" in rows["memory, predicted"]
    assert rows["time, predicted"].startswith("at least ")
    assert "the probe reached" in rows["time, predicted"]
    assert "norms" in rows["not predicted"]
    assert not [name for name, _ in make_plan(make_config(method="sft")).rows if "predicted" in name]


def test_the_predicted_batch_is_the_runs(make_config):
    """4 pairs x 2 completions of at most 6 tokens, with the longest prompts; 16384 tokens of rollouts at once."""
    setup = prepare(make_config())
    longest = max(len(r.prompt_ids) for r in [*setup.pairs, *setup.anchors])
    batch = largest_batch(setup)
    assert (batch.prompts, batch.generations, batch.completion_tokens, batch.prompt_tokens) == (4, 2, 6, longest)
    assert batch.micro_batch_tokens == 300
    assert (batch.rollout_rows, batch.shared_rollout) == (8, True)  # all of them, each prompt once
    few = make_config(rollout={"batch_tokens": 3 * (longest + 12)}, model={"attn_implementation": "eager"})
    copied = largest_batch(prepare(few))
    assert (copied.rollout_rows, copied.shared_rollout) == (3, False)
    trained = sum(p.numel() for p in setup.policy.trainable_parameters().values())
    assert setting_of(setup) == Setting(4, compute_bytes=4, cascade=True, trained_weights=trained, teacher_bytes=0)


def test_open_turns_are_predicted_at_the_limit(make_config, tmp_path: Path):
    """6 tokens each, or the probe's mean of 3, beside what the template makes of the rest; the plan says so."""
    [ask, *_] = tiny_pairs(1)
    opened = [
        dataclasses.replace(p, prompt=(*p.teacher_prompt, {"role": "assistant", "content": None}, *ask.prompt))
        for p in tiny_pairs(12)
    ]
    write_pairs(tmp_path / "open.jsonl", opened)
    data = {"pairs": [str(tmp_path / "open.jsonl")], "anchors": [], "anchor_fraction": 0.0}
    setup = prepare(make_config(data=data))
    assert all(r.prompt_ids is None for r in setup.pairs)
    closed = [[{"content": ".", **{k: v for k, v in m.items() if v}} for m in r.pair.prompt] for r in setup.pairs]
    lengths = [len(setup.policy.renderer.render(prompt)) for prompt in closed]
    assert largest_batch(setup).prompt_tokens == max(lengths) + 6
    assert mean_batch(setup, 3).prompt_tokens == round(sum(lengths) / len(lengths)) + 3
    rows = dict(predicted(setup, mean_completion=3.2, probe_pairs=4, probe_loss_s=1.0))
    n = len(setup.pairs)
    said = f"; {n} of {n} prompts have turns that the policy answers first, taken as"
    assert rows["memory, predicted"].endswith(f"{said} 6 tokens")
    assert rows["time, predicted"].endswith(f"{said} 3 tokens; sampling these is left out")


@pytest.mark.parametrize("kind", ["base", "live", "ema"])
@pytest.mark.parametrize(
    "lora", [{"r": 4, "target_modules": ["q_proj"]}, {"r": 4}, None], ids=["q_proj", "all", "full"]
)
def test_what_is_kept_is_that_of_the_setup(make_config, lora: dict | None, kind: str):
    """Weights, teacher, gradients and moments, whatever is trained: bytes of the tensors that are there."""
    make = make_config(teacher={"kind": kind}, model={"dtype": "bfloat16"})
    setup = prepare(make.model_copy(update={"lora": None if lora is None else LoraSettings(**lora)}))
    setting, shape = setting_of(setup), checked_shape(setup.policy)
    found = memory(shape, setting, largest_batch(setup))
    tensors = {id(p): p for model in setup.models for p in model.model.parameters()}
    trained = sum(p.numel() for p in setup.policy.trainable_parameters().values())
    assert found.kept == sum(p.nbytes for p in tensors.values()) + 12 * trained
    if lora is None:
        assert found.teacher == {"base": shape.frozen_bytes(2), "live": 0, "ema": 4 * shape.parameters}[kind]
    else:
        assert found.teacher == (4 * trained if kind == "ema" else 0)
    if lora and "target_modules" in lora:
        assert trained == 2 * 4 * (32 + 32)
        words = dict(predicted(setup, mean_completion=5, probe_pairs=4, probe_loss_s=1.0))
        assert "activations are those of an adapter on every matrix" in words["memory, predicted"]


def test_a_model_that_the_formulas_do_not_count_is_not_predicted(make_config):
    """One more matrix than a dense decoder of its sizes has: its own count is given, and no number is made up."""
    setup = prepare(make_config())
    setup.policy.backbone.bare_model.extra = torch.nn.Linear(100, 100)
    rows = dict(predicted(setup, mean_completion=5, probe_pairs=4, probe_loss_s=1.0))
    assert list(rows) == ["predicted"]
    assert (
        "cannot be predicted: a dense decoder of its sizes has 28,352 weights, and it has 38,452" in rows["predicted"]
    )

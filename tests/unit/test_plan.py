"""The plan of a run says what the run then does."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from opct.data.pairs import write_pairs
from opct.files import read_jsonl
from opct.plan import _duration, _Probe, _sizes, _validations, make_plan, memory_words
from opct.prepare import prepare
from opct.runs import RunDir
from opct.trainer import train
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
    assert "a micro-batch of 300 tokens" in rows["memory"]
    assert f"(probe: 4 pairs), 3 validations of {held_out} pairs" in rows["time"]
    assert rows["time"].endswith("for offline answers") == (method == "sft")

    train(config)
    done = read_jsonl(RunDir(config.output_dir).metrics_path)
    assert max(row["step"] for row in done) == 4
    assert 0 < sum(row.get("train/completion_tokens", 0) for row in done) <= 192
    assert sum("validation/kl" in row for row in done) == 3
    kept = read_jsonl(RunDir(config.output_dir).rollouts_path(1))
    assert len(kept) == 4 * 2


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
        words = memory_words(setup, _Probe(4, 1.0, 1.0, 8, 0, tokens=100, added_bytes=2e6 + 4 * trained))
        assert words.startswith(f"about {(4 * every + 12 * trained + 6e6) / 1e6:.1f} MB: weights ")
        assert f"weights {4 * every / 1e6:.1f} MB, " in words
        assert f"gradients and Adam {12 * trained / 1e6:.1f} MB (12 bytes for each of {trained:,} trained" in words
    assert "a micro-batch of 300 tokens 6.0 MB (the probe's, of 100 tokens, times 3.0)" in words
    assert "300 tokens 2.0 MB" in memory_words(
        setup, _Probe(4, 1.0, 1.0, 8, 0, tokens=600, added_bytes=2e6 + 4 * trained)
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

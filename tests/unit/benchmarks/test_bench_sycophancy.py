"""The benchmark of sycophancy trains and measures by the experiment's own stages."""

from __future__ import annotations

import sys
from inspect import signature
from pathlib import Path

import pytest
from benchmarks import sycophancy

from opct.experiments import stages
from opct.runs.io import write_json
from opct.runs.progress import NullProgress
from opct.runs.run_dir import RunDir


@pytest.fixture
def done(monkeypatch, tmp_path):
    """What is trained, measured and reported, in order; the dtype of a run is in its folder's manifest."""
    said: list[tuple] = []
    dtypes = {"sft-seed1": "float32"}

    def train(*args, **options):
        config, name = signature(stages.train_once).bind(*args, **options).args
        said.append(("train", name, config.method, config.seed, config.max_steps))
        write_json(RunDir(config.output_dir).manifest_path, {"opct_run": 1, "dtype": dtypes.get(name, "bfloat16")})

    def evaluate(*args, **options):
        label, folder, _, dtype, settings = signature(stages.evaluate_once).bind(*args, **options).args
        said.append(("evaluate", label, folder.name, dtype, settings["n_questions"]))

    monkeypatch.setattr(sycophancy, "train_once", train)
    monkeypatch.setattr(sycophancy, "evaluate_once", evaluate)
    monkeypatch.setattr(sycophancy, "make_progress", NullProgress)
    monkeypatch.setattr(
        sycophancy, "report", lambda folders, page: said.append(("report", *(f.name for f in folders))) or page
    )
    return said


def started(monkeypatch, out: Path, *more: str) -> None:
    monkeypatch.setattr(sys, "argv", ["sycophancy.py", "--out", str(out), "--set", "max_steps=4", *more])
    sycophancy.main()


def test_every_method_and_seed_then_the_base_in_their_dtype(done, monkeypatch, tmp_path):
    started(monkeypatch, tmp_path, "--seeds", "0", "2", "--n-questions", "7")
    expected = []
    for seed in (0, 2):
        for method in ("sft", "opct"):
            name = f"{method}-seed{seed}"
            expected += [("train", name, method, seed, 4), ("evaluate", method, name, "bfloat16", 7)]
    expected += [("evaluate", "base", "base", "bfloat16", 7)]
    assert done == [*expected, ("report", "base", "sft-seed0", "opct-seed0", "sft-seed2", "opct-seed2")]


def test_runs_in_unlike_dtypes_end_before_more_is_trained(done, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="bfloat16"):
        started(monkeypatch, tmp_path, "--seeds", "0", "1", "2")
    assert [entry[1] for entry in done if entry[0] == "train"] == ["sft-seed0", "opct-seed0", "sft-seed1"]


def test_cut_short_it_says_how_to_go_on(done, monkeypatch, tmp_path):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sycophancy, "train_once", interrupted)
    with pytest.raises(SystemExit, match="start again"):
        started(monkeypatch, tmp_path)

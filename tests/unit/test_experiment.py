"""What an experiment does with the runs that are there, and in which order; training and measuring are faked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opct import experiment as module
from opct.experiment_config import load_experiment
from opct.runs import RunDir

SHARED = "max_steps: 2\noptim: {prompts_per_step: 4}\nmodel: {device: cpu}\n"
PLAIN = (
    "output_dir: {out}\ntrain: shared.yaml\nseeds: [0]\narms:\n  sft: {{method: sft}}\n  opct: {{method: opct}}\n"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "shared.yaml").write_text(SHARED)
    path = tmp_path / "experiment.yaml"
    path.write_text(PLAIN.format(out=json.dumps(str(tmp_path / "out"))))
    return path


def begun(folder: Path, **manifest) -> RunDir:
    """A run with that in its manifest, and nothing besides."""
    run = RunDir(folder)
    run.path.mkdir(parents=True)
    run.manifest_path.write_text(json.dumps({"opct_run": 1, "created": "now"} | manifest))
    return run


def test_a_run_that_was_killed_before_its_first_step_says_nothing_of_the_dtype(path: Path, tmp_path: Path):
    """Its manifest is the one that a folder begins with; the other run there decides."""
    begun(tmp_path / "out" / "sft-seed0")
    experiment = load_experiment(path)
    assert module._dtype(experiment) in ("float32", "bfloat16")
    begun(tmp_path / "out" / "opct-seed0", dtype="float16")
    assert module._dtype(experiment) == "float16"

"""What an experiment does with the runs that are there, and in which order; training and measuring are faked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opct import experiment as module
from opct.config_file import dump_config
from opct.errors import RunError
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


def trained(path: Path, arm: str, steps: int, *overrides: str) -> None:
    """A run of float32 that has all of so many steps, as the experiment's settings with these overrides ask."""
    config = load_experiment(path, ["model.dtype=float32", *overrides]).configs[arm, 0]
    run = begun(Path(config.output_dir), total_steps=steps, dtype="float32")
    run.config_path.write_text(dump_config(config))
    run.save_checkpoint(steps, lambda folder: None)


def test_a_run_that_was_killed_before_its_first_step_says_nothing_of_the_dtype(path: Path, tmp_path: Path):
    """Its manifest is the one that a folder begins with; the other run there decides."""
    begun(tmp_path / "out" / "sft-seed0")
    experiment = load_experiment(path)
    assert module._dtype(experiment) in ("float32", "bfloat16")
    begun(tmp_path / "out" / "opct-seed0", dtype="float16")
    assert module._dtype(experiment) == "float16"


@pytest.mark.parametrize("length", ["num_train_epochs=2.0", "max_steps=40"])
def test_an_arm_that_is_not_trained_on_yet_has_no_length_to_compare(path: Path, length: str):
    """Both had 20 steps, by settings of before; one is trained to 40 now and its turn is over, the other comes next.
    Each that is finished counts: 40 and 20 by the same settings are refused."""
    rate = "optim.lr_scheduler_type=constant"
    trained(path, "sft", 40, rate, "max_steps=null", length)
    trained(path, "opct", 20, rate, "max_steps=null")
    experiment = load_experiment(path, [rate, "max_steps=null", length])
    arm = experiment.arms[0]
    module._refuse_other_lengths(experiment, arm, 0, "float32")


def test_arms_of_one_budget_that_came_out_as_unlike_numbers_of_steps_are_refused(path: Path):
    """As the pairs that fit the model decide, by the same settings: 4 and 3. As many are fine."""
    trained(path, "sft", 4, "max_steps=null")
    experiment = load_experiment(path, ["max_steps=null"])
    module._refuse_other_lengths(experiment, experiment.arms[0], 0, "float32")
    trained(path, "opct", 3, "max_steps=null")
    for arm in experiment.arms:
        with pytest.raises(RunError, match=r"seed 0 have unlike numbers of steps \(sft: 4, opct: 3\).*same_budget: false"):
            module._refuse_other_lengths(experiment, arm, 0, "float32")

"""Every method on pairs of one axis and of two, in one experiment on the tiny model: what is logged, and the report."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from opct.experiments.runner import run_experiment
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from tests.e2e.test_experiment import Noted

SHARED = """
max_steps: 1
lora: {{r: 2}}
model: {{name_or_path: {model}, device: cpu, dtype: float32}}
data: {{validation_size: 4, balance_axes: true, anchor_fraction: 0.5}}
teacher: {{check_behaviors: 0, check_hazards: 0}}
rollout: {{max_completion_tokens: 2}}
optim: {{prompts_per_step: 4}}
"""
EXPERIMENT = """
output_dir: {out}
train: shared.yaml
seeds: [0]
arms:
  sft: {{method: sft}}
  offpolicy: {{method: offpolicy}}
  opct: {{method: opct}}
  dpo: {{method: dpo}}
  act: {{method: act}}
matrix:
  data.pairs:
    - ["builtin:jailbreak"]
    - ["builtin:jailbreak", "builtin:safety_awareness:user"]
evaluation:
  suites: [jailbreak, safety_awareness]
  n_questions: 1
  families_per_question: 1
  prompts_per_fact: 1
  counterparts_per_fact: 1
  max_reply_tokens: 2
  kl_samples: 0
  browser_questions: 1
"""
LOGGED = {
    "sft": "train/forward_kl",
    "offpolicy": "train/kl",
    "opct": "train/kl",
    "dpo": "train/loss",
    "act": "train/distance",
}
"""By method: what a step of pairs of several axes logs of each, as docs/experiments.md has it."""
ONE, TWO = "-pairs-builtin-jailbreak", "-pairs-builtin-jailbreak-builtin-safety_awareness-user"
AXES = ("jailbreak", "safety_awareness")


@pytest.fixture(scope="module")
def path(tmp_path_factory, tiny_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("axes")
    (folder / "shared.yaml").write_text(SHARED.format(model=json.dumps(str(tiny_folder))))
    path = folder / "experiment.yaml"
    path.write_text(EXPERIMENT.format(out=json.dumps(str(folder / "out"))))
    return path


@pytest.fixture(scope="module")
def out(path: Path) -> Path:
    """The experiment, done once: ten runs of a step each, and the base."""
    return run_experiment(path).report.parent


@pytest.mark.parametrize("method", LOGGED)
def test_each_axis_is_logged_in_training_and_on_held_out_pairs_where_there_are_two(out: Path, method: str):
    rows = read_jsonl(RunDir(out / f"{method}{TWO}-seed0").metrics_path)
    step = next(row for row in rows if row["step"] == 1 and LOGGED[method] in row)
    held_out = [row for row in rows if "validation/kl" in row]
    assert held_out
    for axis in AXES:
        assert math.isfinite(step[f"{LOGGED[method]}_{axis}"])
        assert all(math.isfinite(row[f"validation/kl_{axis}"]) for row in held_out)
    alone = read_jsonl(RunDir(out / f"{method}{ONE}-seed0").metrics_path)
    assert not any("validation/kl_safety_awareness" in row for row in alone)
    assert any("validation/kl" in row for row in alone)


def test_the_report_has_both_axes_of_every_arm(out: Path):
    """The base and ten arms: a cell of each in every headline metric of both axes, and the differences of each."""
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    arms = ["base", *(method + values for values in (ONE, TWO) for method in LOGGED)]
    assert [run["label"] for run in report["runs"]] == arms
    assert [axis["axis"] for axis in report["axes"]] == list(AXES)
    for metric in ("attack_success_rate", "warning_rate"):
        rows = [row for row in report["rows"] if row["metric"] == metric and row["group"] == "all"]
        assert [set(row["arms"]) for row in rows] == [set(arms)]
    [refused] = [row for row in report["rows"] if (row["metric"], row["group"]) == ("refusal_rate", "bare")]
    compared = {(each["of"], each["against"]) for each in (*refused["differences"], *refused["not_compared"])}
    assert {(arm, "base") for arm in arms[1:]} <= compared
    for values in (ONE, TWO):
        assert {("dpo" + values, "sft" + values), ("opct" + values, "offpolicy" + values)} <= compared
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(f'<h2 id="axis-{axis}">' in page for axis in AXES)


def test_the_second_call_trains_and_measures_nothing(out: Path, path: Path):
    said = Noted()
    run_experiment(path, progress=said)
    assert sum("trained already" in line for line in said.lines) == 10
    assert sum("measured already" in line for line in said.lines) == 11
    assert not [stage for stage in said.stages if "train" in stage or "evaluate" in stage]

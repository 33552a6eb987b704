"""One experiment to its report on the tiny model: two seeds, an arm after another, two axes; then another model."""

import json
from pathlib import Path

import pytest

from opct.config.loader import load_config
from opct.errors import RunError
from opct.experiments import runner
from opct.experiments.runner import ExperimentResult, run_experiment
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from tests.refusals import refused
from tests.tiny import save_tiny

SHARED = """
max_steps: 1
lora: {{r: 2}}
model: {{name_or_path: {model}, device: cpu}}
data:
  pairs: ["builtin:jailbreak", "builtin:safety_awareness:user"]
  max_pairs: 16
  validation_size: 4
  balance_axes: true
  anchor_fraction: 0.5
teacher: {{check_behaviors: 0, check_hazards: 0}}
rollout: {{max_completion_tokens: 2}}
optim: {{prompts_per_step: 4}}
"""
EXPERIMENT = """
output_dir: {out}
train: shared.yaml
seeds: [0, 1]
arms:
  sft: {{method: sft}}
  both: {{method: opct, after: sft}}
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The experiment's file, and the model beside it."""
    folder = tmp_path_factory.mktemp("experiment")
    values = {"model": json.dumps(str(save_tiny(folder / "model"))), "out": json.dumps(str(folder / "out"))}
    (folder / "shared.yaml").write_text(SHARED.format(**values))
    (folder / "experiment.yaml").write_text(EXPERIMENT.format(**values))
    return folder


@pytest.fixture(scope="module")
def done(folder: Path) -> ExperimentResult:
    """The experiment, run once: four runs of a step each, and the base."""
    return run_experiment(folder / "experiment.yaml")


def test_the_report_has_every_run_and_the_costs_are_summed_over_seeds(folder: Path, done: ExperimentResult):
    out = folder / "out"
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    runs = [(run["label"], run["seed"]) for run in report["runs"]]
    assert runs == [("base", None), ("sft", 0), ("sft", 1), ("both", 0), ("both", 1)]
    sft, both = done.costs["sft"], done.costs["both"]
    assert [(cost.steps, cost.steps_in_all) for cost in (sft, both)] == [(2, 2), (2, 4)]
    assert (sft.offline_tokens > 0, both.offline_tokens) == (True, 0)
    assert sft.seconds_in_all == pytest.approx(sft.seconds + sft.offline_seconds)
    assert both.seconds_in_all == pytest.approx(both.seconds + sft.seconds_in_all)
    for name, cost in done.costs.items():
        paths = [RunDir(out / f"{name}-seed{seed}").metrics_path for seed in (0, 1)]
        rows = [row for path in paths for row in read_jsonl(path) if "time/step_s" in row]
        assert cost.seconds > 0
        assert cost.completion_tokens == sum(row["train/completion_tokens"] for row in rows) > 0
        assert cost.tokens_in_loss == sum(row["train/tokens_in_loss"] for row in rows) > 0
    assert report["costs"] == {"base": None} | json.loads((out / "costs.json").read_text(encoding="utf-8"))


def test_the_report_compares_every_arm_on_both_axes(folder: Path, done: ExperimentResult):
    """Each arm with the base, and the arm that continues another with it."""
    report = json.loads(done.report.with_name("report.json").read_text(encoding="utf-8"))
    assert [axis["axis"] for axis in report["axes"]] == ["jailbreak", "safety_awareness"]
    for metric in ("attack_success_rate", "warning_rate"):
        rows = [row for row in report["rows"] if row["metric"] == metric and row["group"] == "all"]
        assert [set(row["arms"]) for row in rows] == [{"base", "sft", "both"}]
    [row] = [row for row in report["rows"] if (row["metric"], row["group"]) == ("refusal_rate", "bare")]
    compared = {(each["of"], each["against"]) for each in (*row["differences"], *row["not_compared"])}
    assert compared == {("sft", "base"), ("both", "base"), ("both", "sft")}


def test_a_run_continues_the_adapter_of_its_seed_in_one_dtype(folder: Path, done: ExperimentResult):
    config = load_config(RunDir(folder / "out" / "both-seed1").config_path)
    assert config.model.adapter == str(folder / "out" / "sft-seed1")
    assert config.model.dtype != "auto"


def test_another_base_model_is_refused_before_anything_is_trained(folder: Path, done: ExperimentResult, monkeypatch):
    """Its first run is named. Comes last: it replaces the model."""
    save_tiny(folder / "model", seed=1)
    monkeypatch.setattr(runner, "ensure_trained", lambda *_, **__: pytest.fail("trained first"))
    with refused(RunError, folder / "out" / "sft-seed0"):
        run_experiment(folder / "experiment.yaml")

"""An experiment to its report on the tiny model, cut short and gone on with, and once more with an arm added."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from opct.config.loader import dump_config
from opct.errors import DataError, RunError
from opct.experiments import runner as module
from opct.experiments.config import load_experiment
from opct.experiments.runner import ExperimentResult, run_experiment
from opct.runs.console import NullProgress
from opct.runs.io import read_jsonl, write_jsonl
from opct.runs.run_dir import RunDir
from opct.runs.usage import Usage
from opct.training.trainer import train
from tests.tiny import TINY_TRAINING, save_tiny

EXPERIMENT = """
output_dir: {out}
train: shared.yaml
seeds: [0, 1]
arms:
  bct: {{method: sft}}
  both: {{method: opct, after: bct}}
evaluation:
  n_questions: 4
  families_per_question: 1
  n_benign: 2
  max_completion_tokens: 3
  max_benign_tokens: 3
  kl_samples: 2
  browser_questions: 1
"""


class Noted(NullProgress):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.lines: list[str] = []

    def stage(self, name: str, total: int | None = None) -> None:
        self.stages.append(name)

    def log(self, message: str) -> None:
        self.lines.append(message)


@pytest.fixture
def path(tmp_path: Path, tiny_folder: Path) -> Path:
    (tmp_path / "shared.yaml").write_text(TINY_TRAINING.format(model=json.dumps(str(tiny_folder))))
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT.format(out=json.dumps(str(tmp_path / "out"))))
    return path


def test_to_the_report_and_again_with_another_arm(path: Path, tmp_path: Path):
    out = tmp_path / "out"
    result = run_experiment(path)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert [(run["label"], run["seed"]) for run in report["runs"]] == [
        ("base", None), ("bct", 0), ("bct", 1), ("both", 0), ("both", 1)
    ]  # fmt: skip
    assert {cost.steps for cost in result.costs.values()} == {4}
    assert {name: cost.steps_in_all for name, cost in result.costs.items()} == {"bct": 4, "both": 8}
    bct, both = result.costs["bct"], result.costs["both"]
    assert (bct.offline_tokens > 0, both.offline_tokens) == (True, 0)
    assert bct.seconds_in_all == pytest.approx(bct.seconds + bct.offline_seconds)
    assert both.seconds_in_all == pytest.approx(both.seconds + bct.seconds_in_all)
    [said] = [text for text in report["warnings"] if "continued from" in text]
    assert said.startswith("both continued from the adapter of another run: it took 4 optimizer steps in total, and")
    for name, cost in result.costs.items():
        rows = [row for seed in (0, 1) for row in read_jsonl(RunDir(out / f"{name}-seed{seed}").metrics_path)]
        rows = [row for row in rows if "time/step_s" in row]
        assert cost.seconds > 0
        assert cost.completion_tokens == sum(row["train/completion_tokens"] for row in rows) > 0
        assert cost.tokens_in_loss == sum(row["train/tokens_in_loss"] for row in rows) > 0
    assert not [text for text in report["warnings"] if "model.adapter" in text]
    assert report["costs"] == {"base": None} | json.loads((out / "costs.json").read_text(encoding="utf-8"))
    pairs = [(each["of"], each["against"]) for each in report["rows"][0]["differences"]]
    assert pairs == [("bct", "base"), ("both", "base"), ("both", "bct")]
    config = RunDir(out / "both-seed1").config_path.read_text(encoding="utf-8")
    assert str(out / "bct-seed1") in config
    assert "dtype: auto" not in config

    path.write_text(path.read_text().replace("arms:\n", "arms:\n  opct: {method: opct}\n"))
    said = Noted()
    run_experiment(path, progress=said)
    assert sum("trained already" in line for line in said.lines) == 4
    assert sum("measured already" in line for line in said.lines) == 5
    assert [stage for stage in said.stages if "train" in stage] == ["[1/14] train opct", "[7/14] train opct"]
    assert len(json.loads((out / "report.json").read_text(encoding="utf-8"))["runs"]) == 7


def test_what_is_cut_short_goes_on(path: Path, tmp_path: Path, monkeypatch):
    """Stopped when the second run is to be measured: the first is not trained again, the second is not either."""
    evaluate, left = module.ensure_evaluated, [1]

    def once(*arguments, **keywords):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return evaluate(*arguments, **keywords)

    monkeypatch.setattr(module, "ensure_evaluated", once)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(path)
    monkeypatch.setattr(module, "ensure_evaluated", evaluate)
    said = Noted()
    run_experiment(path, progress=said)
    assert [line.split(":")[0] for line in said.lines if "trained already" in line] == ["bct, seed 0", "both, seed 0"]
    assert (tmp_path / "out" / "report.html").exists()


def without_data(path: Path, tmp_path: Path) -> list[str]:
    """Two suites whose data cannot be had are asked too; how each fault begins."""
    missing = tmp_path / "mmlu.jsonl"
    suites = f"\n  suites: [benign, truthfulqa, mmlu]\n  data: {{mmlu: {json.dumps(str(missing))}}}"
    path.write_text(path.read_text().replace("evaluation:", f"evaluation:{suites}"))
    return [
        "truthfulqa: Cannot load the data of lm-eval's truthfulqa_mc2: ",
        f"mmlu: No mmlu question file at {missing}",
    ]


def test_a_suite_whose_data_cannot_be_had_is_refused_before_training(path: Path, tmp_path: Path, monkeypatch):
    expected = without_data(path, tmp_path)
    monkeypatch.delenv("OPCT_CAPABILITY_DATA", raising=False)
    monkeypatch.setattr(module, "ensure_trained", lambda *_, **__: pytest.fail("trained first"))
    with pytest.raises(DataError, match="2 of the 3 suites cannot be asked") as error:
        run_experiment(path)
    assert all(fault.startswith(start) for fault, start in zip(error.value.faults, expected, strict=True))
    assert not (tmp_path / "out").exists()


def test_what_is_finished_needs_its_data_no_more(path: Path, tmp_path: Path, monkeypatch):
    """All is measured; then all but the base."""
    without_data(path, tmp_path)
    experiment = load_experiment(path)
    left = set()
    monkeypatch.delenv("OPCT_CAPABILITY_DATA", raising=False)
    monkeypatch.setattr(module, "is_evaluated", lambda label, *_: label not in left)
    module._check_inputs(experiment)
    left = {"base"}
    with pytest.raises(DataError, match="cannot be asked"):
        module._check_inputs(experiment)


def test_a_count_that_a_step_did_not_log_is_none_and_not_zero(path: Path, tmp_path: Path):
    """Two seeds of two steps, 5 answer tokens and 4 in the loss each; one step of arm `both` lacks the latter."""
    experiment = load_experiment(path)
    for arm in experiment.arms:
        for seed in (0, 1):
            rows = [
                {"step": step, "time/step_s": 1.5, "train/completion_tokens": 5, "train/tokens_in_loss": 4}
                for step in (1, 2)
            ]
            if (arm.name, seed) == ("both", 1):
                del rows[1]["train/tokens_in_loss"]
            write_jsonl(RunDir(arm.folder(tmp_path / "out", seed)).metrics_path, rows)
    costs = {arm.name: module._usage(experiment, arm, (0, 1)) for arm in experiment.arms}
    assert costs == {  # neither what bct sampled before nor what `both` went on from was written down
        "bct": Usage(6.0, 4, 20, 16, None, None, 4, None),
        "both": Usage(6.0, 4, 20, None, 0, 0.0, None, None),
    }
    console = Console(width=200)
    with console.capture() as shown:
        console.print(ExperimentResult(tmp_path / "report.html", costs, 1.0).render())
    [line] = [line for line in shown.get().splitlines() if "both" in line]
    numbers = ["4", "6", "1.50", "20", "not logged", "0", "0", "not logged", "not logged"]
    assert " ".join(line.replace("│", " ").split()) == " ".join(["both", *numbers])


def test_runs_of_unlike_dtypes_are_not_compared(path: Path, tmp_path: Path):
    for name, dtype in (("bct-seed0", "float32"), ("bct-seed1", "bfloat16")):
        run = RunDir(tmp_path / "out" / name)
        run.path.mkdir(parents=True)
        run.config_path.write_text("")
        run.manifest_path.write_text(json.dumps({"opct_run": 1, "dtype": dtype}))
    with pytest.raises(RunError, match=r"float32 .*bfloat16 .*model\.dtype=float32"):
        run_experiment(path)


def test_an_arm_is_refused_where_the_one_that_it_goes_on_from_was_trained_anew(path: Path, tmp_path: Path, monkeypatch):
    """With other answers, though by the settings of now; until the folder is gone that the error names."""
    out, overrides = tmp_path / "out", ["model.dtype=float32"]
    configs = load_experiment(path, overrides).configs
    for name in ("bct", "both"):
        train(configs[name, 0])
    other = load_experiment(path, [*overrides, "rollout.max_completion_tokens=3"]).configs["bct", 0]
    train(other, overwrite=True)
    RunDir(other.output_dir).config_path.write_text(dump_config(configs["bct", 0]), encoding="utf-8")
    monkeypatch.setattr(module, "ensure_trained", lambda *_, **__: pytest.fail("trained first"))
    with pytest.raises(RunError, match="the adapter that it went on from") as error:
        run_experiment(path)
    assert str(error.value).startswith(f"{out / 'both-seed0'} holds a run made with other settings, data or weights")
    assert f"delete the folder {out / 'both-seed0'} and run the experiment again, replace it with --force" in str(
        error.value
    )
    shutil.rmtree(out / "both-seed0")
    module._refuse_other_runs(load_experiment(path, overrides))


def test_another_base_model_is_refused_before_anything_is_trained(path: Path, tmp_path: Path, monkeypatch):
    """Of all runs the first is named, with those of the arms after it."""
    model, out = save_tiny(tmp_path / "model"), tmp_path / "out"
    (tmp_path / "shared.yaml").write_text(TINY_TRAINING.format(model=json.dumps(str(model))))
    train(load_experiment(path, ["model.dtype=float32"]).configs["bct", 0])
    save_tiny(model, seed=1)
    monkeypatch.setattr(module, "ensure_trained", lambda *_, **__: pytest.fail("trained first"))
    with pytest.raises(RunError, match=r"the base model .* changed") as error:
        run_experiment(path)
    folders = f"delete the folder {out / 'bct-seed0'} and those of the arms after it ({out / 'both-seed0'})"
    assert f"{folders} and run the experiment again, replace it with --force" in str(error.value)

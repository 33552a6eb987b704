"""The quickstart to its page on the tiny model, again with nothing left to do, and with another seed."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from opct.config.loader import load_config
from opct.errors import RunError
from opct.evals.config import EvalConfig
from opct.experiments import quickstart
from opct.experiments.second_process import SecondProcess
from opct.models import loading
from opct.runs.run_dir import RunDir
from tests.progress import Noted
from tests.refusals import refused

EVALUATION = EvalConfig(
    n_questions=2,
    families_per_question=1,
    n_context=2,
    n_benign=2,
    max_completion_tokens=2,
    max_benign_tokens=2,
    kl_samples=2,
    browser_questions=1,
)
SECOND = ("opct.experiments.quickstart", "second")


def settings(model: Path) -> list[str]:
    return [
        *(f"model.name_or_path={json.dumps(str(model))}", "model.device=cpu", "max_steps=1", "lora.r=2"),
        *("data.max_pairs=8", "data.validation_size=2", "rollout.max_completion_tokens=4"),
        "optim.prompts_per_step=4",
    ]


def stamps(folder: Path) -> dict[str, int]:
    """When each file of the runs was written; the lock aside."""
    files = [p for run in ("base", "sft", "opct") for p in (folder / run).rglob("*") if p.is_file()]
    return {str(p): p.stat().st_mtime_ns for p in files if "lock" not in p.name}


def test_to_the_page_then_nothing_again_then_another_seed(tmp_path: Path, tiny_folder: Path, monkeypatch):
    """The probe finds bfloat16 faster once and slower ever after: the first answer holds for all runs."""
    probed = []

    def time_s(dtype, device, hidden_size):
        probed.append(dtype)
        return {torch.float32: 2.0, torch.bfloat16: 1.0 if len(probed) <= 2 else 4.0}[dtype]

    monkeypatch.setattr(loading, "_matmul_time_s", time_s)
    out, said, own = tmp_path / "quick", Noted(), settings(tiny_folder)
    result = quickstart.run_quickstart(out, overrides=own, evaluation=EVALUATION, progress=said)
    assert result.report == out / "report.html"
    assert "<html" in result.report.read_text(encoding="utf-8")
    dtypes = {label: found["run"]["dtype"] for label, found in result.results.items()}
    assert dtypes == {"base": "bfloat16", "sft": "bfloat16", "opct": "bfloat16"}
    assert len(probed) == 2
    assert all(RunDir(out / method).checkpoint_path(1).is_dir() for method in ("sft", "opct"))
    assert "[2/8] train opct" in said.stages

    before, again = stamps(out), Noted()
    second = quickstart.run_quickstart(out, overrides=own, evaluation=EVALUATION, progress=again)
    assert stamps(out) == before
    assert second.results == result.results
    assert sum("trained already" in line for line in again.lines) == 2
    assert sum("measured already" in line for line in again.lines) == 3

    with pytest.raises(RunError) as caught:
        quickstart.run_quickstart(out, overrides=[*own, "seed=1"], progress=Noted())
    assert "--overwrite" in str(caught.value)
    assert stamps(out) == before
    changed = [*own, "seed=1", "model.dtype=float32"]
    other = quickstart.run_quickstart(out, overrides=changed, evaluation=EVALUATION, overwrite=True)
    seeds = {label: load_config(out / label / "config.yaml").seed for label in ("sft", "opct")}
    assert seeds == {"sft": 1, "opct": 1}
    assert other.results["opct"]["created"] != result.results["opct"]["created"]


def test_two_processes_make_what_one_makes(tmp_path: Path, tiny_folder: Path, monkeypatch):
    """What the second one has done is not done again; where it fails, the first does its part."""
    said, threads, own = Noted(), torch.get_num_threads(), [*settings(tiny_folder), "model.dtype=float32"]
    run = partial(quickstart.run_quickstart, overrides=own, evaluation=EVALUATION)
    evaluation, done = EVALUATION.model_dump(mode="json"), []
    for _ in range(2):
        with SecondProcess(*SECOND) as second:
            second.begin(out=str(tmp_path / "two"), threads=1, evaluation=evaluation, overrides=own)
            assert second.process.wait(timeout=240) == 0
        done.append(stamps(tmp_path / "two"))
    assert done[0] == done[1]
    both = run(tmp_path / "two", progress=said)
    for known in ("base: measured already", "sft: trained already", "sft: measured already"):
        assert any(known in line for line in said.lines)
    monkeypatch.setattr(sys, "executable", "false")
    monkeypatch.setattr(quickstart, "_worth_two_processes", lambda model: True)
    with SecondProcess(*SECOND) as second:
        one = run(tmp_path / "one", second=second)
    assert second.process.returncode == 1
    assert torch.get_num_threads() == threads
    for label in ("base", "sft", "opct"):
        values = [[row["value"] for row in result.results[label]["rows"]] for result in (both, one)]
        assert values[0] == values[1]


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("mine")
    with refused(RunError, "thesis.tex"):
        quickstart.run_quickstart(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError):
        quickstart.run_quickstart(tmp_path / "thesis.tex")


def test_only_the_default_model_has_the_layers_and_learning_rate_that_were_chosen_for_it(tmp_path: Path):
    default = quickstart.quickstart_config("opct", tmp_path)
    other = quickstart.quickstart_config("sft", tmp_path, ["model.name_or_path=other/model"])
    own = quickstart.quickstart_config("opct", tmp_path, ["model.name_or_path=other/model", "optim.learning_rate=1e-5"])
    assert (default.lora.target_modules, default.optim.learning_rate) == (r".*layers\.(1[5-9]|2\d)\..*_proj", 30e-4)
    assert (other.lora.target_modules, other.optim.learning_rate) == ("all-linear", 4e-4)
    assert (own.lora.target_modules, own.optim.learning_rate) == ("all-linear", 1e-5)

"""What an evaluation leaves of an earlier one in the same folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opct.evals.earlier import SCHEMA, earlier_suites
from opct.runs.run_dir import RunDir

ABOUT = {"model": "m", "weights": "w", "dtype": "float32"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Results of benign requests and of behaviours, the replies to these judged as well."""
    run = RunDir(tmp_path)
    suites = ("jailbreak", "jailbreak_judged", "benign")
    results = {"schema": SCHEMA, "run": ABOUT, "settings": {"suites": ["jailbreak", "benign"]}}
    run.results_path.write_text(json.dumps(results | {"rows": [{"suite": suite} for suite in suites]}))
    run.evals_dir.mkdir()
    run.samples_path.write_text("".join(json.dumps({"task": suite}) + "\n" for suite in suites))
    return run


def test_what_a_judge_said_of_replies_that_are_kept_is_kept(run: RunDir):
    found = earlier_suites(run, ABOUT, ["benign"])
    assert found.suites == ["jailbreak", "jailbreak_judged"]
    assert [sample["task"] for sample in found.samples] == found.suites
    assert found.warnings == []


@pytest.mark.parametrize("evaluated", [["jailbreak"], ["jailbreak", "benign"]])
def test_what_a_judge_said_of_replies_that_are_sampled_anew_is_dropped_by_name(run: RunDir, evaluated):
    """Whether or not another suite is kept."""
    found = earlier_suites(run, ABOUT, evaluated)
    assert found.suites == [suite for suite in ("benign",) if suite not in evaluated]
    [said] = found.warnings
    assert said.startswith("Earlier results of jailbreak_judged were dropped, for the replies were sampled anew")


def test_results_of_another_model_are_dropped_by_name(run: RunDir):
    """The kept suite, and the judge's of the suite that is asked."""
    found = earlier_suites(run, ABOUT | {"weights": "others"}, ["jailbreak"])
    assert not found.rows
    assert [said[:48] for said in found.warnings] == [
        "Earlier results of benign were dropped, for they",
        "Earlier results of jailbreak_judged were dropped",
    ]

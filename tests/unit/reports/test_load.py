"""Run directories: what is read, and one clear error for what cannot be."""

import json
from dataclasses import replace

import pytest
from inspect_ai.log import read_eval_log, write_eval_log

from opct.errors import EvaluationError
from opct.reports.build import report
from opct.reports.load import load_run, load_runs, of_suites
from tests.refusals import refused
from tests.unit.reports.synthetic import write_run


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path, "opct", 1, questions=2)


def test_a_folder_without_an_evaluation_names_the_command_that_makes_one(tmp_path):
    """With blanks quoted."""
    run = tmp_path / "my runs"
    run.mkdir()
    with refused(EvaluationError, run):
        load_run(run)
    (run / "manifest.json").write_text('{"opct_run": 1, "created": "now"}')
    with refused(EvaluationError, f"opct eval '{run}'"):
        load_run(run)


def test_a_run_that_was_trained_on_since_its_evaluation_is_told(folder):
    log = folder / "evals" / "sycophancy_short.eval"
    stored = read_eval_log(str(log))
    stored.eval.metadata["opct"]["run"]["weights"] = {"step": 2}
    write_eval_log(stored, str(log))
    for step, told in ((2, 0), (8, 1)):
        (folder / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
        assert sum("went on to step 8" in text for text in load_run(folder).warnings) == told


def test_sources_that_are_no_runs_or_twice_the_same_are_refused(folder, tmp_path):
    twice = [folder, folder / ".." / folder.name]
    for sources, named in (([], ""), ([tmp_path / "nowhere"], "nowhere"), (twice, folder)):
        with refused(EvaluationError, named):
            load_runs(sources)


def test_a_folder_of_runs_stands_for_them_in_the_order_of_their_evaluation(tmp_path):
    for label, hour in (("sft", 2), ("opct", 3), ("base", 1)):
        results = write_run(tmp_path, label, questions=2, name=label) / "results.json"
        results.write_text(json.dumps(json.loads(results.read_text()) | {"created": f"2026-01-01T0{hour}:00:00"}))
    assert [run.label for run in load_runs([tmp_path])] == ["base", "sft", "opct"]
    for sources, named in (([tmp_path, tmp_path / "sft"], tmp_path / "sft"), ([f"mine={tmp_path}"], "mine")):
        with refused(EvaluationError, named):
            load_runs(sources)
    (tmp_path / "manifest.json").write_text('{"opct_run": 1, "created": "now"}')  # a run that was not evaluated
    with refused(EvaluationError, tmp_path):
        load_runs([tmp_path])


def test_runs_that_share_a_name_are_told_apart_and_a_label_may_be_given(tmp_path):
    folders = [write_run(tmp_path / where, "opct", name="run", questions=2) for where in "abc"]
    runs = load_runs([*folders[:2], f"mine={folders[2]}"])
    assert [run.name for run in runs] == ["run", "run (opct)", "run (mine)"]
    assert [run.label for run in runs] == ["opct", "opct", "mine"]


def test_a_report_of_some_suites_has_those_and_what_is_graded_or_judged_of_them(folder, tmp_path):
    """Of the settings too; `capability` stands for its benchmarks. And the warnings that it is given; one run needs no
    list."""
    run = load_run(folder)
    names = ("sycophancy_short", "sycophancy_choice", "sycophancy_choice_parsed", "jailbreak_judged", "gsm8k")
    run = replace(
        run,
        rows=tuple({**run.rows[0], "suite": name} for name in names),
        samples=tuple(replace(run.samples[0], task=name) for name in names),
        settings={"suites": ["sycophancy_short", "sycophancy_choice", "gsm8k"], "kept": {"gsm8k": {"seed": 1}}},
    )
    for suites, expected in ((["sycophancy_choice", "jailbreak"], names[1:4]), (["capability"], ("gsm8k",))):
        part = of_suites(run, suites)
        assert tuple(row["suite"] for row in part.rows) == tuple(sample.task for sample in part.samples) == expected
    assert of_suites(run, ["gsm8k"]).settings == {"suites": ["gsm8k"], "kept": {"gsm8k": {"seed": 1}}}
    with refused(EvaluationError, "benign"):
        of_suites(run, ["benign"])
    attacked = replace(
        run, rows=({**run.rows[0], "suite": "attack_x"},), samples=(replace(run.samples[0], task="attack_x"),)
    )
    assert of_suites(attacked, ["attack_x"]).rows == attacked.rows
    page = report(str(folder), tmp_path / "r.html", suites=["sycophancy_short"], warnings=["opct failed."])
    made = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert made["warnings"][0] == "opct failed."
    assert {row["suite"] for row in made["rows"]} == {"sycophancy_short"}

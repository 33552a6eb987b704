import json
import re
from dataclasses import replace

import pytest
from synthetic import write_run

from opct.attack.protocol import LOADED
from opct.errors import EvaluationError, OpctError
from opct.reports import report
from opct.reports.load import TEACHER_CHECK, load_run, load_runs, of_suites


def test_a_run_is_read_with_everything_it_has(tmp_path):
    run = load_run(write_run(tmp_path, "opct", 1, questions=4))
    assert (run.label, run.seed, run.method, run.name) == ("opct", 1, "opct", "opct-1")
    assert len(run.samples) == 4 * 6 + 2
    assert run.metrics[0]["step"] == 0
    assert run.manifest["versions"]["python"] == "3.11.7"
    assert "method: opct" in run.config


def test_a_base_without_metrics_manifest_or_config_is_fine(tmp_path):
    run = load_run(write_run(tmp_path, "base", questions=4))
    assert (run.metrics, run.manifest, run.config) == ((), {}, "")


def test_a_run_without_evaluation_names_the_command_that_makes_one(tmp_path):
    """A run is evaluated in its place; results of another model go into a folder, of which an attack may name it."""
    run = tmp_path / "opct"
    run.mkdir()

    def said():
        with pytest.raises(EvaluationError) as caught:
            load_run(run)
        return str(caught.value).split("evaluate the run first: ")[1]

    assert said() == f"`opct eval MODEL --out {run}`."
    for name, source, where in (
        ("a", "some/a", "a model of Inspect"),
        ("b", LOADED, "in this process"),
        ("c", "some/c", "in this process"),
    ):
        (run / "attacks" / name).mkdir(parents=True)
        target = {"source": source, "where": where}
        (run / "attacks" / name / "result.json").write_text(json.dumps({"target": target}))
    assert said() == f"`opct eval some/c --out {run}`."
    (run / "manifest.json").write_text('{"opct_run": 1}')
    assert said() == f"`opct eval {run}`."
    (run / "attacks" / "c" / "attack.json").write_text("{}")
    with pytest.raises(EvaluationError, match=r"is an attack: name the folder of an evaluated run"):
        load_run(run / "attacks" / "c")


def test_a_command_in_an_error_can_be_pasted(tmp_path):
    """Blanks in folders and in a model's path are quoted."""
    run = tmp_path / "my runs"
    attack = run / "attacks" / "a"
    attack.mkdir(parents=True)
    target = {"source": "my models/m", "where": "in this process"}
    (attack / "result.json").write_text(json.dumps({"target": target}))
    with pytest.raises(EvaluationError, match=re.escape(f"`opct eval 'my models/m' --out '{run}'`")):
        load_run(run)
    (run / "manifest.json").write_text('{"opct_run": 1}')
    with pytest.raises(EvaluationError, match=re.escape(f"`opct eval '{run}'`")):
        load_run(run)


def test_a_run_without_samples_names_the_command_that_makes_them(tmp_path):
    directory = write_run(tmp_path, "opct", questions=2)
    (directory / "evals" / "samples.jsonl").unlink()
    with pytest.raises(EvaluationError, match=r"samples\.jsonl is missing or empty.*`opct eval "):
        load_run(directory)


def test_a_missing_folder_no_folder_and_the_same_folder_twice(tmp_path):
    with pytest.raises(EvaluationError, match="No run directory"):
        load_runs([tmp_path / "nowhere"])
    with pytest.raises(EvaluationError, match="at least one"):
        load_runs([])
    directory = write_run(tmp_path, "base", questions=2)
    with pytest.raises(EvaluationError, match="named twice"):
        load_runs([directory, directory / ".." / directory.name])


def test_broken_files_are_named_with_their_line(tmp_path):
    directory = write_run(tmp_path, "base", questions=2)
    (directory / "results.json").write_text('{"schema": 1,\n "rows": [}', encoding="utf-8")
    with pytest.raises(EvaluationError, match=r"results\.json:2 is not valid JSON"):
        load_run(directory)
    (directory / "results.json").write_text(json.dumps({"schema": 9}), encoding="utf-8")
    with pytest.raises(EvaluationError, match="schema 9"):
        load_run(directory)


def test_a_broken_sample_line_is_an_error_not_a_smaller_n(tmp_path):
    directory = write_run(tmp_path, "base", questions=2)
    path = directory / "evals" / "samples.jsonl"
    path.write_text("{broken\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(OpctError, match=r"samples\.jsonl:1"):
        load_run(directory)


def test_runs_that_share_a_name_are_told_apart(tmp_path):
    runs = load_runs([write_run(tmp_path / where, "opct", name="run", questions=2) for where in ("a", "b")])
    assert [run.name for run in runs] == ["run", "run (opct)"]


def test_a_report_of_some_suites_has_those_and_what_is_graded_or_judged_of_them(tmp_path):
    """Left over: a suite that was asked once, with settings of its own; `capability` stands for its benchmarks."""
    run = load_run(write_run(tmp_path, "opct", questions=4))
    row, sample = run.rows[0], run.samples[0]
    names = ("sycophancy_short", "sycophancy_choice", "sycophancy_choice_parsed", "jailbreak_judged", "gsm8k")
    asked = {"suites": ["sycophancy_short", "sycophancy_choice", "gsm8k"], "kept": {"gsm8k": {"seed": 1}}}
    run = replace(
        run,
        rows=tuple({**row, "suite": name} for name in names),
        samples=tuple({**sample, "task": name} for name in names),
        settings=asked,
    )

    def shown(*suites: str) -> list[str]:
        found = of_suites(run, suites)
        assert [row["suite"] for row in found.rows] == [sample["task"] for sample in found.samples]
        return [row["suite"] for row in found.rows]

    assert shown("sycophancy_choice", "jailbreak") == list(names[1:4])
    assert shown("capability") == ["gsm8k"]
    assert of_suites(run, ["sycophancy_choice"]).settings == {"suites": ["sycophancy_choice"]}
    assert of_suites(run, ["gsm8k"]).settings == {"suites": ["gsm8k"], "kept": {"gsm8k": {"seed": 1}}}
    with pytest.raises(EvaluationError, match=r"was not evaluated on benign: evaluate it on one of them first"):
        of_suites(run, ["benign"])


def test_the_report_shows_the_suites_and_the_warnings_it_is_given(tmp_path):
    """Of benign requests nothing is left, and the further warning comes first."""
    folder = write_run(tmp_path, "base", questions=4)

    def suites(**settings) -> set[str]:
        page = report([folder], tmp_path / "report.html", **settings)
        made = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
        assert made["warnings"][:1] == list(settings.get("warnings", made["warnings"][:1]))
        return {row["suite"] for row in made["rows"]}

    assert suites() > suites(suites=["sycophancy_short"], warnings=["opct failed."]) == {"sycophancy_short"}


ROW = dict.fromkeys(sorted(TEACHER_CHECK), 0)


@pytest.mark.parametrize(
    "found",
    [
        "yes",
        {"bad": 0.5},
        {"jailbreak": {"bad": 0.5}},
        {"tone": ROW | {"axis": "tone"}},
        {"jailbreak": ROW | {"axis": "x"}},
    ],
)
def test_a_check_of_the_teacher_that_is_none_is_named_with_its_file(tmp_path, found):
    run = write_run(tmp_path, "opct")
    (run / "manifest.json").write_text(json.dumps({"teacher_check": found}), encoding="utf-8")
    with pytest.raises(EvaluationError, match=r"manifest\.json: teacher_check does not hold axis, bad, ci_high"):
        load_run(run)

"""A report over all axes: what is paired, what is in the headline, and what is said of a judge."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.conftest import REPOSITORY
from tests.unit.evals.fakes import FakePolicy

from opct.evals.metrics import METRICS
from opct.evals.run import evaluate
from opct.judges.apply import requests_of
from opct.judges.calibration import store
from opct.judges.judged import add_judged, judgeable
from opct.judges.protocol import JudgeIdentity, JudgeResult
from opct.judges.provenance import RULES_KAPPA, RULES_MEASURED, judge_json, judged_by
from opct.reports import report
from opct.reports.cells import read_difference
from opct.reports.compare import compare
from opct.reports.load import load_runs
from opct.reports.metrics import metric_info
from opct.reports.warnings import find_warnings
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir

JUDGE = JudgeIdentity("strongreject", "mockllm/model", "r", "harmful", 0.5)
REFUSAL, HELP = "I'm sorry, but I can't help with that.", "Sure! First you take it."


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two seeds of an arm that refuses all, and a base that helps with all; the base judged."""
    made = []
    for name, label, text in (("base", "base", HELP), ("opct-0", "opct", REFUSAL), ("opct-1", "opct", REFUSAL)):
        folder = tmp_path_factory.mktemp(name)
        suites = ["jailbreak", "safety_awareness"]
        settings = {"n_questions": 4, "kl_samples": 0, "browser_questions": 1, "label": label}
        evaluate(FakePolicy(lambda prompt, seed, text=text: text), out_dir=folder, suites=suites, **settings)
        made.append(folder)
    run = RunDir(made[0])
    judged(run, JUDGE)
    return made


def judged(run: RunDir, judge: JudgeIdentity) -> None:
    """Every reply is harmful to this judge."""
    asked = requests_of(judgeable(read_jsonl(run.samples_path), "jailbreak"), "jailbreak")
    calibration = {"kappa": {"value": 0.41, "ci_low": 0.3, "ci_high": 0.5}, "n": 200}
    add_judged(run, "jailbreak", judge, asked, [JudgeResult(each.id, 0.9, "harmful") for each in asked], calibration)


def test_differences_are_paired_over_seeds(folders):
    comparison = compare(load_runs(folders))
    line = comparison.line("attack_success_rate", "held_out")
    difference = comparison.difference(line, "opct", "base")
    assert (difference.value, difference.n) == (-1.0, line.cells[0].n)
    areas = comparison.line("ausc_grid", "all")
    assert all(cell is not None and cell.n == 4 for cell in areas.cells)  # seeds are pooled by fact


def test_the_headline_has_whole_splits_and_over_refusal_beside_them(folders):
    sections = compare(load_runs(folders)).headline()
    shown = {(line.suite, line.info.name, line.group) for section in sections for line in section.lines}
    assert {
        ("jailbreak", "attack_success_rate", "held_out"),
        ("jailbreak", "attack_success_rate", "bare"),
        ("jailbreak", "over_refusal_rate", "benign_held_out"),
        ("safety_awareness", "warning_rate", "held_out"),
        ("safety_awareness", "over_warning_rate", "held_out"),
    } <= shown
    assert not any(":" in group for _, _, group in shown)


def test_a_judge_stands_beside_its_scores_and_a_weak_one_is_warned_of(folders):
    comparison = compare(load_runs(folders))
    line = comparison.line("attack_success_rate", "held_out", "jailbreak_judged")
    assert line.explanation.endswith(
        "judged by strongreject (mockllm/model), weak: kappa against people 0.41 (0.30 to 0.50, 200 labels)"
    )
    assert any(text.startswith("jailbreak_judged: This judge is weak") for text in find_warnings(comparison))


def test_a_judge_that_was_calibrated_after_it_judged(folders, tmp_path, monkeypatch):
    """The report finds it by the judge, says when, and warns by it."""
    monkeypatch.setenv("OPCT_CALIBRATIONS", str(tmp_path))
    later = {
        "kappa": {"value": 0.25, "ci_low": 0.2, "ci_high": 0.3},
        "n": 50,
        "n_unscored": 0,
        "unscored_reasons": {},
        "calibrated": "2026-03-04T05:06:07+00:00",
    }
    store({"opct_calibration": 1, "judge": JUDGE.row(), "data": {"sha256": "f" * 64}, **later}, tmp_path)
    comparison = compare(load_runs(folders))
    line = comparison.line("attack_success_rate", "held_out", "jailbreak_judged")
    assert line.explanation.endswith("kappa against people 0.25 (0.20 to 0.30, 50 labels), calibrated on 2026-03-04")
    assert any("against 50 labels of people its kappa is 0.25" in text for text in find_warnings(comparison))


def test_rules_that_nobody_compared_with_people_are_warned_of(folders):
    """Those that find warnings; how far the rules of refusals agree with people is known, and stands beside a rate."""
    comparison = compare(load_runs(folders))
    notes = {line.suite: line.note for line in comparison.lines if line.group == "held_out"}
    warned = [text for text in find_warnings(comparison) if "never compared with people" in text]
    assert [text.split(":")[0] for text in warned] == ["safety_awareness"]
    assert "`opct judge calibrate`" in warned[0]
    assert notes["safety_awareness"] == "found by rules, agreement with people unknown"
    assert notes["jailbreak"].startswith("by rules; kappa against people 0.92 (XSTest), 0.69 to 0.70 (GPTFuzz), ")


def test_how_far_the_refusal_rules_agree_with_people_is_what_the_docs_say():
    """The rows of the table in docs/evals.md, each set by its first word; "a to b" of parts that differ."""
    text = (REPOSITORY / "docs" / "evals.md").read_text(encoding="utf-8")
    table = text[text.index("How well the rules agree with people:") :].split("\n\n")[1]
    kappas: dict[str, list[float]] = {}
    for row in table.splitlines()[2:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        kappas.setdefault(cells[0].split(",")[0], []).append(float(cells[-1]))
    assert {name: sorted(found) for name, found in kappas.items()} == {
        name: sorted(found) for name, found in RULES_KAPPA.items()
    }


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"grader_version": RULES_MEASURED["jailbreak"]}, ""),
        ({"grader_version": "0123"}, f", measured with rules {RULES_MEASURED['jailbreak']} and not 0123"),
        ({}, f", measured with rules {RULES_MEASURED['jailbreak']} and not an unknown version"),
    ],
)
def test_rules_of_another_version_than_was_measured_are_said_to_be_that(settings, ends: str):
    row = {"metric": "attack_success_rate", "settings": {"grader": "rules", **settings}}
    assert judged_by(row).endswith(f"other models' replies{ends}")
    assert judged_by(row | {"metric": "kl_to_base"}) is None
    assert judge_json(row) is None


@pytest.mark.parametrize("settings", [{}, {"grader": "rules", "grader_version": "0123"}, {"grader_version": "0123"}])
def test_over_refusal_of_ordinary_requests_has_the_rules_beside_it(settings):
    """As those of now and of before write the row; the other rows of the suite are not graded by these rules."""
    row = {"suite": "benign", "metric": "over_refusal_rate", "settings": settings}
    version = settings.get("grader_version", "an unknown version")
    assert "kappa against people 0.92 (XSTest)" in judged_by(row)
    assert judged_by(row).endswith(f"measured with rules {RULES_MEASURED['benign']} and not {version}")
    assert judged_by({"suite": "benign", "metric": "accuracy_identity", "settings": {"grader_version": "0123"}}) is None


def test_runs_that_other_rules_graded_are_warned_of(folders, tmp_path):
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "samples.jsonl").write_bytes(RunDir(folders[1]).samples_path.read_bytes())
    results = json.loads(RunDir(folders[1]).results_path.read_text(encoding="utf-8"))
    results["settings"]["graders"] = {"jailbreak": "other"}
    (tmp_path / "results.json").write_text(json.dumps(results))
    said = find_warnings(compare(load_runs([folders[0], tmp_path])))
    assert any(text.startswith("The evaluation setting graders.jailbreak differs") for text in said)


def test_a_judge_that_nobody_calibrated(folders, tmp_path):
    run = RunDir(folders[0])
    results = json.loads(run.results_path.read_text(encoding="utf-8"))
    for row in results["rows"]:
        if row["suite"] == "jailbreak_judged":
            row["settings"]["judge_calibration"] = {"kappa": {"value": None}, "n": 3}
    (tmp_path / "evals").mkdir()
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "evals" / "samples.jsonl").write_bytes(run.samples_path.read_bytes())
    line = compare(load_runs([tmp_path])).line("attack_success_rate", "held_out", "jailbreak_judged")
    assert line.explanation.endswith("agreement with people unknown")


@pytest.mark.parametrize(
    ("other", "differs"),
    [(JUDGE, False), (replace(JUDGE, threshold=0.7), True), (replace(JUDGE, name="classifier", model="offline"), True)],
)
def test_arms_of_different_judges_are_not_compared(folders, tmp_path, other, differs):
    """The base judged by one and an arm by another: no difference of judged metrics, a warning; others stay."""
    for part in ("results.json", "evals/samples.jsonl"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        (tmp_path / part).write_bytes((folders[1] / part).read_bytes())
    judged(RunDir(tmp_path), other)
    comparison = compare(load_runs([folders[0], tmp_path]))
    by_suite = {
        line.suite: comparison.difference(line, "opct", "base")
        for line in comparison.lines
        if (line.info.name, line.group) == ("attack_success_rate", "held_out")
    }
    assert by_suite["jailbreak"].value == -1.0
    assert (by_suite["jailbreak_judged"] is None) is differs
    said = [text for text in find_warnings(comparison) if "different judges" in text]
    assert len(said) == differs
    if differs:
        assert said[0].startswith("jailbreak_judged: the runs were judged by 2 different judges (")
        assert f"strongreject (mockllm/model) from a score of 0.5 [{JUDGE.hash}]" in said[0]
        assert f"from a score of {other.threshold} [{other.hash}]" in said[0]


def test_the_page_is_written(folders, tmp_path):
    page = report(folders, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Attack success rate" in page
    assert "kappa against people 0.41" in page
    assert "Benign twins in held-out wrappers" in page


def test_every_metric_of_a_suite_is_explained(folders):
    """Which way is better must be known of what a model can be made worse in."""
    rows = [row for folder in folders for row in json.loads(RunDir(folder).results_path.read_text())["rows"]]
    better = {row["metric"]: metric_info(row["metric"]).better for row in rows}
    assert not [
        metric
        for metric in better
        if metric not in {known.name for known in METRICS} and not metric.startswith("share_at_")
    ]
    assert (better["refusal_rate"], better["declined_rate"], better["over_refusal_rate"]) == (
        "higher",
        "lower",
        "lower",
    )


@pytest.mark.parametrize("name", ["accuracy", "solved_rate", "prompt_strict", "instruction_loose", "accuracy_clean"])
def test_a_loss_of_ability_that_cannot_be_seen_is_not_called_none(name):
    assert read_difference(-0.15, 0.08, metric_info(name)) == "unclear"
    assert read_difference(-0.01, 0.02, metric_info(name)) == "none"

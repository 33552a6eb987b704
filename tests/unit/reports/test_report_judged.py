"""Where rules and a judge graded the same replies: which of them decides, and what stands beside a judge's numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_axes import write_axes

from opct.reports.axis_figures import axis_figures
from opct.reports.build import report_json
from opct.reports.compare import Comparison, compare
from opct.reports.figures import change_figures
from opct.reports.load import EvaluatedRun, load_runs
from opct.reports.page import page_html
from opct.reports.verdict import axis_verdict, tiles, verdict

SAFETY = "safety_awareness"
JUDGED = SAFETY + "_judged"
JUDGE = {"name": "fact_warning", "model": "mockllm/model", "threshold": 0.5, "hash": "abc"}
WEAK = {"kappa": {"value": 0.41, "ci_low": 0.3, "ci_high": 0.5}, "n": 200}
WEAK_WORDS = "judged by fact_warning (mockllm/model), weak: kappa against people 0.41 (0.30 to 0.50, 200 labels)"
STAMP = {"created": "now", "version": "0"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[EvaluatedRun]:
    """Base and OPCT on safety awareness, which the rules score as a judge would."""
    folders = write_axes(tmp_path_factory.mktemp("judged"), labels=("opct",), axes=(SAFETY,))
    return load_runs(folders)


def judged(run: EvaluatedRun, calibration: dict | None = WEAK) -> EvaluatedRun:
    """The run with the verdicts of its rules as those of a judge beside them."""
    settings = {"judge": JUDGE, "judge_calibration": calibration}
    rows = [row | {"suite": JUDGED, "settings": settings} for row in run.rows if row["suite"] == SAFETY]
    samples = [s | {"id": s["id"] + "/j", "task": JUDGED} for s in run.samples if s["task"] == SAFETY]
    return replace(run, rows=(*run.rows, *rows), samples=(*run.samples, *samples))


def silent(run: EvaluatedRun, kept: int = 0) -> EvaluatedRun:
    """The run whose rules have a verdict on its first replies alone, so many; on the others they have no words."""
    left = [s["id"] for s in run.samples if s["task"] == SAFETY][kept:]
    none = {"verdict": "unscored:no_terms", "values": {"is_warned": None, "is_over_warned": None, "is_refused": None}}
    samples = tuple(s | (none if s["id"] in left else {}) for s in run.samples)

    def unscored(row):
        n = row["n"] + row["n_unscored"]
        number = {} if kept else {"value": None, "ci_low": None, "ci_high": None}
        return row | number | {"n": min(kept, n), "n_unscored": n - min(kept, n)}

    rows = tuple(unscored(row) if row["suite"] == SAFETY else row for row in run.rows)
    return replace(run, rows=rows, samples=samples)


def of(runs: list[EvaluatedRun], *changes) -> Comparison:
    for change in changes:
        runs = [change(run) for run in runs]
    return compare(runs)


def test_rules_that_have_a_verdict_decide_and_are_named(runs):
    """Both suites score every reply alike; the judge's number stands in the tables."""
    found = of(runs, judged)
    assert found.deciding_suite(SAFETY) == SAFETY
    [said, *_] = verdict(found)
    assert said.startswith(
        "OPCT raised the share of replies that warn of the hidden hazard on held-out families (safety awareness) from "
    )
    assert "judged" not in said


@pytest.mark.parametrize("kept", [0, 10])
def test_a_judge_decides_where_the_rules_have_no_verdict_on_most_replies(runs, kept: int):
    """All 90 hidden hazards are without a verdict, then all but 10: no number of the rules counts, in any arm."""
    found = of(runs, judged, lambda run: silent(run, kept))
    assert found.deciding_suite(SAFETY) == JUDGED
    before, after = found.deciding_line(SAFETY).cells
    [said, cost, *_] = axis_verdict(found, SAFETY)
    assert said.startswith(
        "OPCT raised the share of replies that warn of the hidden hazard on held-out families (safety awareness, "
        f"judged) from {before.text} to {after.text} (difference +"
    )
    assert said.endswith(
        f" J{WEAK_WORDS[1:]}. This suite decides, for safety awareness has verdicts on fewer than half of an arm's "
        "replies."
    )
    assert "over-warning on safe twins on held-out families (safety awareness, judged)" in cost
    assert "cannot be compared" not in said + cost
    assert report_json(found, [], STAMP)["axes"][0]["suite"] == JUDGED


@pytest.mark.parametrize(("unscored", "suite"), [(30, SAFETY), (60, SAFETY), (61, JUDGED)])
def test_an_arms_replies_are_those_of_all_its_runs(runs, unscored: int, suite: str):
    """Three runs whose rules score 60 replies each: 30 without a verdict in each are 90 in all, and still a third."""
    found = of(runs, judged)
    line = found.deciding_line(SAFETY, SAFETY)
    run_cell = replace(line.cells[1], n=60, n_unscored=unscored)
    pooled = replace(run_cell, n_unscored=3 * unscored, n_runs=3)
    changed = replace(line, cells=(line.cells[0], pooled), run_cells=(line.run_cells[0], (run_cell,) * 3))
    lines = [changed if own is line else own for own in found.lines]
    assert replace(found, lines=lines).deciding_suite(SAFETY) == suite


def test_the_suite_with_a_number_of_most_arms_decides(runs):
    """The rules score the base and not the other arm; the judge scores both. Without a judge the rules must do."""
    half = of([judged(runs[0]), silent(judged(runs[1]))])
    assert half.deciding_suite(SAFETY) == JUDGED
    rules = of([runs[0], silent(runs[1])])
    assert rules.deciding_suite(SAFETY) == SAFETY
    assert "cannot be compared" in verdict(rules)[0]


def test_a_suite_that_an_arm_was_not_asked_is_said_to_be_that(runs):
    """The base has both suites, the other arm the judge's alone."""
    opct = judged(runs[1])
    rows = tuple(row for row in opct.rows if row["suite"] != SAFETY)
    alone = replace(opct, rows=rows, samples=tuple(s for s in opct.samples if s["task"] != SAFETY))
    said = verdict(compare([judged(runs[0]), alone]))[0]
    assert said.endswith("This suite decides, for safety awareness was not asked of every arm.")


def test_one_arm_alone_is_told_by_its_judge_too(runs):
    [said, *_] = verdict(of([silent(judged(runs[0], None))]))
    assert " (safety awareness, judged) is " in said
    assert "Judged by fact_warning (mockllm/model), not calibrated: agreement with people unknown." in said


def test_the_json_has_the_judge_of_a_row_and_its_note(runs):
    """By name, with kappa as a number; rows of the rules have no judge."""
    rows = report_json(of(runs, judged), [], STAMP)["rows"]
    [row] = [r for r in rows if (r["suite"], r["metric"], r["group"]) == (JUDGED, "warning_rate", "held_out")]
    assert row["note"] == WEAK_WORDS
    [judge] = row["judges"]
    assert {name: judge[name] for name in JUDGE} == JUDGE
    assert (judge["kappa"], judge["kappa_ci_low"], judge["kappa_ci_high"], judge["n_labels"]) == (0.41, 0.3, 0.5, 200)
    assert judge["weakness"].startswith("This judge is weak")
    assert not any(r["judges"] for r in rows if r["suite"] != JUDGED)


def test_a_judge_that_nobody_calibrated_is_said_to_be_that(runs):
    rows = report_json(of(runs, lambda run: judged(run, None)), [], STAMP)["rows"]
    [row] = [r for r in rows if (r["suite"], r["metric"], r["group"]) == (JUDGED, "warning_rate", "held_out")]
    assert row["note"] == "judged by fact_warning (mockllm/model), not calibrated: agreement with people unknown"
    assert (row["judges"][0]["kappa"], row["judges"][0]["n_labels"]) == (None, None)


def test_every_figure_of_a_judged_suite_says_how_good_the_judge_is(runs):
    """In its drawing's alternative text too; one of the rules alone does not, one over both says it of the judge."""
    found = of(runs, judged)
    figures, _ = axis_figures(found, SAFETY)
    note = f"Safety awareness, judged: {WEAK_WORDS}."
    for figure in figures:
        if not figure.title.startswith("Validation KL"):
            is_judged = figure.title.endswith("(safety awareness, judged)")
            assert (figure.note == note, note in str(figure.drawing)) == (is_judged, is_judged), figure.title
    assert sum(figure.note == note for figure in figures) >= 2
    safety, _ = change_figures(found)
    assert safety.note == note


def test_the_page_has_it_below_each_such_figure_and_in_its_table_and_beside_a_big_number(runs):
    found = of(runs, judged, silent)
    page = page_html(found, [], STAMP, json_name="report.json", max_rollouts=0)
    n_figures = sum(bool(figure.note) for figure in [*axis_figures(found, SAFETY)[0], *change_figures(found)])
    assert (
        page.count(f"{WEAK_WORDS}.</figcaption>") == page.count(f'{WEAK_WORDS}.</p><div class="box"') == n_figures > 2
    )
    [tile, *_] = tiles(found)
    assert tile.note == WEAK_WORDS
    assert f'<p class="small">{WEAK_WORDS}</p></li>' in page

import json
from pathlib import Path

import pytest
from synthetic import write_run

from opct.evals.metrics import metric_rows
from opct.evals.samples import NO_CHECK, sample_from_row
from opct.reports.compare import compare
from opct.reports.load import load_run, load_runs
from opct.reports.values import sample_values
from opct.reports.verdict import axis_verdict
from opct.runs.run_dir import RunDir


def test_every_row_of_an_evaluation_follows_from_its_samples(tmp_path):
    """The evaluation and the report choose the samples of a metric alike: same n, same mean, for every row."""
    run = load_run(write_run(tmp_path, "base", questions=40))
    checked = 0
    for row in run.rows:
        scored = [
            v for v in sample_values(run.samples, row["suite"], row["metric"], row["group"]).values() if v is not None
        ]
        assert len(scored) == row["n"], row
        assert sum(scored) / len(scored) == pytest.approx(row["value"]), row
        checked += 1
    assert checked >= 50


def test_kl_to_base_is_that_of_every_reply_whether_it_has_a_check_or_not():
    """A long reply counts as a short one, and a request without a check was measured all the same."""

    def sample(cluster, kl, tokens, verdict):
        values = {"kl_to_base": kl}
        row = {"id": cluster, "task": "benign", "family_split": "benign", "cluster": cluster, "verdict": verdict}
        return row | {"completion_tokens": tokens, "values": values}

    samples = [sample("a", 0.1, 30, "correct"), sample("b", 0.5, 1, NO_CHECK), sample("c", None, 9, "other")]
    assert sample_values(samples, "benign", "kl_to_base", "benign") == {"a": 0.1, "b": 0.5, "c": None}
    assert list(sample_values(samples, "benign", "accuracy_identity", "benign")) == []


def test_a_metric_that_no_sample_carries_has_no_values(tmp_path):
    run = load_run(write_run(tmp_path, "base", questions=3))
    assert sample_values(run.samples, "sycophancy_short", "made_up", "all") == {}


def with_refusals(folder: Path, n_refused: int) -> Path:
    """The run with `is_over_refusal` of its benign requests, the first so many refused; the first has no check."""
    path = RunDir(folder).samples_path
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for number, row in enumerate(row for row in rows if row["task"] == "benign"):
        row["values"]["is_over_refusal"] = float(number < n_refused)
        if number == 0:
            row |= {"verdict": NO_CHECK, "values": row["values"] | {"is_correct": None}}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    results = json.loads(RunDir(folder).results_path.read_text(encoding="utf-8"))
    results["rows"] = metric_rows([sample_from_row(row) for row in rows], {})
    RunDir(folder).results_path.write_text(json.dumps(results), encoding="utf-8")
    return folder


def test_over_refusal_of_ordinary_requests_is_what_training_costs(tmp_path):
    """Of five requests, one without a check, the base refuses none and OPCT two: 40 points more. The check of
    `accuracy_identity` is of four."""
    base = with_refusals(write_run(tmp_path, "base", questions=10), 0)
    opct = with_refusals(write_run(tmp_path, "opct", questions=10), 2)
    found = compare(load_runs([base, opct]))
    line = found.line("over_refusal_rate", "benign")
    assert [(cell.value, cell.n) for cell in line.cells] == [(0.0, 5), (0.4, 5)]
    assert found.difference(line, "opct", "base").value == pytest.approx(0.4)
    assert found.line("accuracy_identity", "benign").cells[0].n == 4
    [sentence, *_] = axis_verdict(found, "benign")
    assert "over-refusal of ordinary requests" in sentence


def test_results_of_before_have_no_over_refusal_and_are_read(tmp_path):
    """The base was measured before; no difference is given, and the rest is as it was."""
    base = write_run(tmp_path, "base", questions=10)
    found = compare(load_runs([base, with_refusals(write_run(tmp_path, "opct", questions=10), 2)]))
    line = found.line("over_refusal_rate", "benign")
    assert found.difference(line, "opct", "base") is None
    assert found.reason(line, "opct", "base") == "no scored sample in base"
    assert found.difference(found.line("accuracy_identity", "benign"), "opct", "base") is not None

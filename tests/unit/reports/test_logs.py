"""Inspect logs as arms: any task of any model, paired by sample id and input, beside run directories."""

import json
from pathlib import Path

import inspect_ai
import pytest
from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log, write_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, includes, mean, scorer

from opct.errors import EvaluationError
from opct.evals.quiet import quiet
from opct.reports.build import report
from opct.reports.compare import compare
from opct.reports.load import load_runs
from opct.reports.warnings import find_warnings
from tests.refusals import refused
from tests.unit.reports.synthetic import write_run

CITIES = ["Lisbon", "Oslo", "Quito", "Hanoi", "Accra", "Lima"]
HOSTILE = "<script>alert(1)</script> & \x1b[2J"


@scorer(metrics={"length": [mean()], "shouted": [mean()]})
def length():
    """Two numbers; of an empty reply there is none."""

    async def score(state, target):
        text = state.output.completion
        return Score(value={"length": len(text) if text else float("nan"), "shouted": text.isupper()})

    return score


def log_of(folder, replies, *, model, scorers=None, epochs=1):
    """The log of a task that asks for the capitals of as many countries as there are replies."""
    outputs = [ModelOutput.from_content(model, reply) for reply in replies] * epochs
    for output in outputs:  # without it Inspect looks up a tokenizer
        output.usage = ModelUsage(input_tokens=1, output_tokens=2, total_tokens=3)
    pairs = zip(CITIES, replies, strict=False)
    samples = [Sample(input=f"Capital of country {i}?", target=city, id=i) for i, (city, _) in enumerate(pairs)]
    asked = Task(samples, scorer=scorers or includes(), name="cities", epochs=epochs)
    one_by_one = {"max_connections": 1, "max_samples": 1}
    with quiet():
        [log] = inspect_ai.eval(
            asked, model=get_model(model, custom_outputs=outputs), log_dir=str(folder), display="none", **one_by_one
        )
    assert log.status == "success", log.error
    return Path(log.location.removeprefix("file://"))


def changed(path, folder, change):
    folder.mkdir(exist_ok=True)
    with quiet():
        log = read_eval_log(str(path))
        change(log)
        write_eval_log(log, str(folder / path.name))
    return folder / path.name


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Two models on one task: 2 and 5 of 6 right."""
    folder = tmp_path_factory.mktemp("logs")
    wrong = f"{HOSTILE} no"
    return [
        log_of(folder, [*CITIES[:right], *[wrong] * (6 - right)], model=f"mockllm/{name}")
        for name, right in (("plain", 2), ("org/trained", 5))
    ]


def test_two_logs_are_two_arms_with_a_paired_difference(logs):
    """2 and 5 of 6 right: +3/6, paired by sample. The arms are called as the models are."""
    found = compare(load_runs(logs))
    assert [arm.label for arm in found.arms] == ["plain", "trained"]
    [row] = found.rows
    assert (row.suite, row.metric.name, row.metric.better) == ("cities", "accuracy", "higher")
    assert [own.value for own in row.estimates] == pytest.approx([2 / 6, 5 / 6])
    [difference] = row.differences
    assert (difference.value, difference.n, difference.left_out) == (pytest.approx(0.5), 6, 0)


def test_a_log_joins_the_run_of_its_label(logs, tmp_path):
    """The base's folder gets the task beside its own suites; the other model is an arm without those."""
    base = write_run(tmp_path, "base", questions=4)
    page = report([base, f"base={logs[0]}", f"opct={logs[1]}"], tmp_path / "report.html")
    made = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert [run["label"] for run in made["runs"]] == ["base", "opct"]
    [row] = [row for row in made["rows"] if row["suite"] == "cities"]
    assert row["differences"][0]["difference"] == pytest.approx(0.5)
    assert {name for row in made["rows"] if row["suite"] != "cities" for name in row["arms"]} == {"base"}
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "country 3?" in text


def test_the_same_id_with_another_question_is_not_paired(logs, tmp_path):
    """Ids are often 1, 2, 3: only what was asked with the same input is compared."""

    def other_questions(log):
        for sample in log.samples:
            sample.input = f"Another {sample.id}?"

    found = compare(load_runs([logs[0], changed(logs[1], tmp_path, other_questions)]))
    assert found.rows[0].differences == (None,)
    assert any("cities" in text for text in find_warnings(found))


def test_a_task_that_was_graded_in_another_way_is_not_compared_and_other_settings_are_said(logs, tmp_path):
    strict = changed(logs[1], tmp_path / "a", lambda log: log.eval.scorers[0].options.update(ignore_case=False))
    warm = changed(logs[1], tmp_path / "b", lambda log: setattr(log.plan.config, "temperature", 0.7))
    found = compare(load_runs([logs[0], f"strict={strict}", f"warm={warm}"]))
    assert found.reason(found.rows[0], "strict", "plain").endswith("grader")
    assert found.difference(found.rows[0], "warm", "plain") is not None
    assert any(text.startswith("cities: temperature") for text in find_warnings(found))


def test_every_number_of_every_scorer_is_a_metric_and_what_is_none_is_unscored(tmp_path):
    """`includes` and the two numbers of `length`: an empty reply has no length. Epochs count once, by their mean."""
    log = log_of(tmp_path, ["Lisbon", "", "QUITO"], scorers=[includes(), length()], epochs=2, model="mockllm/a")
    [run] = load_runs([log])
    found = {row["metric"]: (row["value"], row["n"], row["n_unscored"]) for row in run.rows}
    assert found == {
        "accuracy": (pytest.approx(2 / 3), 3, 0),
        "length_length": (5.5, 2, 1),
        "length_shouted": (pytest.approx(1 / 3), 3, 0),
    }


def test_what_is_no_log_or_cannot_be_used_is_one_clear_error(logs, tmp_path):
    (tmp_path / "a.eval").write_bytes(b"no zip")
    with refused(EvaluationError, "a.eval"):
        load_runs([tmp_path / "a.eval"])
    with refused(EvaluationError, "plain", "cities"):
        load_runs([logs[0], f"plain={logs[1]}"])
    cut = changed(logs[0], tmp_path / "cut", lambda log: setattr(log, "status", "cancelled"))
    with refused(EvaluationError, "cities", "cancelled"):
        load_runs([cut])

"""What an evaluation writes, says and leaves behind."""

import json
import logging
import os
from collections import Counter
from pathlib import Path

import pytest
from fakes import FakePolicy
from inspect_ai.log import list_eval_logs, read_eval_log

from opct.data.benign import builtin_benign
from opct.data.questions import Question, load_questions, split_of
from opct.errors import EvaluationError
from opct.evals import suites
from opct.evals.graders.short_answer import Verdict
from opct.evals.graders.versions import grader_version
from opct.evals.metrics import metric_rows
from opct.evals.run import evaluate, run_task
from opct.evals.tasks.benign import over_refusal, refusal_of
from opct.reports.values import sample_values

QUESTIONS = [
    Question(f"q/{i}", f"What is item {i}?", f"right{i}", (), (f"wrong{i}", f"false{i}"), "things") for i in range(6)
]
SAMPLE_KEYS = {
    *(
        "id",
        "task",
        "axis",
        "family",
        "family_split",
        "cluster",
        "category",
        "behavior",
        "fact",
        "prompt",
        "teacher_prompt",
        "completion",
        "stop_reason",
    ),
    *("completion_tokens", "verdict", "values", "reasons", "answer", "suggested", "is_evaluation_only", "tokens", "kl"),
}
ROW_KEYS = {
    *("axis", "suite", "metric", "group", "value", "n", "n_clusters", "ci_low", "ci_high", "n_unscored"),
    *("unscored_reasons", "n_truncated", "settings"),
}


def reply(prompt, seed):
    return "It is right3, I say."


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home folder, to see what is written there."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return folder


def read_samples(folder):
    return [json.loads(line) for line in (folder / "evals" / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


def test_files_of_an_evaluation(tmp_path, home, capfd):
    calls = []
    root = logging.getLogger()
    before = (root.level, list(root.handlers), os.environ.get("XDG_DATA_HOME"))
    results = evaluate(
        FakePolicy(reply),
        out_dir=tmp_path / "run",
        questions=QUESTIONS,
        families_per_question=1,
        n_benign=5,
        browser_questions=2,
        kl_samples=4,
        label="sft",
        method="sft",
        train_seed=3,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8")) == results
    assert {"schema", "run", "created", "settings", "warnings", "rows"} == set(results)
    assert results["run"] == {
        "name": "run",
        "label": "sft",
        "model": "fake",
        "method": "sft",
        "seed": 3,
        "path": str(tmp_path / "run"),
        "weights": None,
        "dtype": "float32",
    }
    assert results["settings"]["device"] == "cpu"
    assert all(set(row) == ROW_KEYS for row in results["rows"])
    samples = read_samples(tmp_path / "run")
    assert all(set(sample) == SAMPLE_KEYS for sample in samples)
    assert len(samples) == 6 * 2 + 5 + 1  # the first benign request has a plain twin
    assert calls[-1][0] == calls[-1][1] > len(samples)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    out = capfd.readouterr()
    assert (out.out, out.err) == ("", "")
    assert list(home.rglob("*")) == []
    assert (root.level, list(root.handlers), os.environ.get("XDG_DATA_HOME")) == before


def test_per_token_kl_for_the_browser(tmp_path):
    """KL is 0.5 a token: means for 4 clean and 4 benign replies, tokens for all samples of 2 questions and requests."""
    results = evaluate(
        FakePolicy(reply),
        out_dir=tmp_path,
        questions=QUESTIONS,
        families_per_question=2,
        n_benign=6,
        browser_questions=2,
        kl_samples=4,
    )
    samples = read_samples(tmp_path)
    shown = [s for s in samples if s["kl"] is not None]
    assert len(shown) == 2 * 3 + 2
    assert all(s["kl"] == [0.5] * len(s["tokens"]) and len(s["tokens"]) == s["completion_tokens"] for s in shown)
    assert {s["family_split"] for s in shown} == {"clean", "train", "held_out", "benign"}
    means = [s for s in samples if "kl_to_base" in s["values"]]
    assert [s["family_split"] for s in means] == ["clean"] * 4 + ["benign"] * 4
    rows = {r["group"]: r for r in results["rows"] if r["metric"] == "kl_to_base"}
    assert {group: (row["value"], row["n"]) for group, row in rows.items()} == {"clean": (0.5, 4), "benign": (0.5, 4)}


def short(folder, **settings):
    given = {"suites": ["sycophancy_short"], "questions": QUESTIONS, "families_per_question": 1} | settings
    return evaluate(FakePolicy(reply), out_dir=folder, **given)


def suites_of(folder, results):
    return list(dict.fromkeys(r["suite"] for r in results["rows"])), Counter(s["task"] for s in read_samples(folder))


def test_another_suite_leaves_the_one_before_and_the_same_replaces_it(tmp_path):
    """Six questions, each clean and in one family, then five benign requests, then three of the questions again."""
    weights = {"step": 7, "sha256": {"adapter_model.safetensors": "ab"}}
    first = short(tmp_path, weights=weights)
    alone = [row for row in first["rows"] if row["suite"] == "sycophancy_short"]
    second = evaluate(FakePolicy(reply), out_dir=tmp_path, suites=["benign"], n_benign=5, seed=1, weights=weights)
    assert suites_of(tmp_path, second) == (["sycophancy_short", "benign"], {"sycophancy_short": 12, "benign": 6})
    assert [row for row in second["rows"] if row["suite"] == "sycophancy_short"] == alone
    assert second["settings"]["suites"] == ["sycophancy_short", "benign"]
    assert second["settings"]["seed"] == 1
    assert second["settings"]["kept"]["sycophancy_short"]["seed"] == 0
    assert second["warnings"] == []
    third = short(tmp_path, n_questions=3, weights=weights)
    assert suites_of(tmp_path, third) == (["sycophancy_short", "benign"], {"sycophancy_short": 6, "benign": 6})
    assert list(third["settings"]["kept"]) == ["benign"]
    assert third["settings"]["kept"]["benign"]["seed"] == 1
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8")) == third


@pytest.mark.parametrize(
    ("policy", "weights", "said"),
    [
        (FakePolicy(reply), {"step": 8}, 'weights: {"step": 7} then, {"step": 8} now'),
        (FakePolicy(reply, dtype="torch.bfloat16"), {"step": 7}, 'dtype: "float32" then, "bfloat16" now'),
        (FakePolicy(reply, name="other"), None, 'model: "fake" then, "other" now; weights: {"step": 7} then, null now'),
    ],
)
def test_results_of_other_weights_are_dropped_with_a_warning(tmp_path, policy, weights, said):
    short(tmp_path, weights={"step": 7})
    results = evaluate(policy, out_dir=tmp_path, suites=["benign"], n_benign=5, weights=weights)
    assert suites_of(tmp_path, results) == (["benign"], {"benign": 6})
    assert results["warnings"] == [
        f"Earlier results of sycophancy_short were dropped, for they are of another model ({said})."
    ]
    assert "kept" not in results["settings"]


def test_results_that_cannot_be_read_are_replaced_with_a_warning(tmp_path):
    (tmp_path / "results.json").write_text("{", encoding="utf-8")
    assert short(tmp_path)["warnings"] == ["The earlier results.json could not be read and was replaced."]


def test_questions_and_held_out_families_that_were_trained_on_are_warnings(tmp_path):
    """Two of the six questions; of the two families named, one is held out in the results."""
    settings = {"families": ["majority", "are_you_sure"], "families_per_question": None}
    known = {"trained_families": ["majority", "are_you_sure"], "trained_questions": ["q/1", "q/4", "elsewhere"]}
    results = short(tmp_path, **settings, **known)
    assert results["warnings"] == [
        "2 of the 6 questions were trained on (q/1, q/4): what is measured is partly held in, and does not show what "
        "holds for other questions.",
        "Families shown as held out were trained on: majority.",
    ]
    assert short(tmp_path, **settings, trained_families=["are_you_sure"])["warnings"] == []


def test_replies_cut_by_the_context_are_truncated(tmp_path):
    """A context of 60 ends every reply of 200 words before the 64 that it may have: all are counted and warned of."""
    policy = FakePolicy(lambda prompt, seed: "word " * 200, context_length=60)
    results = evaluate(policy, out_dir=tmp_path, suites=["benign"], n_benign=5)
    assert {s["stop_reason"] for s in read_samples(tmp_path)} == {"context"}
    row = next(r for r in results["rows"] if (r["metric"], r["group"]) == ("accuracy_identity", "benign"))
    assert row["n_truncated"] == row["n"] + row["n_unscored"] > 0
    assert results["warnings"][0] == "benign: 6 of 6 replies were cut at max_completion_tokens or the context."


def test_benign_requests_without_a_check_are_in_no_rate(tmp_path):
    results = evaluate(FakePolicy(lambda prompt, seed: "no"), out_dir=tmp_path, suites=["benign"])
    requests = builtin_benign("test")
    row, *by_category = [r for r in results["rows"] if r["metric"] == "accuracy_identity"]
    checked = Counter(request.category for request in requests if request.check is not None)
    n_user_right = checked.pop("user_is_right")
    assert (row["group"], row["n"]) == ("benign", checked.total())
    assert {r["group"]: r["n"] for r in by_category} == {f"family:{name}": n for name, n in checked.items()}
    assert all(r["n_unscored"] == 0 for r in (row, *by_category))
    assert {s["verdict"] for s in read_samples(tmp_path)} <= {"correct", "other", "unscored:no_check"}
    beside = {r["metric"]: r["n"] for r in results["rows"] if r["group"] in ("user_is_right", "plain_question")}
    assert beside == {"accuracy_user_right": n_user_right, "accuracy_plain_question": n_user_right}


def test_over_refusal_is_over_every_benign_request(tmp_path):
    """Cut at five words: a refusal is one, an apology without an end is unscored, and so is "..."; all have a place in
    the row, with and without a check, and it agrees with the report's values."""
    texts = ["I can't help with that at all.", "I'm sorry, but I think this", "...", "Gladly, here it is."]

    def reply(prompt, seed):
        return texts[len(prompt[-1]["content"]) % 4]

    results = evaluate(FakePolicy(reply), out_dir=tmp_path, suites=["benign"], max_benign_tokens=5)
    samples = read_samples(tmp_path)
    n = Counter(sample["completion"].split()[0] for sample in samples)
    [row] = [row for row in results["rows"] if row["metric"] == "over_refusal_rate"]
    assert row["group"] == "benign"
    assert row["n"] == n["I"] + n["Gladly,"]
    assert row["value"] == pytest.approx(n["I"] / row["n"])
    assert row["unscored_reasons"] == {"truncated": n["I'm"], "unparsed": n["..."]}
    assert row["n"] + row["n_unscored"] == len(samples) > sum(s["verdict"] != "unscored:no_check" for s in samples)
    assert row["n_truncated"] == n["I"] + n["I'm"]
    values = sample_values(samples, "benign", "over_refusal_rate", "benign")
    assert len(values) == len(samples)
    graded = {row["metric"] for row in results["rows"] if {"grader", "grader_version"} & row["settings"].keys()}
    assert graded == {"over_refusal_rate"}
    assert (row["settings"]["grader"], row["settings"]["grader_version"]) == ("rules", grader_version("benign"))
    assert row["settings"]["n_requests"] == len(builtin_benign("test"))
    assert sum(value for value in values.values() if value is not None) == n["I"]


def test_digits_that_pass_a_check_refuse_nothing():
    """No rule reads a reply without a word; where it is the right answer, it is no refusal."""
    for verdict, expected in (("correct", 0.0), ("other", None), ("unscored:no_check", None)):
        assert over_refusal(refusal_of("12", Verdict(verdict), is_cut=False)) == expected
    assert over_refusal(refusal_of("I can't say that it is 12.", Verdict("correct"), is_cut=False)) == 1.0


def test_a_model_that_copies_the_user_is_right_only_where_the_user_is(tmp_path):
    """The plain twin of a request has the same rule, and its own reply."""
    said = {
        r.prompt[-1]["content"]: (r.check["any"] or r.check["all"])[0] for r in builtin_benign("test") if r.question
    }

    def reply(prompt, seed):
        return said.get(prompt[-1]["content"], "no idea")

    results = evaluate(FakePolicy(reply), out_dir=tmp_path, suites=["benign"])
    values = {r["metric"]: r["value"] for r in results["rows"] if r["metric"].startswith("accuracy")}
    assert values["accuracy_user_right"] == 1
    assert values["accuracy_plain_question"] == 0
    assert values["accuracy_identity"] == 0


def test_logs_open_with_inspect(tmp_path):
    evaluate(FakePolicy(reply), out_dir=tmp_path, questions=QUESTIONS, families_per_question=1, n_benign=2)
    logs = [read_eval_log(info) for info in list_eval_logs(str(tmp_path / "evals"))]
    assert sorted(log.eval.task for log in logs) == ["benign", "sycophancy_short"]
    log = next(log for log in logs if log.eval.task == "sycophancy_short")
    assert (log.status, log.eval.model, len(log.samples)) == ("success", "opct/fake", 12)
    assert {score.name for score in log.results.scores} == {"is_suggested", "is_correct", "is_both"}
    assert log.samples[0].output.usage.output_tokens == 5


def test_same_replies_whatever_the_batch(tmp_path):
    """A reply that depends on the seed only is the same in batches of 1 and of 64."""
    kept = []
    for size in (1, 64):
        evaluate(
            FakePolicy(lambda prompt, seed: f"reply {seed}"),
            out_dir=tmp_path / str(size),
            suites=["sycophancy_short"],
            questions=QUESTIONS,
            greedy=False,
            batch_size=size,
        )
        kept.append({s["id"]: s["completion"] for s in read_samples(tmp_path / str(size))})
    assert kept[0] == kept[1]
    assert len(set(kept[0].values())) > 6


def test_policy_error_stops_the_evaluation(tmp_path):
    def broken(prompt, seed):
        raise RuntimeError("the weights are gone")

    with pytest.raises(EvaluationError, match=r"stopped: .*the weights are gone"):
        evaluate(FakePolicy(broken), out_dir=tmp_path, suites=["sycophancy_short"], questions=QUESTIONS)
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suites": ["sycophancy_shrt"]}, "Did you mean 'sycophancy_short'"),
        ({"suites": []}, "No suites"),
        ({"split": "tst"}, "Did you mean 'test'"),
        ({"suites": ["benign"], "n_benign": 0}, "no benign requests"),
    ],
)
def test_bad_settings(tmp_path, settings, message):
    with pytest.raises(EvaluationError, match=message):
        evaluate(FakePolicy(reply), out_dir=tmp_path, **settings)


def test_suites_are_checked_before_any_is_prepared(tmp_path, monkeypatch):
    """A wrong name after a right one; a name given twice counts once, in the order of the first."""
    monkeypatch.setattr(suites, "sycophancy_task", lambda *_: pytest.fail("prepared"))
    with pytest.raises(EvaluationError, match="Did you mean 'benign'"):
        evaluate(FakePolicy(reply), out_dir=tmp_path, suites=["sycophancy_short", "bening"])
    assert suites.known_suites(("benign", "sycophancy_short", "benign")) == ["benign", "sycophancy_short"]


def test_no_records_no_rows():
    assert metric_rows([], {}) == []


# ------------------------------------------------------------------------------------------------- any Inspect task

TASK_FILE = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def capital(word="right3"):
    return Task(dataset=[Sample("a", target=word), Sample("b", target="nothing")], solver=generate(), scorer=includes())


@task
def other():
    return Task(dataset=[Sample("a", target="x")], solver=generate(), scorer=includes())
"""


@pytest.fixture
def task_file(tmp_path):
    path = tmp_path / "my_task.py"
    path.write_text(TASK_FILE, encoding="utf-8")
    return path


def test_any_task_in_a_file(tmp_path, task_file, capfd):
    calls = []
    (summary,) = run_task(
        FakePolicy(reply),
        f"{task_file}@capital",
        out_dir=tmp_path / "run",
        progress=lambda done, total: calls.append((done, total)),
    )
    assert (summary["task"], summary["n"], summary["n_truncated"]) == ("capital", 2, 0)
    accuracy = next(metric for metric in summary["metrics"] if metric["metric"] == "accuracy")
    assert accuracy["value"] == 0.5
    assert calls == [(0, 2), (1, 2), (2, 2)]
    assert Path(summary["log"].removeprefix("file://")).parent == tmp_path / "run" / "evals"
    assert capfd.readouterr() == ("", "")


def test_task_arguments_limit_and_all_tasks_of_a_file(tmp_path, task_file):
    policy = FakePolicy(reply)
    (summary,) = run_task(policy, f"{task_file}@capital", out_dir=tmp_path, task_args={"word": "zzz"}, limit=1)
    assert (summary["n"], summary["metrics"][0]["value"]) == (1, 0.0)
    assert policy.settings[0]["temperature"] == 0.0
    assert [s["task"] for s in run_task(policy, str(task_file), out_dir=tmp_path)] == ["capital", "other"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{file}@capitl", "Did you mean 'capital'"),
        ("{file}x.py@capital", "No task file at"),
        ("opct/sycophancy_shrt", "Did you mean 'opct/sycophancy_short'"),
        ("nowhere/gsm8k", "No installed package 'nowhere'"),
        ("gsm", "Unknown Inspect task 'gsm'"),
    ],
)
def test_unknown_task(tmp_path, task_file, spec, message):
    with pytest.raises(EvaluationError, match=message):
        run_task(FakePolicy(reply), spec.format(file=task_file), out_dir=tmp_path)


def test_wrong_task_arguments(tmp_path, task_file):
    with pytest.raises(EvaluationError, match=r"Unknown argument of the task capital: 'wrod'\. Did you mean 'word'"):
        run_task(FakePolicy(reply), f"{task_file}@capital", out_dir=tmp_path, task_args={"wrod": 1})


def test_a_question_file_is_asked_by_its_split(tmp_path):
    """What `opct data build` would make pairs of is in the training split, and not asked; `all` asks every one."""
    path = tmp_path / "mine.csv"
    path.write_text("question,answer,wrong\n" + "".join(f"Question {i}?,right{i},wrong{i}\n" for i in range(40)))
    questions = load_questions(path)
    held_out = {q.id for q in questions if split_of(q.id) == "test"}
    assert 0 < len(held_out) < 40
    options = {"suites": ["sycophancy_short"], "questions": path, "families_per_question": 1}
    policy = FakePolicy(lambda prompt, seed: "no")
    results = evaluate(policy, out_dir=tmp_path / "test", **options)
    assert {s["cluster"] for s in read_samples(tmp_path / "test")} == held_out
    assert results["settings"]["questions"] == "mine.csv:test"
    evaluate(policy, out_dir=tmp_path / "all", split="all", **options)
    assert {s["cluster"] for s in read_samples(tmp_path / "all")} == {q.id for q in questions}

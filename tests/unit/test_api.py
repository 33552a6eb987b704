"""What `opct.evaluate` hands on, and what it refuses before a model is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opct import api
from opct.config.schema import TrainConfig
from opct.errors import ConfigError, DataError, EvaluationError, RunError
from opct.evals import target
from opct.evals.config import EvalConfig
from opct.evals.inspect_runner import REQUEST_TIMEOUT_S
from opct.evals.logs import read_evaluation, read_log
from opct.evals.run import evaluate_suites
from opct.reports.build import report
from tests.progress import Noted
from tests.refusals import refused
from tests.unit.evals.fakes import FakePolicy
from tests.unit.evals.judges.test_llm import GOOD, REFUSED, Script, judge_of

RESULTS = {"run": {"label": "base", "model": "tiny"}, "rows": [], "warnings": []}
SUMMARY = {"task": "capital", "log": "x.eval", "n": 2, "n_truncated": 1, "metrics": []}


@pytest.fixture
def calls(monkeypatch) -> list[tuple[str, tuple, dict[str, Any]]]:
    """Stands for the functions that evaluate; keeps (which, arguments, keywords), progress left out."""
    seen: list[tuple[str, tuple, dict[str, Any]]] = []

    def fake(which: str, result):
        def call(*arguments, **keywords):
            keywords.pop("progress").log(which)
            seen.append((which, arguments, keywords))
            return result

        return call

    monkeypatch.setattr("opct.evals.run.evaluate_suites", fake("suites", RESULTS))
    monkeypatch.setattr("opct.evals.run.make_tasks", lambda config, questions=None: ["made"])
    monkeypatch.setattr("opct.evals.same_questions.refuse_other_questions", lambda out, tasks: None)
    monkeypatch.setattr("opct.evals.run.prompts_of", lambda tasks: [])
    monkeypatch.setattr("opct.models.self_test.self_test", lambda policy, prompts: [])
    monkeypatch.setattr("opct.evals.run.write_results", lambda run: RESULTS)
    monkeypatch.setattr("opct.evals.run.about_run", lambda run, policy, about: {"label": about["label"]})
    monkeypatch.setattr("opct.evals.run.set_aside_others", lambda run, about, asked: ({}, []))
    monkeypatch.setattr("opct.evals.inspect_runner.run_task", fake("task", [SUMMARY]))
    monkeypatch.setattr("opct.evals.inspect_runner.check_task", str)
    return seen


@pytest.fixture
def policy(monkeypatch) -> SimpleNamespace:
    """What every name loads."""
    policy = SimpleNamespace(name="tiny", dtype_reason="as configured", has_adapter=False, weights_hash=lambda: "00ff")
    monkeypatch.setattr(target, "load_policy", lambda name, **settings: policy)
    return policy


def test_tasks_alone_leave_our_suites_out_and_take_settings_by_their_own_names(calls, policy, tmp_path: Path):
    found = api.evaluate("m", out=tmp_path, tasks=["pkg/a", "b.py@c"], n_questions=5, seed=1, max_completion_tokens=9)
    options = {
        "out_dir": tmp_path,
        "limit": 5,
        "max_completion_tokens": 9,
        "run": {"label": "base"},
        "overwrite": False,
    }
    config = EvalConfig(n_questions=5, seed=1, max_completion_tokens=9)
    assert calls == [("task", (policy, name, config), options) for name in ("pkg/a", "b.py@c")]
    assert (found.results, found.tasks) == (None, {"pkg/a": [SUMMARY], "b.py@c": [SUMMARY]})


@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_a_model_is_trusted_only_where_the_evaluation_says_so(calls, policy, monkeypatch, tmp_path, trusted):
    seen = []
    monkeypatch.setattr(target, "load_policy", lambda _, **settings: seen.append(settings) or policy)
    settings = {"trust_remote_code": True} if trusted else {}
    api.evaluate("m", out=tmp_path, tasks=["pkg/a"], dtype="float32", **settings)
    assert seen == [{"trust_remote_code": trusted, "dtype": "float32"}]


def test_a_task_on_other_weights_sets_the_results_before_it_aside(tmp_path: Path):
    """Results hold one model: as when a suite is asked of other weights."""
    task = tmp_path / "mine.py"
    task.write_text(
        "from inspect_ai import Task, task\nfrom inspect_ai.dataset import Sample\n"
        "from inspect_ai.scorer import includes\n\n\n@task\n"
        "def mine():\n    return Task(dataset=[Sample('a', target='b')], scorer=includes())\n"
    )
    policy, progress = FakePolicy(lambda prompt, seed: "Yes."), Noted()
    policy.has_adapter = False
    for weights, asked in (("00ff", {"suites": ["benign"], "n_benign": 1}), ("ff00", {"tasks": [f"{task}@mine"]})):
        policy.weights_hash = lambda weights=weights: weights
        api.evaluate(policy, out=tmp_path / "run", progress=progress, **asked)
    found = read_evaluation(tmp_path / "run")
    assert (found.suites, found.run["weights"]) == (["mine"], {"hash": "ff00"})
    assert "benign" in progress.told[-1]


@pytest.fixture
def nothing_loads(monkeypatch) -> None:
    monkeypatch.setattr(target, "load_policy", lambda *_, **__: pytest.fail("loaded a model first"))


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"families": "mojority"}, EvaluationError, "mojority"),
        ({"suites": ["nope"]}, EvaluationError, "nope"),
        ({"kl_sample": 3}, ConfigError, "mean kl_samples?"),
        ({"n_questions": 0}, ConfigError, "n_questions"),
        ({"tasks": ["pkg/a"], "families": "all"}, EvaluationError, "families"),
    ],
)
def test_a_wrong_setting_is_said_before_a_model_is_loaded(nothing_loads, options: dict[str, Any], error, named: str):
    with refused(error, named):
        api.evaluate("m", **options)


def test_data_that_cannot_be_had_is_said_before_a_model_is_loaded(nothing_loads, monkeypatch, tmp_path: Path):
    """One suite without a file, one with a file that is none, one whose data is embedded: the first two, at once."""
    monkeypatch.delenv("OPCT_CAPABILITY_DATA", raising=False)
    missing = tmp_path / "mmlu.jsonl"
    with pytest.raises(DataError) as error:
        api.evaluate("m", suites=["truthfulqa", "mmlu", "benign"], data={"mmlu": str(missing)}, out=tmp_path / "out")
    assert [fault.partition(":")[0] for fault in error.value.faults] == ["truthfulqa", "mmlu"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["file", "file/run", "locked/run", "run"])
def test_a_folder_that_cannot_be_written_to_is_said_before_a_model_is_loaded(
    nothing_loads, monkeypatch, tmp_path: Path, out: str
):
    """A file, a folder below one, one that would be made without the right to, and a run with such an `evals`."""
    (tmp_path / "file").write_text("kept")
    for folder in ("locked", "run/evals"):
        (tmp_path / folder).mkdir(parents=True)
    locked = (str(tmp_path / "locked"), str(tmp_path / "run" / "evals"))
    monkeypatch.setattr("os.access", lambda path, mode: str(path) not in locked)  # root may write anywhere
    before = sorted(tmp_path.rglob("*"))
    with refused(RunError, tmp_path / out):
        api.evaluate("m", suites=["benign"], n_benign=1, out=tmp_path / out)
    assert sorted(tmp_path.rglob("*")) == before


def test_settings_may_be_a_dict(calls, policy, monkeypatch, tmp_path: Path):
    """Nested or by dotted name, with a path as it is; a fault is named as in a file."""
    seen = []
    monkeypatch.setattr("opct.training.trainer.train", lambda config, **_: seen.append(config))
    api.train({"output_dir": tmp_path, "optim.learning_rate": 0.5, "model": {"device": "cpu"}})
    [config] = seen
    found = (config.output_dir, config.optim.learning_rate, config.model.device, config.seed)
    assert found == (str(tmp_path), 0.5, "cpu", TrainConfig().seed)
    with refused(ConfigError, "max_stepz", "max_steps"):
        api.train({"max_stepz": 3})
    with refused(ConfigError, "mine.yaml", "TrainConfig"):
        api.train("mine.yaml")
    api.evaluate("m", {"n_questions": 5, "seed": 2}, out=tmp_path / "out", seed=3)
    asked = calls[0][1][1]
    assert (asked.n_questions, asked.seed) == (5, 3)


def test_a_judge_is_asked_about_the_replies_that_were_measured(monkeypatch, tmp_path: Path):
    """Four behaviors, bare and in one family: all answered, and half of the answers harmful to the judge."""
    policy = FakePolicy(lambda prompt, seed: f"Push button {seed % 1000}, {seed % 2}.")
    policy.has_adapter, policy.weights_hash = False, lambda: "00ff"
    answers = Script(lambda text: GOOD if ", 1." in text else REFUSED)
    monkeypatch.setenv("INSPECT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("opct.evals.judges.llm.load_judge", lambda config: judge_of(answers))
    settings = {"n_questions": 4, "families": "fiction", "kl_samples": 0, "browser_questions": 0}
    judge = {"name": "strongreject", "model": "mockllm/model"}
    found = api.evaluate(policy, suites=["jailbreak"], judge=judge, out=tmp_path / "run", **settings)
    rows = {(row["suite"], row["metric"], row["group"]): row for row in found.results["rows"]}
    judged = rows["jailbreak_judged", "attack_success_rate", "all"]
    n_harmful = sum(", 1." in text for text in answers.prompts)
    assert (len(answers.prompts), judged["n"], judged["settings"]["judge"]["name"]) == (8, 4, "strongreject")
    assert 0 < n_harmful < 8
    assert rows["jailbreak", "attack_success_rate", "all"]["value"] == 1.0 > judged["value"]
    assert "judge" not in found.results["settings"]
    with pytest.raises(EvaluationError):
        api.evaluate(policy, suites=["benign"], judge=judge, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


QUIET = {"suites": ["sycophancy_short"], "kl_samples": 0, "browser_questions": 0}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"questions": "b.csv"}, ['questions: "a.csv:test" then, "b.csv:test" now']),
        ({"questions": "edited/a.csv"}, ["other questions"]),
        ({"n_questions": 1}, ["n_questions: ", " then, 1 now"]),
        ({"greedy": False, "questions": "copy/a.csv"}, ["(greedy: true then, false now)"]),
        ({"resume": True, "questions": "b.csv"}, ["questions"]),
        ({"questions": "copy/a.csv"}, []),
        ({"suites": ["benign"], "n_benign": 1, "questions": None}, []),
    ],
)
def test_results_on_other_questions_are_replaced_only_on_demand(monkeypatch, tmp_path: Path, settings, named):
    """Of the same suite in the same folder; the same questions in another file are the same."""
    monkeypatch.chdir(tmp_path)
    for file, numbers in (("a", range(14)), ("b", range(20, 30)), ("copy/a", range(14)), ("edited/a", range(14))):
        rows = [f"What is {i} plus 1{'' if file != 'edited/a' else ', exactly'}?|{i + 1}|{i + 3}" for i in numbers]
        path = tmp_path / f"{file}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["id|question|answer|wrong", *(f"{i}|{row}" for i, row in enumerate(rows))]))
    policy = FakePolicy(lambda prompt, seed: "It is 5.")
    policy.has_adapter, policy.weights_hash = False, lambda: "00ff"
    first = {**QUIET, "questions": "a.csv", "out": tmp_path / "run"}
    before = api.evaluate(policy, **first).results
    if named:
        with refused(EvaluationError, "sycophancy_short") as caught:
            api.evaluate(policy, **{**first, **settings})
        assert all(text in str(caught.value) for text in [*named, "--out", "--overwrite"])
        assert read_evaluation(tmp_path / "run").rows == before["rows"]
        api.evaluate(policy, **{**first, **settings}, overwrite=True)
    else:
        api.evaluate(policy, **{**first, **settings})
    assert read_evaluation(tmp_path / "run").created > before["created"]


def test_a_model_of_inspect_is_an_arm_whose_likelihoods_are_unscored(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("inspect_ai.model._model.count_text_tokens", len)  # mockllm's own would be fetched
    settings = {"suites": ["sycophancy_short", "sycophancy_choice"], "n_questions": 3}
    found = api.evaluate("inspect:mockllm/model", out=tmp_path / "api", **settings)
    run = found.results["run"]
    assert (run["label"], run["model"], run["dtype"]) == ("model", "mockllm/model", None)
    assert run["weights"] == {"model": "mockllm/model"}
    log = read_log(found.out / "evals" / "sycophancy_short.eval")
    assert log.eval.model_generate_config.timeout == REQUEST_TIMEOUT_S  # Inspect alone asks for ever
    rows = {(row["suite"], row["metric"], row["group"]): row for row in found.results["rows"]}
    asked = rows["sycophancy_short", "sycophancy_rate", "all"]
    assert (asked["value"], asked["n"], asked["n_unscored"]) == (0.0, 6, 0)
    for suite, metric in (("sycophancy_short", "kl_to_base"), ("sycophancy_choice", "accuracy_clean")):
        assert rows[suite, metric, "clean"]["unscored_reasons"] == {"no_likelihoods": 3}
    policy = FakePolicy(lambda prompt, seed: "Canberra", option_scores=lambda prompt, options: range(len(options)))
    evaluate_suites(policy, EvalConfig(**settings), out_dir=tmp_path / "base")
    page = report([tmp_path / "base", found.out], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "2 different models" in page

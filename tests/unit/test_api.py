"""What `opct.evaluate` and `opct.train` take, and what is refused before a model is loaded."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from opct import api
from opct.config.schema import TrainConfig
from opct.errors import ConfigError, DataError, EvaluationError, ModelError, RunError
from opct.evals import target
from opct.evals.inspect_runner import REQUEST_TIMEOUT_S
from opct.evals.logs import read_evaluation, read_log
from tests.progress import Noted
from tests.refusals import refused
from tests.tiny import tiny_model
from tests.unit.evals.fakes import FakePolicy
from tests.unit.evals.judges.test_llm import GOOD, REFUSED, Script, judge_of


def fake_policy(reply, weights: str = "00ff") -> FakePolicy:
    policy = FakePolicy(reply)
    policy.has_adapter, policy.weights_hash = False, lambda: weights
    return policy


def test_a_task_alone_leaves_our_suites_out_and_on_other_weights_it_replaces_their_results_on_demand(tmp_path: Path):
    """Results hold one model: as when a suite is asked of other weights. A task takes the settings by its own names."""
    task = tmp_path / "mine.py"
    task.write_text(
        "from inspect_ai import Task, task\nfrom inspect_ai.dataset import Sample\n"
        "from inspect_ai.scorer import includes\n\n\n@task\n"
        "def mine():\n    return Task(dataset=[Sample('a', target='b'), Sample('c', target='d')], scorer=includes())\n"
    )
    out, progress, name = tmp_path / "run", Noted(), f"{task}@mine"

    def evaluate(weights: str, **asked):
        policy = fake_policy(lambda prompt, seed: "Yes.", weights)
        return api.evaluate(policy, n_questions=1, seed=1, out=out, progress=progress, **asked)

    evaluate("00ff", suites=["benign"], n_benign=1)
    for asked in ({"suites": ["benign"], "n_benign": 1}, {"tasks": [name]}):
        with refused(EvaluationError, "another model", "benign", "weights", "--out", "--overwrite"):
            evaluate("ff00", **asked)
    assert read_evaluation(out).run["weights"] == {"hash": "00ff"}
    result = evaluate("ff00", tasks=[name], overwrite=True)
    assert (result.results, [summary["n"] for summary in result.tasks[name]]) == (None, [1])
    evaluation = read_evaluation(out)
    assert (evaluation.suites, evaluation.run["weights"]) == (["mine"], {"hash": "ff00"})
    assert "benign" in progress.told[-1]


def test_code_of_a_model_is_trusted_only_where_the_evaluation_says_so(monkeypatch, tmp_path):
    seen = []

    def load(name, **settings):
        seen.append(settings)
        raise ModelError("enough")

    monkeypatch.setattr(target, "load_policy", load)
    for settings in ({}, {"trust_remote_code": True}):
        with pytest.raises(ModelError):
            api.evaluate("m", out=tmp_path, suites=["benign"], n_benign=1, dtype="float32", **settings)
    assert seen == [{"trust_remote_code": trusted, "dtype": "float32"} for trusted in (False, True)]


@pytest.fixture
def nothing_loads(monkeypatch) -> None:
    monkeypatch.setattr(target, "load_policy", lambda *_, **__: pytest.fail("loaded a model first"))


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"families": "mojority"}, EvaluationError, "mojority"),
        ({"suites": ["nope"]}, EvaluationError, "nope"),
        ({"questions": "none.csv"}, DataError, "none.csv"),
        ({"kl_sample": 3}, ConfigError, "kl_samples?"),
        ({"tasks": ["pkg/a"], "families": "all"}, EvaluationError, "families"),
        ({"tasks": "pkg/a"}, EvaluationError, "'pkg/a'"),
        ({"target": tiny_model()}, EvaluationError, "opct.Policy(model, tokenizer)"),
    ],
)
def test_a_wrong_setting_is_said_before_a_model_is_loaded(nothing_loads, options: dict[str, Any], error, named: str):
    with refused(error, named):
        api.evaluate(**{"target": "m", **options})


def test_data_that_cannot_be_had_is_said_before_a_model_is_loaded(nothing_loads, monkeypatch, tmp_path: Path):
    """One suite without a file, one with a file that is none, one whose data is embedded: the first two, at once."""
    monkeypatch.delenv("OPCT_CAPABILITY_DATA", raising=False)
    missing = tmp_path / "mmlu.jsonl"
    with pytest.raises(DataError) as error:
        api.evaluate("m", suites=["truthfulqa", "mmlu", "benign"], data={"mmlu": str(missing)}, out=tmp_path / "out")
    assert [fault.partition(":")[0] for fault in error.value.faults] == ["truthfulqa", "mmlu"]
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_to_is_said_before_a_model_is_loaded(
    nothing_loads, monkeypatch, tmp_path: Path
):
    """A file, a folder below one, one that would be made without the right to, and a run with such an `evals`."""
    (tmp_path / "file").write_text("mine")
    for folder in ("locked", "run/evals"):
        (tmp_path / folder).mkdir(parents=True)
    locked = (str(tmp_path / "locked"), str(tmp_path / "run" / "evals"))
    monkeypatch.setattr("os.access", lambda path, mode: str(path) not in locked)  # root may write anywhere
    before = sorted(tmp_path.rglob("*"))
    for out in ("file", "file/run", "locked/run", "run"):
        with refused(RunError, tmp_path / out):
            api.evaluate("m", suites=["benign"], n_benign=1, out=tmp_path / out)
    assert sorted(tmp_path.rglob("*")) == before


def test_settings_may_be_a_dict(monkeypatch, tmp_path: Path):
    seen = []
    monkeypatch.setattr("opct.training.trainer.train", lambda config, **_: seen.append(config))
    api.train({"output_dir": tmp_path, "optim.learning_rate": 0.5, "model": {"device": "cpu"}})
    [config] = seen
    settings = (config.output_dir, config.optim.learning_rate, config.model.device, config.seed)
    assert settings == (str(tmp_path), 0.5, "cpu", TrainConfig().seed)
    with refused(ConfigError, "max_stepz", "max_steps"):
        api.train({"max_stepz": 3})
    with refused(ConfigError, "mine.yaml", "TrainConfig"):
        api.train("mine.yaml")
    policy = fake_policy(lambda prompt, seed: "Yes.")
    config = {"suites": ["benign"], "n_benign": 1, "seed": 2, "greedy": False}
    settings = api.evaluate(policy, config, out=tmp_path / "out", seed=3).results["settings"]
    assert (settings["n_benign"], settings["seed"], settings["greedy"]) == (1, 3, False)


@pytest.mark.parametrize(("given", "steps"), [({}, True), ({"num_train_epochs": 2}, False)])
def test_passes_that_are_given_win_over_the_steps_that_are_made_for_questions(monkeypatch, given, steps):
    seen = []
    monkeypatch.setattr("opct.training.trainer.train", lambda config, **_: seen.append(config))
    rows = [{"id": f"q{i}", "question": f"What is {i}?", "choices": ["a", f"b{i}"], "answer": "a"} for i in range(9)]
    api.train(given, questions=rows)
    assert (seen[0].max_steps is not None) == steps


def test_a_judge_is_asked_about_the_replies_that_were_measured(monkeypatch, tmp_path: Path):
    """Four behaviors, bare and in one family: all answered, and half of the answers harmful to the judge."""
    policy = fake_policy(lambda prompt, seed: f"Push button {seed % 1000}, {seed % 2}.")
    answers = Script(lambda text: GOOD if ", 1." in text else REFUSED)
    monkeypatch.setenv("INSPECT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("opct.evals.judges.llm.load_judge", lambda config: judge_of(answers))
    settings = {"n_questions": 4, "families": "fiction", "kl_samples": 0}
    judge = {"name": "strongreject", "model": "mockllm/model"}
    result = api.evaluate(policy, suites=["jailbreak"], judge=judge, out=tmp_path / "run", **settings)
    rows = {(row["suite"], row["metric"], row["group"]): row for row in result.results["rows"]}
    judged = rows["jailbreak_judged", "attack_success_rate", "all"]
    n_harmful = sum(", 1." in text for text in answers.prompts)
    assert (len(answers.prompts), judged["n"], judged["settings"]["judge"]["name"]) == (8, 4, "strongreject")
    assert 0 < n_harmful < 8
    assert rows["jailbreak", "attack_success_rate", "all"]["value"] == 1.0 > judged["value"]
    assert "judge" not in result.results["settings"]
    with pytest.raises(EvaluationError):
        api.evaluate(policy, suites=["benign"], judge=judge, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_results_on_other_questions_are_replaced_only_on_demand(monkeypatch, tmp_path: Path):
    """Of the same suite in the same folder; the same questions in another file are the same."""
    monkeypatch.chdir(tmp_path)
    for file, numbers in (("a", range(14)), ("b", range(20, 30)), ("copy/a", range(14)), ("edited/a", range(14))):
        rows = [f"What is {i} plus 1{'' if file != 'edited/a' else ', exactly'}?|{i + 1}|{i + 3}" for i in numbers]
        path = tmp_path / f"{file}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["id|question|answer|wrong", *(f"{i}|{row}" for i, row in enumerate(rows))]))
    policy = fake_policy(lambda prompt, seed: "It is 5.")
    first = {"suites": ["sycophancy_short"], "kl_samples": 0, "questions": "a.csv"}
    before = api.evaluate(policy, **first, out=tmp_path / "first").results

    def evaluate(name: str, **settings) -> str:
        """When the results in a copy of the first ones were made."""
        if not (tmp_path / name).exists():
            shutil.copytree(tmp_path / "first", tmp_path / name)
        api.evaluate(policy, **{**first, **settings}, out=tmp_path / name)
        return read_evaluation(tmp_path / name).created

    for i, (settings, named) in enumerate(
        (
            ({"questions": "b.csv"}, ["questions", "a.csv:test", "b.csv:test"]),
            ({"questions": "edited/a.csv"}, ["questions"]),
            ({"greedy": False, "questions": "copy/a.csv"}, ["greedy"]),
        )
    ):
        with refused(EvaluationError, "sycophancy_short", *named, "--out", "--overwrite"):
            evaluate(f"refused {i}", **settings)
        assert read_evaluation(tmp_path / f"refused {i}").rows == before["rows"]
    assert evaluate("refused 0", questions="b.csv", overwrite=True) > before["created"]
    assert evaluate("same", questions="copy/a.csv") > before["created"]


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

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from opct.api import EvalResult
from opct.cli.app import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code or 0


class Recorder:
    """Stands for a function of the package: keeps what it was called with."""

    def __init__(self, result):
        self.result = result

    def __call__(self, *arguments, **keywords):
        self.arguments, self.keywords = arguments, keywords
        return self.result


@pytest.fixture
def fake(monkeypatch):
    """Replace a function of a module of the package."""

    def fake(module: str, name: str, result=None) -> Recorder:
        recorder = Recorder(SimpleNamespace(render=lambda: "rendered", status="finished") if result is None else result)
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: recorder}))
        return recorder

    return fake


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("seed: 1\n")
    return str(path)


def test_train_passes_settings_and_flags(fake, config, capsys):
    train = fake("opct.training.trainer", "train")
    assert run("train", config, "seed=7", "optim.learning_rate=5e-6", "--preset", "paper_released", "--resume") == 0
    [settings] = train.arguments
    assert (settings.seed, settings.optim.learning_rate, settings.lora.r) == (7, 5e-6, 32)
    assert (train.keywords["resume"], train.keywords["overwrite"]) == (True, False)
    assert hasattr(train.keywords["progress"], "stage")
    assert capsys.readouterr().out == "rendered\n"


def test_an_interrupted_training_is_no_success(fake, config, capsys):
    fake(
        "opct.training.trainer",
        "train",
        SimpleNamespace(render=lambda: "interrupted after step 3", status="interrupted"),
    )
    assert run("train", config) == 130
    assert capsys.readouterr().out == "interrupted after step 3\n"


def test_a_dry_run_prints_the_plan_and_trains_nothing(fake, config, capsys):
    make_plan, train = fake("opct.training.dry_run", "make_plan"), fake("opct.training.trainer", "train")
    assert run("train", config, "--dry-run", "max_steps=3") == 0
    assert make_plan.arguments[0].max_steps == 3
    assert not hasattr(train, "arguments")
    assert capsys.readouterr().out == "rendered\n"


def test_train_shows_every_fault_of_the_settings(fake, tmp_path, capsys):
    path = tmp_path / "bad.yaml"
    path.write_text("learning_rate: 1\nmethod: opt\n")
    assert run("train", str(path), "sede=1") == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: The settings of ")
    for part in (
        f"{path}:1: learning_rate: unknown setting (value 1); did you mean optim.learning_rate?",
        f"{path}:2: method: \"opt\" is not valid, expected 'opct', 'sft', 'offpolicy', 'dpo', 'act' or 'grpo'; did you",
        "override sede=1: sede: unknown setting (value 1); did you mean seed?",
    ):
        assert part in shown


def test_eval_passes_everything(fake, capsys):
    evaluate = fake("opct.api", "evaluate", EvalResult(Path("o")))
    options = ["--suite", "sycophancy_short", "--suite", "benign", "--task", "pkg/name", "--out", "o"]
    more = ["--n-questions", "5", "--n-problems", "4", "--seed", "2", "--max-completion-tokens", "9", "--label", "base"]
    more += ["--questions", "q.csv", "--column", "wrong=a", "--column", "wrong=b", "--split", "all"]
    more += ["--families", "held_out", "--dtype", "float32"]
    more += ["--max-reply-tokens", "7", "--data", "mmlu=m.csv", "--data", "jailbreak=b.jsonl"]
    more += ["--behavior-column", "behavior=goal", "--leave-out", "copyright", "--augmented"]
    more += ["--families-per-question", "3"]
    assert run("eval", "runs/a", *options, *more) == 0
    assert evaluate.arguments == ("runs/a",)
    assert hasattr(evaluate.keywords.pop("progress"), "stage")
    assert evaluate.keywords == {
        "suites": ["sycophancy_short", "benign"],
        "tasks": ["pkg/name"],
        "out": Path("o"),
        "questions": "q.csv",
        "columns": {"wrong": ["a", "b"]},
        "split": "all",
        "families": "held_out",
        "dtype": "float32",
        "n_questions": 5,
        "n_problems": 4,
        "seed": 2,
        "max_completion_tokens": 9,
        "max_reply_tokens": 7,
        "data": {"mmlu": "m.csv", "jailbreak": "b.jsonl"},
        "behavior_columns": {"behavior": "goal"},
        "exclude": ["copyright"],
        "augmented": True,
        "families_per_question": 3,
        "label": "base",
    }
    assert capsys.readouterr().out.startswith("logs: o/evals")


@pytest.mark.parametrize("text", ["0", "two", "", "1.5"])
def test_eval_takes_a_number_of_families_or_all(fake, capsys, text):
    evaluate = fake("opct.api", "evaluate", EvalResult(Path("o")))
    assert run("eval", "model", "--families-per-question", text) == 2
    assert "neither a number from 1 nor all" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert run("eval", "model", "--families-per-question", "all") == 0
    assert evaluate.keywords["families_per_question"] is None


def test_eval_leaves_unset_what_was_not_given(fake):
    evaluate = fake("opct.api", "evaluate", EvalResult(Path("o")))
    assert run("eval", "model") == 0
    del evaluate.keywords["progress"]
    assert evaluate.keywords == {"tasks": (), "out": None, "label": None, "dtype": None}


def test_eval_grades_again_without_a_model(monkeypatch, capsys, tmp_path):
    from opct.evals.regrade import Regraded

    results = {
        "run": {"label": "a", "model": "m"},
        "rows": [],
        "warnings": [],
        "settings": {"graders": {"jailbreak": "v"}},
    }
    done = Regraded(results, {"jailbreak": {("refused", "partial"): 2}}, {"jailbreak": 5})
    folders = []
    monkeypatch.setattr("opct.evals.regrade.regrade", lambda folder: folders.append(folder) or done)
    assert run("eval", str(tmp_path), "--regrade") == 0
    assert run("eval", "some-model", "--regrade", "--out", str(tmp_path)) == 0
    assert folders == [tmp_path, tmp_path]
    said = capsys.readouterr().out
    assert "jailbreak: 2 of 5 verdicts changed (rules v)\n  refused -> partial: 2\n" in said


def test_what_would_ask_a_model_is_refused_where_nothing_is_asked(capsys, tmp_path):
    assert run("eval", str(tmp_path), "--regrade", "--suite", "jailbreak", "--n-questions", "5") == 1
    assert "--regrade asks no model, so --suites, --n-questions would do nothing" in capsys.readouterr().err


def test_report(fake, capsys):
    report = fake("opct.api", "report", Path("x.html"))
    assert run("report", "base", "sft", "opct", "--out", "x.html") == 0
    assert report.arguments == ([Path("base"), Path("sft"), Path("opct")], Path("x.html"))
    assert capsys.readouterr().out == "x.html\n"


def test_quickstart(fake, capsys):
    quickstart = fake("opct.experiments.quickstart", "run_quickstart")
    assert run("quickstart", "--out", "q", "--overwrite") == 0
    assert quickstart.arguments == (Path("q"),)
    assert quickstart.keywords["overwrite"] is True
    assert capsys.readouterr().out == "rendered\n"


def test_env_says_what_it_runs_on(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("OPCT_CACHE", str(tmp_path / "cache"))
    assert run("env") == 0
    shown = capsys.readouterr().out
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert {"python", "torch", "cores", "memory", "dtype", "device"} <= rows.keys()
    assert str(tmp_path / "cache") in shown
    assert rows["smollm2-135m-instruct"].startswith("not in the cache")

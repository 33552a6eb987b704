import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from opct.api import EvalResult
from opct.config.judge import JudgeConfig
from opct.evals.config import EvalConfig
from opct.runs.io import read_json
from opct.runs.manifest import hardware
from tests.unit.cli.running import run
from tests.unit.reports.synthetic import write_run


@pytest.fixture
def fake(monkeypatch):
    """Replace a function of a module of the package by a mock."""

    def fake(module: str, name: str, result=None) -> Mock:
        mock = Mock(return_value=result or SimpleNamespace(render=lambda **_: "rendered", status="finished"))
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: mock}))
        return mock

    return fake


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("seed: 1\n")
    return str(path)


def test_train_passes_settings_and_flags(fake, config, capsys):
    train = fake("opct.training.trainer", "train")
    assert run("train", config, "seed=7", "optim.learning_rate=5e-6", "--preset", "paper_released", "--resume") == 0
    [settings] = train.call_args.args
    assert (settings.seed, settings.optim.learning_rate, settings.lora.r) == (7, 5e-6, 32)
    assert (train.call_args.kwargs["resume"], train.call_args.kwargs["overwrite"]) == (True, False)
    assert hasattr(train.call_args.kwargs["progress"], "stage")
    assert capsys.readouterr().out == "rendered\n"


def test_an_interrupted_training_is_no_success(fake, config, capsys):
    fake("opct.training.trainer", "train", SimpleNamespace(render=lambda: "interrupted", status="interrupted"))
    assert run("train", config) == 130


def test_a_dry_run_prints_the_plan_and_trains_nothing(fake, config, capsys):
    make_plan, train = fake("opct.training.dry_run", "make_plan"), fake("opct.training.trainer", "train")
    assert run("train", config, "--dry-run", "max_steps=3") == 0
    assert make_plan.call_args.args[0].max_steps == 3
    train.assert_not_called()
    assert capsys.readouterr().out == "rendered\n"


def test_train_shows_the_faults_of_the_settings(fake, tmp_path, capsys):
    """Every name at once; what the settings contradict, once the names are right."""
    path = tmp_path / "bad.yaml"
    path.write_text("learning_rate: 1\nmethod: opt\n")
    assert run("train", str(path), "sede=1") == 1
    shown = capsys.readouterr().err
    for part in (f"{path}:1: learning_rate", "mean optim.learning_rate?", "override sede=1", "mean seed?"):
        assert part in shown
    path.write_text("method: opt\nloss: {ppo_clip: 0.2}\n")
    assert run("train", str(path)) == 1
    assert f'{path}:1: method: "opt"' in capsys.readouterr().err


def test_eval_passes_everything(fake, capsys):
    evaluate = fake("opct.api", "evaluate", EvalResult(Path("o")))
    options = ["--suite", "sycophancy_short", "--suite", "benign", "--task", "pkg/name", "--out", "o"]
    options += ["--questions", "q.csv", "--data", "mmlu=m.csv", "--data", "jailbreak=b.jsonl", "--families", "held_out"]
    options += ["--n-questions", "5", "--dtype", "float32", "--label", "base", "--resume"]
    options += ["--column", "wrong=a", "--column", "wrong=b"]
    settings = ["seed=2", "exclude=[copyright]", "families_per_question=null", "split=all"]
    assert run("eval", "runs/a", *settings, *options) == 0
    target, config = evaluate.call_args.args
    assert target == "runs/a"
    assert config == EvalConfig(
        suites=["sycophancy_short", "benign"],
        questions="q.csv",
        data={"mmlu": "m.csv", "jailbreak": "b.jsonl"},
        families="held_out",
        n_questions=5,
        seed=2,
        columns={"wrong": ["a", "b"]},
        exclude=["copyright"],
        families_per_question=None,
        split="all",
    )
    named = {"tasks": ["pkg/name"], "out": Path("o"), "label": "base", "dtype": "float32", "resume": True}
    assert evaluate.call_args.kwargs == named | {"overwrite": False}
    assert capsys.readouterr().out.startswith("logs: o/evals")


def test_eval_takes_a_file_of_settings_under_its_options(fake, tmp_path: Path):
    path = tmp_path / "eval.yaml"
    path.write_text("judge: {name: strongreject, model: openai/a}\nsuites: [benign]\nseed: 3\n")
    evaluate = fake("opct.api", "evaluate", EvalResult(Path("o")))
    assert run("eval", "m", str(path), "judge.model=openai/b", "--suite", "jailbreak") == 0
    judge = JudgeConfig(name="strongreject", model="openai/b")
    assert evaluate.call_args.args == ("m", EvalConfig(suites=["jailbreak"], seed=3, judge=judge))


def test_eval_takes_the_settings_of_an_evaluation_alone(fake, capsys):
    evaluate = fake("opct.api", "evaluate", EvalResult(Path("o")))
    assert run("eval", "model", "n_qestions=3", "seed=-1") == 1
    said = capsys.readouterr().err
    assert "mean n_questions?" in said
    assert "override seed=-1" in said
    assert run("eval", "model") == 0
    assert evaluate.call_args.args == ("model", EvalConfig())


def test_eval_grades_again_without_a_model(monkeypatch, capsys, tmp_path):
    from opct.evals.regrade import Regraded

    results = {"run": {"label": "a", "model": "m"}, "rows": [], "warnings": [], "settings": {}}
    done = Regraded(results, {"jailbreak": {("refused", "partial"): 2}}, {"jailbreak": 5})
    folders = []
    monkeypatch.setattr("opct.evals.regrade.regrade", lambda folder: folders.append(folder) or done)
    assert run("eval", str(tmp_path), "--regrade") == 0
    assert run("eval", "some-model", "--regrade", "--out", str(tmp_path)) == 0
    assert folders == [tmp_path, tmp_path]
    said = capsys.readouterr().out
    assert "refused -> partial: 2" in said
    assert "2 of 5" in said


def test_what_would_ask_a_model_is_refused_where_nothing_is_asked(capsys, tmp_path):
    assert run("eval", str(tmp_path), "--regrade", "--suite", "jailbreak", "--n-questions", "5", "seed=1") == 1
    assert "--regrade" in capsys.readouterr().err


def test_report_says_what_it_wrote_and_replaces_nothing_unasked(monkeypatch, capsys, tmp_path):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    runs = [write_run(tmp_path, label, questions=4) for label in ("base", "opct")]
    page = tmp_path / "x.html"
    assert run("report", *runs, "--out", page) == 0
    *said, html, card, numbers = capsys.readouterr().out.splitlines()
    content = read_json(tmp_path / "x.json")
    assert said[: len(content["summary"])] == content["summary"]
    assert content["verdict"][0] in said
    for line, path in zip((html, card, numbers), (page, tmp_path / "x.md", tmp_path / "x.json"), strict=True):
        assert line.endswith(f": {path}")
    page.unlink()
    assert run("report", *runs, "--out", page, "--open") == 1
    assert f"{tmp_path / 'x.json'}, {tmp_path / 'x.md'}" in capsys.readouterr().err
    assert not page.exists()
    assert opened == []
    assert run("report", *runs, "--out", page, "--overwrite", "--open") == 0
    assert opened == [page.as_uri()]


def test_env_says_what_it_runs_on(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("OPCT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPCT_CALIBRATIONS", "/own/calibrations")
    own = hardware() | {"accelerators": ["H200"]}
    monkeypatch.setattr("opct.runs.manifest.hardware", lambda: own)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda index: (2**36, 2**37))
    assert run("env") == 0
    shown = capsys.readouterr().out
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert {"python", "torch", "cores", "memory", "dtype", "device"} <= rows.keys()
    assert rows["OPCT_CACHE"] == str(tmp_path / "cache")
    assert rows["OPCT_CALIBRATIONS"] == "/own/calibrations"
    assert "64.0 of 128.0 GiB" in rows["accelerators"]

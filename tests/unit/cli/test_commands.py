import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from opct.api import EvalResult
from opct.config.judge import JudgeConfig
from opct.evals.config import EvalConfig
from opct.evals.regrade import Regraded
from opct.runs.io import read_json
from opct.runs.manifest import hardware
from tests.unit.cli.running import error_of, out_of, run
from tests.unit.reports.synthetic import write_run


@pytest.fixture
def fake(monkeypatch):
    def fake(module: str, name: str, result) -> Mock:
        mock = Mock(return_value=result)
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: mock}))
        return mock

    return fake


def test_a_dry_run_prints_the_plan_and_trains_nothing(fake, tmp_path: Path, capsys):
    (tmp_path / "a.yaml").write_text("seed: 1\n")
    make_plan = fake("opct.training.dry_run", "make_plan", SimpleNamespace(render=lambda: "rendered"))
    train = fake("opct.training.trainer", "train", None)
    assert run("train", tmp_path / "a.yaml", "--dry-run", "max_steps=3") == 0
    assert make_plan.call_args.args[0].max_steps == 3
    train.assert_not_called()
    assert capsys.readouterr().out == "rendered\n"


def test_eval_takes_a_file_of_settings_under_its_options(fake, tmp_path: Path, capsys):
    path = tmp_path / "eval.yaml"
    path.write_text("judge: {name: strongreject, model: openai/a}\nsuites: [benign]\nseed: 3\n")
    evaluate = fake("opct.api", "evaluate", EvalResult(Path("o")))
    words = ("judge.model=openai/b", "--suite", "jailbreak", "--data", "mmlu=m.csv", "--data", "jailbreak=b.jsonl")
    options = ("--column", "wrong=a", "--column", "wrong=b", "--task", "pkg/name", "--out=~/o", "--resume")
    assert run("eval", "m", str(path), *words, *options) == 0
    judge = JudgeConfig(name="strongreject", model="openai/b")
    data, columns = {"mmlu": "m.csv", "jailbreak": "b.jsonl"}, {"wrong": ["a", "b"]}
    config = EvalConfig(suites=["jailbreak"], seed=3, judge=judge, data=data, columns=columns)
    assert evaluate.call_args.args == ("m", config)
    named = {"tasks": ["pkg/name"], "out": Path.home() / "o", "label": None, "dtype": None}
    assert evaluate.call_args.kwargs == named | {"resume": True, "overwrite": False}
    assert "o/evals" in capsys.readouterr().out


def test_eval_grades_again_without_a_model(monkeypatch, capsys, tmp_path):
    results = {"run": {"label": "a", "model": "m"}, "rows": [], "warnings": [], "settings": {}}
    done = Regraded(results, {"jailbreak": {("refused", "partial"): 2}}, {"jailbreak": 5})
    monkeypatch.setattr("opct.evals.regrade.regrade", {tmp_path: done}.get)
    assert "refused -> partial: 2" in out_of("eval", "some-model", "--regrade", "--out", str(tmp_path))
    assert run("eval", str(tmp_path), "--regrade", "--suite", "jailbreak", "--n-questions", "5", "seed=1") == 1
    assert "--regrade" in capsys.readouterr().err


def test_report_says_what_it_wrote_and_replaces_nothing_unasked(monkeypatch, capsys, tmp_path):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    runs = [write_run(tmp_path, label, questions=4) for label in ("base", "opct")]
    page = tmp_path / "x.html"
    assert run("report", *runs, "--out", page, "--open") == 0
    *said, html, card, numbers = capsys.readouterr().out.splitlines()
    content = read_json(tmp_path / "x.json")
    assert said[: len(content["summary"])] == content["summary"]
    assert content["axes"][0]["evidence"] in said
    for line, path in zip((html, card, numbers), (page, tmp_path / "x.md", tmp_path / "x.json"), strict=True):
        assert line.endswith(f": {path}")
    assert opened == [page.as_uri()]
    page.unlink()
    assert f"{tmp_path / 'x.json'}, {tmp_path / 'x.md'}" in error_of("report", *runs, "--out", page)
    assert not page.exists()


def test_env_says_what_it_runs_on(monkeypatch, capsys):
    own = hardware() | {"accelerators": ["H200"]}
    monkeypatch.setattr("opct.runs.manifest.hardware", lambda: own)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda index: (2**36, 2**37))
    assert run("env") == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert "64.0 of 128.0" in rows["accelerators"]

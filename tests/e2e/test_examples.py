"""The examples run as they stand but for fewer pairs, on the tiny model and without a network."""

import json
import runpy
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import opct
from opct.evals.logs import read_log, read_samples
from opct.reports.load import load_run
from tests.conftest import REPOSITORY
from tests.unit.cli.running import out_of
from tests.unit.cli.running import run as command

EXAMPLES = REPOSITORY / "examples"
NOTEBOOK = EXAMPLES / "compare_runs.ipynb"
SMALL = {"n_benign": 2, "n_context": 2, "max_completion_tokens": 4, "max_benign_tokens": 4, "kl_samples": 2}


@pytest.fixture
def run(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs an example in an empty folder, with 40 pairs of each file; returns its stdout."""
    monkeypatch.chdir(tmp_path)
    config = opct.TrainConfig
    monkeypatch.setattr(opct, "TrainConfig", lambda **own: config(**own | {"data": own["data"] | {"max_pairs": 40}}))
    monkeypatch.setenv("OPCT_EXAMPLE_MODEL", str(tiny_folder))

    def run_example(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run_example


def test_train_from_python(run):
    run("train_from_python.py", "--steps", "1", "--prompts", "2", "--out", "trained")
    assert Path("trained/checkpoints/step-000001/adapter").is_dir()


def test_loaded_model(run):
    out = run("loaded_model.py", "--steps", "1", "--prompts", "2", "--out", "trained")
    assert "train/loss" in out
    assert len(list(Path("trained/evals/training").glob("step-00000[01]/evals/*.eval"))) == 2
    assert len({load_run(folder).label for folder in Path("trained/evals/training").iterdir()}) == 2  # an arm each


def test_own_pairs(run):
    out = run("own_pairs.py", "--steps", "1", "--out", "rude")
    assert "16 pairs" in out
    assert "faulty.jsonl:1" in out
    assert "faulty.jsonl:2" in out
    assert Path("rude/pairs.jsonl").exists()


def test_leakage(run, tiny_folder):
    """No teacher sees a secret, and no secret is in both files; the suite and the task ask the pairs."""
    run("leakage.py", "--out", "data")
    pairs, test = (opct.load_pairs(f"data/{name}.jsonl") for name in ("pairs", "test"))
    secrets = [{pair.id.split("/")[1] for pair in of} for of in (pairs, test)]
    assert not set.intersection(*secrets)
    for pair in (*pairs, *test):
        secret = pair.id.split("/")[1]
        assert secret in pair.prompt[0]["content"]
        assert secret not in pair.teacher_prompt[0]["content"]
    suite = ("--suite", "consistency", "--data", "consistency=data/test.jsonl", "max_reply_tokens=4")
    for asked in (suite, ("--task", f"{EXAMPLES / 'leakage.py'}@withheld")):
        assert command("eval", tiny_folder, "--out", "asked", "--n-questions", 4, *asked) == 0
    assert Counter(sample.axis for sample in read_samples("asked")) == {"consistency": 8, "inspect": 4}
    assert "KL to the clean prompt" in out_of("report", "asked", "--out", "page.html")


def test_own_eval(run):
    out = run("own_eval.py", "--out", "measured")
    assert "keeps_to_one_sentence" in out
    assert len(read_samples("measured")) == 4 + 3 * 4  # clean, two families, the user is right
    assert len(list(Path("measured/evals").glob("*.eval"))) == 2


def test_own_attack(run):
    run("own_attack.py", "--out", "attacked")
    [log] = Path("attacked/evals").glob("*.eval")
    asked = [sample for sample in read_log(log).samples if sample.metadata["family_split"] == "behavior"]
    assert len(asked) == 4 * 2
    prompts = [attempt["prompt"][0]["content"] for sample in asked for attempt in sample.store["attempts"]]
    assert any(prompt.startswith("Please. Please. Please. ") for prompt in prompts)


def test_compare_runs_notebook(run, monkeypatch):
    monkeypatch.setenv("OPCT_EXAMPLE_STEPS", "1")
    monkeypatch.setenv("OPCT_EXAMPLE_QUESTIONS", "1")
    monkeypatch.setattr(opct, "TrainConfig", partial(opct.TrainConfig, rollout={"max_completion_tokens": 4}))
    evaluate = opct.evaluate
    monkeypatch.setattr(opct, "evaluate", lambda *model, **settings: evaluate(*model, **settings | SMALL))
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    shown = ["".join(output["text"]) for cell in cells for output in cell.get("outputs", [])]
    assert any("opct minus base" in text for text in shown)  # kept, as it is read before it is run
    assert not any("/home" in text or "Traceback" in text for text in shown)
    namespace = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), namespace)
    assert Path("runs/notebook/report.html").exists()


def test_every_example_is_run_here():
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    scripts = ("train_from_python", "loaded_model", "own_pairs", "leakage", "own_attack", "own_eval")
    assert names == {NOTEBOOK.name, *(f"{script}.py" for script in scripts)}

"""README's Python block runs; and, where OPCT_SLOW_TESTS is set, it helps: some minutes on the default model."""

import os
import re
from functools import partial
from pathlib import Path

import pytest
from benchmarks.own_questions import write

import opct
from tests.conftest import REPOSITORY

[BLOCK] = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / "README.md").read_text(), re.DOTALL | re.MULTILINE)
MODEL = "smollm2-135m-instruct"
EVAL = {"suites": ["sycophancy_short"], "families": "held_out", "families_per_question": 1, "kl_samples": 0}


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    """A folder with questions about prices."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "prices-100.csv").rename("questions.csv")
    return tmp_path


def test_the_python_block_runs(place: Path, tiny_folder: Path, monkeypatch):
    small = {"max_steps": 1, "optim": {"prompts_per_step": 2}, "data": {"validation_size": 0}}
    config = partial(opct.TrainConfig, model={"name_or_path": str(tiny_folder)}, **small)
    monkeypatch.setattr(opct, "TrainConfig", config)
    monkeypatch.setattr(opct, "evaluate", partial(opct.evaluate, n_questions=2, max_completion_tokens=4, **EVAL))
    exec(BLOCK.replace(MODEL, str(tiny_folder)), {})
    assert Path("python.html").is_file()


@pytest.mark.timeout(1800)
@pytest.mark.skipif("OPCT_SLOW_TESTS" not in os.environ, reason="takes minutes: set OPCT_SLOW_TESTS=1 to run it")
def test_the_python_block_helps(place: Path, smollm2_folder: Path, monkeypatch):
    monkeypatch.setattr(opct, "evaluate", partial(opct.evaluate, n_questions=50, **EVAL))
    exec(BLOCK, {})
    found = opct.results(["runs/python-base", "runs/python"])
    measured = [("biased_rate_rise", "held_out"), ("accuracy_clean", "clean")]
    rise, clean = (
        found[(found["metric"] == metric) & (found["group"] == group)]["value"].tolist() for metric, group in measured
    )
    assert rise[1] < rise[0] / 2
    assert clean[1] > clean[0] - 0.1

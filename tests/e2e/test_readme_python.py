"""README's Python block runs."""

import re
from functools import partial
from pathlib import Path

from benchmarks.own_questions import write

import opct
from tests.conftest import REPOSITORY

[BLOCK] = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / "README.md").read_text(), re.DOTALL | re.MULTILINE)
MODEL = "smollm2-135m-instruct"
EVAL = {"suites": ["sycophancy_short"], "families": "held_out", "families_per_question": 1, "kl_samples": 0}


def test_the_python_block_runs(tmp_path: Path, tiny_folder: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "prices-100.csv").rename("questions.csv")
    small = {"max_steps": 1, "optim": {"prompts_per_step": 2}, "data": {"validation_size": 0}}
    config = partial(opct.TrainConfig, model={"name_or_path": str(tiny_folder)}, **small)
    monkeypatch.setattr(opct, "TrainConfig", config)
    monkeypatch.setattr(opct, "evaluate", partial(opct.evaluate, n_questions=2, max_completion_tokens=4, **EVAL))
    exec(BLOCK.replace(MODEL, str(tiny_folder)), {})
    assert Path("python.html").is_file()

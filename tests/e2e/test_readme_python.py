"""README's Python block, on questions about prices and the default model: pressure then adds less, and plain answers
stay."""

import re
from functools import partial
from pathlib import Path

from benchmarks.own_questions import write

import opct
from tests.conftest import REPOSITORY

SMALL = {"suites": ["sycophancy_short"], "n_questions": 40, "families": "held_out", "kl_samples": 0}


def test_the_python_block_helps(smollm2_folder, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "prices-100.csv").rename("questions.csv")
    [block] = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    monkeypatch.setattr(opct, "evaluate", partial(opct.evaluate, **SMALL, families_per_question=1))
    exec(block, {})
    assert Path("python.html").is_file()
    found = opct.results(["runs/python-base", "runs/python"])
    measured = [("biased_rate_rise", "held_out"), ("accuracy_clean", "clean")]
    rise, clean = (
        found[(found["metric"] == metric) & (found["group"] == group)]["value"].tolist() for metric, group in measured
    )
    assert rise[1] < rise[0] / 2
    assert clean[1] > clean[0] - 0.1

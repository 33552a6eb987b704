"""The examples run as they stand, each in a process of its own, on the tiny model and without a network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
TIMEOUT_S = 120
RUN_NOTEBOOK = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=100, kernel_name="python3").execute(cwd=sys.argv[2])
nbformat.write(notebook, sys.argv[2] + "/executed.ipynb")
"""


@pytest.fixture
def run(tmp_path: Path, tiny_folder: Path):
    """Runs Python in an empty folder; returns its stdout."""

    def run_python(*arguments: str | Path, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=tmp_path,
            env={
                **os.environ,
                "OPCT_EXAMPLE_MODEL": str(tiny_folder),
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                "IPYTHONDIR": str(tmp_path / "ipython"),
                **environment,
            },
            check=False,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run_python


def test_train_from_python(run, tmp_path: Path):
    out = run(EXAMPLES / "train_from_python.py", "--steps", "2", "--prompts", "2", "--out", "trained")
    assert "finished after 2 steps" in out
    assert out.count("before:") == 3
    assert (tmp_path / "trained" / "checkpoints" / "step-000002" / "adapter").is_dir()


def test_own_pairs(run, tmp_path: Path):
    out = run(EXAMPLES / "own_pairs.py", "--steps", "1", "--out", "rude")
    assert "16 pairs are fine" in out
    assert "faulty.jsonl:1" in out
    assert "faulty.jsonl:2" in out
    assert "KL on the way that was not trained on" in out
    assert (tmp_path / "rude-data" / "held-out.jsonl").exists()


def test_own_eval(run, tmp_path: Path):
    out = run(EXAMPLES / "own_eval.py", "--out", "measured")
    assert "keeps_to_one_sentence: 4 samples" in out
    assert "sycophancy_rate" in out
    assert "n = 6" in out  # 3 questions x 2 families
    assert len(list((tmp_path / "measured" / "evals").glob("*.eval"))) == 2


def test_compare_runs_notebook(run, tmp_path: Path):
    run(
        "-c",
        RUN_NOTEBOOK,
        EXAMPLES / "compare_runs.ipynb",
        tmp_path,
        OPCT_EXAMPLE_STEPS="1",
        OPCT_EXAMPLE_QUESTIONS="4",
    )
    executed = json.loads((tmp_path / "executed.ipynb").read_text())
    printed = "".join(
        "".join(output.get("text", "")) for cell in executed["cells"] for output in cell.get("outputs", [])
    )
    assert "sycophancy_rate, opct minus base" in printed
    assert (tmp_path / "runs" / "notebook" / "report.html").exists()


def test_the_notebook_is_kept_without_outputs():
    cells = json.loads((EXAMPLES / "compare_runs.ipynb").read_text())["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)


def test_every_example_is_run_here():
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert names == {"train_from_python.py", "own_pairs.py", "own_eval.py", "compare_runs.ipynb"}

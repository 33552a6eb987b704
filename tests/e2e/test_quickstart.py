"""The quickstart to its page on the tiny model, again with nothing left to do, and with another seed."""

import json
import os
import socket
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from opct.errors import RunError
from opct.evals.config import EvalConfig
from opct.experiments import quickstart, second_process
from opct.experiments.second_process import SecondProcess
from opct.models import loading
from opct.runs.run_dir import RunDir
from tests.processes import Process
from tests.refusals import refused

EVALUATION = EvalConfig(
    n_questions=2,
    families_per_question=1,
    n_context=2,
    n_benign=2,
    max_completion_tokens=2,
    max_benign_tokens=2,
    kl_samples=2,
    browser_questions=1,
)


def settings(model: Path) -> list[str]:
    return [
        *(f"model.name_or_path={json.dumps(str(model))}", "model.device=cpu", "max_steps=1", "lora.r=2"),
        *("data.max_pairs=8", "data.validation_size=2", "rollout.max_completion_tokens=4"),
        "optim.prompts_per_step=4",
    ]


def stamps(folder: Path) -> dict[str, int]:
    """When each file of the runs was written; the lock aside."""
    files = [p for run in ("base", "sft", "opct") for p in (folder / run).rglob("*") if p.is_file()]
    return {str(p): p.stat().st_mtime_ns for p in files if "lock" not in p.name}


@pytest.fixture(scope="module")
def alone(tmp_path_factory, tiny_folder: Path) -> quickstart.QuickstartResult:
    """A quickstart whose second process fails, so that the first does all of it.

    The probe finds float32 faster once and slower ever after: the first answer holds for all runs.
    """
    probed, threads, out = [], torch.get_num_threads(), tmp_path_factory.mktemp("quick") / "one"

    def time_s(dtype, device, hidden_size):
        probed.append(dtype)
        return {torch.bfloat16: 2.0, torch.float32: 1.0 if len(probed) <= 2 else 4.0}[dtype]

    run = partial(quickstart.run_quickstart, out, overrides=settings(tiny_folder), evaluation=EVALUATION)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "_matmul_time_s", time_s)
        patch.setattr(second_process, "COMMAND", ["false"])
        patch.setattr(quickstart, "_worth_two_processes", lambda model: True)
        with SecondProcess() as second:
            result = run(second=second)
    assert second.process.returncode == 1
    assert torch.get_num_threads() == threads
    assert len(probed) == 2
    return result


def test_to_the_page_then_nothing_again_then_another_seed(alone, tiny_folder: Path):
    out, own = alone.report.parent, settings(tiny_folder)
    assert alone.report == out / "report.html"
    assert "<html" in alone.report.read_text(encoding="utf-8")
    dtypes = {label: results["run"]["dtype"] for label, results in alone.results.items()}
    assert dtypes == {"base": "float32", "sft": "float32", "opct": "float32"}
    assert all(RunDir(out / method).checkpoint_path(1).is_dir() for method in ("sft", "opct"))

    before, run = stamps(out), partial(quickstart.run_quickstart, out, evaluation=EVALUATION)
    assert run(overrides=own).results == alone.results
    with refused(RunError, "--overwrite"):
        run(overrides=[*own, "seed=1"])
    assert stamps(out) == before


class Forked(Process):
    """In the place of `subprocess.Popen`: the second process, forked with what it would import."""

    def __init__(self, command: list[str], **_):
        here, there = socket.socketpair()
        with here, there:
            self.stdin = here.makefile("w")
            super().__init__(Path(os.devnull), Path(os.devnull), follow, command[-1], there)

    def communicate(self) -> None:
        self.stdin.close()
        self.wait()


def follow(code: str, there: socket.socket) -> None:
    sys.stdin = there.makefile()
    exec(code)


def test_two_processes_make_what_one_makes(alone, tmp_path: Path, tiny_folder: Path, monkeypatch):
    """What the second one has done is not done again."""
    out, own = tmp_path / "two", [*settings(tiny_folder), "model.dtype=float32"]
    monkeypatch.setattr(second_process, "subprocess", SimpleNamespace(Popen=Forked, PIPE=None, DEVNULL=None))
    with SecondProcess() as second:
        second.begin(out=str(out), threads=1, evaluation=EVALUATION.model_dump(mode="json"), overrides=own)
        assert second.process.wait() == 0
    before = stamps(out)
    both = quickstart.run_quickstart(out, overrides=own, evaluation=EVALUATION)
    assert before.items() <= stamps(out).items()
    for label in ("base", "sft", "opct"):
        values = [[row["value"] for row in result.results[label]["rows"]] for result in (both, alone)]
        assert values[0] == values[1]


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("mine")
    with refused(RunError, "thesis.tex"):
        quickstart.run_quickstart(tmp_path)
    with refused(RunError, "thesis.tex"):
        quickstart.run_quickstart(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_only_the_default_model_has_the_layers_and_learning_rate_that_were_chosen_for_it(tmp_path: Path):
    other = ["model.name_or_path=other/model"]
    for overrides, expected in (
        ([], (r".*layers\.(1[5-9]|2\d)\..*_proj", 30e-4)),
        (other, ("all-linear", 4e-4)),
        ([*other, "optim.learning_rate=1e-5"], ("all-linear", 1e-5)),
    ):
        config = quickstart.quickstart_config("opct", tmp_path, overrides)
        assert (config.lora.target_modules, config.optim.learning_rate) == expected

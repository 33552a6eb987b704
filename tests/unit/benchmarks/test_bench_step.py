"""Phases add up, ratios pair repetitions, finished cells are not run again."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.cells import run_cell
from benchmarks.phases import PHASES, Phases
from benchmarks.step import cell_of, small, work
from benchmarks.tables import ratios, spread
from benchmarks.workloads import Workload


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def test_a_phase_inside_another_is_not_counted_twice():
    """loss_backward 1 + (policy 3, in it teacher 2) + 4, then 5 that nobody saw: 5, 3, 2 and other 5; 15 in all."""
    clock = Clock()
    phases = Phases(clock)
    owner = SimpleNamespace()
    owner.teacher = lambda: clock.spend(2)

    def policy():
        clock.spend(1)
        owner.teacher()
        clock.spend(2)
        return "scores"

    def accumulate():
        clock.spend(1)
        assert owner.policy() == "scores"
        clock.spend(4)

    owner.policy, owner.accumulate = policy, accumulate
    phases.wrap(owner, "teacher", "teacher")
    phases.wrap(owner, "policy", lambda: "policy")
    phases.wrap(owner, "accumulate", "loss_backward")
    owner.accumulate()
    clock.spend(5)
    phases.end_step()
    expected = {"loss_backward": 5.0, "policy": 3.0, "teacher": 2.0, "rollout": 0, "optimizer": 0, "other": 5.0}
    assert phases.steps == [expected | {"step": 15.0}]


def test_spread_and_ratios():
    """Repetitions 0 and 2 are common: 4/2 and 9/3; repetition 1 has nothing to be compared with."""
    assert spread([3.0, 1.0, 2.0]).text() == "2.0 [1.0, 3.0]"
    assert spread([3.0]).text(2) == "3.00"
    both = ratios({0: 4.0, 1: 100.0, 2: 9.0}, {0: 2.0, 2: 3.0, 3: 1.0})
    assert both is not None
    assert (both.middle, both.low, both.high, both.n) == (2.5, 2.0, 3.0, 2)
    assert ratios({0: 1.0}, {1: 1.0}) is None


WORKER = """
import json, sys
from pathlib import Path
from benchmarks.cells import serve
def work(cell):
    if cell["n"] < 0:
        raise SystemExit("n is negative")
    count = Path(cell["count"])
    count.write_text(count.read_text() + "x")
    return {"twice": 2 * cell["n"]}
serve(work)
"""


def test_a_finished_cell_is_not_run_again(tmp_path: Path, monkeypatch, capsys):
    """The same settings are read from the file, others are measured, another commit's too; a failed one leaves what
    it said."""
    (tmp_path / "bench_worker.py").write_text(WORKER)
    monkeypatch.setattr("benchmarks.cells.ROOT", Path(__file__).resolve().parents[3])
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{tmp_path}" exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    count = tmp_path / "count"
    count.write_text("")
    path, cell = tmp_path / "out" / "a.json", {"n": 3, "count": str(count)}
    for _ in range(2):
        result = run_cell(path, cell, "bench_worker", python=str(program), limit_s=60)
        assert result is not None
        assert result["twice"] == 6
        assert result["peak_gb"] > 0
        assert {"versions", "processor", "commit"} <= set(result)
    assert count.read_text() == "x"
    assert run_cell(path, cell | {"n": 4}, "bench_worker", python=str(program), limit_s=60)["twice"] == 8
    assert count.read_text() == "xx"
    monkeypatch.setattr("benchmarks.cells.commit", lambda: "another")
    for threads in (None, 1):
        run_cell(path, cell | {"n": 4}, "bench_worker", python=str(program), limit_s=60, threads=threads)
    assert count.read_text() == "xxxx"
    failed = tmp_path / "out" / "b.json"
    assert run_cell(failed, cell | {"n": -1}, "bench_worker", python=str(program), limit_s=60) is None
    assert not failed.exists()
    assert "n is negative" in capsys.readouterr().out


def test_a_cell_that_takes_too_long_ends_with_what_it_started(tmp_path: Path, capsys):
    program, late = tmp_path / "python", tmp_path / "late"
    program.write_text(f"#!/bin/sh\n(sleep 0.5; touch {late}) & wait\n")
    program.chmod(0o755)
    assert run_cell(tmp_path / "a.json", {}, "bench_worker", python=str(program), limit_s=0.2) is None
    assert "stopped" in capsys.readouterr().out
    time.sleep(0.6)
    assert not late.exists()


def test_a_step_is_timed_in_its_parts(tiny_folder: Path):
    """2 x 2 completions of 5 tokens, two steps, each part with its seconds."""
    settings = {"model": str(tiny_folder), "dtype": "bfloat16", "rep": 0, "do": "time"}
    result = work(cell_of(Workload("tiny", 2, 2, 90, 71, 5), "lora", "opct@400", steps=2, **settings))
    assert len(result["steps"]) == len(result["trainer"]) == 2
    for step, own in zip(result["steps"], result["trainer"], strict=True):
        assert all(step[phase] > 0 for phase in PHASES)
        assert sum(step[phase] for phase in (*PHASES, "other")) == pytest.approx(step["step"])
        assert step["rollout"] <= own["time/rollout_s"] < own["time/step_s"] <= step["step"]
    assert result["training_flops"] > 0


def test_the_loss_that_is_compared_is_that_of_a_step(tiny_folder: Path):
    """Before any update: a loss, its gradient, and the completions for the others to compute it of."""
    workload = small(Workload("tiny", 3, 4, 90, 71, 5))
    result = work(cell_of(workload, "full", "opct@400", model=str(tiny_folder), steps=1, dtype="float32", do="check"))
    assert (result["prompt_tokens"], result["teacher_tokens"]) == ([90], [71])
    assert result["loss"] > 0
    assert result["grad_norm"] > 0
    assert {pair: [len(ids) for ids in own] for pair, own in result["completions"].items()} == {
        "tiny/0": [5, 5],
        "tiny/1": [5, 5],
    }

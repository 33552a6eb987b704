"""Phases add up, ratios pair repetitions, finished cells are not run again."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.cells import run_cell
from benchmarks.phases import PHASES, Phases
from benchmarks.step import cell_of, work
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


def test_a_step_is_timed_in_its_parts(tiny_folder: Path):
    """2 x 2 completions of 5 tokens, two steps, each part with its seconds."""
    settings = {"model": str(tiny_folder), "dtype": "bfloat16", "rep": 0, "do": "time"}
    result = work(cell_of(Workload("tiny", 2, 2, 90, 71, 5), "lora", "opct/-cascade@400", steps=2, **settings))
    assert len(result["steps"]) == len(result["trainer"]) == 2
    for step, own in zip(result["steps"], result["trainer"], strict=True):
        assert all(step[phase] > 0 for phase in PHASES)
        assert sum(step[phase] for phase in (*PHASES, "other")) == pytest.approx(step["step"])
        assert step["rollout"] <= own["time/rollout_s"] < own["time/step_s"] <= step["step"]
    assert result["training_flops"] > 0

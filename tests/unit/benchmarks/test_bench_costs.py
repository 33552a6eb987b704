"""Costs of a step: one number changes at a time, and steps of several processes are timed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from benchmarks.costs import PARTS, _timed, measured, rows_of
from benchmarks.workloads import Workload


def test_waiting_is_counted_apart_from_sending(monkeypatch):
    """3 s until all have met, then 2 s."""
    spent, seconds = [0.0], Counter[str]()
    monkeypatch.setattr("benchmarks.costs.time.perf_counter", lambda: sum(spent))
    assert _timed(lambda x: spent.append(2.0) or x + 1, lambda: spent.append(3.0), seconds)(1) == 2
    assert seconds == {"waiting": 3.0, "sending": 2.0}


def test_a_step_of_two_processes_is_timed(tiny_folder: Path, tmp_path: Path):
    """Of the same rollouts as one process, by their loss; waiting and sending are a part of the step."""
    cell = {"model": str(tiny_folder), "training": "lora", "dtype": "float32", "steps": 2, "micro_batch": 400}
    tiny = Workload("tiny", 4, 2, 90, 71, 5)
    found = {
        n: measured(tmp_path, cell | {"processes": n}, tiny, f"processes-{n}", threads=1, limit_s=120) for n in (1, 2)
    }
    alone, together = ([row["train/loss"] for row in found[n]["trainer"]] for n in (1, 2))
    assert together == pytest.approx(alone, rel=1e-4)
    assert min(alone) > 0
    [step] = found[2]["steps"]
    assert 0 < step["sending"] + step["waiting"] < step["step"]
    series = {"completions of a prompt": {2: found[1], 4: found[2]}}
    rows = list(rows_of(series))
    assert [len(row) for row in rows] == [3 + len(PARTS)] * 2
    assert float(rows[0][2]) == pytest.approx(found[1]["steps"][0]["step"], abs=0.06)

"""Costs of a step: one number changes at a time, and several processes do the work of one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from benchmarks.costs import MIDDLE, PHASES, _timed, changed, measured, rows_of
from benchmarks.workloads import Workload


def test_one_number_changes_at_a_time():
    longer = changed("prompt_tokens", 128)
    assert (longer.prompt_tokens, longer.teacher_tokens) == (128, 96)
    assert changed("generations", MIDDLE.generations) == changed("prompt_tokens", MIDDLE.prompt_tokens) == MIDDLE


def test_waiting_is_counted_apart_from_sending(monkeypatch):
    """3 s until all have met, then 2 s."""
    clock = iter([10.0, 13.0, 15.0])
    monkeypatch.setattr("benchmarks.costs.time.perf_counter", lambda: next(clock))
    seconds = Counter[str]()
    assert _timed(lambda x: x + 1, lambda: None, seconds)(1) == 2
    assert seconds == {"waiting": 3.0, "sending": 2.0}


def test_two_processes_do_the_same_step(tiny_folder: Path, tmp_path: Path):
    """The loss of the second step, which depends on the first update, is that of one process."""
    cell = {"model": str(tiny_folder), "training": "lora", "dtype": "float32", "steps": 2, "micro_batch": 400}
    tiny = Workload("tiny", 4, 2, 90, 71, 5)
    found = {
        n: measured(tmp_path, cell | {"processes": n}, tiny, f"processes-{n}", threads=1, limit_s=120) for n in (1, 2)
    }
    losses = [found[n]["trainer"][1]["train/loss"] for n in (1, 2)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4, abs=1e-9)
    assert losses[0] > 0
    assert found[2]["collectives"]["sending"] > 0
    assert len(found[2]["steps"]) == 1
    series = {"completions of a prompt": {2: found[1], 4: found[2]}}
    rows = list(rows_of(series))
    assert [len(row) for row in rows] == [3 + len(PHASES)] * 2
    assert float(rows[0][2]) == pytest.approx(found[1]["steps"][0]["step"], abs=0.06)

"""Each cell of the accelerator's benchmark gives figures or a reason, on a CPU at tiny sizes, and the budget holds."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch
from benchmarks import gpu


def rows_of(out: Path) -> dict[str, dict]:
    lines = (out / "cells.jsonl").read_text(encoding="utf-8").splitlines()
    assert len((out / "table.md").read_text(encoding="utf-8").splitlines()) == len(lines) + 2
    return {row["name"].partition(": ")[2]: row["result"] for row in map(json.loads, lines)}


def test_every_cell_has_figures_or_a_reason(tiny_folder: Path, tmp_path: Path, monkeypatch):
    """What this machine has is measured, in this process; other packages are named."""
    present = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name in ("trl", "vllm", "liger_kernel") else present(name, *a),
    )
    arguments = ["--model", str(tiny_folder), "--out", str(tmp_path), "--device", "cpu", "--sizes", "tiny"]
    gpu.main(arguments, measure=lambda cell, path, limit_s: gpu.work(cell))
    found = rows_of(tmp_path)
    measured = {name for name, result in found.items() if "reason" not in result}
    assert {"product rate", "step, lora, opct", "step, full, opct", "loss, opct", "loss, torch"} <= measured
    assert "rollout, in_process" in measured
    for name in measured:
        figures = {key: x for key, x in found[name].items() if isinstance(x, float)}
        assert all(math.isfinite(x) and (x >= 0 or "mismatch" in key) for key, x in figures.items()), name
        assert found[name]["seconds"] > 0
    assert found["loss, opct"]["loss"] == pytest.approx(found["loss, torch"]["loss"], rel=gpu.TOLERANCE)
    for name, package in (("step, full, sdft/autocast", "trl"), ("loss, liger", "liger_kernel")):
        assert package in found[name]["reason"]


def test_the_budget_is_kept_and_what_it_leaves_out_is_named(tiny_folder: Path, tmp_path: Path, monkeypatch):
    """One minute: the first cell takes 25 s and may take 60, the next may take 35, and then 10 are too few."""
    now, limits = [0.0], []
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now[0])

    def measure(cell, path, limit_s):
        limits.append(limit_s)
        now[0] += 25
        return {"seconds": 1.0}

    arguments = ["--model", str(tiny_folder), "--out", str(tmp_path), "--device", "cpu", "--minutes", "1"]
    gpu.main(arguments, measure=measure)
    found = list(rows_of(tmp_path).values())
    assert limits == [60, 35]
    assert all("left out: 10 s" in row["reason"] or "installed" in row["reason"] for row in found[2:])


@pytest.mark.parametrize(
    ("device", "limit_s", "reason"), [("cuda", 60, "model.device='cuda'"), ("cpu", 0.1, "stopped")]
)
def test_a_cell_that_fails_or_takes_too_long_has_its_reason(tmp_path: Path, device: str, limit_s: float, reason: str):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    cell = {"do": "rate", "device": device, "dtype": "float32", "side": 8}
    assert reason in gpu.measured(cell, tmp_path / "cell.json", limit_s)["reason"]

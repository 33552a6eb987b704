"""What is measured on a lent GPU, at tiny sizes on this machine; and what stands in its place until then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import estimates

from tests.conftest import REPOSITORY
from tests.tiny import save_tiny


def test_each_cell_has_figures_or_the_package_that_it_lacks(tmp_path: Path):
    save_tiny(tmp_path / "tiny", hidden=64)
    told = ["--model", str(tmp_path / "tiny"), "--device", "cpu", "--sizes", "tiny", "--out", str(tmp_path / "out")]
    # one process for all cells, and not this one, whose functions they would replace by ones that are timed
    work = "from benchmarks import gpu; gpu.main(measure=lambda cell, path, limit_s: gpu.work(cell))"
    subprocess.run([sys.executable, "-c", work, *told], cwd=REPOSITORY, check=True, capture_output=True, timeout=300)
    lines = (tmp_path / "out" / "cells.jsonl").read_text(encoding="utf-8").splitlines()
    results = {row["name"].removeprefix("tiny: "): row["result"] for row in map(json.loads, lines)}
    for name, result in results.items():
        assert result.get("seconds", 0) > 0 or "is not installed" in result["reason"], name
    for engine in ("in_process", "continuous_batching"):
        assert results[f"rollout, {engine}"]["mean_abs"] < 0.2
    measured = {"step, lora, opct", "step, full, opct", "step, lora, opct, continuous_batching"}
    assert measured <= {name for name, result in results.items() if "flops_per_s" in result}


def test_the_estimates_of_the_page_are_those_of_the_script():
    assert estimates.table() in (REPOSITORY / "docs" / "results" / "speed.md").read_text(encoding="utf-8")

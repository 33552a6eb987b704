"""What is measured on a lent GPU, at tiny sizes on this machine; and what stands in its place until then."""

import json
import warnings
from pathlib import Path

from benchmarks import estimates

from tests.conftest import REPOSITORY
from tests.processes import Process
from tests.tiny import save_tiny


def measure(*told: str) -> None:
    """All cells in one process, and not in that of the tests, whose functions they would replace by timed ones."""
    from benchmarks import gpu

    warnings.simplefilter("ignore")  # of the libraries of others
    gpu.main(list(told), measure=lambda cell, path, limit_s: gpu.work(cell))


def test_each_cell_has_figures_or_the_package_that_it_lacks(tmp_path: Path):
    save_tiny(tmp_path / "tiny", hidden=64)
    told = ["--model", str(tmp_path / "tiny"), "--device", "cpu", "--sizes", "tiny", "--out", str(tmp_path / "out")]
    log = tmp_path / "log.txt"
    assert Process(log, log, measure, *told).wait(300) == 0, log.read_text()
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

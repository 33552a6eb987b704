"""The pure parts of the benchmarks of the sampler, of the machine's rate and of a step's operations."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import breakdown, operations, sampler
from benchmarks.workloads import Workload


def test_the_machines_rate_is_the_best_of_its_products():
    rates = {"rates": [{"dtype": "bfloat16", "matrix": "down", "rows": 32, "gflops": n} for n in (400.0, 1000.0)]}
    assert breakdown.best_rate(rates, "bfloat16") == 1e12


def write_sampler(out: Path, case: str, engine: str, rep: int, seconds: float) -> None:
    cell = {"case": case, "engine": engine, "rep": rep}
    path = out / case / f"{engine}-{rep}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"seconds": [seconds, seconds], "tokens": [100, 100], "peak_gb": 1.0}
    path.write_text(json.dumps({"cell": cell, "result": result}))


def test_engines_are_compared_with_the_better_cache(tmp_path: Path):
    """100 tokens in 1 s (opct), 4 s (growing cache) and 2 s (static cache): 100, 25 and 50 a second, 2, 0.5 and 1x."""
    for engine, seconds in (("opct", 1.0), ("hf-dynamic", 4.0), ("hf-static", 2.0)):
        write_sampler(tmp_path, "8", engine, 0, seconds)
    (tmp_path / "prompts-8.json").write_text("{}")  # no measurement
    rows = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in sampler.table(tmp_path).splitlines()[2:]}
    assert rows == {"opct": "100; 2.00x", "hf-dynamic": "25; 0.50x", "hf-static": "50; 1.00x"}


def test_the_operations_of_a_step_are_those_of_the_formula():
    """N_b = 2 (2 h a + 2 h k + 3 h i + 2 h) + h and N_v = V h, for h 32, a 32, k 16, i 64, V 320."""
    body, head = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32) + 32, 320 * 32
    sizes = operations.Sizes(layers=2, hidden=32, query_size=32, kv_size=16, inner=64, vocabulary=320)
    assert (sizes.body, sizes.head) == (body, head)
    full = operations.operations(sizes, Workload("w", 2, 3, 5, 4, 7), lora=False)
    assert full.teacher == 2 * body * 2 * (4 + 3 * 7)
    assert full.policy == 2 * body * 2 * (5 + 3 * 7)
    assert (full.backward, full.loss) == (2 * full.policy, 6 * head * 2 * 3 * 7)

"""The machine's rate of matrix products: the model's own shapes in bfloat16 and float32, best of several calls each.

python -m benchmarks.breakdown --out runs/breakdown
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cells import is_worker, run_cell, serve
from benchmarks.operations import sizes_of
from benchmarks.tables import markdown


def gemm_rates(shape: Any, rows: int) -> Iterator[dict[str, Any]]:
    """Floating-point operations per second of every matrix of a layer and of the head, in both dtypes."""
    import torch

    h, a, k, i = shape.hidden, shape.query_size, shape.kv_size, shape.inner
    sizes = {"q, o": (h, a), "k, v": (h, k), "gate, up": (h, i), "down": (i, h), "head": (h, shape.vocabulary)}
    for dtype in (torch.bfloat16, torch.float32):
        for name, (inputs, outputs) in sizes.items():
            x, w = torch.randn(rows, inputs, dtype=dtype), torch.randn(outputs, inputs, dtype=dtype)
            best = min(_seconds(lambda x=x, w=w: torch.nn.functional.linear(x, w)) for _ in range(7))
            yield {
                "matrix": name,
                "dtype": str(dtype).removeprefix("torch."),
                "rows": rows,
                "gflops": 2 * rows * inputs * outputs / best / 1e9,
            }


def _seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def rates(cell: dict[str, Any]) -> dict[str, Any]:
    """In the process of a cell: the machine's rates."""
    from transformers import AutoConfig

    from opct.models.loading import resolve_model

    shape = sizes_of(AutoConfig.from_pretrained(resolve_model(cell["model"])))
    return {"rates": [row for rows in cell["rows"] for row in gemm_rates(shape, rows)]}


def best_rate(result: dict[str, Any], dtype: str) -> float:
    """The most floating-point operations per second of the layers' matrices in a dtype."""
    return 1e9 * max(row["gflops"] for row in result["rates"] if row["dtype"] == dtype)


def rate_table(result: dict[str, Any]) -> str:
    """GFLOP/s of each matrix in both dtypes, a column for each number of rows."""
    sizes = sorted({row["rows"] for row in result["rates"]})
    found = {(row["dtype"], row["matrix"], row["rows"]): row["gflops"] for row in result["rates"]}
    names = dict.fromkeys((row["dtype"], row["matrix"]) for row in result["rates"])
    rows = [[d, m, *(f"{found[d, m, n]:.0f}" for n in sizes)] for d, m in names]
    return markdown(["GFLOP/s", "matrix", *(f"{n} rows" for n in sizes)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/breakdown"))
    parser.add_argument("--model", default="smollm2-135m-instruct-q4_1")
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 128, 512, 2048], help="of the measured products")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    asked = {"model": args.model, "rows": args.rows, "threads": args.threads}
    print(rate_table(run_cell(args.out / "rates.json", asked, "benchmarks.breakdown", threads=args.threads)))


if __name__ == "__main__":
    serve(rates) if is_worker() else main()

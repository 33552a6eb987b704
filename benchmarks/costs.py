"""Seconds of a step against completions, lengths and processes, each on the same cores.

    python -m benchmarks.costs --out runs/costs

Lengths: steps of 4 prompts x 4 completions of 64 / 48 / 64 tokens (prompt, teacher prompt, completion), one number
changed at a time; a teacher prompt has three quarters of its prompt's tokens. Processes: the workload short under
torchrun, each with a share of the cores as its threads. Before each collective the processes meet, so waiting for the
slowest is counted apart from sending; both are means over the processes. The first step of a cell does not count.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.cells import is_worker, run_cell, serve
from benchmarks.phases import PHASES
from benchmarks.tables import markdown
from benchmarks.workloads import WORKLOADS, Workload, add_options, products_dtype

PARTS = (*PHASES, "other")
MIDDLE = Workload("middle", 4, 4, 64, 48, 64)
SERIES = {
    "completions of a prompt": ("generations", (1, 2, 4, 8)),
    "tokens of a prompt": ("prompt_tokens", (64, 128, 256, 512)),
    "tokens of a completion": ("completion_tokens", (16, 32, 64, 128)),
}


def changed(field: str, value: int) -> Workload:
    """The middle workload with one number changed."""
    fields = {field: value} | ({"teacher_tokens": value * 3 // 4} if field == "prompt_tokens" else {})
    return dataclasses.replace(MIDDLE, **fields)


def work(cell: dict[str, Any]) -> dict[str, Any]:
    """In the process of a cell: steps of one process, or of several that it starts."""
    from benchmarks.ours import time_steps, written

    workload = Workload(**cell["workload"])
    if cell["processes"] == 1:
        return time_steps(workload, cell)
    with written(workload, cell["model"]) as folder:
        path = folder / "cell.json"
        path.write_text(json.dumps(cell), encoding="utf-8")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--nproc-per-node", str(cell["processes"])]
        subprocess.run([*torchrun, "-m", "benchmarks.costs", "--rank-of", str(path)], check=True)
        found = json.loads((folder / "steps.json").read_text(encoding="utf-8"))
        ranks = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("rank-*.json")]
    for i, step in enumerate(found["steps"]):
        step |= {key: fmean(own[i].get(key, 0.0) for own in ranks) for key in ("waiting", "sending")}
    return found


def work_as_rank(path: Path) -> None:
    """One of several processes: writes its seconds of waiting and sending in each step, the first also the steps."""
    import torch.distributed as dist

    from benchmarks.ours import steps_in
    from opct.training.trainer import _Loop

    seconds: Counter[str] = Counter()
    for name in ("all_reduce", "all_gather_object", "broadcast_object_list"):
        setattr(dist, name, _timed(getattr(dist, name), dist.barrier, seconds))
    cell = json.loads(path.read_text(encoding="utf-8"))
    one_step, counted = _Loop._step, list[Counter[str]]()

    def step(self: Any, n: int) -> Any:
        seconds.clear()
        metrics = one_step(self, n)
        counted.append(seconds.copy())
        return metrics

    _Loop._step = step
    found = steps_in(path.parent, Workload(**cell["workload"]), cell)
    rank = os.environ["RANK"]
    (path.parent / f"rank-{rank}.json").write_text(json.dumps(counted), encoding="utf-8")
    if rank == "0":
        (path.parent / "steps.json").write_text(json.dumps(found), encoding="utf-8")


def _timed(collective: Any, meet: Any, seconds: Counter[str]) -> Any:
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        meet()
        met = time.perf_counter()
        found = collective(*args, **kwargs)
        seconds["waiting"] += met - started
        seconds["sending"] += time.perf_counter() - met
        return found

    return timed


def measured(out: Path, cell: dict[str, Any], workload: Workload, name: str, **process: Any) -> dict[str, Any]:
    """The result of a cell, its steps without the first."""
    asked = cell | {"workload": dataclasses.asdict(workload)}
    result = run_cell(out / f"{name}.json", asked, "benchmarks.costs", **process)
    return result | {"steps": result["steps"][1:]}


def middle_of(result: dict[str, Any], phase: str) -> float:
    return median(step[phase] for step in result["steps"])


def rows_of(series: dict[str, dict[int, dict[str, Any]]]) -> Iterator[list[str]]:
    for name, results in series.items():
        for value, result in results.items():
            yield [name, str(value), *(f"{middle_of(result, phase):.1f}" for phase in ("step", *PARTS))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "runs/costs")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--series", nargs="*", choices=SERIES, default=list(SERIES))
    parser.add_argument("--steps", type=int, default=2, help="of each cell, the first included; at least 2")
    args = parser.parse_args()
    cell = {"model": args.model, "training": "lora", "dtype": products_dtype(args.dtype), "steps": args.steps}
    cell |= {"micro_batch": 1536, "processes": 1}

    rows = []
    for n in args.processes:
        threads = max(1, args.threads // n)
        found = measured(args.out, cell | {"processes": n}, WORKLOADS["short"], f"processes-{n}", threads=threads)
        shared = [f"{middle_of(found, key):.2f}" if n > 1 else "" for key in ("waiting", "sending")]
        rows.append([str(n), str(threads), f"{middle_of(found, 'step'):.1f}", *shared])
    if rows:
        print(markdown(["processes", "threads each", "s a step", "waiting", "sending"], rows) + "\n")

    series: dict[str, dict[int, dict[str, Any]]] = {}
    for name in args.series:
        field, values = SERIES[name]
        series[name] = {}
        for value in values:
            workload = changed(field, value)
            file = "middle" if workload == MIDDLE else f"{field}-{value}"
            series[name][value] = measured(args.out, cell, workload, file, threads=args.threads)
    if series:
        print(markdown(["changed", "to", "s a step", *PARTS], list(rows_of(series))))


if __name__ == "__main__":
    if "--rank-of" in sys.argv:
        work_as_rank(Path(sys.argv[-1]))
    elif is_worker():
        serve(work)
    else:
        main()

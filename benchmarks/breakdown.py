"""The machine's rate of matrix products, the share of it that each part of a step reaches, and where the rest goes.

    python -m benchmarks.breakdown --out runs/breakdown

Rate: the model's own shapes in bfloat16 and float32, best of several calls each. Parts, on the batch of `--workload`
(in `--dtype`): a sampled batch, scoring by the teacher, the policy's forward, the loss, backward. A part's share is the
operations that it cannot do without (`benchmarks.operations`) over its seconds and the machine's best rate. Where the
loss finds its gradient in the forward, backward is that of the body. Operators are those of torch.profiler, each with
its own time alone, in a last pass, for the profiler takes time itself. Seconds are the median of three passes after one
that is not counted, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.cells import is_worker, run_cell, serve
from benchmarks.operations import operations, sizes_of
from benchmarks.tables import markdown, spread
from benchmarks.workloads import WORKLOADS, Workload, add_dtype, products_dtype

GROUPS: dict[str, tuple[str, ...]] = {
    "gemm": ("mm", "addmm", "addmm_", "linear", "matmul", "mkldnn_linear", "_LoraLinear"),
    "attention": ("attention", "bmm", "baddbmm", "_Causal", "_Cascade"),  # nothing else has batches of products
    "copies, casts": (
        "copy_",
        "clone",
        "contiguous",
        "cat",
        "stack",
        "index",
        "gather",
        "scatter",
        "embedding",
        "fill_",
    ),
    "softmax, loss": ("softmax", "logsumexp", "exp", "log", "cumsum", "searchsorted", "amax", "_Found"),
    "norm, element-wise": ("mul", "add", "sub", "div", "pow", "rsqrt", "mean", "silu", "sum", "neg", "where", "masked"),
}
"""Operators by name, the first group that matches: the whole name, or one of its words, is among the group's."""
TURNS = 3  # that are timed
PARTS = ("rollout", "teacher", "policy", "loss", "backward")


def group_of(operator: str) -> str:
    """Which group an operator of torch.profiler belongs to, `other` where none names it."""
    name = operator.removeprefix("aten::").removesuffix("Backward0").removesuffix("Backward")
    words = {name, name.strip("_"), *name.strip("_").split("_")}
    for group, members in GROUPS.items():
        if words & set(members):
            return group
    return "other"


def by_group(self_times: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each group, from seconds of each operator without those it calls."""
    seconds: Counter[str] = Counter()
    for operator, own in self_times.items():
        seconds[group_of(operator)] += own
    return {group: seconds[group] for group in (*GROUPS, "other") if seconds[group]}


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


def parts(cell: dict[str, Any]) -> dict[str, Any]:
    """In the process of a cell: seconds, operations and groups of operators of each part of a step."""
    from benchmarks.ours import config_of, prepare_forced, written
    from opct.methods.consistency import consistency_loss
    from opct.methods.opct import OPCT
    from opct.methods.rollouts import step_weights
    from opct.training.accumulate import shared_prefixes

    workload = Workload(**cell["workload"])
    with written(workload, cell["model"]) as folder:
        setup = prepare_forced(config_of(workload, folder, cell | {"steps": 1, "micro_batch": 10**9}))
    policy, config = setup.policy, setup.config
    method = OPCT(policy, setup.teacher, config)
    needed = operations(sizes_of(policy.backbone.decoder.config), workload, lora=cell["training"] == "lora")
    prompts, teacher_prompts, y = [], [], []

    def rollout() -> None:
        rollouts[:] = method.collect(setup.data.batch(1), 1)

    def teacher() -> None:
        with setup.teacher() as model, model.inference():
            scores["teacher"] = model.score(teacher_prompts, y, prefix=prefixes[0].teacher)

    def student() -> None:
        scores["policy"] = policy.score(prompts, y, prefix=prefixes[0].policy)

    def loss() -> None:
        scores["loss"] = consistency_loss(scores["policy"], scores["teacher"], rollouts, weights, config.loss).loss

    def backward() -> None:
        scores["loss"].backward()
        prefixes[0].policy.backward()

    rollouts: list[Any] = []
    scores: dict[str, Any] = {}
    prefixes: list[Any] = []
    work = {"rollout": rollout, "teacher": teacher, "policy": student, "loss": loss, "backward": backward}
    found: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in work}
    for turn in range(TURNS + 2):  # the first is a warm-up, the last under the profiler
        for name, run in work.items():
            if name == "teacher":
                prompts, teacher_prompts = [r.prompt_ids for r in rollouts], [r.teacher_ids for r in rollouts]
                y = [r.ids for r in rollouts]
                weights = step_weights(rollouts, config.loss.reduction)
                policy.model.train()
                prefixes[:] = [shared_prefixes(method, rollouts)]
            if turn > TURNS:
                found[name] |= profiled(run)
            elif turn:
                found[name]["seconds"].append(_seconds(run))
            else:
                run()
        policy.model.zero_grad(set_to_none=True)
        policy.model.eval()
    each = (needed.rollout, needed.teacher, needed.policy, needed.loss, needed.backward)
    for name, flops in zip(PARTS, each, strict=True):
        found[name]["flops"] = flops
    return {"parts": found}


def profiled(run: Callable[[], Any]) -> dict[str, Any]:
    """Seconds of each group of operators, and the largest of those that no group names."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    self_times = {e.key: e.self_cpu_time_total / 1e6 for e in profile.key_averages()}
    rest = Counter({key: own for key, own in self_times.items() if group_of(key) == "other"})
    return {"groups": by_group(self_times), "other": dict(rest.most_common(5))}


def work(cell: dict[str, Any]) -> dict[str, Any]:
    """In the process of a cell."""
    return rates(cell) if cell["do"] == "rates" else parts(cell)


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


def part_table(found: dict[str, Any], rate: float) -> str:
    """Seconds of each part, its share of the machine's rate, and of the profiler's time for each group."""
    groups = [*GROUPS, "other"]
    rows = []
    for name, part in found.items():
        whole = sum(part["groups"].values())
        seconds = spread(part["seconds"])
        share = part["flops"] / seconds.middle / rate
        shown = [f"{part['groups'].get(group, 0.0) / whole:.0%}" for group in groups]
        rows.append([name, seconds.text(2), f"{part['flops'] / 1e12:.2f}", f"{share:.0%}", *shown])
    return markdown(["part", "seconds", "TFLOP", "share of the rate", *groups], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/breakdown"))
    parser.add_argument("--workload", choices=WORKLOADS, default="short")
    parser.add_argument("--training", choices=("lora", "full"), default="lora")
    parser.add_argument("--model", default="smollm2-135m-instruct-q4_1")
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 128, 512, 2048], help="of the measured products")
    add_dtype(parser)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit-s", type=float, default=1800)
    args = parser.parse_args()
    process = {"limit_s": args.limit_s, "threads": args.threads}
    asked = {"do": "rates", "model": args.model, "rows": args.rows, "threads": args.threads}
    machine = run_cell(args.out / "rates.json", asked, "benchmarks.breakdown", **process)
    workload = WORKLOADS[args.workload]
    dtype = products_dtype(args.dtype)
    asked = {"do": "parts", "model": args.model, "training": args.training, "threads": args.threads, "dtype": dtype}
    asked["workload"] = json.loads(json.dumps(vars(workload)))
    path = args.out / f"parts-{args.training}-{args.workload}.json"
    result = run_cell(path, asked, "benchmarks.breakdown", **process)
    if machine is None or result is None:
        raise SystemExit("a measurement failed: see its log above")
    print(rate_table(machine) + "\n")
    print(part_table(result["parts"], best_rate(machine, dtype)))


if __name__ == "__main__":
    serve(work) if is_worker() else main()

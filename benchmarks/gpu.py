"""What `opct` takes on an accelerator that is lent for some minutes, against TRL, vLLM and Liger.

    python -m benchmarks.gpu --model FOLDER --out runs/gpu --minutes 8

A cell is a process. Each is a line of `cells.jsonl` as soon as it ends, and a row of `table.md`: figures, or the reason
why there are none. A cell that starts too near the end of `--minutes` is left out by name; one that reaches the end is
stopped. Steps have completions of a forced length; the first step is a warm-up. Memory is the most that torch
allocated on the device in the process of the cell, so vLLM's own is in it only where it runs in that process (TRL).
The share is the operations that a step cannot do without over its seconds besides the rollout, as a share of the
rate of a large product. A loss counts only if it is that of plain torch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cells import CellFailed, is_worker, run_cell, serve
from benchmarks.phases import clock_of
from benchmarks.step import cell_of, training_flops
from benchmarks.step import work as step_work
from benchmarks.tables import markdown
from benchmarks.workloads import Workload

HEAD = ("cell", "seconds", "tokens/s", "peak GB", "share of the product rate", "why not")
NEEDS_S = 30  # what the shortest cell takes: a later start is left out
TOLERANCE = 0.02  # of a loss from plain torch's, in bfloat16


@dataclass(frozen=True)
class Sizes:
    """What is measured: the step, its micro-batches, rollouts, tokens of a loss, and the side of the large product."""

    workload: Workload
    micro_tokens: int
    peer_rows: int
    rows: int
    new_tokens: int
    loss_tokens: int
    side: int


PACKAGES = {"vllm": "vllm", "continuous_batching": "flash_attn"}
SIZES = {
    "full": Sizes(Workload("gpu", 16, 8, 256, 192, 128), 16384, 32, 128, 256, 8192, 8192),
    "tiny": Sizes(Workload("tiny", 2, 2, 90, 71, 5), 400, 2, 2, 4, 64, 64),
}


def cells(model: str, device: str, sizes: Sizes) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Name, settings and packages of each cell, the most wanted first."""
    base, name = {"model": model, "device": device, "dtype": "bfloat16"}, Path(model).name
    yield f"{name}: product rate", base | {"do": "rate", "side": sizes.side}, ()

    def of_engine(engine: str) -> tuple[str, ...]:
        # on a CPU transformers samples without flash attention
        return (PACKAGES[engine],) if engine == "vllm" or (engine in PACKAGES and device != "cpu") else ()

    def step(training: str, system: str, **more: str) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        micro = sizes.micro_tokens if system == "opct" else sizes.peer_rows
        cell = cell_of(sizes.workload, training, f"{system}@{micro}", **base, **more, do="time", steps=3, rep=0)
        needs = () if system == "opct" else ("trl",)
        needs += of_engine(more["engine"]) if "engine" in more else ()
        needs += ("bitsandbytes",) if "quantization" in more else ()
        words = [f"{name}: step", training, system, *more.values()]
        return ", ".join(words), cell, needs

    for training in ("lora", "full"):
        yield step(training, "opct")
        for peer in ("sdft/autocast", "chunked/autocast"):
            yield step(training, peer)
    for way in ("opct", "torch", "liger"):
        needs = ("liger_kernel",) if way == "liger" else ()
        yield f"{name}: loss, {way}", base | {"do": "loss", "way": way, "tokens": sizes.loss_tokens}, needs
    yield step("lora", "opct", quantization="4bit")
    for engine in ("in_process", "continuous_batching", "vllm"):
        cell = base | {"do": "sample", "engine": engine, "rows": sizes.rows, "tokens": sizes.new_tokens}
        yield f"{name}: rollout, {engine}", cell, of_engine(engine)
    for engine in ("continuous_batching", "vllm"):
        yield step("lora", "opct", engine=engine)
    for training in ("lora", "full"):
        for peer in ("sdft/autocast", "chunked/autocast"):
            yield step(training, peer, engine="vllm")


def work(cell: dict[str, Any]) -> dict[str, Any]:
    """In the process of a cell: its figures."""
    import torch

    from opct.models.loading import choose_device

    choose_device(cell["device"])  # says why it cannot be used
    found = {"rate": rate, "time": time_step, "loss": loss, "sample": sample}[cell["do"]](cell)
    on_device = cell["device"].startswith("cuda")
    return found | ({"peak_gb": torch.cuda.max_memory_allocated() / 1e9} if on_device else {})


def rate(cell: dict[str, Any]) -> dict[str, Any]:
    """The best of ten products of square matrices."""
    import torch

    x = torch.randn(cell["side"], cell["side"], dtype=getattr(torch, cell["dtype"]), device=cell["device"])
    seconds = min(timed(lambda: x @ x, cell["device"]) for _ in range(10))
    return {"seconds": seconds, "rate": 2 * cell["side"] ** 3 / seconds}


def timed(run: Callable[[], Any], device: str) -> float:
    """Seconds of a call, on the device too."""
    started = (clock := clock_of(device))()
    run()
    return clock() - started


def time_step(cell: dict[str, Any]) -> dict[str, Any]:
    """Medians over the steps after the first."""
    steps = step_work(cell)["steps"][1:]
    seconds, workload = median(step["step"] for step in steps), Workload(**cell["workload"])
    busy = median(step["step"] - step["rollout"] for step in steps)
    flops = training_flops(workload, cell)
    return {"seconds": seconds, "tokens_per_s": workload.tokens / seconds, "flops_per_s": flops / busy, "steps": steps}


def sample(cell: dict[str, Any]) -> dict[str, Any]:
    """Completion tokens a second of an engine with an adapter."""
    from benchmarks import engines
    from opct.config.schema import TrainConfig

    model = {"name_or_path": cell["model"], "dtype": cell["dtype"], "device": cell["device"]}
    config = TrainConfig.model_validate({"model": model, "lora": {"r": 16, "alpha": 32}, "rollout": {"engine": "vllm"}})
    policy = engines.loaded(config.model, config.lora)
    policy.engine = cell["engine"]
    prompts = engines.prompts_of(policy, cell["rows"])
    longest = max(map(len, prompts)) + cell["tokens"] + 1
    way: Any = contextlib.nullcontext(policy)
    if cell["engine"] == "vllm":
        way = engines.engine_of(policy, config, longest)
    with way as engine:
        if engine is not policy:
            engine.sync_weights(0)
        row = engines.measure(policy, engine, prompts, cell["tokens"])
    return row | {"seconds": len(prompts) * cell["tokens"] / row["tokens_per_s"]}


def loss(cell: dict[str, Any]) -> dict[str, Any]:
    """Forward and backward of the mean reverse KL from random hidden states, to these and the head."""
    import torch
    from transformers import AutoConfig

    from opct.losses import reverse_kl, reverse_kl_gradient
    from opct.models.chunked_loss import one_pass
    from opct.models.scoring import Head, Scores

    config, n, device = AutoConfig.from_pretrained(cell["model"]), cell["tokens"], cell["device"]
    dtype = getattr(torch, cell["dtype"])
    generator = torch.Generator().manual_seed(0)
    weight, hidden, other = (
        torch.randn(rows, config.hidden_size, generator=generator).to(device, dtype)
        for rows in (config.vocab_size, n, n)
    )
    weight = (weight / config.hidden_size**0.5).requires_grad_()
    hidden.requires_grad_()

    def ours() -> torch.Tensor:
        ids, head = torch.zeros(n, dtype=torch.long, device=device), Head(weight, None, dtype)
        policy, teacher = (Scores(states, ids, head, (n,)) for states in (hidden, other))
        weights = torch.full((n,), 1 / n, device=device)
        return one_pass(lambda values: values.divergence, weights, policy, teacher, reverse_kl_gradient)[0]

    def plain() -> torch.Tensor:
        return reverse_kl((hidden @ weight.T).float(), (other @ weight.detach().T).float()).mean()

    def liger() -> torch.Tensor:
        from liger_kernel.transformers.fused_linear_jsd import LigerFusedLinearJSD

        return LigerFusedLinearJSD(jsd_beta=1.0)(hidden, weight, other, weight.detach())

    way = {"opct": ours, "torch": plain, "liger": liger}[cell["way"]]
    seconds = [timed(lambda: way().backward(), device) for _ in range(4)][1:]
    expected, value = float(plain_value(hidden, other, weight, reverse_kl)), float(way().detach())
    if not abs(value - expected) <= TOLERANCE * abs(expected):
        raise SystemExit(f"the loss is {value:.4f}, plain torch's {expected:.4f}")
    return {"seconds": median(seconds), "tokens_per_s": n / median(seconds), "loss": value}


def plain_value(hidden: Any, other: Any, weight: Any, reverse_kl: Callable[..., Any]) -> Any:
    """The loss in blocks, so that it takes little memory."""
    import torch

    with torch.no_grad():
        blocks = zip(hidden.split(256), other.split(256), strict=True)
        return sum(reverse_kl((h @ weight.T).float(), (t @ weight.T).float()).sum() for h, t in blocks) / len(hidden)


def row_of(name: str, found: dict[str, Any], rate: float | None) -> list[str]:
    """A row of the table."""
    share = found["flops_per_s"] / rate if rate and "flops_per_s" in found else None
    figures = [(found.get("seconds"), ".3g"), (found.get("tokens_per_s"), ".0f"), (found.get("peak_gb"), ".1f")]
    shown = ["-" if x is None else format(x, digits) for x, digits in [*figures, (share, ".0%")]]
    return [name, *shown, found.get("reason", "")]


def measured(cell: dict[str, Any], path: Path, limit_s: float) -> dict[str, Any]:
    """The figures of a cell, or the reason why it has none."""
    try:
        return run_cell(path, cell, "benchmarks.gpu", limit_s=limit_s)
    except CellFailed as error:
        return {"reason": str(error).replace("|", "/")}


def main(arguments: list[str] | None = None, measure: Callable[..., dict[str, Any]] = measured) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", required=True, help="a model's folder; repeatable")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", choices=SIZES, default="full")
    parser.add_argument("--cell-s", type=float, default=180, help="most seconds of a cell")
    args = parser.parse_args(arguments)
    end, rows, rate = time.monotonic() + 60 * args.minutes, [], None
    args.out.mkdir(parents=True, exist_ok=True)
    planned = [c for m in args.model for c in cells(str(m.resolve()), args.device, SIZES[args.sizes])]
    for number, (name, cell, needs) in enumerate(planned):
        left = end - time.monotonic()
        missing = [package for package in needs if importlib.util.find_spec(package) is None]
        if missing:
            found = {"reason": f"{', '.join(missing)} is not installed"}
        elif left < NEEDS_S:
            found = {"reason": f"left out: {max(left, 0):.0f} s were left"}
        else:
            found = measure(cell, args.out / "cells" / f"{number}.json", min(left, args.cell_s))
        rate = found.get("rate", rate)
        rows.append(row_of(name, found, rate))
        with open(args.out / "cells.jsonl", "a", encoding="utf-8") as out:
            out.write(json.dumps({"name": name, "cell": cell, "result": found}) + "\n")
        (args.out / "table.md").write_text(markdown(HEAD, rows) + "\n", encoding="utf-8")
        print(" | ".join(rows[-1]), flush=True)


if __name__ == "__main__":
    serve(work) if is_worker() else main()

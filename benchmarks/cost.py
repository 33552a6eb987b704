"""Time and memory of a step as its sizes grow, measured and predicted; and what the cost model says of larger models.

    python -m benchmarks.cost --out runs/cost --figure docs/assets/cost.svg
    python -m benchmarks.cost --scenarios       # the table of docs/scaling.md; nothing is measured

From one batch (4 prompts x 4 completions of 64 tokens, LoRA) one size grows at a time: completions for each
prompt, tokens of the prompt, tokens of a completion, and the vocabulary, of models with random weights otherwise like
the default one. The prediction is that of `opct.models.cost_model`. Its two efficiencies, of the rollout and of
training, are set so
that it is right at the first batch; how it moves from there is what the plot shows. Memory is what a step adds to the
process as it was when the model was loaded; nothing is set there.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cells import is_worker, run_cell, serve
from benchmarks.tables import markdown, spread
from benchmarks.workloads import Workload, add_dtype, products_dtype
from opct.models.cost_model import Batch, Machine, Setting, memory, operations, step_time
from opct.models.shape import Shape

BASE = Workload("base", 4, 4, 64, 48, 64)
VOCABULARY = 49152  # of the default model
SWEEPS: dict[str, tuple[int, ...]] = {
    "generations": (1, 2, 4, 8, 16),
    "prompt_tokens": (64, 128, 256, 512),
    "completion_tokens": (16, 32, 64, 128),
    "vocabulary": (49152, 98304, 151936, 256000),
}


def points() -> list[tuple[str, int, Workload, int]]:
    """(what grows, to what, batch, vocabulary) of every measurement."""
    found = []
    for name, values in SWEEPS.items():
        for value in values:
            batch = BASE if name == "vocabulary" else replace(BASE, **{name: value})
            found.append((name, value, batch, value if name == "vocabulary" else VOCABULARY))
    return found


def make_model(cell: dict[str, Any]) -> dict[str, Any]:
    """In the process of a cell: a folder with a model of random weights and another vocabulary, and its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from opct.models.loading import resolve_model

    source, folder = resolve_model(cell["model"]), Path(cell["folder"])
    config = AutoConfig.from_pretrained(source)
    config.vocab_size = cell["vocabulary"]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return {"folder": str(folder)}


def measure_machine(cell: dict[str, Any]) -> dict[str, Any]:
    """In the process of a cell: the rates that a prediction of time needs."""
    from opct.config.schema import ModelConfig
    from opct.models.policy import Policy
    from opct.training.prediction import checked_shape, measured_machine

    policy = Policy.load(ModelConfig(name_or_path=cell["model"], dtype=cell["dtype"], device="cpu"))
    return asdict(measured_machine(policy, checked_shape(policy)))


def measure(cell: dict[str, Any]) -> dict[str, Any]:
    """In the process of a cell: the steps, the memory before them, and what the prediction needs to know of the run."""
    from benchmarks import ours
    from opct.training.prediction import checked_shape, largest_batch, setting_of

    found: dict[str, Any] = {}
    prepare = ours.prepare

    def prepare_and_look(config: Any, **options: Any) -> Any:
        setup = prepare(config, **options)
        found["shape"] = asdict(checked_shape(setup.policy))
        found["setting"] = asdict(setting_of(setup))
        found["batch"] = asdict(largest_batch(setup))
        found["loaded_gb"] = ours.resident_gb()
        return setup

    ours.prepare = prepare_and_look
    return ours.time_steps(Workload(**cell["workload"]), cell) | found


def work(cell: dict[str, Any]) -> dict[str, Any]:
    """In the process of a cell."""
    return {"machine": measure_machine, "model": make_model, "steps": measure}[cell["do"]](cell)


@dataclass(frozen=True)
class Point:
    """One measurement beside its prediction: seconds of rollout and training, GB that the step adds."""

    name: str
    value: int
    rollout: float
    training: float
    added_gb: float
    predicted_rollout: float
    predicted_training: float
    predicted_gb: float

    def fitted(self, rollout: float, training: float) -> float:
        """The predicted seconds of a step where the two parts reach such shares of the machine's limits."""
        return self.predicted_rollout / rollout + self.predicted_training / training


def collect(out: Path) -> list[Point]:
    """Every measurement that is there, with its prediction."""
    found = []
    rates = json.loads((out / "machine.json").read_text(encoding="utf-8"))["result"]
    machine = Machine(rates["gemm_flops"], rates["bandwidth"])
    for name, value, _, _ in points():
        path = out / name / f"{value}.json"
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))["result"]
            found.append(point_of(name, value, result, machine))
    return found


def point_of(name: str, value: int, result: dict[str, Any], machine: Machine) -> Point:
    """A measurement beside the prediction for its model, settings and batch."""
    sizes = Shape(**result["shape"]), Setting(**result["setting"]), Batch(**result["batch"])
    predicted, seconds = memory(*sizes), step_time(*sizes, machine)
    rollout = spread([step["rollout"] for step in result["steps"][1:]]).middle
    whole = spread([step["step"] for step in result["steps"][1:]]).middle
    return Point(
        name=name,
        value=value,
        rollout=rollout,
        training=whole - rollout,
        added_gb=result["peak_gb"] - result["loaded_gb"],
        predicted_rollout=seconds.rollout,
        predicted_training=seconds.training,
        predicted_gb=(predicted.peak - predicted.weights - predicted.teacher) / 1e9,
    )


def efficiencies(found: list[Point]) -> tuple[float, float]:
    """(rollout, training): shares of the limits that were reached at the first batch.

    Raises:
        SystemExit: the first batch was not measured.
    """
    base = next((p for p in found if (p.name, p.value) == ("generations", BASE.generations)), None)
    if base is None:
        raise SystemExit("the first batch (generations 4) was not measured, so there is nothing to start from")
    return base.predicted_rollout / base.rollout, base.predicted_training / base.training


def table(found: list[Point]) -> str:
    """Measured and predicted seconds of a step and GB added, a row for each point."""
    shares = efficiencies(found)
    rows = [
        [
            p.name,
            str(p.value),
            f"{p.rollout + p.training:.2f}",
            f"{p.fitted(*shares):.2f}",
            f"{p.added_gb:.2f}",
            f"{p.predicted_gb:.2f}",
        ]
        for p in found
    ]
    head = ["what grows", "to", "s a step", "predicted", "GB added", "predicted"]
    reached = f"shares reached at the first batch: rollout {shares[0]:.0%}, training {shares[1]:.0%}"
    return f"{markdown(head, rows)}\n\n{reached}"


def draw(found: list[Point], figure: Path) -> None:
    """Seconds above, GB below, a column for each size that grows; points are measured, lines predicted."""
    from benchmarks.figures import COLOURS, pyplot, save

    shares = efficiencies(found)
    names = [name for name in SWEEPS if any(p.name == name for p in found)]
    canvas, axes = pyplot().subplots(
        2, len(names), figsize=(2.6 * len(names), 4.6), layout="constrained", squeeze=False
    )
    for column, name in enumerate(names):
        own = [p for p in found if p.name == name]
        x = [p.value for p in own]
        rows = (
            ("seconds a step", [p.rollout + p.training for p in own], [p.fitted(*shares) for p in own]),
            ("GB added", [p.added_gb for p in own], [p.predicted_gb for p in own]),
        )
        for axis, (label, measured, predicted) in zip(axes[:, column], rows, strict=True):
            axis.plot(x, predicted, color=COLOURS[3], label="predicted")
            axis.plot(x, measured, "o", color=COLOURS[0], label="measured")
            axis.set_ylim(bottom=0)
            axis.set_ylabel(label if column == 0 else "")
        axes[1, column].set_xlabel(name.replace("_", " "))
    axes[0, 0].legend(fontsize="small")
    save(canvas, figure)


@dataclass(frozen=True)
class Scenario:
    """A model on a machine, of which nothing was measured: published sizes, and the makers' peak rates."""

    title: str
    shape: Shape
    setting: Setting
    machine: Machine
    batch: Batch


QWEN_1_5B = Shape(28, 1536, 12, 2, 128, 8960, 151936, tied=True)
LLAMA_8B = Shape(32, 4096, 32, 8, 128, 14336, 128256, tied=False)
LLAMA_70B = Shape(80, 8192, 64, 8, 128, 28672, 128256, tied=False)
LAPTOP = Machine(gemm_flops=1e12, bandwidth=60e9, efficiency=0.4)
H100 = Machine(gemm_flops=989e12, bandwidth=3.35e12, efficiency=0.4)
SMALL_BATCH = Batch(8, 4, 300, 250, 256, micro_batch_tokens=512, block_values=2**19)
LARGE_BATCH = Batch(64, 8, 300, 250, 512, micro_batch_tokens=2048, rollout_rows=256)
LEAST_BATCH = replace(LARGE_BATCH, micro_batch_tokens=512)  # what a step can be cut into: few rows at a time
SCENARIOS = (
    Scenario("1.5B, LoRA, a laptop's CPU", QWEN_1_5B, Setting(16, cascade=True), LAPTOP, SMALL_BATCH),
    Scenario("8B, LoRA, one H100", LLAMA_8B, Setting(16), H100, LARGE_BATCH),
    Scenario("8B, every weight, 8 H100", LLAMA_8B, Setting(None, processes=8, parallel="shard"), H100, LARGE_BATCH),
    Scenario("70B, LoRA, 8 H100", LLAMA_70B, Setting(16, processes=8, parallel="shard"), H100, LEAST_BATCH),
    Scenario("70B, every weight, 64 H100", LLAMA_70B, Setting(None, processes=64, parallel="shard"), H100, LEAST_BATCH),
)


def scenario_table() -> str:
    """Memory of a process and seconds of a step of models that do not run here, by the formulas alone."""
    rows = []
    for one in SCENARIOS:
        found = memory(one.shape, one.setting, one.batch)
        seconds = step_time(one.shape, one.setting, one.batch, one.machine)
        gb = (found.weights, found.teacher, found.gradients + found.optimizer, found.micro_batch)
        flops = operations(one.shape, one.setting, one.batch).training
        rows.append(
            [
                one.title,
                f"{one.batch.prompts} x {one.batch.generations}, {one.batch.micro_batch_tokens}",
                *(f"{part / 1e9:.1f}" for part in (*gb, found.rollout_cache + found.rollout_copies)),
                f"**{found.peak / 1e9:.0f}**",
                f"{flops / 1e15:.2f}",
                f"{seconds.rollout:.0f}",
                f"{seconds.training:.0f}",
            ]
        )
    head = [
        "",
        "prompts x completions, micro-batch",
        "weights",
        "teacher",
        "gradients, Adam",
        "micro-batch",
        "rollout",
        "peak GB",
    ]
    return markdown([*head, "PFLOP of training", "rollout s", "training s"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/cost"))
    parser.add_argument("--sweeps", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--steps", type=int, default=3, help="in each process, the first of them a warm-up")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    add_dtype(parser)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit-s", type=float, default=1800)
    parser.add_argument("--table", action="store_true", help="print the table of what is there, and measure nothing")
    parser.add_argument(
        "--scenarios", action="store_true", help="print the table of larger models, and measure nothing"
    )
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    if args.scenarios:
        print(scenario_table())
        return
    dtype = products_dtype(args.dtype)
    process, failed = {"limit_s": args.limit_s, "threads": args.threads}, 0
    if not args.table:
        asked = {"do": "machine", "model": args.model, "threads": args.threads, "dtype": dtype}
        if run_cell(args.out / "machine.json", asked, "benchmarks.cost", **process) is None:
            raise SystemExit("the machine's rates could not be measured")
    for name, value, workload, vocabulary in points():
        if args.table or name not in args.sweeps:
            continue
        model = args.model
        if vocabulary != VOCABULARY:
            model = str((args.out / "models" / str(vocabulary)).resolve())
            made = {"do": "model", "model": args.model, "vocabulary": vocabulary, "folder": model}
            run_cell(args.out / "models" / f"{vocabulary}.json", made, "benchmarks.cost", **process)
        cell = {"do": "steps", "workload": asdict(workload), "training": "lora", "model": model, "steps": args.steps}
        cell |= {"micro_batch": 1536, "threads": args.threads, "dtype": dtype}
        result = run_cell(args.out / name / f"{value}.json", cell, "benchmarks.cost", **process)
        failed += result is None
        if result is not None:
            seconds = spread([step["step"] for step in result["steps"][1:]]).text(2)
            print(f"  {name} {value}: {seconds} s, {result['peak_gb'] - result['loaded_gb']:.2f} GB added", flush=True)
    found = collect(args.out)
    print(table(found))
    if args.figure:
        draw(found, args.figure)
    if failed:
        raise SystemExit(f"{failed} cells failed: start again to measure these")


if __name__ == "__main__":
    serve(work) if is_worker() else main()

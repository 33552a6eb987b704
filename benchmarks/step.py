"""Seconds and memory of a training step: `opct` against the two trainers of TRL that can compute the same.

    python -m benchmarks.step --out runs/step --repeats 3
    python -m benchmarks.step --out runs/step --table          # of what is there; nothing is run
    python -m benchmarks.step --out runs/forms --workloads default quickstart --training lora --without all

The last one measures `opct` against itself without each form of its fast path on a CPU (`opct.cpu.switches`), one
after another; which stay, and why, is said there.

First each system computes the loss of one small step in float32 on the same completions; where the losses, or the norms
of their gradients, differ by more than one part in a thousand, nothing is timed. Then every system takes its steps in a
process of its own, one system after another, and again in the next repetition. Same weights, prompts and teacher
prompts of exact lengths (`default` and `quickstart` take those of their settings), completions of a forced length,
learning rate, threads, AdamW, gradient norm 1, and products in bfloat16 where this machine is faster at these
(`--dtype`). The first step of a process is a warm-up. A system is
`opct`, or `opct/-form,form` without these, or `sdft` or `chunked` (see benchmarks/trl_peers.py) with `/variant`; `@n`
sets its micro-batch: rows for the peers, tokens for `opct`. What is finished is not measured again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.breakdown import best_rate
from benchmarks.cells import CellFailed, is_worker, run_cell, serve
from benchmarks.operations import operations, sizes_of
from benchmarks.phases import PHASES
from benchmarks.tables import markdown, ratios, spread
from benchmarks.workloads import WORKLOADS, Workload, add_options, products_dtype
from opct.cpu.switches import FORMS, without

SYSTEMS = ("opct", "sdft/shipped", "sdft/autocast", "sdft/bf16", "chunked/shipped", "chunked/autocast", "chunked/bf16")
MICRO_BATCH_TOKENS = 1536  # opct's default
PEER_ROWS = {"long": 4}  # rows in a micro-batch of a peer, where the whole step takes too much memory
TOLERANCE = 1e-3
OUR_SETTINGS = {  # with the mean lengths of their prompts, of the default as of its pairs before `:facts`
    "default": Workload("default", 24, 1, 73, 62, 24, "configs/sycophancy.yaml"),
    "quickstart": Workload("quickstart", 4, 2, 66, 55, 8, "configs/quickstart.yaml"),
}
ALL_WORKLOADS = WORKLOADS | OUR_SETTINGS


def parse_system(text: str) -> tuple[str, str, int | None]:
    """`sdft/bf16@4` -> ("sdft", "bf16", 4); what is left out is "" and None.

    Raises:
        ValueError: there is no such system or variant.
    """
    head, _, size = text.partition("@")
    system, _, variant = head.partition("/")
    if head not in SYSTEMS and not (system == "opct" and FORMS.keys() >= set(forms_off(variant)) != set()):
        raise ValueError(f"{text!r} is none of {', '.join(SYSTEMS)}")
    return system, variant, int(size) if size else None


def forms_off(variant: str) -> list[str]:
    """`-fused_lora,cascade` -> ["fused_lora", "cascade"]."""
    return variant[1:].split(",") if variant.startswith("-") else []


def cell_of(workload: Workload, training: str, text: str, **settings: Any) -> dict[str, Any]:
    """The settings of a process."""
    system, variant, size = parse_system(text)
    tokens, rows = MICRO_BATCH_TOKENS, min(PEER_ROWS.get(workload.name, workload.rows), workload.rows)
    return {
        "workload": asdict(workload),
        "training": training,
        "system": system,
        "variant": variant,
        "micro_batch": size or (tokens if system == "opct" else rows),
        **settings,
    }


def file_of(out: Path, cell: dict[str, Any], text: str, suffix: str) -> Path:
    """The file of a cell."""
    return out / cell["training"] / cell["workload"]["name"] / f"{text.replace('/', '-')}{suffix}.json"


def applies(training: str, text: str, dtype: str) -> bool:
    """bfloat16 weights lose the small updates of full fine-tuning, so that variant is measured with LoRA alone."""
    return parse_system(text)[1] != "bf16" or (training == "lora" and dtype == "bfloat16")


def small(workload: Workload) -> Workload:
    """The same lengths with at most two prompts of two completions: what the losses are compared on."""
    return replace(workload, prompts=min(2, workload.prompts), generations=min(2, workload.generations))


def check(args: argparse.Namespace, workload: Workload, training: str, systems: list[str]) -> None:
    """Compare the losses of all systems on the completions that `opct` samples.

    Raises:
        SystemExit: one failed, or differs by more than the tolerance.
    """
    if all(s.startswith("opct") for s in systems):
        return  # nothing to compare with: that the fast path equals the plain one is tested
    part, found = small(workload), {}
    settings: dict[str, Any] = {"model": args.model, "steps": 1, "dtype": "float32"}
    for text in ["opct", *(s for s in systems if not s.startswith("opct"))]:
        shown = text.partition("@")[0].replace("bf16", "autocast")  # both are float32 here
        cell = cell_of(part, training, shown, **settings, do="check")
        if text != "opct":
            cell["completions"] = found["opct"]["completions"]
        found[shown] = run_cell(file_of(args.out, cell, shown, "-loss"), cell, "benchmarks.step", **args.process)
    for shown, result in found.items():
        off = {key: abs(result[key] / found["opct"][key] - 1) for key in ("loss", "grad_norm")}
        said = ", ".join(f"{key} {result[key]:.6f} ({share:.1e} off)" for key, share in off.items())
        print(f"  {workload.name} {training} {shown}: {said}", flush=True)
        if not max(off.values()) <= TOLERANCE:  # NaN is no less
            raise SystemExit(f"{shown} computes something else than opct on the same completions: nothing is timed")


def measure(args: argparse.Namespace, workload: Workload, training: str, systems: list[str]) -> int:
    """Time the systems in turn, repetition after repetition; returns how many cells failed."""
    failed = 0
    settings: dict[str, Any] = {"model": args.model, "steps": args.steps, "dtype": args.dtype}
    for rep in range(args.repeats):
        for text in systems:
            cell = cell_of(workload, training, text, **settings, do="time", rep=rep)
            try:
                result = run_cell(file_of(args.out, cell, text, f"-{rep}"), cell, "benchmarks.step", **args.process)
            except CellFailed as error:
                failed += 1
                print(f"  {error}", flush=True)
                continue
            seconds = spread([step["step"] for step in result["steps"][1:]])
            said = f"{seconds.text()} s, {result['peak_gb']:.1f} GB"
            print(f"  {workload.name} {training} {text} {rep}: {said}", flush=True)
    return failed


def collect(out: Path) -> dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]]:
    """Every timed cell: by (training, workload), system and repetition; phases are medians over the steps counted."""
    found: dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]] = {}
    for path in sorted(out.glob("*/*/*-[0-9]*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        cell, steps = record["cell"], record["result"]["steps"][1:]
        name = cell["system"] + (f"/{cell['variant']}" if cell["variant"] else "") + f"@{cell['micro_batch']}"
        row = {phase: spread([step[phase] for step in steps]).middle for phase in (*PHASES, "other", "step")}
        row |= {key: record["result"][key] for key in ("peak_gb", "training_flops")} | {"workload": cell["workload"]}
        found.setdefault((cell["training"], cell["workload"]["name"]), {}).setdefault(name, {})[cell["rep"]] = row
    return found


def table(out: Path, rate: float | None = None) -> str:
    """The measurements as Markdown, one table for each workload and way of training.

    Args:
        rate: the machine's, for the share of it that teacher, policy, loss and backward reach: the operations that a
            step cannot do without, over what it takes besides the rollout.
    """
    parts = []
    for (training, name), systems in sorted(collect(out).items()):
        ours = next((reps for text, reps in systems.items() if text.startswith("opct@")), {})
        in_order = sorted(systems, key=lambda text: (not text.startswith("opct@"), text))
        rows = [_row(text, systems[text], ours, rate) for text in in_order]
        w = ALL_WORKLOADS[name]
        title = (
            f"**{name}, {training}**: {w.prompts} prompts x {w.generations} completions, {w.prompt_tokens} / "
            f"{w.teacher_tokens} / {w.completion_tokens} tokens of prompt, teacher prompt and completion"
        )
        parts.append(f"{title}\n\n{markdown(HEAD, rows)}\n{best_peer(systems, ours)}")
    return "\n".join(parts)


def best_peer(systems: dict[str, dict[int, dict[str, Any]]], ours: dict[int, dict[str, Any]]) -> str:
    """A sentence on the fastest peer: how many times the seconds and the memory of `opct` it takes."""
    peers = {text: reps for text, reps in systems.items() if not text.startswith("opct")}
    if not peers or not ours:
        return ""
    name = min(peers, key=lambda text: spread([row["step"] for row in peers[text].values()]).middle)
    against = [
        ratios(*({rep: row[key] for rep, row in reps.items()} for reps in (peers[name], ours)))
        for key in ("step", "peak_gb")
    ]
    if None in against:
        return ""
    seconds, memory = (one.text(2) for one in against if one is not None)
    return f"\nFastest peer: {name}, {seconds} times the seconds and {memory} times the memory of opct.\n"


HEAD = (
    "system (micro-batch)",
    "s a step",
    "times opct",
    "rollout",
    "teacher",
    "policy",
    "loss, backward",
    "optimizer",
    "other",
    "completion tokens/s",
    "share of the GEMM rate",
    "peak GB",
)


def _row(text: str, reps: dict[int, dict[str, Any]], ours: dict[int, dict[str, Any]], rate: float | None) -> list[str]:
    seconds = {rep: row["step"] for rep, row in reps.items()}
    against = ratios(seconds, {rep: row["step"] for rep, row in ours.items()})
    w = Workload(**next(iter(reps.values()))["workload"])
    phases = [f"{spread([row[phase] for row in reps.values()]).middle:.2f}" for phase in (*PHASES, "other")]
    speeds = [row["training_flops"] / (row["step"] - row["rollout"]) for row in reps.values()]  # operations a second
    return [
        text,
        spread(list(seconds.values())).text(2),
        "-" if against is None else against.text(2),
        *phases,
        spread([w.tokens / s for s in seconds.values()]).text(0),
        "-" if rate is None else f"{spread([speed / rate for speed in speeds]).middle:.0%}",
        spread([row["peak_gb"] for row in reps.values()]).text(1),
    ]


def work(cell: dict[str, Any]) -> dict[str, Any]:
    """In the process of a cell: check or time."""
    from benchmarks import ours

    workload = Workload(**cell["workload"])
    if cell["system"] == "opct":
        system: Any = ours
    else:
        from benchmarks import trl_peers as system
    with without(*forms_off(cell["variant"])):
        if cell["do"] == "check":
            return system.check_loss(workload, cell)
        return system.time_steps(workload, cell) | {"training_flops": training_flops(workload, cell)}


def training_flops(workload: Workload, cell: dict[str, Any]) -> float:
    """Operations of teacher, policy, backward and loss that no system can do without; each prompt once."""
    from transformers import AutoConfig

    from opct.models.loading import resolve_model

    sizes = sizes_of(AutoConfig.from_pretrained(resolve_model(cell["model"])))
    return operations(sizes, workload, lora=cell["training"] == "lora").training


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "runs/step")
    parser.add_argument("--workloads", nargs="+", choices=ALL_WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--training", nargs="+", choices=("lora", "full"), default=["lora", "full"])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), metavar="SYSTEM[/VARIANT][@MICRO_BATCH]")
    parser.add_argument("--without", nargs="+", choices=("all", *FORMS), metavar="FORM", help=", ".join(FORMS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="in each process, the first of them a warm-up")
    parser.add_argument("--limit-s", type=float, default=3600, help="for one process")
    parser.add_argument("--python", help="an interpreter that has TRL, if this one has not")
    parser.add_argument("--table", action="store_true", help="print the table of what is there, and measure nothing")
    parser.add_argument("--check", action="store_true", help="compare the losses, and time nothing")
    parser.add_argument("--rates", type=Path, default=Path("runs/breakdown/rates.json"), help="of benchmarks.breakdown")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps: at least 2, for the first is a warm-up")
    if args.without:
        args.systems = ["opct", *(f"opct/-{form}" for form in (FORMS if "all" in args.without else args.without))]
    for text in args.systems:
        try:
            parse_system(text)
        except ValueError as error:
            parser.error(str(error))
    if not all(text.startswith("opct") for text in args.systems) and OUR_SETTINGS.keys() & set(args.workloads):
        parser.error(f"{', '.join(OUR_SETTINGS)} are measured for opct alone: their prompts have no exact length")
    if "full" in args.training and OUR_SETTINGS.keys() & set(args.workloads):
        parser.error(f"{', '.join(OUR_SETTINGS)} are measured with --training lora alone, as their settings say")
    args.dtype = products_dtype(args.dtype)
    args.process = {"python": args.python, "limit_s": args.limit_s, "threads": args.threads}
    return args


def main() -> None:
    args = parse()
    failed = 0
    if not args.table:
        for training in args.training:
            systems = [text for text in args.systems if applies(training, text, args.dtype)]
            for name in args.workloads:
                check(args, ALL_WORKLOADS[name], training, systems)
                if not args.check:
                    failed += measure(args, ALL_WORKLOADS[name], training, systems)
    if not args.check:
        measured = json.loads(args.rates.read_text(encoding="utf-8"))["result"] if args.rates.exists() else None
        print(table(args.out, measured and best_rate(measured, args.dtype)))
    if failed:
        raise SystemExit(f"{failed} cells failed: start again to measure these")


if __name__ == "__main__":
    serve(work) if is_worker() else main()

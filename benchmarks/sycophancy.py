"""The sycophancy table of docs/results.md: base, SFT and OPCT over several seeds, on held-out facts and families.

    python benchmarks/sycophancy.py --out runs/results --seeds 0 1 2

Trains from configs/sycophancy.yaml and configs/baselines/sft.yaml (same budget), evaluates every run on the same
questions, and writes one report over all of them. What is finished is not done again, so it can be stopped and started.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opct.api import evaluate
from opct.checkpoint_state import is_finished
from opct.config_file import load_config
from opct.data.build import embedded_hash
from opct.files import write_json
from opct.models.policy import Policy
from opct.progress import Progress, make_progress
from opct.reports import report
from opct.runs import RunDir
from opct.trainer import train

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
METHODS = {"sft": CONFIGS / "baselines" / "sft.yaml", "opct": CONFIGS / "sycophancy.yaml"}


def measure(
    target: Path | Callable[[], Policy], out: Path, label: str, settings: dict[str, Any], progress: Progress
) -> None:
    """Evaluate, unless the results there were measured in the same way, of the same checkpoint on the same data."""
    checkpoint = RunDir(out).latest_checkpoint()
    wanted = settings | {"embedded": embedded_hash(), "checkpoint": checkpoint and checkpoint.name}
    marker, results = out / "evals" / "benchmark.json", out / "results.json"
    if results.exists() and marker.exists() and json.loads(marker.read_text(encoding="utf-8")) == wanted:
        return
    evaluate(target() if callable(target) else target, out=out, label=label, progress=progress, **settings)
    write_json(marker, wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--n-questions", type=int, default=600)
    parser.add_argument("--families", nargs="+", default=["held_out"], help="held_out, train, all, or names")
    parser.add_argument("--families-per-question", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c", help="settings over the configs")
    args = parser.parse_args()
    progress = make_progress()
    evaluation = {
        "n_questions": args.n_questions,
        "families": args.families[0] if len(args.families) == 1 else args.families,
        "families_per_question": args.families_per_question,
        "max_completion_tokens": 24,
        "max_benign_tokens": 48,
        "kl_samples": 100,
        "browser_questions": 30,
    }
    base = args.out / "base"
    folders = [base]
    for seed in args.seeds:
        for method in args.methods:
            folder = args.out / f"{method}-seed{seed}"
            config = load_config(METHODS[method], [f"seed={seed}", f"output_dir={json.dumps(str(folder))}", *args.set])
            run = RunDir(folder)
            started = time.perf_counter()
            if not (run.is_run and is_finished(run, config)):
                result = train(config, resume=run.is_run, progress=progress)
                if result.status != "finished":
                    raise SystemExit(f"{folder} was interrupted: start again to go on with it")
                progress.log(f"{folder.name}: trained in {time.perf_counter() - started:.0f} s")
            measure(folder, folder, method, evaluation, progress)
            folders.append(folder)
    # last, in the dtype that the runs had: what `model.dtype: auto` stands for is chosen when a run begins
    recorded = {RunDir(folder).read_manifest()["dtype"] for folder in folders[1:]}
    if len(recorded) > 1:
        raise SystemExit(f"the runs were trained in {sorted(recorded)}: give one with --set model.dtype=bfloat16")
    model = load_config(METHODS["opct"], args.set).model
    measure(lambda: Policy.load(model, recorded_dtype=min(recorded)), base, "base", evaluation, progress)
    progress.done()
    print(report(folders, args.out / "report.html"))


if __name__ == "__main__":
    main()

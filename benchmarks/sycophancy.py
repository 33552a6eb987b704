"""The sycophancy table of docs/results.md: base, SFT and OPCT over several seeds, on held-out facts and families.

    python benchmarks/sycophancy.py --out runs/results --seeds 0 1 2

Trains from configs/sycophancy.yaml and configs/baselines/sft.yaml (same budget), evaluates every run on the same
questions, and writes one report over all of them. What is finished is not done again, so it can be stopped and started.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opct.config.loader import load_config
from opct.experiments.stages import BASE, Parts, asked_now, evaluate_once, train_once
from opct.reports import report
from opct.runs.progress import make_progress
from opct.runs.run_dir import RunDir

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
METHODS = {"sft": CONFIGS / "baselines" / "sft.yaml", "opct": CONFIGS / "sycophancy.yaml"}
WEIGHTS = {"train": 3.0, "evaluate": 1.0, "report": 0.0}


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
    evaluation = {
        "n_questions": args.n_questions,
        "families": args.families[0] if len(args.families) == 1 else args.families,
        "families_per_question": args.families_per_question,
        "max_completion_tokens": 24,
        "max_benign_tokens": 48,
        "kl_samples": 100,
        "browser_questions": 30,
    }
    todo = [(method, seed) for seed in args.seeds for method in args.methods]
    kinds = ["train", "evaluate"] * len(todo) + ["evaluate", "report"]
    parts = Parts(make_progress(), [(kind, WEIGHTS[kind]) for kind in kinds])
    try:
        page = measure(args.out, todo, args.set, evaluation, parts)
    except KeyboardInterrupt:
        raise SystemExit("interrupted: start again to go on with it") from None
    parts.done()
    print(page)


def measure(
    out: Path, todo: Sequence[tuple[str, int]], settings: Sequence[str], evaluation: Mapping[str, Any], parts: Parts
) -> Path:
    """Train and evaluate each method with each seed, evaluate the base in their dtype, write the report."""
    folders, dtypes, asked = [out / BASE], set(), asked_now(evaluation)
    for method, seed in todo:
        folder = out / f"{method}-seed{seed}"
        config = load_config(METHODS[method], [f"seed={seed}", f"output_dir={json.dumps(str(folder))}", *settings])
        parts.next()
        remedy = f"delete {folder}, or name another --out"
        train_once(config, folder.name, overwrite=False, remedy=remedy, progress=parts)
        dtypes.add(str(RunDir(folder).read_manifest()["dtype"]))  # what `model.dtype: auto` stood for
        if len(dtypes) > 1:
            raise SystemExit(f"the runs were trained in {sorted(dtypes)}: give one with --set model.dtype=bfloat16")
        parts.next()
        evaluate_once(method, folder, config, min(dtypes), evaluation, overwrite=False, asked=asked, progress=parts)
        folders.append(folder)
    parts.next()
    base = load_config(METHODS["opct"], settings)
    evaluate_once(BASE, folders[0], base, min(dtypes), evaluation, overwrite=False, asked=asked, progress=parts)
    parts.next()
    parts.stage("write the report")
    return report(folders, out / "report.html")


if __name__ == "__main__":
    main()

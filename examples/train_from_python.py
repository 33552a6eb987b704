"""Train OPCT from Python, and look at what it did: the model's answers and the KL before and after.

    python examples/train_from_python.py --steps 10

Set OPCT_EXAMPLE_MODEL (or --model) to a hub id, a folder or a GGUF file; the default is the embedded SmolLM2.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import opct
from opct.data.builders.builtin import builtin_pairs
from opct.models.from_run import load_policy

MODEL = os.environ.get("OPCT_EXAMPLE_MODEL", "smollm2-135m-instruct")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--out", type=Path, default=Path("runs/example"))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=8, help="pairs in one step")
    args = parser.parse_args()

    config = opct.TrainConfig(
        output_dir=str(args.out),
        max_steps=args.steps,
        model={"name_or_path": args.model},
        data={"pairs": ["builtin:sycophancy"], "anchors": ["builtin:benign"], "validation_size": args.prompts},
        rollout={"num_generations": 2, "max_completion_tokens": 24},
        optim={"learning_rate": 2e-4, "prompts_per_step": args.prompts},
    )
    result = opct.train(config, overwrite=args.out.exists())

    print(f"\n{result.status} after {result.step} steps. KL on held-out pairs, nats a token:")
    for row in map(json.loads, (result.run_dir / "metrics.jsonl").read_text().splitlines()):
        if "validation/kl" in row:
            print(f"  step {row['step']:3d}: {row['validation/kl']:.3f}")

    policy = load_policy(result.run_dir)
    pairs = [pair for pair in builtin_pairs("sycophancy", "validation") if pair.family == "suggested_answer"][:3]
    prompts, clean = [pair.prompt for pair in pairs], [pair.teacher_prompt for pair in pairs]
    greedy = {"seeds": [0] * len(pairs), "max_completion_tokens": 24, "temperature": 0.0}
    with policy.base() as base:
        before = base.generate(prompts, **greedy)
    after = policy.generate(prompts, **greedy)
    kl = policy.token_kl(prompts, clean, after)
    for pair, old, new, values in zip(pairs, before, after, kl, strict=True):
        print(f"\n{pair.prompt[-1]['content']}\n  right:  {pair.meta['answer']}")
        print(
            f"  before: {old.text}\n  after:  {new.text}   ({sum(values) / len(values):.3f} nats a token to the base)"
        )


if __name__ == "__main__":
    main()

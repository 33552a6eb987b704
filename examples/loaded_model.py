"""Train a model that you have loaded yourself, with a callback of transformers and a suite that is asked meanwhile.

    python examples/loaded_model.py --steps 10

Set OPCT_EXAMPLE_MODEL (or --model) to a hub id or a folder.
"""

from __future__ import annotations

import argparse
import os

from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

import opct

MODEL = os.environ.get("OPCT_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")


class StopWhenClose(TrainerCallback):
    """Stops once the validation KL is below a bound, in nats per token."""

    def __init__(self, bound: float):
        self.bound = bound

    def on_evaluate(self, args, state, control, metrics, **_):
        control.should_training_stop = metrics.get("validation/kl", float("inf")) < self.bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--out", default="runs/loaded")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=8, help="pairs in one step")
    args = parser.parse_args()

    # any of its kind will do: quantized, patched, with weights of your own
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    config = opct.TrainConfig(
        output_dir=args.out,
        max_steps=args.steps,
        eval_steps=max(1, args.steps // 2),
        data={"pairs": ["builtin:sycophancy"], "anchors": ["builtin:benign"], "validation_size": args.prompts},
        rollout={"num_generations": 2, "max_completion_tokens": 24},
        optim={"learning_rate": 2e-4, "prompts_per_step": args.prompts},
        eval={"steps": args.steps, "suites": ["sycophancy_short"], "limit": args.prompts},
    )
    result = opct.train(config, model=model, tokenizer=tokenizer, callbacks=[StopWhenClose(0.05)])
    for name, value in result.metrics.items():
        print(f"{name}: {value:.3f}")
    result.model.unload()  # `model` without the adapter again; the adapter is in the run


if __name__ == "__main__":
    main()

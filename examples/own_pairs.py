"""An axis of your own: a help desk whose answers should not depend on how rude the customer is.

    python examples/own_pairs.py --steps 5

Makes pairs of questions and templates, and trains on them. One way of being rude is kept out, to measure on.
Set OPCT_EXAMPLE_MODEL (or --model) to another model than the embedded SmolLM2.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import opct
from opct.data.builders.pairs import build_pairs
from opct.errors import DataError

MODEL = os.environ.get("OPCT_EXAMPLE_MODEL", "smollm2-135m-instruct")

QUESTIONS = (
    "How do I restart a router?",
    "How can I free space on my phone?",
    "Why does my laptop get warm?",
    "How do I make a screenshot?",
    "What does an ad blocker do?",
    "How do I undo a change in a text editor?",
    "What is a backup good for?",
    "How do I turn off notifications?",
)
QUESTION_ROWS = [{"id": f"help-{number}", "question": question} for number, question in enumerate(QUESTIONS)]
TRAINED = {
    "impatient": "I have been waiting forever, so be quick for once. {{ question }}",
    "insulting": "You people never know anything. {{ question }} Try not to embarrass yourself.",
}
HELD_OUT = {"sarcastic": "Oh great genius of the help desk, enlighten me: {{ question }}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--out", type=Path, default=Path("runs/own-pairs"))
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    folder = args.out.with_name(args.out.name + "-data")  # of anchors, and of a faulty file

    pairs = build_pairs(QUESTION_ROWS, templates=TRAINED, axis="rudeness")
    held_out = build_pairs(QUESTION_ROWS, templates=HELD_OUT, axis="rudeness")
    # what must not change: the clean questions, the same on both sides
    opct.write_pairs(folder / "anchors.jsonl", build_pairs(QUESTION_ROWS, identity=True, axis="rudeness"))
    print(f"{len(pairs)} pairs are fine.")

    (folder / "faulty.jsonl").write_text('{"id": "a", "axis": "rudeness", "family": "x", "prompt": []}\nnot JSON\n')
    try:
        opct.load_pairs(folder / "faulty.jsonl")
    except DataError as error:
        print(f"And this is how faults are told:\n{error}\n")

    config = opct.TrainConfig(
        output_dir=str(args.out),
        max_steps=args.steps,
        eval_steps=max(1, args.steps),
        model={"name_or_path": args.model},
        data={
            "anchors": [str(folder / "anchors.jsonl")],
            "validation_fraction": 0.0,
        },
        rollout={"num_generations": 2, "max_completion_tokens": 32},
        optim={"prompts_per_step": 8},
    )
    result = opct.train(config, pairs=pairs, overwrite=args.out.exists())
    print(result.render())
    print(f"KL on the way that was not trained on: {held_out_kl(result.run_dir, held_out):.3f} nats a token")


def held_out_kl(run: Path, pairs: list[opct.ContrastivePair]) -> float:
    """KL(trained | rude || base | plain) on the trained model's own answers, mean over tokens."""
    from opct.models.from_run import load_policy

    policy = load_policy(run)
    prompts, plain = [pair.prompt for pair in pairs], [pair.teacher_prompt for pair in pairs]
    answers = policy.generate(prompts, seeds=list(range(len(pairs))), max_completion_tokens=32)
    values = [nats for row in policy.token_kl(prompts, plain, answers) for nats in row]
    return sum(values) / len(values)


if __name__ == "__main__":
    main()

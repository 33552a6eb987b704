"""An axis of your own: a help desk whose answers should not depend on how rude the customer is.

    python examples/own_pairs.py --steps 5

Writes pairs, has them checked, trains on them. One way of being rude is kept out of the training, to measure on.
Set OPCT_EXAMPLE_MODEL (or --model) to another model than the embedded SmolLM2.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import opct
from opct.errors import DataError
from opct.runs.console import make_progress

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
TRAINED = {
    "impatient": "I have been waiting forever, so be quick for once. {question}",
    "insulting": "You people never know anything. {question} Try not to embarrass yourself.",
}
HELD_OUT = {"sarcastic": "Oh great genius of the help desk, enlighten me: {question}"}


def user(text: str) -> tuple[dict[str, str | None], ...]:
    """A prompt of one message."""
    return ({"role": "user", "content": text},)


def rude_pairs(ways: dict[str, str]) -> list[opct.ContrastivePair]:
    """Each question in each way of being rude, against the plain question."""
    return [
        opct.ContrastivePair(
            id=f"rudeness/{family}/{number}",
            axis="rudeness",
            family=family,
            prompt=user(template.format(question=question)),
            teacher_prompt=user(question),
            meta={"question_id": f"help-{number}"},
        )
        for family, template in ways.items()
        for number, question in enumerate(QUESTIONS)
    ]


def plain_pairs() -> list[opct.ContrastivePair]:
    """The plain questions as identity pairs: what must not change."""
    return [
        opct.ContrastivePair(f"plain/{number}", "rudeness", "plain", user(question), user(question))
        for number, question in enumerate(QUESTIONS)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--out", type=Path, default=Path("runs/own-pairs"))
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    folder = args.out.with_name(args.out.name + "-data")

    opct.write_pairs(folder / "pairs.jsonl", rude_pairs(TRAINED))
    opct.write_pairs(folder / "held-out.jsonl", rude_pairs(HELD_OUT))
    opct.write_pairs(folder / "anchors.jsonl", plain_pairs())
    print(f"{len(opct.load_pairs(folder / 'pairs.jsonl'))} pairs are fine.")

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
            "pairs": [str(folder / "pairs.jsonl")],
            "anchors": [str(folder / "anchors.jsonl")],
            "validation_fraction": 0.0,
        },
        rollout={"num_generations": 2, "max_completion_tokens": 32},
        optim={"prompts_per_step": 8},
    )
    progress = make_progress()
    result = opct.train(config, overwrite=args.out.exists(), progress=progress)
    progress.done()
    print(result.render())
    print(f"KL on the way that was not trained on: {held_out_kl(result.run_dir, folder):.3f} nats a token")


def held_out_kl(run: Path, folder: Path) -> float:
    """KL(trained | rude || base | plain) on the trained model's own answers, mean over tokens."""
    from opct.models.from_run import load_policy

    pairs = opct.load_pairs(folder / "held-out.jsonl")
    policy = load_policy(run)
    prompts, plain = [pair.prompt for pair in pairs], [pair.teacher_prompt for pair in pairs]
    answers = policy.generate(prompts, seeds=list(range(len(pairs))), max_completion_tokens=32)
    values = [nats for row in policy.token_kl(prompts, plain, answers) for nats in row]
    return sum(values) / len(values)


if __name__ == "__main__":
    main()

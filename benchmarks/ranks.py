"""The plan of a run on many ranks, without them: balance of tokens over the ranks, and bytes that each sends a step.

    python -m benchmarks.ranks CONFIG.yaml --ranks 64 [KEY=VALUE ...]

Pairs, their order, shares of the ranks and micro-batches are the trainer's own. Lengths of completions and of answers
to open turns are drawn: each token is the last with probability 1 / `--mean`, and the limit cuts. A rank's tokens are
those that policy and teacher compute for the gradient; completions of one prompt share it. Collectives are rings:
all-gather and reduce-scatter of S bytes send S (P - 1) / P from each of P ranks, an all-reduce twice that. Validation
and saving are not counted.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.tables import markdown

FLOAT32 = 4


def lengths_of(rng: random.Random, n: int, mean: float, limit: int) -> list[int]:
    """n completion lengths in tokens."""
    return [next((t for t in range(1, limit) if rng.random() < 1 / mean), limit) for _ in range(n)]


def rollouts_of(batch: Sequence[Any], renderer: Any, generations: int, mean: float, limit: int, seed: str) -> list[Any]:
    """Rollouts of rendered pairs, whose completions have lengths but no meaning."""
    from opct.methods.rollouts import Rollout
    from opct.models.inference.sampler import Completion

    rng, rollouts = random.Random(seed), []
    for one in batch:
        prompt = one.prompt_ids
        if prompt is None:
            words = [" a" * n for n in lengths_of(rng, len(one.pair.prompt), mean, limit)]
            given = zip(one.pair.prompt, words, strict=True)
            prompt = renderer.render([m | {"content": text} if m["content"] is None else m for m, text in given])
        for i, n in enumerate(lengths_of(rng, generations, mean, limit)):
            completion = Completion("", (0,) * n, "length", (0.0,) * n, len(prompt), seed=0)
            rollouts.append(Rollout(one.pair, i, prompt, one.teacher_ids, completion, (True,) * n))
    return rollouts


def plan(rollouts: Sequence[Any], ranks: int, budget: int, share: bool) -> tuple[list[int], int]:
    """Tokens of each rank, and forwards of the policy that every rank makes with sharded weights, dummies included."""
    from opct.training.accumulate import plan_of, prompt_shares

    tokens, plans = [], []
    for rows in prompt_shares(rollouts, ranks, share=share):
        own = [rollouts[i] for i in rows]
        prompts = {(tuple(r.prompt_ids), tuple(r.teacher_ids)) for r in own} if share else own
        sides = prompts if share else [(r.prompt_ids, r.teacher_ids) for r in own]
        tokens.append(sum(len(side) for pair in sides for side in pair) + 2 * sum(sum(r.lengths) for r in own))
        plans.append([len(group) for group in plan_of(own, budget, share=share)])
    places = range(max(map(len, plans)))
    forwards = sum(max(counts[place] for counts in plans if place < len(counts)) for place in places)
    return tokens, forwards + share * len(places)  # a group's prompts are a forward of their own


def wire_bytes(ranks: int, forwards: int, weights: float, trained: float, head: float, number: int) -> dict[str, float]:
    """Bytes that a rank sends in a step, by strategy.

    Args:
        forwards: of the policy for the gradient; the teacher makes as many, and each has a backward.
        weights: of the model, embeddings and head included.
        trained: weights of the adapter.
        head: weights of the output head, which each phase gathers once more.
        number: bytes of a weight in the compute dtype.
    """
    part = (ranks - 1) / ranks
    adapter = 2 * part * FLOAT32 * trained
    gathered = part * number * weights * (3 * forwards + 1)  # policy, teacher, backward; the rollouts, once
    reduced = part * FLOAT32 * (forwards * weights + head)
    return {
        "ddp, LoRA": adapter,
        "fsdp, LoRA": gathered + 2 * part * number * head + adapter,
        "fsdp, every weight": gathered + part * (2 * FLOAT32 + number) * head + reduced,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--mean", type=float, default=256, help="tokens of a completion before the limit cuts it")
    parser.add_argument("--weights", type=float, default=8.03e9)
    parser.add_argument("--trained", type=float, default=41.9e6, help="weights of the adapter")
    parser.add_argument("--head", type=float, default=0.525e9, help="weights of the output head")
    parser.add_argument("--bytes", type=int, default=2, help="of a weight in the compute dtype")
    args = parser.parse_intermixed_args()

    from opct.config.loader import load_config
    from opct.data.render import Renderer
    from opct.models.loading import load_tokenizer
    from opct.training.setup import load_data

    config = load_config(args.config, args.overrides)
    data, renderer = load_data(config), Renderer(load_tokenizer(config.model))
    g, limit = config.rollout.num_generations, config.rollout.max_completion_tokens
    found = []
    for step in range(1, args.steps + 1):
        rollouts = rollouts_of(data.batch(step), renderer, g, args.mean, limit, f"{config.seed}/{step}")
        found.append(plan(rollouts, args.ranks, config.optim.micro_batch_tokens, share=g > 1))
    balance = [max(tokens) * args.ranks / sum(tokens) for tokens, _ in found]
    forwards = round(median(n for _, n in found))
    print(f"{args.steps} steps of {config.optim.prompts_per_step} prompts x {g} completions on {args.ranks} ranks")
    print(f"tokens a rank, most over mean: median {median(balance):.3f}, worst {max(balance):.3f}")
    print(f"ranks without work: at most {max(tokens.count(0) for tokens, _ in found)}; forwards a step: {forwards}\n")
    sent = wire_bytes(args.ranks, forwards, args.weights, args.trained, args.head, args.bytes)
    print(markdown(["strategy", "GB sent a step and rank"], [[name, f"{n / 1e9:.2f}"] for name, n in sent.items()]))


if __name__ == "__main__":
    main()

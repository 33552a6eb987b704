"""The batches that speed and memory are measured on: prompts of exact lengths, completions of a forced one."""

from __future__ import annotations

import argparse
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opct.data.pairs import ContrastivePair, Message
    from opct.data.render import Renderer

TEXT = (
    "the river runs past old stone houses and a small green field where people walk in early morning light while "
    "birds sing over quiet water near tall trees on warm summer days with bread tea and good books about far lands"
)
WORDS = TEXT.split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Workload:
    """One optimizer step: the number of prompts, completions a prompt, and tokens of each part.

    Attributes:
        config: the settings whose prompts are taken as they are; the tokens above are their means.
    """

    name: str
    prompts: int
    generations: int
    prompt_tokens: int
    teacher_tokens: int
    completion_tokens: int
    config: str | None = None

    @property
    def rows(self) -> int:
        """Completions in a step."""
        return self.prompts * self.generations

    @property
    def tokens(self) -> int:
        """Completion tokens in a step."""
        return self.rows * self.completion_tokens


WORKLOADS = {
    w.name: w
    for w in (
        Workload("short", 8, 4, 64, 48, 64),
        Workload("long", 4, 8, 600, 300, 96),
        Workload("g1", 32, 1, 64, 48, 64),
    )
}


def exact_prompt(renderer: Renderer, tokens: int, seed: str) -> tuple[Message, ...]:
    """A user message that the chat template renders to exactly `tokens` token ids; the same for the same seed.

    Raises:
        ValueError: the template alone is longer, or no ending has the right length.
    """
    rng = random.Random(seed)
    text = rng.choice(WORDS)

    def missing(content: str) -> int:
        return tokens - len(renderer.render(({"role": "user", "content": content},)))

    if missing(text) < 0:
        raise ValueError(
            f"A prompt of {tokens} tokens is shorter than the chat template with one word, which has "
            f"{tokens - missing(text)}: ask for at least as many."
        )
    while room := missing(text):
        many = " " + " ".join(rng.choices(WORDS, k=max(1, room // 4)))
        endings = [many, *(f" {word}" for word in rng.sample(WORDS, len(WORDS))), *LETTERS]
        fitting = next((ending for ending in endings if 0 <= missing(text + ending) < room), None)
        if fitting is None:
            raise ValueError(f"No word or letter brings the prompt to {tokens} tokens; {room} are missing.")
        text += fitting
    return ({"role": "user", "content": text},)


def make_pairs(renderer: Renderer, workload: Workload) -> list[ContrastivePair]:
    """The workload's pairs: other words in each, `prompt_tokens` and `teacher_tokens` exactly."""
    from opct.data.pairs import ContrastivePair

    return [
        ContrastivePair(
            id=f"{workload.name}/{i}",
            axis="speed",
            family="exact",
            prompt=exact_prompt(renderer, workload.prompt_tokens, f"{workload.name}/prompt/{i}"),
            teacher_prompt=exact_prompt(renderer, workload.teacher_tokens, f"{workload.name}/teacher/{i}"),
        )
        for i in range(workload.prompts)
    ]


def add_options(parser: argparse.ArgumentParser, out: str) -> None:
    """The options of every measurement on this machine: its folder, the model, the products and the threads."""
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--model", default="smollm2-135m-instruct-q4_1")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--dtype",
        choices=("auto", "bfloat16", "float32"),
        default="auto",
        help="of products; auto: the faster one here",
    )


def products_dtype(asked: str) -> str:
    """The dtype of `--dtype`; `auto` is opct's choice on this machine for a model of the default size."""
    if asked != "auto":
        return asked
    import torch

    from opct.models.loading import choose_dtype

    dtype, why = choose_dtype("auto", torch.device("cpu"), hidden_size=576)
    print(f"  products: {why}", flush=True)
    return str(dtype).removeprefix("torch.")

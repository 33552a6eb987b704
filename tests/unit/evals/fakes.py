"""A policy without a model: replies come from a script, tokens are words."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

from opct.data.reasoning import Reasoning
from opct.evals.inspect_runner import run_inspect
from opct.evals.logs import graded_samples
from opct.evals.metrics import GRID, reaches
from opct.runs.console import NullProgress


class FakeTokenizer:
    """Has one token, which ends every message."""

    all_special_ids, all_special_tokens = (1,), ("<end>",)

    def __len__(self):
        return 2

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [1] * text.count("<end>")}


class FakeRenderer:
    """One token a word."""

    template_hash = "0123456789ab"
    chat_template_kwargs: ClassVar[dict] = {}
    reasoning = Reasoning.of_tags(("<think>", "</think>"))
    tokenizer = FakeTokenizer()

    def end_of_turn(self):
        return [0]

    def unopened(self):
        return ""

    def begins_answer(self, prompt):
        return True

    def around_answer(self, *, goes_on=False):
        return "<end>", "<end>"

    def split(self, prompt, token_ids):
        return self.reasoning.split(self.decode(token_ids))

    def decode(self, token_ids):
        return " ".join(WORDS[i] for i in token_ids)

    def render(self, messages):
        assert all(m["content"] is not None for m in messages)
        return [word_id(word) for m in messages for word in m["content"].split()]

    def pieces(self, token_ids):
        return [f"{WORDS.get(i, i)} " for i in token_ids]


WORDS: dict[int, str] = {}


def word_id(word: str) -> int:
    found = int(hashlib.sha256(word.encode()).hexdigest()[:8], 16)
    WORDS[found] = word
    return found


@dataclass
class FakePolicy:
    """`reply(prompt, seed)` gives the text; more words than `max_completion_tokens` are cut. KL is 0.5 a token."""

    reply: Callable[[tuple, int], str]
    name: str = "fake"
    context_length: int = 10_000
    dtype: str = "torch.float32"
    quantization: str | None = None
    device: str = "cpu"
    has_base: bool = True
    saved: None = None
    option_scores: Callable[[tuple, list[str]], list[float]] | None = None
    renderer: FakeRenderer = field(default_factory=FakeRenderer)
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    backbone: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(stop_ids={1}))
    warnings: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    settings: list[dict] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    running: int = 0

    def generate(self, prompts, *, seeds, on_completions, **settings):
        self.running += 1
        assert self.running == 1, "one batch at a time"
        assert threading.current_thread() is not threading.main_thread(), "in a worker thread"
        self.batches.append(len(prompts))
        self.settings.append(settings)
        self.seeds += seeds
        most = settings["max_completion_tokens"]
        completions = [self._one(prompt, seed, most) for prompt, seed in zip(prompts, seeds, strict=True)]
        on_completions(list(enumerate(completions)))
        self.running -= 1
        return completions

    def _one(self, prompt, seed, most):
        words = self.reply(prompt, seed).split(" ")
        ids = tuple(word_id(word) for word in words[:most])
        return SimpleNamespace(
            text=" ".join(words[:most]),
            token_ids=ids,
            stop_reason="length" if len(words) > most else "stop",
            logprobs=(0.0,) * len(ids),
            prompt_tokens=len(self.renderer.render(prompt)),
            seed=seed,
        )

    def option_logprobs(self, prompts, options):
        assert self.running == 0, "one batch at a time"
        assert self.option_scores is not None
        return [self.option_scores(prompt, choices) for prompt, choices in zip(prompts, options, strict=True)]

    def token_kl(self, prompts, reference_prompts, completions):
        assert len(prompts) == len(reference_prompts) == len(completions)
        return [[0.5] * len(completion.token_ids) for completion in completions]

    def kl_and_likeliest(self, prompts, reference_prompts, completions, k):
        """The reply's own token at 0.9 and one that rounds to 0; of the reference the own one at 1/3."""
        kl = self.token_kl(prompts, reference_prompts, completions)
        both = [[([(i, 0.9), (i, 0.0004)], [(i, 1 / 3)]) for i in completion.token_ids] for completion in completions]
        return list(zip(kl, both, strict=True))


def graded(task, policy, folder):
    return graded_samples(run_inspect(task, policy, folder, 16, NullProgress()))


def curve(rates, grid=GRID):
    """The safety curve S at each point of the grid, over the pass rates of facts."""
    return {tau: sum(reaches(rate, tau) for rate in rates) / len(rates) for tau in grid}

"""The in-process sampler: batched, with real stop reasons and one seed per sample.

A sample depends on the weights, its prompt and its seed alone: each row draws from its own generator. The rest of the
batch changes only the rounding of the logits. In float32 samples stay the same; in bfloat16, where attention rounds
differently in batches of other shapes, some change (docs/results.md has the count).
generation_config is ignored unless its values are asked for (`Policy.generation_defaults`).
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from opct.errors import ModelError
from opct.models.inference.decode import DecodeBatch, Request
from opct.models.inference.kv_cache import kv_bytes
from opct.models.inference.token_sampling import Sampling
from opct.models.plain_path import PlainPath

StopReason = Literal["stop", "length", "given"]  # given: not sampled

ROLLOUT_TOKENS = 32768
"""Default limit on the prompt + completion tokens of a batch."""
CACHE_BYTES = 2.5e9
"""Memory for the keys and values of a batch, where that allows more tokens (small models)."""

UNSUPPORTED = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
"""Settings of a generation_config that the sampler lacks, with the value that turns each off, as None does."""


@dataclass(frozen=True)
class Completion:
    """One sampled answer.

    `token_ids` includes the stop token, if any. `logprobs` are in nats, under the distribution that was sampled: at
    temperature 1 without truncation the policy's own.
    """

    text: str
    token_ids: tuple[int, ...]
    stop_reason: StopReason
    logprobs: tuple[float, ...]
    prompt_tokens: int
    seed: int


def completion_of(
    ids: Sequence[int],
    logprobs: Sequence[float],
    prompt_tokens: int,
    seed: int,
    *,
    stop_ids: Collection[int],
    decode: Callable[[Sequence[int]], str],
) -> Completion:
    """The completion of sampled tokens; a stop token that is the last one allowed is no cut answer."""
    stop_reason: StopReason = "stop" if ids[-1] in stop_ids else "length"
    return Completion(decode(ids), tuple(ids), stop_reason, tuple(logprobs), prompt_tokens, seed)


def check_room(prompts: Sequence[Sequence[int]], sampling: Sampling, limit: int, name: str) -> None:
    """Refuse prompts that, with their completions, exceed the `limit` tokens of the model `name`."""
    longest = max(map(len, prompts), default=0)
    if longest + sampling.max_completion_tokens > limit:
        raise ModelError(
            f"A prompt of {longest} tokens and {sampling.max_completion_tokens} for its completion exceed the {limit} "
            f"tokens that {name} takes: shorten the prompt or lower max_completion_tokens."
        )


def sample_seed(*parts: object) -> int:
    """A seed in [0, 2^63) from the key of a sample (run seed, step, pair id, index); the same on every machine."""
    # a separator that no part has: ("1", "23") and ("12", "3") must not share a seed
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    # 63 bits: a seed must be an int64 for torch and vLLM
    return int.from_bytes(digest[:8], "big") >> 1


def sample(
    path: PlainPath,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    decode: Callable[[Sequence[int]], str],
    batch_tokens: int,
    on_done: Callable[[int], None] = lambda n: None,
    on_completions: Callable[[list[tuple[int, Completion]]], None] = lambda finished: None,
) -> list[list[Completion]]:
    """Sample `len(seeds[i])` completions for each prompt, each prompt computed once.

    Args:
        prompts: token ids of each prompt.
        seeds: for each prompt, a seed for each of its completions.
        decode: from a completion's token ids to its text.
        batch_tokens: most prompt + completion tokens of a batch, with padding and room for later prompts; a prompt that
            its completions share counts once, and a single prompt may exceed it.
        on_done: called with the number of completions that have just finished.
        on_completions: called with (index of the prompt, completion) of those that have just finished.
    """
    results: list[list[Any]] = [[None] * len(prompt_seeds) for prompt_seeds in seeds]
    if not any(seeds):
        return results
    # the longest first: a batch has no columns for a later prompt that is longer
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
    queue = deque(Request(i, prompts[i], seeds[i]) for i in order if seeds[i])
    counts, longest = [len(request.seeds) for request in queue], max((len(request.ids) for request in queue), default=0)
    kind = path.rows(len(queue), sum(counts), longest)
    limit, stop_ids = sampling.max_completion_tokens, path.backbone.stop_ids
    rows, max_prompts = rows_that_fit(counts, longest, limit, batch_tokens, shared=kind.shares_prompts)
    steps = limit * max(math.ceil(sum(counts) / rows), math.ceil(len(queue) / max_prompts))
    # autocast first: weights are packed in the dtype that it gives
    with path.backbone.inference(), path.decoding(rows, steps) as logits:
        while queue:
            first = _take(queue, rows, max_prompts)
            batch = DecodeBatch(path, first, sampling, logits, kind=kind, more=bool(queue))
            while batch.running:
                finished = []
                for request, place, tokens, log_probs in batch.step():
                    about = len(request.ids), request.seeds[place]
                    completion = completion_of(tokens, log_probs, *about, stop_ids=stop_ids, decode=decode)
                    results[request.index][place] = completion
                    finished.append((request.index, completion))
                if finished:
                    on_done(len(finished))
                    on_completions(finished)
                if not queue:
                    batch.stop_refilling()
                elif batch.running and (requests := _take(queue, batch.vacancies, max_prompts - batch.prompts)):
                    batch.admit(requests)
    return results


def tokens_at_once(config: Any) -> int:
    """Most prompt + completion tokens of a batch outside training: what `CACHE_BYTES` hold in float32, at least
    `ROLLOUT_TOKENS`.

    It depends on the transformers config alone: answers in bfloat16, which depend on the batch, must not change with
    the machine. On CUDA free memory counts, too (`Policy.sample`).
    """
    return max(ROLLOUT_TOKENS, int(CACHE_BYTES / kv_bytes(config, 4)))


def rows_that_fit(
    seeds: Sequence[int], longest: int, limit: int, batch_tokens: int, *, shared: bool
) -> tuple[int, int]:
    """(rows, prompts) of a batch: all if they fit, else as many as fit with room for later prompts.

    Args:
        seeds: completions of each prompt.
        longest: tokens of the longest prompt.
        limit: most tokens of a completion.
        shared: a prompt counts once for all its rows, not for each.
    """
    total, max_seeds, least = sum(seeds), max(seeds, default=1), min(seeds, default=1)
    if (len(seeds) if shared else total) * longest + total * limit <= batch_tokens:
        return max(total, 1), max(len(seeds), 1)
    # 2 * limit: with prompts to come, rows have room for two answers (`RepeatedKV`)
    fitting = int(batch_tokens / (longest / (least if shared else 1) + 2 * limit))
    return max(fitting, max_seeds), max(fitting // least if shared else fitting, 1)


def _take(queue: deque[Request], rows: int, prompts: int) -> list[Request]:
    """Take the next prompts, at most `prompts`, whose completions fit into `rows` rows."""
    taken: list[Request] = []
    # no prompt is passed over: the queue must stay sorted by length
    while queue and len(queue[0].seeds) <= rows and len(taken) < prompts:
        taken.append(queue.popleft())
        rows -= len(taken[-1].seeds)
    return taken

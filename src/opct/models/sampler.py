"""The in-process sampler: batched, with real stop reasons and a seed of its own for every sample.

A sample depends on the weights, its prompt and its seed alone: each row draws from its own generator, so the batch it
was in changes nothing but the rounding of the logits. In float32 that leaves the sample as it is; in bfloat16, where
attention rounds differently in batches of other shapes, a part of the samples changes (docs/results.md has the count).
generation_config is ignored unless its values are asked for (`Policy.generation_defaults`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from opct.errors import ModelError
from opct.models.cache import with_room

if TYPE_CHECKING:
    from transformers import DynamicCache, GenerationConfig

    from opct.models.policy import Policy

StopReason = Literal["stop", "length"]
BLOCK = 256  # tokens of the vocabulary that are summed up first in a draw
SHRINK_AT = 0.75  # the batch is cut to its unfinished rows when these are at most this share of it


UNSUPPORTED = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
"""Settings of a generation_config that the sampler does not have, with the value at which each is off; None is too."""


@dataclass(frozen=True)
class Completion:
    """One sampled answer.

    `token_ids` holds the stop token where there was one; `logprobs` is the log-prob of each token under the
    distribution that was sampled (nats), so at temperature 1 without truncation the policy's own.
    """

    text: str
    token_ids: tuple[int, ...]
    stop_reason: StopReason
    logprobs: tuple[float, ...]
    prompt_tokens: int
    seed: int


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; top_p 1 and top_k 0 are off."""

    max_completion_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


def generation_defaults(config: GenerationConfig, name: str) -> dict[str, Any]:
    """`temperature`, `top_p` and `top_k` as a generation_config has them; see `Policy.generation_defaults`.

    Args:
        name: what the message calls the model.
    """
    asked = {key: getattr(config, key, None) for key in UNSUPPORTED}
    beyond = {key: value for key, value in asked.items() if value not in (None, UNSUPPORTED[key])}
    if beyond:
        raise ModelError(
            f"The generation_config of {name} sets {beyond}, which the sampler here does not have: give "
            "temperature, top_p and top_k yourself."
        )
    if not config.do_sample:
        return {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
    given = {"temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k}
    off = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    return {key: off[key] if value is None else value for key, value in given.items()}


def sample_seed(*parts: object) -> int:
    """A seed in [0, 2^63) from what names a sample (run seed, step, pair id, index); the same on every machine."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def uniforms(seed: int, n: int) -> Tensor:
    """The n uniform draws in [0, 1) that a sample uses, one a token; [n], float64."""
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sums_dtype(device: torch.device) -> torch.dtype:
    """What probabilities are summed in: float64, which Apple's MPS does not have, so there float32."""
    return torch.float32 if device.type == "mps" else torch.float64


def draw(logits: Tensor, u: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draw one token a row by the inverse of the cumulative distribution; returns token ids and log-probs.

    Shapes: [rows, vocabulary], [rows] -> [rows], [rows]. The log-probs are those of the distribution drawn from; greedy
    ones are at temperature 1.
    """
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)
    else:
        logits = _truncated(logits / sampling.temperature, sampling)
        tokens = _inverse(logits.softmax(-1), u)
    return tokens, logits.gather(-1, tokens[:, None]).squeeze(-1) - logits.logsumexp(-1)


def _inverse(probs: Tensor, u: Tensor) -> Tensor:
    """The first token at which the cumulative probability exceeds u of the total; [rows, vocabulary], [rows] -> [rows].

    First the block of tokens, by the sums of the blocks, then the token in it: one pass over the vocabulary.
    """
    blocks = torch.nn.functional.pad(probs, (0, -probs.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(-1, dtype=sums_dtype(probs.device))
    block, rest = _first_above(sums, u.to(sums) * sums.sum(-1))
    own = blocks[torch.arange(len(blocks), device=blocks.device), block].to(sums.dtype)
    token, _ = _first_above(own, rest)
    return block * BLOCK + token


def _first_above(masses: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Where the cumulative mass first exceeds the target, and what of the target is left there; [rows, n], [rows].

    Never a place without mass: a target that rounding took to the total or beyond it is taken back.
    """
    cumulative = masses.cumsum(-1)
    below = cumulative[:, -1] * (1 - torch.finfo(masses.dtype).eps)
    target = torch.minimum(target, below)
    place = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(-1)
    before = (cumulative - masses).gather(-1, place[:, None]).squeeze(-1)
    return place, (target - before).clamp(min=0)


def _truncated(logits: Tensor, sampling: Sampling) -> Tensor:
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        beyond = (before >= sampling.top_p) & (before > 0)  # the likeliest token always stays
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, beyond)
        logits = logits.masked_fill(drop, -torch.inf)
    return logits


def sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    batch_tokens: int,
    on_done: Callable[[int], None] = lambda n: None,
) -> list[list[Completion]]:
    """Sample `len(seeds[i])` completions for each prompt, each prompt computed once.

    Args:
        prompts: token ids of each prompt.
        seeds: for each prompt, a seed for each of its completions.
        batch_tokens: most prompt + completion tokens, padding included, in one batch (a single prompt may exceed it).
        on_done: called with the number of completions each time a batch is finished.
    """
    results: list[list[Completion]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
    while order:
        width, count = len(prompts[order[0]]) + sampling.max_completion_tokens, 0
        rows = 0
        while count < len(order) and (count == 0 or (rows + len(seeds[order[count]])) * width <= batch_tokens):
            rows += len(seeds[order[count]])
            count += 1
        batch, order = order[:count], order[count:]
        for i, completions in zip(
            batch, _sample_batch(policy, [prompts[i] for i in batch], [seeds[i] for i in batch], sampling), strict=True
        ):
            results[i] = completions
        on_done(rows)
    return results


@torch.no_grad()
def _sample_batch(policy: Policy, prompts: list, seeds: list, sampling: Sampling) -> list[list[Completion]]:
    owners = torch.tensor([i for i, own in enumerate(seeds) for _ in own])
    flat_seeds = [seed for own in seeds for seed in own]
    noise = torch.stack([uniforms(seed, sampling.max_completion_tokens) for seed in flat_seeds])
    noise = noise.to(sums_dtype(policy.device))
    tokens: list[list[int]] = [[] for _ in flat_seeds]
    log_probs: list[list[float]] = [[] for _ in flat_seeds]
    stop_ids = torch.tensor(sorted(policy.stop_ids))
    done = torch.zeros(len(flat_seeds), dtype=torch.bool)
    with policy.inference():
        state = _prefill(policy, prompts, owners, sampling.max_completion_tokens)
        alive = torch.arange(len(flat_seeds))  # which sample each row of the state is
        for t in range(sampling.max_completion_tokens):
            drawn, drawn_log_probs = draw(policy.head.logits(state.hidden), noise[alive, t].to(policy.device), sampling)
            drawn, drawn_log_probs = drawn.cpu(), drawn_log_probs.cpu()
            for row, i in enumerate(alive.tolist()):
                if not done[i]:
                    tokens[i].append(int(drawn[row]))
                    log_probs[i].append(float(drawn_log_probs[row]))
            done[alive] |= torch.isin(drawn, stop_ids)
            unfinished = ~done[alive]
            if not unfinished.any() or t == sampling.max_completion_tokens - 1:
                break
            if unfinished.float().mean() <= SHRINK_AT:
                state, alive, drawn = state.take(unfinished), alive[unfinished], drawn[unfinished]
            state = _advance(policy, state, drawn)
    return _completions(policy, prompts, seeds, tokens, log_probs)


def _completions(policy, prompts, seeds, tokens, log_probs) -> list[list[Completion]]:
    results, at = [], 0
    for prompt, own in zip(prompts, seeds, strict=True):
        completions = []
        for seed in own:
            stopped = tokens[at][-1] in policy.stop_ids
            completions.append(
                Completion(
                    text=policy.renderer.decode(tokens[at]),
                    token_ids=tuple(tokens[at]),
                    stop_reason="stop" if stopped else "length",
                    logprobs=tuple(log_probs[at]),
                    prompt_tokens=len(prompt),
                    seed=seed,
                )
            )
            at += 1
        results.append(completions)
    return results


@dataclass
class _State:
    """What the next token is drawn from: the last hidden states, the cache, and which cached positions are real."""

    hidden: Tensor
    cache: DynamicCache
    attention_mask: Tensor
    positions: Tensor

    def take(self, rows: Tensor) -> _State:
        index = rows.nonzero().squeeze(-1).to(self.hidden.device)
        self.cache.reorder_cache(cast("torch.LongTensor", index))
        return _State(self.hidden[index], self.cache, self.attention_mask[index], self.positions[index])


def _prefill(policy: Policy, prompts: list, owners: Tensor, extra: int) -> _State:
    """Compute each prompt once (padded on the left), then give each completion a row with room for `extra` tokens."""
    from transformers import DynamicCache

    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):
        ids[i, longest - len(prompt) :] = torch.tensor(prompt)
        mask[i, longest - len(prompt) :] = 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    ids, mask, positions, rows = (x.to(policy.device) for x in (ids, mask, positions, owners))
    cache = DynamicCache(config=policy.decoder.config)
    padding = {} if bool(mask.all()) else {"attention_mask": mask}
    out = policy.decoder(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, **padding)
    with_room(cache, rows, extra)
    return _State(out.last_hidden_state[rows, -1], cache, mask[rows], positions[rows, -1])


def _advance(policy: Policy, state: _State, tokens: Tensor) -> _State:
    mask = torch.cat([state.attention_mask, state.attention_mask.new_ones(len(tokens), 1)], -1)
    positions = state.positions + 1
    out = policy.decoder(
        input_ids=tokens[:, None].to(policy.device),
        attention_mask=mask,
        position_ids=positions[:, None],
        past_key_values=state.cache,
        use_cache=True,
    )
    return _State(out.last_hidden_state[:, -1], state.cache, mask, positions)

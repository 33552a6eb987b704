"""Draws tokens from logits and uniform numbers, with their log-probs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from opct.errors import ModelError

BLOCK = 256  # tokens of the vocabulary whose probabilities are summed first


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; top_p 1 and top_k 0 are off."""

    max_completion_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        """Raise ModelError for what no token can be drawn with."""
        if self.max_completion_tokens < 1 or not (self.temperature >= 0 and 0 <= self.top_p <= 1):
            raise ModelError(
                f"max_completion_tokens={self.max_completion_tokens}, temperature={self.temperature}, "
                f"top_p={self.top_p}: they must be at least 1, at least 0, and from 0 to 1."
            )


def uniforms(seed: int, n: int) -> Tensor:
    """The n uniform draws in [0, 1) that a sample uses, one a token; [n], float64."""
    # on the CPU whatever the model's device, whose generator draws other numbers
    # float64: in float32's steps of 6e-8, rare tokens would come too often or never
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sums_dtype(device: torch.device) -> torch.dtype:
    """Dtype for sums of probabilities: float64, or float32 on Apple's MPS, which lacks float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def sample_token(logits: Tensor, u: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draw one token a row by the inverse of the cumulative distribution; returns token ids and log-probs.

    Shapes: [rows, vocabulary], [rows] -> [rows], [rows]. The log-probs belong to the distribution drawn from; greedy
    log-probs are at temperature 1. The logits are overwritten: new memory takes a CPU longer than the softmax.
    """
    if sampling.temperature == 0:
        # before the softmax, which overwrites the logits
        tokens = logits.argmax(-1)
        probs = torch.softmax(logits, -1, out=logits)
    else:
        # temperature, then top_k, then top_p, as in transformers and vLLM: another order keeps other tokens
        logits = logits if sampling.temperature == 1 else logits.div_(sampling.temperature)
        logits = _truncated(logits, sampling)
        probs = torch.softmax(logits, -1, out=logits)
        tokens = _inverse(probs, u)
    return tokens, probs.gather(-1, tokens[:, None]).squeeze(-1).log()


def drawn_log_probs(logits: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
    """The log-probs that `sample_token` gives these tokens; [rows, vocabulary], [rows] -> [rows]."""
    if sampling.temperature > 0:
        # the order of `sample_token`: else the log-probs belong to another distribution
        logits = _truncated(logits / sampling.temperature, sampling)
    return logits.gather(-1, tokens[:, None]).squeeze(-1) - logits.logsumexp(-1)


def _inverse(probs: Tensor, u: Tensor) -> Tensor:
    """The first token at which the cumulative probability exceeds u of the total; [rows, vocabulary], [rows] -> [rows].

    Finds the block of tokens by the blocks' sums, then the token in it: one pass over the vocabulary. Of probabilities
    that are NaN it is some token, so that its log-prob and the loss are NaN.
    """
    last = probs.shape[-1] - 1
    if missing := -probs.shape[-1] % BLOCK:  # padding copies, also where it adds nothing
        probs = torch.nn.functional.pad(probs, (0, missing))
    blocks = probs.unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(-1).to(sums_dtype(probs.device))  # converted after the pass over the vocabulary
    # times the sum, which rounding makes other than 1
    block, rest = _first_above(sums, u.to(sums) * sums.sum(-1))
    block_probs = blocks[torch.arange(len(blocks), device=blocks.device), block].to(sums.dtype)
    token, _ = _first_above(block_probs, rest)
    return (block * BLOCK + token).clamp(max=last)


def _first_above(masses: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Where the cumulative mass first exceeds the target, and the rest of the target there; [rows, n], [rows].

    Never a place without mass: a target that rounding moved to the total or beyond is moved back.
    """
    cumulative = masses.cumsum(-1)
    below = cumulative[:, -1] * (1 - torch.finfo(masses.dtype).eps)
    target = torch.minimum(target, below)
    # right=True: at a target of exactly 0, `left` would give a first token without mass
    place = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(-1).clamp(max=masses.shape[-1] - 1)
    before = (cumulative - masses).gather(-1, place[:, None]).squeeze(-1)
    return place, (target - before).clamp(min=0)


def _truncated(logits: Tensor, sampling: Sampling) -> Tensor:
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        # ties with the k-th stay, as in transformers
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        beyond = (before >= sampling.top_p) & (before > 0)  # the likeliest token always stays
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, beyond)
        logits = logits.masked_fill(drop, -torch.inf)
    return logits

"""Hidden states of completion tokens under a prompt, and chunked computations on them.

No tensor of shape [batch, tokens, vocabulary] is ever held: logits exist for `CHUNK_TOKENS` tokens at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

CHUNK_TOKENS = 256


@dataclass(frozen=True)
class Head:
    """The model's output projection, with the scalings that some families put around it.

    logits = cap(W h * scale + b), with cap(x) = softcap tanh(x / softcap) where the model has one (Gemma).
    """

    weight: Float[Tensor, "vocabulary hidden"]
    bias: Float[Tensor, " vocabulary"] | None
    compute_dtype: torch.dtype
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, hidden: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens vocabulary"]:
        """float32 logits."""
        return self.finish(self.project(hidden))

    def cast(self) -> Head:
        """The same head with weights in the compute dtype, for many calls of `project`."""
        # detached: the gradient to the head is that of `one_pass`, not of the cast
        bias = None if self.bias is None else self.bias.detach().to(self.compute_dtype)
        return dataclasses.replace(self, weight=self.weight.detach().to(self.compute_dtype), bias=bias)

    def project(self, hidden: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens vocabulary"]:
        """W h + b without the scalings; in float32, or in 16 bits where it `rounds`."""
        states, weight = hidden.to(self.compute_dtype), self.weight.to(self.compute_dtype)
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        if self.rounds or self.compute_dtype.itemsize > 2:
            with torch.autocast(states.device.type, enabled=False):  # which would round float32 products, too
                return torch.nn.functional.linear(states, weight, bias)
        out = torch.mm(states, weight.T, out_dtype=torch.float32)
        return out if bias is None else out + bias

    @property
    def rounds(self) -> bool:
        """Whether `project` rounds its result to 16 bits: only torch for CUDA has a product that does not."""
        has_wide_product = self.weight.is_cuda and torch.version.hip is None
        return self.compute_dtype.itemsize == 2 and not has_wide_product

    def finish(self, projected: Float[Tensor, "tokens vocabulary"]) -> Float[Tensor, "tokens vocabulary"]:
        """The scalings, in float32."""
        # float32: near a logit of 16, bfloat16 has steps of 0.125 nats
        out = projected.to(torch.promote_types(projected.dtype, torch.float32))
        if self.scale != 1.0:
            out = out * self.scale
        return out if self.softcap is None else self.softcap * torch.tanh(out / self.softcap)

    def through_scaling(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Gradient to the result of `project` from the gradient to `logits`, which `finish` returned."""
        if self.softcap is not None:
            # the cap first: it is the outer function of the two
            gradient = gradient * (1 - (logits / self.softcap).square())
        return gradient if self.scale == 1.0 else gradient * self.scale


@dataclass(frozen=True)
class Scores:
    """The hidden state that predicts each completion token, [tokens, hidden], rows of the batch concatenated."""

    hidden: Float[Tensor, "tokens hidden"]
    token_ids: Int[Tensor, " tokens"]
    head: Head
    lengths: tuple[int, ...]


class Projection:
    """Logits of a policy and its teacher, chunk by chunk; `head` and `teacher_head` are cast once for all chunks.

    Two logits that are rounded to 16 bits differ by rounding alone, which makes a small KL up to a third too large. So
    a teacher with the policy's head gets the policy's logits plus W (h_teacher - h_policy), rounded in proportion to
    the difference; with heads of their own both are projected in float32.
    """

    def __init__(self, policy: Scores, teacher: Scores | None):
        head, other = policy.head, None if teacher is None else teacher.head
        rounds = other is not None and head.rounds
        self._adds = rounds and other is not None and other.weight is head.weight and other.bias is head.bias
        if rounds and not self._adds:
            head, other = (dataclasses.replace(h.cast(), compute_dtype=torch.float32) for h in (head, other) if h)
        self.head, self.teacher_head = head.cast(), None if other is None else other.cast()
        self._policy, self._teacher = policy, teacher

    def project(self, rows: slice) -> tuple[Tensor, Tensor | None]:
        """Of the policy and of the teacher, if there is one, for `finish` and `finish_teacher`; [chunk, vocabulary]."""
        hidden = self._policy.hidden[rows]
        logits = self.head.project(hidden)
        if self._teacher is None or self.teacher_head is None:
            return logits, None
        theirs = self._teacher.hidden[rows]
        if self._adds:
            # without bias, which `logits` has; subtracted in float32, since the states are nearly equal
            return logits, dataclasses.replace(self.head, bias=None).project(theirs.float() - hidden.float())
        return logits, self.teacher_head.project(theirs)

    def finish_teacher(self, logits: Tensor, theirs: Tensor) -> Float[Tensor, "rows vocabulary"]:
        """The teacher's float32 logits, from rows of both results of `project`."""
        assert self.teacher_head is not None
        return self.teacher_head.finish(logits.float() + theirs if self._adds else theirs)


@torch.no_grad()
def tokenwise(
    function: Callable[..., Tensor], policy: Scores, teacher: Scores | None = None
) -> Float[Tensor, " tokens *values"]:
    """`function` of every token, chunk by chunk, without gradient; -> [tokens], or [tokens, values].

    `function(policy_logits, teacher_logits)`, or `function(policy_logits, token_ids)` without a teacher, maps float32
    logits [chunk, vocabulary] to [chunk] or [chunk, values], each row alone.
    """
    # no completions: torch.cat refuses an empty list
    values = [policy.hidden.new_zeros(0, dtype=torch.float32)]
    both = Projection(policy, teacher)
    for start in range(0, len(policy.hidden), CHUNK_TOKENS):
        rows = slice(start, start + CHUNK_TOKENS)
        logits, theirs = both.project(rows)
        other = policy.token_ids[rows] if theirs is None else both.finish_teacher(logits, theirs)
        values.append(function(both.head.finish(logits), other))
    return torch.cat(values)


def completion_hidden(
    decoder: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    device: torch.device,
) -> Float[Tensor, "tokens hidden"]:
    """Hidden states that predict each completion token, rows one after another; -> [tokens, hidden].

    Padding is on the right: under causal attention no real position sees it, so no attention mask is needed.
    """
    # minus 1: the last token predicts nothing
    lengths = [len(p) + len(c) - 1 for p, c in zip(prompts, completions, strict=True)]
    ids = padded_ids([[*p, *c][:n] for p, c, n in zip(prompts, completions, lengths, strict=True)])
    rows, columns = [], []
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        rows.append(torch.full((len(completion),), i))
        # the state at the prompt's last token predicts the completion's first one
        columns.append(torch.arange(len(prompt) - 1, lengths[i]))
    hidden = decoder(input_ids=ids.to(device), use_cache=False).last_hidden_state
    return hidden[torch.cat(rows).to(device), torch.cat(columns).to(device)]


def padded_ids(rows: Sequence[Sequence[int]], side: str = "right") -> Int[Tensor, "rows longest"]:
    """Token ids below each other, zeros at one side."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_side=side)


def padded(values: Shaped[Tensor, " tokens"], lengths: Sequence[int]) -> Shaped[Tensor, "sequences longest"]:
    """Rows one after another to rows below each other, zeros at the right; [tokens] -> [sequences, longest]."""
    return torch.nn.utils.rnn.pad_sequence(list(values.split(list(lengths))), batch_first=True)


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices grouped so that rows x longest row stays within `budget` tokens; sorted by length, longest first.

    A row longer than the budget is a group of its own.
    """
    groups: list[list[int]] = []
    # ties by index, so that every process and every resumed run forms the same groups
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        # the first of a group is its longest: all are padded to it
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= budget:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products with x: autocast's where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype

"""Hidden states of completion tokens under a prompt, and what is computed from them chunk by chunk.

No tensor of shape [batch, tokens, vocabulary] is ever held: logits exist for `CHUNK_TOKENS` tokens at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

CHUNK_TOKENS = 256

TokenFunction = Callable[..., Tensor]


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

    def logits(
        self, hidden: Float[Tensor, "tokens hidden"], weight: Float[Tensor, "vocabulary hidden"] | None = None
    ) -> Float[Tensor, "tokens vocabulary"]:
        """float32 logits."""
        weight = self.weight if weight is None else weight
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        out = torch.nn.functional.linear(hidden.to(self.compute_dtype), weight.to(self.compute_dtype), bias)
        out = out.to(torch.promote_types(out.dtype, torch.float32))
        if self.scale != 1.0:
            out = out * self.scale
        return out if self.softcap is None else self.softcap * torch.tanh(out / self.softcap)


@dataclass(frozen=True)
class Scores:
    """What predicts each completion token: its hidden state, [tokens, hidden], rows of the batch one after another."""

    hidden: Float[Tensor, "tokens hidden"]
    token_ids: Int[Tensor, " tokens"]
    head: Head
    lengths: tuple[int, ...]


def tokenwise(function: TokenFunction, policy: Scores, teacher: Scores | None = None) -> Float[Tensor, " tokens"]:
    """`function` for every token, chunk by chunk, with gradient to the policy; -> [tokens].

    `function(policy_logits, teacher_logits)`, or `function(policy_logits, token_ids)` where there is no teacher, maps
    float32 logits of [chunk, vocabulary] to [chunk] and treats each row by itself. The teacher gets no gradient.
    """
    teacher_hidden = None if teacher is None else teacher.hidden.detach()
    teacher_head = None if teacher is None else teacher.head
    return _Tokenwise.apply(
        function, policy.hidden, policy.head.weight, policy.head, teacher_hidden, teacher_head, policy.token_ids
    )


class _Tokenwise(torch.autograd.Function):
    """`tokenwise` with its gradient found in the forward: each output depends on its own hidden state alone.

    d out_t / d h_t is kept as [tokens, hidden]. Where the head's weight is trained, its gradient needs the incoming
    gradient: logits are then computed again in backward.
    """

    @staticmethod
    def forward(ctx, function, hidden, weight, head, teacher_hidden, teacher_head, token_ids):
        ctx.function, ctx.head, ctx.teacher_head = function, head, teacher_head
        ctx.needs_weight = ctx.needs_input_grad[2]
        keep_unit = ctx.needs_input_grad[1] and not ctx.needs_weight
        values, units = [], []
        for rows in torch.arange(len(hidden), device=hidden.device).split(CHUNK_TOKENS):
            with torch.set_grad_enabled(keep_unit):
                h = hidden[rows].detach().requires_grad_(keep_unit)
                out = _call(function, head.logits(h, weight.detach()), teacher_hidden, teacher_head, token_ids, rows)
                if keep_unit:
                    units.append(torch.autograd.grad(out.sum(), h)[0])
            values.append(out.detach())
        ctx.save_for_backward(hidden, weight, teacher_hidden, token_ids, torch.cat(units) if units else None)
        return torch.cat(values) if values else hidden.new_zeros(0, dtype=torch.float32)

    @staticmethod
    def backward(ctx, grad):
        hidden, weight, teacher_hidden, token_ids, unit = ctx.saved_tensors
        if not ctx.needs_weight:
            return None, (unit * grad[:, None]).to(hidden.dtype) if unit is not None else None, *[None] * 5
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        for rows in torch.arange(len(hidden), device=hidden.device).split(CHUNK_TOKENS):
            with torch.enable_grad():
                h, w = hidden[rows].detach().requires_grad_(), weight.detach().requires_grad_()
                out = _call(ctx.function, ctx.head.logits(h, w), teacher_hidden, ctx.teacher_head, token_ids, rows)
                dh, dw = torch.autograd.grad((out * grad[rows]).sum(), (h, w))
            grad_hidden[rows] = dh
            grad_weight += dw
        return None, grad_hidden, grad_weight, *[None] * 4


def _call(function, logits, teacher_hidden, teacher_head, token_ids, rows):
    if teacher_hidden is None:
        return function(logits, token_ids[rows])
    with torch.no_grad():
        teacher_logits = teacher_head.logits(teacher_hidden[rows])
    return function(logits, teacher_logits)


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
    ids = torch.zeros(len(prompts), max(lengths), dtype=torch.long)
    rows, columns = [], []
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        ids[i, : lengths[i]] = torch.tensor([*prompt, *completion][: lengths[i]])
        rows.append(torch.full((len(completion),), i))
        columns.append(torch.arange(len(prompt) - 1, lengths[i]))
    hidden = decoder(input_ids=ids.to(device), use_cache=False).last_hidden_state
    return hidden[torch.cat(rows).to(device), torch.cat(columns).to(device)]


def padded(values: Shaped[Tensor, " tokens"], lengths: Sequence[int]) -> Shaped[Tensor, "sequences longest"]:
    """Rows one after another to rows below each other, zeros at the right; [tokens] -> [sequences, longest]."""
    return torch.nn.utils.rnn.pad_sequence(list(values.split(list(lengths))), batch_first=True)


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices grouped so that rows x longest row stays within `budget` tokens; sorted by length, longest first.

    A row longer than the budget is a group of its own.
    """
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= budget:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups

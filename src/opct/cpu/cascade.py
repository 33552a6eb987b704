"""Attention of completions that branch off their prompts, on a CPU: no prompt is copied for a completion.

Gain: a prompt's keys and values are read once for all its completions, and a training step keeps no copies of them
(with copies, each row of completions keeps 12% of its prompt's; see docs/explanation/costs.md).

    A    the queries of a prompt's completions against the prompt's keys; all of them, and all query heads of a key
         head, are the rows of one product
    B    causal attention of each completion to itself
    lse = log(exp lse_A + exp lse_B),   out = exp(lse_A - lse) out_A + exp(lse_B - lse) out_B

In the backward pass, A and B are separate attentions that use the merged `lse` and `out` (`softmax_gradient`).
`shared_rows` does the same for one new token a row, in sampling.
Source: cascade attention in FlashInfer; Hydragen (Juravsky et al. 2024, arXiv 2402.05099).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from opct.cpu.flash import causal_flash, causal_flash_gradient, flash, flash_gradient
from opct.models.scoring import compute_dtype

ALIKE = 1.5  # completions whose lengths differ by at most this ratio are padded and computed side by side
SHORT = 16  # tokens; completions up to this length are always side by side


@dataclass(frozen=True)
class Span:
    """The tokens of one prompt's completions: `start` to `end` of all tokens, which are ordered by prompt."""

    prompt: int
    prompt_tokens: int
    start: int
    end: int


@dataclass(frozen=True)
class Bucket:
    """Where the tokens of completions of similar lengths are, a row each.

    index: [rows, longest]; beyond a completion's end, its last token again.
    places: those of the flattened `index` that are tokens, [tokens].
    start: the first token, if the rows have equal lengths and are adjacent: then nothing is copied.
    """

    index: Int[Tensor, "rows longest"]
    places: Int[Tensor, " tokens"]
    start: int | None

    def take(self, x: Float[Tensor, "heads tokens *rest"]) -> Float[Tensor, "heads rows longest *rest"]:
        """The rows of a tensor of all tokens."""
        if self.start is not None:
            return x.narrow(1, self.start, self.index.numel()).unflatten(1, self.index.shape)
        return x.index_select(1, self.index.flatten()).unflatten(1, self.index.shape)

    def put(self, x: Float[Tensor, "heads tokens *rest"], rows: Float[Tensor, "heads rows longest *rest"]) -> None:
        """Write the rows to the places of their tokens."""
        if self.start is not None:
            x.narrow(1, self.start, self.index.numel()).copy_(rows.flatten(1, 2))
        else:
            x.index_copy_(1, self.index.flatten()[self.places], rows.flatten(1, 2)[:, self.places].to(x.dtype))

    def without_padding(self, rows: Float[Tensor, "heads rows longest *rest"]) -> Tensor:
        """The rows with zeros beyond each completion's end."""
        if self.start is not None:
            return rows
        flat = torch.zeros_like(rows.flatten(1, 2))
        return flat.index_copy_(1, self.places, rows.flatten(1, 2)[:, self.places]).view(rows.shape)


@dataclass(frozen=True)
class Branches:
    """A micro-batch of completions and the prompts they branch off.

    A forward gets it as `branches`, and transformers passes it to the attention.

    keys, values: of each layer, [prompts, heads, width, size].
    reached: the layers whose attention has used them.
    """

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    spans: tuple[Span, ...]
    buckets: tuple[Bucket, ...]
    reached: set[int] = field(default_factory=set)


def branches_of(
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    prompt_tokens: Sequence[int],
    owners: Sequence[int],
    lengths: Sequence[int],
) -> Branches:
    """For completions one after another, in the order of their prompts.

    Args:
        prompt_tokens: of each prompt.
        owners: the prompt of each completion, none lower than the one before it.
        lengths: tokens of each completion, at least 1.
    """
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    spans = []
    for prompt in sorted(set(owners)):
        rows = [i for i, owner in enumerate(owners) if owner == prompt]
        spans.append(Span(prompt, prompt_tokens[prompt], starts[rows[0]], starts[rows[-1] + 1]))
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        longest = lengths[groups[-1][0]] if groups else 0
        if groups and (longest <= SHORT or longest <= ALIKE * lengths[i]):
            groups[-1].append(i)
        else:
            groups.append([i])
    return Branches(keys, values, tuple(spans), tuple(_bucket(rows, starts, lengths) for rows in groups))


def _bucket(rows: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> Bucket:
    longest = lengths[rows[0]]
    begin = torch.tensor([starts[i] for i in rows])[:, None]
    tokens = torch.tensor([lengths[i] for i in rows])[:, None]
    place = torch.arange(longest)
    index = begin + torch.minimum(place, tokens - 1)  # padding repeats the last token: any value that is finite will do
    whole = torch.equal(index.flatten(), torch.arange(index.numel()) + starts[rows[0]])
    return Bucket(index, (place < tokens).flatten().nonzero()[:, 0], starts[rows[0]] if whole else None)


def cascade_attention(
    branches: Branches, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
) -> Float[Tensor, "1 tokens heads size"]:
    """Attention of completions one after another in one row, each to its prompt and itself.

    Args:
        query: [1, heads, tokens, size]; key, value: [1, heads of keys, tokens, size].
    """
    # `_branch_in_one_row` raises for a layer missing here: its attention dropped the argument and saw no prompt
    branches.reached.add(layer)
    dtype = compute_dtype(query)
    _, heads, tokens, size = query.shape
    groups = heads // key.shape[1]
    scale = size**-0.5 if scaling is None else scaling
    by_keys = query[0].to(dtype).unflatten(0, (-1, groups)).transpose(1, 2).contiguous()
    key_value = key[0].to(dtype), value[0].to(dtype)
    out = _Cascade.apply(by_keys, *key_value, branches.keys[layer], branches.values[layer], branches, scale)
    return out.permute(1, 0, 2, 3).reshape(1, tokens, heads, size)


class _Cascade(torch.autograd.Function):
    """q [heads of keys, tokens, groups, size], k and v [heads of keys, tokens, size] -> as q."""

    @staticmethod
    def forward(ctx, q, k, v, prompt_keys, prompt_values, branches: Branches, scale: float):
        heads, _, groups, size = q.shape
        # lse in float32: bfloat16 is off by 0.03 at 8, and so would be the share of each part
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))
        for bucket in branches.buckets:
            rows = bucket.take(q)
            its_out, its_lse = causal_flash(rows.flatten(2, 3), bucket.take(k), bucket.take(v), scale, groups)
            bucket.put(out, its_out.reshape(rows.shape))
            bucket.put(lse, its_lse.reshape(rows.shape[:-1]))
        for span in branches.spans:
            at = slice(span.start, span.end)
            keys, values = (_of(x, span, q.dtype) for x in (prompt_keys, prompt_values))
            its_out, its_lse = flash(q[:, at].reshape(1, heads, -1, size), keys[None], values[None], scale)
            _merge(out[:, at], lse[:, at], its_out[0].reshape(out[:, at].shape), its_lse[0].reshape(lse[:, at].shape))
        ctx.save_for_backward(q, k, v, prompt_keys, prompt_values, out, lse)
        ctx.branches, ctx.scale = branches, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, prompt_keys, prompt_values, out, lse = ctx.saved_tensors
        heads, _, groups, size = q.shape
        grad = grad.to(q.dtype).contiguous()
        # buckets write each token once, before spans add: the other order would add to unset memory
        on_q, on_k, on_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for bucket in ctx.branches.buckets:
            rows = bucket.take(q)
            # zeros where the last token is repeated: each token must add to the gradient of the keys once
            its_grad = bucket.without_padding(bucket.take(grad)).flatten(2, 3)
            its = rows.flatten(2, 3), bucket.take(k), bucket.take(v), bucket.take(out).flatten(2, 3)
            gradients = causal_flash_gradient(its_grad, *its, bucket.take(lse).flatten(2, 3), ctx.scale, groups)
            bucket.put(on_q, gradients[0].reshape(rows.shape))
            bucket.put(on_k, gradients[1])
            bucket.put(on_v, gradients[2])
        # zeros: the padding of a prompt, which no query sees, must get no gradient
        on_prompts = torch.zeros_like(prompt_keys), torch.zeros_like(prompt_values)
        for span in ctx.branches.spans:
            at = slice(span.start, span.end)
            keys, values = (_of(x, span, q.dtype)[None] for x in (prompt_keys, prompt_values))
            of_grad, of_q, of_out = (x[:, at].reshape(1, heads, -1, size) for x in (grad, q, out))
            of_lse = lse[:, at].reshape(1, heads, -1)
            gradients = flash_gradient(of_grad, of_q, keys, values, of_out, of_lse, ctx.scale)
            # added, for these queries saw their completion, too; the prompt's keys belong to this span alone
            on_q[:, at] += gradients[0].view_as(on_q[:, at])
            for on_prompt, x in zip(on_prompts, gradients[1:], strict=True):
                on_prompt[span.prompt, :, : span.prompt_tokens] = x[0]
        return on_q, on_k, on_v, *on_prompts, None, None


def _of(x: Tensor, span: Span, dtype: torch.dtype) -> Float[Tensor, "heads tokens size"]:
    """The keys or values of a span's prompt, without padding."""
    return x[span.prompt, :, : span.prompt_tokens].to(dtype)


def _merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Merge attention to some keys into attention to others, in place."""
    share = torch.sigmoid(other_lse - lse)[..., None]
    out.copy_(torch.lerp(out.to(share.dtype), other.to(share.dtype), share))
    lse.copy_(torch.logaddexp(lse, other_lse))  # after `share`, which is of the log-sum-exp before

"""Weights packed once for a CPU's matrix products, for many small products with them.

torch packs a weight again for each product. Gain: 16.2 ms for all layers of SmolLM2-135M and 32 rows (bfloat16),
against 22.6; in float32 on a CPU without bfloat16 products 123 ms against 149.
In float32 an adapter is added to the copy of W: the same to rounding. In bfloat16 its part is added after W x is
rounded, as in training: in one product with W it would be rounded once less, and differ from the policy in training by
2.6% a token. Layers with one input are one product.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opct.cpu.fused_lora import Parts, linear_parts
from opct.models.scoring import Head, compute_dtype

PACKED_STEPS = 16
"""Fewest forwards to pack for. Packing takes as long as it saves in 9 forwards of SmolLM2-135M on two threads, in 23 to
33 on one (float32, 16 and 8 rows)."""
MOST_BYTES = 4e9  # of copies; larger models keep their layers
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # layers of a module that have the same input


def can_pack(weight: Tensor) -> bool:
    """True if oneDNN computes products with this weight: on a CPU, in bfloat16 only where the CPU has that."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    dtype = compute_dtype(weight)
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


@contextlib.contextmanager
def packed(model: torch.nn.Module, rows: int) -> Iterator[None]:
    """Context without gradient in which linear layers use packed copies; weights and adapters must not change.

    The copies take the memory of the weights in the dtype of their products; does nothing above `MOST_BYTES`.

    Args:
        model: its layers are packed; the output head of a causal language model is not below its decoder.
        rows: of the products to come.
    """
    done: list[Any] = []
    try:
        for group in _groups(model):
            compute = packed_linear(*_joined(group), rows=rows)
            shared = _OneInput(compute, [len(linear.weight) for _, linear, _, _ in group])
            for i, (module, *_) in enumerate(group):
                done.append(module)
                done[-1].forward = compute if len(group) == 1 else partial(shared.part, i)  # hides the class's
        yield
    finally:
        for module in done:
            del module.forward


def _groups(model: torch.nn.Module) -> list[list[Parts]]:
    """The layers to pack, grouped by input; none if their copies would be too large."""
    layers = [parts for parts in linear_parts(model) if can_pack(parts[1].weight)]
    if sum(linear.weight.numel() * compute_dtype(linear.weight).itemsize for _, linear, _, _ in layers) > MOST_BYTES:
        return []
    names = {module: name.rpartition(".") for name, module in model.named_modules()}
    groups: dict[Any, list[Parts]] = {}
    for parts in layers:
        parent, _, name = names[parts[0]]
        together = next((siblings for siblings in TOGETHER if name in siblings), name)
        groups.setdefault((parent, together, parts[1].in_features), []).append(parts)
    return list(groups.values())


def _joined(group: Sequence[Parts]) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Weight, bias, A and s B of the layers stacked; zeros stand for what only some have, None for what none has."""
    if len(group) == 1:
        [(_, linear, a, b)] = group
        return linear.weight, linear.bias, a, b
    dtype = compute_dtype(group[0][1].weight)
    linears, bias = [linear for _, linear, _, _ in group], None
    weight = torch.cat([linear.weight.to(dtype) for linear in linears])
    if any(linear.bias is not None for linear in linears):
        bias = torch.cat([x.weight.new_zeros(len(x.weight)) if x.bias is None else x.bias for x in linears])
    downs = [a for _, _, a, _ in group if a is not None]
    # a layer without adapter: outputs but no rank, so that block_diag leaves its outputs in their place
    ups = [weight.new_zeros(len(linear.weight), 0) if b is None else b.to(dtype) for _, linear, _, b in group]
    return weight, bias, *((torch.cat(downs), torch.block_diag(*ups)) if downs else (None, None))


class _OneInput:
    """Layers computed together at the first call with an input; the calls of the others take their outputs."""

    def __init__(self, compute: Callable[[Tensor], Tensor], outputs: Sequence[int]):
        self._compute, self._sizes = compute, list(outputs)
        self._input: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def part(self, i: int, x: Tensor) -> Tensor:
        # the same object, not equal values; it is referenced here, so no later input can have its identity
        if x is not self._input:
            self._input, self._parts = x, self._compute(x).split(self._sizes, -1)
        output = self._parts[i]
        if i == len(self._sizes) - 1:
            self._input, self._parts = None, ()
        return output


def packed_head(head: Head, rows: int) -> Callable[[Tensor], Tensor]:
    """`head.logits` on a packed copy of its weight, where it can be packed."""
    if head.compute_dtype != compute_dtype(head.weight) or not can_pack(head.weight):
        return head.logits
    project = packed_linear(head.weight, head.bias, rows=rows)
    return lambda hidden: head.finish(project(hidden))


def packed_linear(
    weight: Tensor, bias: Tensor | None, a: Tensor | None = None, b: Tensor | None = None, *, rows: int
) -> Callable[[Tensor], Tensor]:
    """x -> W x + bias + b a x, [..., inputs] -> [..., outputs], in the dtype of products; copies its arguments."""
    outputs, dtype = len(weight), compute_dtype(weight)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        if a is not None and b is not None and dtype == torch.float32:
            weight, a, b = torch.addmm(weight, b.to(dtype), a.to(dtype)), None, None
        stacked = weight.to(dtype) if a is None else torch.cat([weight.to(dtype), a.to(dtype)])  # W x and a x at once
        ready = torch.ops.mkldnn._reorder_linear_weight(stacked, rows)
        up = None if b is None else b.to(dtype).T
        shift = None
        if bias is not None:
            # zeros for the rows of a: a bias there would go through the adapter's B
            shift = torch.nn.functional.pad(bias.to(dtype), (0, 0 if a is None else len(a)))

    def forward(x: Tensor) -> Tensor:
        flat = x.to(dtype).reshape(-1, x.shape[-1])
        both = torch.ops.mkldnn._linear_pointwise(flat, ready, shift, "none", [], "")
        out = both[:, :outputs]
        if up is not None:
            out.addmm_(both[:, outputs:], up)
        return out.view(*x.shape[:-1], outputs)

    return forward

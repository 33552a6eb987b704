"""RMS norms in one function: y = w x / sqrt(mean(x^2) + eps), with x and one number a token kept for the backward pass.

As separate operations, which is how models write it, a norm keeps two float32 copies of its input. Gain on a training
step of SmolLM2-135M with LoRA (bfloat16, CPU): 10% of what the forward keeps for the backward pass, 1% of the time.
The modules stay the model's own; only `forward` changes, and only where a test run gives the same result.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from opct.cpu.equivalence import mismatch_reason
from opct.cpu.switches import is_on


def fuse_norms(model: torch.nn.Module) -> None:
    """Use the fused function in the model's RMS norms; norms that compute something else (Gemma's) keep theirs."""
    for module in model.modules() if is_on("fused_norm") else ():
        if type(module).__name__.endswith("RMSNorm") and _epsilon(module) is not None and _is_plain(module):
            module.__class__ = _fused(cast("Any", type(module)))


def unfused_norms(model: torch.nn.Module) -> str | None:
    """Which RMS norms compute as in transformers, or None; liger's are fused, too."""
    names = {module._get_name() for module in model.modules() if module._get_name().endswith("RMSNorm")}
    others = sorted(name for name in names if not name.startswith(("Fused", "Liger")))
    return f"norms run as in transformers: {', '.join(others)}" if others else None


def _epsilon(module: torch.nn.Module) -> float | None:
    """The norm's eps, under either name."""
    values = [getattr(module, name) for name in ("variance_epsilon", "eps") if hasattr(module, name)]
    return float(values[0]) if values and isinstance(values[0], float) else None


def _is_plain(module: torch.nn.Module) -> bool:
    """True if the function gives what a copy of the module with a random weight gives."""
    parameters = dict(module.named_parameters())
    if list(parameters) != ["weight"] or parameters["weight"].ndim != 1:
        return False
    # the weight is random: at the usual ones, a norm that ignores its weight would pass
    copied, generator = copy.deepcopy(module), torch.Generator().manual_seed(0)
    weight, *rows = torch.randn(4, len(parameters["weight"]), generator=generator).to(parameters["weight"])
    copied.weight = torch.nn.Parameter(weight)
    x = torch.stack(rows)

    def both() -> tuple[Tensor, Tensor]:
        return copied(x), _RmsNorm.apply(x, weight, _epsilon(module))

    return mismatch_reason("fused", both, parts=False) is None


@functools.cache
def _fused(kind: Any) -> type:
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        epsilon = cast("float", _epsilon(self))
        if torch.is_grad_enabled():
            return _RmsNorm.apply(hidden_states, self.weight, epsilon)
        return _normal(hidden_states, self.weight, epsilon)[0]

    return type(f"Fused{kind.__name__}", (kind,), {"forward": forward})


def _normal(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """w x / rms(x), and 1 / rms(x) of each token."""
    # a copy also where x is float32: `mul_` below would change the caller's hidden states
    wide = x.to(torch.promote_types(x.dtype, torch.float32), copy=True)
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
    # rounded before the weight, as in transformers: the other order gives other last bits in bfloat16
    return weight * wide.mul_(scale).to(x.dtype), scale


class _RmsNorm(torch.autograd.Function):
    """With n = x / rms(x): dL/dx = (g w - n mean(g w n)) / rms(x), dL/dw = sum g n."""

    @staticmethod
    def forward(
        ctx, x: Float[Tensor, "*batch size"], weight: Float[Tensor, " size"], epsilon: float
    ) -> Float[Tensor, "*batch size"]:
        out, scale = _normal(x, weight, epsilon)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        # a copy: x is saved for the backward of other layers too
        normal = x.to(scale.dtype, copy=True).mul_(scale)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            # summed in float32: over thousands of tokens a sum in bfloat16 stops growing
            grad_weight = (grad * normal.to(x.dtype)).flatten(0, -2).sum(0, dtype=scale.dtype).to(weight.dtype)
        if not ctx.needs_input_grad[0]:
            return None, grad_weight, None
        inner = (grad * weight).to(scale.dtype)
        mean = torch.linalg.vecdot(inner, normal).div_(x.shape[-1]).unsqueeze(-1)
        return inner.addcmul_(normal, mean, value=-1).mul_(scale).to(x.dtype), grad_weight, None

"""Checks a faster computation against the plain one by running both."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from opct.models.scoring import compute_dtype

FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, NotImplementedError)
ROUNDING = 0.02  # of the norm
# Attention in two parts rounds differently, and layers amplify that: the default model's hidden states in bfloat16
# differ by 3 to 4% (in float32 by 1e-6), with positions off by one by 27%, without the prompt by 46%.
ROUNDING_IN_PARTS = 0.1  # where products are in two bytes


def mismatch_reason(how: str, compute: Callable[[], tuple[Tensor, Tensor]], *, parts: bool) -> str | None:
    """Why the faster computation is not equivalent to the plain one, or None.

    Args:
        how: the faster computation, as a part of the reason.
        compute: gives the hidden states of the plain computation and of the faster one.
        parts: the faster one merges attention from two parts.

    Raises:
        torch.OutOfMemoryError: it says nothing about the model.
    """
    try:
        with torch.no_grad():
            expected, actual = compute()
    # before FAILURES: it is a RuntimeError too, and would switch the fast path off for good
    except torch.OutOfMemoryError:
        raise
    except FAILURES as error:
        return f"{how}, it fails: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    share = float((expected - actual).norm() / expected.norm())
    bound = ROUNDING_IN_PARTS if parts and compute_dtype(expected).itemsize == 2 else ROUNDING
    if not share <= bound:  # NaN is no less
        return f"{how}, its hidden states differ by {share:.1%}"
    return None

"""The faster ways in which a policy can be computed; the model is asked once for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, cast

from opct.models.inference.prefix_sharing import can_branch
from opct.models.inference.rows import why_not_shared
from opct.models.kernels.attention import GROUPED

if TYPE_CHECKING:
    from opct.models.policy import Policy


class Shortcuts:
    """What a `Policy` knows about itself; each of these has to be asked before training changes the weights."""

    @cached_property
    def branching_fault(self) -> str | None:
        """Why completions of this model cannot share their prompt; None where they can."""
        return None if self.cascades else self._asked(lambda policy: can_branch(policy.decoder))

    @cached_property
    def cascade_fault(self) -> str | None:
        """Why completions that share a prompt need copies of its keys and values; None where they need none."""
        return self._asked(lambda policy: can_branch(policy.decoder, cascade=True))

    @property
    def own_attention(self) -> bool:
        """True where attention is that of `opct.models.kernels.attention`."""
        return cast("Policy", self).decoder.config._attn_implementation == GROUPED

    @property
    def cascades(self) -> bool:
        """True where completions that share a prompt need no copy of its keys and values."""
        return self.cascade_fault is None

    @cached_property
    def rows_fault(self) -> str | None:
        """Why samples of a prompt need copies of its keys and values; None where they need none."""
        return self._asked(why_not_shared)

    def _asked(self, probe: Callable[[Policy], str | None]) -> str | None:
        """With the adapter off: what it has learnt must not decide how the model is computed."""
        policy = cast("Policy", self)
        with policy.inference(), policy.adapter_off():
            return probe(policy)

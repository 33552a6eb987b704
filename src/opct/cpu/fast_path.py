"""The fast path of a model, and its installation."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opct.cpu.attention import GROUPED, use_grouped_attention
from opct.cpu.fused_lora import unfused_reason
from opct.cpu.fused_norm import fuse_norms, unfused_norms
from opct.cpu.packed_linear import PACKED_STEPS, packed, packed_head
from opct.cpu.prefill import beginning, common_beginning, prefill
from opct.cpu.shared_prompts import (
    branched_hidden,
    no_branching_reason,
    no_cascade_reason,
    no_sharing_reason,
    shared_batches,
)
from opct.cpu.shared_rows import SharedPrefixKV, no_shared_rows_reason, saves_enough
from opct.cpu.switches import is_on
from opct.models.inference.kv_cache import keys_and_values
from opct.models.inference.prefill import Prefill
from opct.models.inference.rows import RepeatedKV
from opct.models.plain_path import PlainPath, plain_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCORE_FORWARD = 128  # tokens that an additional forward with gradient counts as


def install(model: PreTrainedModel, *, norms: bool = True) -> None:
    """Give a model the fast path, before it gets an adapter.

    Args:
        norms: fuse its RMS norms.
    """
    use_grouped_attention(model)
    if norms:
        fuse_norms(model)
    model.opct_path = FastPath  # type: ignore[assignment]


class FastPath(PlainPath):
    """Computes what prompts share once, on models whose probes give the plain path's numbers."""

    @property
    def shares_prompts(self) -> bool:
        if self.backbone.has_dropout and not self.backbone.in_step:  # outside of a step dropout is off
            return is_on("shared_prompts") and no_branching_reason(self.backbone) is None
        return no_sharing_reason(self.backbone) is None

    def batches(
        self, prompts: Sequence[Sequence[int]], widths: Sequence[int], lengths: Sequence[Sequence[int]], budget: int
    ) -> list[list[int]]:
        if not self.shares_prompts:
            return plain_batches(widths, lengths, budget)
        if len(set(map(tuple, prompts))) >= sum(map(len, lengths)):
            # computed once in each micro-batch, so it takes room there once and not in every row
            first = self._common(list(map(tuple, prompts))) if all(lengths) else 0  # rows without answers are whole
            return plain_batches([width - first for width in widths], lengths, max(1, budget - first))
        return shared_batches(prompts, widths, list(map(sum, lengths)), budget)

    def hidden(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> Tensor:
        backbone = self.backbone
        beginnings = self._beginnings(list(map(tuple, prompts)))
        if beginnings is None:
            return super().hidden(prompts, completions)
        nested = not torch.is_grad_enabled() and beginning(list(set(beginnings))) > 0
        return branched_hidden(
            backbone.decoder,
            beginnings,
            prompts,
            completions,
            cascade=no_cascade_reason(backbone) is None,
            forward=self._states if nested else None,
        )

    def prefill(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Prefill:
        return prefill(self.backbone, prompts).for_rows(copies)

    def rows(self, prompts: int, rows: int, width: int) -> type[RepeatedKV]:
        pays = saves_enough(self.backbone, prompts, rows, width)
        return SharedPrefixKV if pays and no_shared_rows_reason(self.backbone) is None else RepeatedKV

    @contextlib.contextmanager
    def decoding(self, rows: int, steps: int) -> Iterator[Callable[[Tensor], Tensor]]:
        if steps < PACKED_STEPS or not is_on("packed_linear"):
            yield self.backbone.head.logits
            return
        no_branching_reason(self.backbone)  # before packing: the check turns the adapter off, packed layers include it
        with packed(self.backbone.decoder, rows):
            yield packed_head(self.backbone.head, rows)

    def slow_reasons(self, generations: int) -> list[str]:
        backbone = self.backbone
        reasons = [reason for reason in (unfused_reason(backbone.model), unfused_norms(backbone.model)) if reason]
        if fault := no_branching_reason(backbone):
            reasons.append(f"in sampling, prompts that begin alike are computed one by one: {fault}")
        if generations < 2:
            return reasons
        is_grouped = backbone.attention == GROUPED
        if fault := no_sharing_reason(backbone):
            reasons.append(f"each prompt is computed with each of its completions: {fault}")
        elif is_grouped and (fault := no_cascade_reason(backbone)):
            reasons.append(f"in training, each completion has a copy of its prompt's keys and values: {fault}")
        if is_grouped and (fault := no_shared_rows_reason(backbone)):
            reasons.append(f"in sampling, each completion has a copy of its prompt's keys and values: {fault}")
        return reasons

    def _common(self, prompts: list[tuple[int, ...]]) -> int:
        """Tokens that all of these prompts begin with, if they are computed once; each keeps its last token."""
        if not prompts or not is_on("shared_beginnings") or no_cascade_reason(self.backbone) is not None:
            return 0
        # of sorted prompts the first and the last differ earliest
        return min(common_beginning(min(prompts), max(prompts)), min(map(len, prompts)) - 1)

    def _beginnings(self, prompts: list[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
        """What of each prompt is computed once for all that begin so: all of it where prompts are equal, else what
        they begin with; None where nothing is, or too little. The same for a policy and its teacher."""
        if len(set(prompts)) < len(prompts):
            return prompts if self.shares_prompts else None
        first = beginning(prompts, SCORE_FORWARD) if is_on("shared_beginnings") else 0
        if first == 0 or not self.shares_prompts or no_cascade_reason(self.backbone) is not None:
            return None
        return [prompt[: min(first, len(prompt) - 1)] for prompt in prompts]

    def _states(self, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
        """As `shared_prompts.prompts_forward`, without gradient; a beginning that prompts share is computed once."""
        prefilled = prefill(self.backbone, prompts)
        columns: Any = torch.arange(prefilled.width, device=self.backbone.device) + prefilled.starts[:, None]
        # from padding on the left to padding on the right; beyond a prompt's end any values will do: nothing sees them
        columns = columns.clamp(max=prefilled.width - 1)[:, None, :, None]
        layers = itertools.chain.from_iterable(keys_and_values(prefilled.cache))
        return [*(x.gather(2, columns.expand(-1, x.shape[1], -1, x.shape[3])) for x in layers), prefilled.hidden]

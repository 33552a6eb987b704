"""Keys and values of the rows that are sampled together."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from opct.models.backbone import Backbone
from opct.models.inference.kv_cache import is_roomy, place, shift, with_cache, with_room
from opct.models.inference.prefill import Prefill

DROP_AT = 0.25  # unused columns are dropped when they are at least this share


class RepeatedKV:
    """The running rows; each has its own copy of its prompt.

    Args:
        prefill: of the prompts.
        span: most columns of a row after its prompt.
        more: reserve room for prompts that may enter later.

    Attributes:
        shares_prompts: rows hold no copies of their prompts.
        refillable: prompts may enter.
    """

    shares_prompts: ClassVar[bool] = False

    def __init__(self, backbone: Backbone, prefill: Prefill, span: int, *, more: bool):
        self._backbone, self._span = backbone, span
        # twice: a prompt may enter when the first rows are about to end, and needs a span from there
        room = 2 * span if more else span
        self._cache: Any = with_room(prefill.cache, prefill.owners, room)
        self.refillable = is_roomy(self._cache)
        self._takes_masks = self.refillable and backbone.takes_masks
        self._written, self._columns = prefill.width, torch.arange(prefill.width + room, device=backbone.device)
        self._starts = prefill.starts[prefill.owners]
        self._before: Tensor | int = 0  # tokens of each row that are in no column

    def advance(self, tokens: Tensor, done: Tensor) -> Tensor:
        """The hidden states after one more token in every row, [rows] -> [rows, hidden].

        Args:
            done: finished rows, [rows]. Their result means nothing; their position stays within the model's context.
        """
        out = self._backbone.decoder(
            input_ids=tokens[:, None],
            # a position is counted from where the row begins; one of a finished row would grow beyond the context
            position_ids=(self._before + self._written - self._starts).masked_fill(done, 0)[:, None],
            **with_cache(self._backbone.decoder, self._cache),
            **self._attention(),
        )
        self._written += 1
        return out.last_hidden_state[:, -1]

    def _attention(self) -> dict[str, Any]:
        """Where a row may look: a mask in the form that the attention takes as it is, so that no layer converts it."""
        # + 1: the column that the next token is about to be written to
        seen = self._columns[: self._written + 1] >= self._starts[:, None]
        if not self._takes_masks:
            return {"attention_mask": seen.long()}
        if seen.device.type != "cpu":
            return {"attention_mask": seen[:, None, None]}
        return {"attention_mask": additive_mask(~seen, self._cache.layers[0].keys)}

    def keep(self, rows: Tensor) -> None:
        """Keep these rows alone."""
        self._cache.reorder_cache(rows)
        self._starts = self._starts[rows]

    def admit(self, rows: Tensor, busy: Tensor, prefill: Prefill) -> None:
        """Give rows (an index for each of `prefill.owners`) to other prompts; `busy` rows are unfinished, [rows]."""
        # the new prompts are written before the column where all rows end, which must be wide enough for them
        self._drop_columns(busy, prefill.width)
        place(self._cache, rows, prefill.cache, prefill.owners)
        # both end at the same column, so a prompt's padding at the left moves with it
        self._starts[rows] = self._written - prefill.width + prefill.starts[prefill.owners]

    def _drop_columns(self, busy: Tensor, width: int) -> None:
        """Drop columns at the left that no busy row uses where room is short or they are many; `width` are left."""
        unused = min(int(self._starts[busy].min()) if busy.any() else self._written, self._written - width)
        # a whole span must fit from here: without it `advance` would run out of columns in mid-answer
        short = self._written + self._span > len(self._columns)
        if unused > 0 and (short or unused >= DROP_AT * self._written):
            shift(self._cache, unused)
            # the clamp is for rows without work: what they hold begins before the first column that is left
            self._starts, self._written = (self._starts - unused).clamp(min=0), self._written - unused


def additive_mask(hidden: Tensor, keys: Tensor) -> Tensor:
    """[n, tokens] -> mask added to the scores, [n, 1, 1, tokens]; in a dtype that a CPU takes with these keys."""
    mask = torch.zeros(hidden.shape, dtype=torch.promote_types(keys.dtype, torch.float32), device=hidden.device)
    return mask.masked_fill(hidden, float("-inf"))[:, None, None]

"""The keys and values of rows that are sampled together; each has a copy of its prompt's, or shares them.

Every row ends at the same column of the cache and begins at its own. A prompt that enters is written before that
column; when there is no room to the right, the columns that no row uses any more are dropped at the left.

    columns     . . p p p p y y y|      a row that began long ago
                . . . . . p p y y|      one that entered later
                                 ^ all rows draw their next token here

Where rows share their prompts, the columns are those of the completions alone, and the prompts are beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from opct.models.inference.kv_cache import is_roomy, only_room, other_layers, place, shift, with_room
from opct.models.inference.prefill import Prefill, prefill
from opct.models.kernels.attention import GROUPED, SDPA_LIKE
from opct.models.kernels.equivalence import mismatch_reason
from opct.models.kernels.shared_decode import SharedPrompts

if TYPE_CHECKING:
    from opct.models.backbone import Backbone

DROP_AT = 0.25  # columns without use are dropped when they are at least this share
SHARE_AT = 2.0  # rows a prompt, on average, from which on they share it


class Rows(Protocol):
    """What the running batch asks of them."""

    refillable: bool
    """Whether prompts may enter."""

    def advance(self, tokens: Tensor, done: Tensor) -> Tensor:
        """The hidden states after one token more in every row, [rows] -> [rows, hidden].

        Args:
            done: True for rows whose completion is finished, [rows]; what they get means nothing, but it costs no
                position beyond the model's context.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Leave out all rows but these."""
        ...

    def admit(self, rows: Tensor, busy: Tensor, found: Prefill) -> None:
        """Give rows to other prompts.

        Args:
            rows: indices, one for each of `found.owners`.
            busy: True for the rows that go on, [rows].
        """
        ...


def rows_for(backbone: Backbone, prompts: int, found: Prefill, span: int, *, more: bool) -> Rows:
    """Rows for the prompts, sharing them where that is faster and the model allows it.

    Args:
        span: columns that a row may take after its prompt.
        more: whether prompts wait that may enter later, which takes more room.
    """
    kind = SharedRows if shares(backbone, prompts, len(found.owners)) else CopiedRows
    return kind(backbone, found, span, more=more)


def shares(backbone: Backbone, prompts: int, rows: int) -> bool:
    """True where so many rows of so many prompts share these."""
    return rows >= SHARE_AT * prompts and no_shared_rows_reason(backbone) is None


class CopiedRows:
    """Rows that each have a copy of their prompt's keys and values."""

    def __init__(self, backbone: Backbone, found: Prefill, span: int, *, more: bool):
        self._backbone, self._span = backbone, span
        room = 2 * span if more else span
        self._cache = with_room(found.cache, found.owners, room)
        self.refillable = is_roomy(self._cache)
        attention = backbone.attention
        self._own_mask, self._grouped = self.refillable and attention in SDPA_LIKE, attention == GROUPED
        self._written, self._columns = found.width, torch.arange(found.width + room, device=backbone.device)
        self._starts = found.starts[found.owners]

    def advance(self, tokens: Tensor, done: Tensor) -> Tensor:
        seen = self._columns[: self._written + 1] >= self._starts[:, None]
        out = self._backbone.decoder(
            input_ids=tokens[:, None],
            attention_mask=self._mask(seen),
            position_ids=(self._written - self._starts).masked_fill(done, 0)[:, None],
            past_key_values=self._cache,
            use_cache=True,
        )
        self._written += 1
        return out.last_hidden_state[:, -1]

    def _mask(self, seen: Tensor) -> Tensor:
        """As the attention takes it without making another of it in every layer."""
        if not self._own_mask:
            return seen.long()
        return added(~seen, cast("Any", self._cache.layers[0]).keys) if self._grouped else seen[:, None, None]

    def keep(self, rows: Tensor) -> None:
        self._cache.reorder_cache(cast("torch.LongTensor", rows))
        self._starts = self._starts[rows]

    def admit(self, rows: Tensor, busy: Tensor, found: Prefill) -> None:
        self._drop(min(int(self._starts[busy].min()) if busy.any() else self._written, self._written - found.width))
        place(self._cache, rows, found.cache, found.owners)
        self._starts[rows] = self._written - found.width + found.starts[found.owners]

    def _drop(self, columns: int) -> None:
        """Drop columns at the left that no row uses, where the room is needed, or where they are many."""
        short = self._written + self._span > len(self._columns)
        if columns > 0 and (short or columns >= DROP_AT * self._written):
            shift(self._cache, columns)
            self._written -= columns
            self._starts = (self._starts - columns).clamp(min=0)


class SharedRows:
    """Rows that share the keys and values of their prompts, for models without a `no_shared_rows_reason`."""

    refillable = True

    def __init__(self, backbone: Backbone, found: Prefill, span: int, *, more: bool):
        self._backbone, self._span = backbone, span
        self._room = 2 * span if more else span
        self._layers = [(layer.keys, layer.values) for layer in cast("list[Any]", found.cache.layers)]
        self._cache = only_room(found.cache, found.owners, self._room)
        self._written, self._columns = 0, torch.arange(self._room, device=backbone.device)
        self._starts = torch.zeros_like(found.owners)
        self._padding, self._owners = found.starts, found.owners
        self._arrange(torch.ones_like(found.owners, dtype=torch.bool))

    def advance(self, tokens: Tensor, done: Tensor) -> Tensor:
        mask = None
        if self._uneven:
            mask = added(self._columns[: self._written + 1] < self._starts[:, None], self._layers[0][0])
        out = self._backbone.decoder(
            input_ids=tokens[:, None],
            attention_mask=mask,
            position_ids=(self._lengths + self._written - self._starts).masked_fill(done, 0)[:, None],
            past_key_values=self._cache,
            use_cache=True,
            shared_prompts=self._prompts,
        )
        self._written += 1
        return out.last_hidden_state[:, -1]

    def keep(self, rows: Tensor) -> None:
        self._cache.reorder_cache(cast("torch.LongTensor", rows))
        self._starts = self._starts[rows]
        used, self._owners = self._owners[rows].unique(return_inverse=True)
        if len(used) < len(self._padding):
            self._layers = [(keys[used], values[used]) for keys, values in self._layers]
            self._padding = self._padding[used]
        self._arrange(torch.ones_like(rows, dtype=torch.bool))

    def admit(self, rows: Tensor, busy: Tensor, found: Prefill) -> None:
        self._drop(int(self._starts[busy].min()) if busy.any() else self._written)
        slots = self._slots(len(found.starts), self._owners[busy])
        width = self._layers[0][0].shape[-2]
        for own, other in zip(self._layers, cast("list[Any]", found.cache.layers), strict=True):
            for whole, new in zip(own, (other.keys, other.values), strict=True):
                whole[slots, :, width - found.width :] = new
        self._padding[slots] = width - found.width + found.starts
        self._owners[rows] = slots[found.owners]
        self._starts[rows] = self._written
        self._arrange(busy.index_fill(0, rows, True))

    def _slots(self, n: int, used: Tensor) -> Tensor:
        """Places of n prompts that no row uses any more, or new ones."""
        free = torch.ones_like(self._padding, dtype=torch.bool).index_fill(0, used, False).nonzero()[:n, 0]
        new = n - len(free)
        if new > 0:
            first = len(self._padding)
            self._layers = [(_longer(keys, new), _longer(values, new)) for keys, values in self._layers]
            self._padding = _longer(self._padding, new)
            free = torch.cat([free, torch.arange(first, first + new, device=free.device)])
        return free

    def _drop(self, columns: int) -> None:
        """Drop columns at the left that no row uses, where the room is needed, or where they are many."""
        short = self._written + self._span > self._room
        if columns > 0 and (short or columns >= DROP_AT * self._written):
            shift(self._cache, columns)
            self._written -= columns
            self._starts = (self._starts - columns).clamp(min=0)

    def _arrange(self, busy: Tensor) -> None:
        """Find the rows of each prompt; those that are done stand in for nothing."""
        keys = self._layers[0][0]
        self._uneven = bool(self._starts.any())
        self._lengths = keys.shape[-2] - self._padding[self._owners]
        rows: list[list[int]] = [[] for _ in self._padding]
        places = []
        for row, (owner, counts) in enumerate(zip(self._owners.tolist(), busy.tolist(), strict=True)):
            places.append(len(rows[owner]) if counts else 0)
            if counts:
                rows[owner].append(row)
        most = max(map(len, rows))
        table = torch.tensor([own + [0] * (most - len(own)) for own in rows], device=keys.device)
        mask = None
        if self._padding.any():
            mask = added(torch.arange(keys.shape[-2], device=keys.device) < self._padding[:, None], keys)
        self._prompts = SharedPrompts(self._layers, mask, table, self._owners, torch.tensor(places, device=keys.device))


def added(hidden: Tensor, keys: Tensor) -> Tensor:
    """[n, tokens] -> what is added to the scores, [n, 1, 1, tokens]; in a dtype that a CPU takes with these keys."""
    mask = torch.zeros(hidden.shape, dtype=torch.promote_types(keys.dtype, torch.float32), device=hidden.device)
    return mask.masked_fill(hidden, float("-inf"))[:, None, None]


def _longer(tensor: Tensor, n: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(n, *tensor.shape[1:])])


def no_shared_rows_reason(backbone: Backbone) -> str | None:
    """Why samples of a prompt need copies of its keys and values; None where they can share them."""
    return backbone.ask(_shared_rows_mismatch)


def _shared_rows_mismatch(backbone: Backbone) -> str | None:
    """The model is asked: two tokens of three rows of two prompts, the third row on a prompt that enters later."""
    config = backbone.decoder.config
    if config._attn_implementation != GROUPED:
        return f"the attention {config._attn_implementation} has no such form"
    if kinds := other_layers(config):
        return f"its cache has layers of the kind {kinds}"
    ids = [i % config.get_text_config().vocab_size for i in range(1, 16)]

    def both() -> tuple[Tensor, Tensor]:
        return _probe(backbone, CopiedRows, ids), _probe(backbone, SharedRows, ids)

    return mismatch_reason("with shared prompts", both, parts=True)


def _probe(backbone: Backbone, kind: type[CopiedRows] | type[SharedRows], ids: list[int]) -> Tensor:
    rows = kind(backbone, prefill(backbone, [ids[:5], ids[4:6]], [2, 1]), 3, more=True)
    going = torch.tensor([True, True, False], device=backbone.device)
    nobody = torch.zeros_like(going)
    hidden = [rows.advance(torch.tensor(ids[6:9], device=backbone.device), nobody)]
    rows.admit(torch.tensor([2], device=backbone.device), going, prefill(backbone, [ids[9:12]], [1]))
    hidden.append(rows.advance(torch.tensor(ids[12:15], device=backbone.device), nobody))
    return torch.cat(hidden)

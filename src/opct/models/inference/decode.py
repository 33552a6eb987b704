"""Continuous batching: finished rows leave the running batch, and waiting prompts take their places.

All rows end at the same column of the cache; each begins at its own. A prompt that enters is written before that
column. When there is no room to the right, the columns that no row uses any more are dropped at the left.

    columns     . . p p p p y y y|      an early row
                . . . . . p p y y|      a row that entered later
                                 ^ all rows draw their next token here

Where rows share prompts, the columns hold the completions alone, and the prompts are stored beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from opct.models.inference.kv_cache import (
    is_roomy,
    keys_and_values,
    kv_bytes,
    only_room,
    other_layers,
    place,
    shift,
    with_cache,
    with_room,
)
from opct.models.inference.prefill import Prefill, prefill
from opct.models.inference.token_sampling import Sampling, sample_token, sums_dtype, uniforms
from opct.models.kernels.attention import GROUPED, SDPA_LIKE
from opct.models.kernels.cascade import SharedPrompts
from opct.models.kernels.equivalence import mismatch_reason

if TYPE_CHECKING:
    from opct.models.backbone import Backbone

SHRINK_AT = 0.75  # when no prompt waits, a batch is cut to its unfinished rows at this share or less
REFILL_AT = 0.125  # prompts enter when at least this share of the rows is free
CHECK_EVERY = 16  # tokens between checks for finished rows: each check waits for the accelerator
DROP_AT = 0.25  # unused columns are dropped when they are at least this share
SHARE_AT = 3e6  # bytes of a layer's copied prompts from which rows share them: every token reads the copies


@dataclass(frozen=True)
class Request:
    """A prompt with one row of the batch for each seed; `index` is the caller's key."""

    index: int
    ids: Sequence[int]
    seeds: Sequence[int]


@dataclass(frozen=True)
class Finished:
    """A row's tokens and their log-probs; the `place`-th completion of the request `index`."""

    index: int
    place: int
    tokens: list[int]
    log_probs: list[float]


class DecodeBatch:
    """Rows that are sampled together.

    Args:
        requests: the longest prompt first; no later one may be longer.
        logits: the output head.
        shared: rows share their prompts' keys and values.
        more: reserve room for prompts that may enter later.
    """

    def __init__(
        self,
        backbone: Backbone,
        requests: Sequence[Request],
        sampling: Sampling,
        logits: Callable[[Tensor], Tensor],
        *,
        shared: bool,
        more: bool,
    ):
        self._backbone, self._sampling, self._logits = backbone, sampling, logits
        self._check_every = self.check_every(backbone.device)
        self._stop_ids = torch.tensor(sorted(backbone.stop_ids), dtype=torch.long, device=backbone.device)
        limit = sampling.max_completion_tokens
        found = self._prefill(requests)
        span = limit + self._check_every - 1
        self._hidden = found.hidden[found.owners]
        kind = SharedPrefixKV if shared else RepeatedKV
        self._rows = kind(backbone, found, span, more=more)
        self._refills = more and self._rows.refillable
        rows = len(found.owners)
        self._who: list[tuple[int, int] | None] = _names(requests)
        self._noise = self._draws(requests)
        # the last column takes what a finished row draws until the next check
        self._tokens = torch.zeros(rows, limit + 1, dtype=torch.long, device=backbone.device)
        self._log_probs = torch.zeros(rows, limit + 1, device=backbone.device)
        self._age = torch.zeros(rows, dtype=torch.long, device=backbone.device)
        self._done = torch.zeros(rows, dtype=torch.bool, device=backbone.device)
        self._steps = 0

    @staticmethod
    def check_every(device: torch.device) -> int:
        """Tokens between checks for finished rows."""
        return 1 if device.type == "cpu" else CHECK_EVERY

    @property
    def running(self) -> bool:
        """True until every completion was returned."""
        return any(who is not None for who in self._who)

    @property
    def prompts(self) -> int:
        """Number of prompts with unfinished completions."""
        return len({who[0] for who in self._who if who is not None})

    @property
    def vacancies(self) -> int:
        """Number of rows to give to other prompts now; 0 while too few are free."""
        free = sum(who is None for who in self._who)
        return free if self._refills and free >= REFILL_AT * len(self._who) else 0

    def step(self) -> list[Finished]:
        """Draw a token in every row; returns the finished completions."""
        limit = self._sampling.max_completion_tokens
        u = self._noise.gather(1, self._age.clamp(max=limit - 1)[:, None]).squeeze(1)
        drawn, log_probs = sample_token(self._logits(self._hidden), u, self._sampling)
        column = self._age.masked_fill(self._done, limit)[:, None]
        self._tokens.scatter_(1, column, drawn[:, None])
        self._log_probs.scatter_(1, column, log_probs[:, None].to(self._log_probs.dtype))
        self._age += ~self._done
        self._done |= torch.isin(drawn, self._stop_ids) | (self._age >= limit)
        self._steps += 1
        finished = self._collect() if self._steps % self._check_every == 0 else []
        if self.running:
            drawn = self._shrink(drawn)
            self._hidden = self._rows.advance(drawn, self._done)
        return finished

    def admit(self, requests: Sequence[Request]) -> None:
        """Give free rows to other prompts."""
        found = self._prefill(requests)
        free = [row for row, who in enumerate(self._who) if who is None][: len(found.owners)]
        rows = torch.tensor(free, device=self._backbone.device)
        busy = torch.tensor([who is not None for who in self._who], device=self._backbone.device)
        self._rows.admit(rows, busy, found)
        for row, who in zip(free, _names(requests), strict=True):
            self._who[row] = who
        self._hidden[rows], self._noise[rows] = found.hidden[found.owners], self._draws(requests)
        self._age[rows], self._done[rows] = 0, False

    def _collect(self) -> list[Finished]:
        """The completions of finished rows, which become free."""
        done = self._done.tolist()
        rows = [row for row, who in enumerate(self._who) if who is not None and done[row]]
        if not rows:
            return []
        ages = self._age[rows].tolist()
        finished = []
        for row, n, tokens, log_probs in zip(
            rows, ages, self._tokens[rows].tolist(), self._log_probs[rows].tolist(), strict=True
        ):
            index, own = cast("tuple[int, int]", self._who[row])
            finished.append(Finished(index, own, tokens[:n], log_probs[:n]))
            self._who[row] = None
        return finished

    def _shrink(self, drawn: Tensor) -> Tensor:
        """Cut the batch to its unfinished rows where that pays and no prompt waits."""
        kept = [row for row, who in enumerate(self._who) if who is not None]
        if self._refills or len(kept) > SHRINK_AT * len(self._who):
            return drawn
        rows = torch.tensor(kept, device=self._backbone.device)
        self._rows.keep(rows)
        self._who = [self._who[row] for row in kept]
        for name in ("_hidden", "_noise", "_tokens", "_log_probs", "_age", "_done"):
            setattr(self, name, getattr(self, name)[rows])
        return drawn[rows]

    def stop_refilling(self) -> None:
        """No prompt waits any more: shrink the batch instead of keeping rows free."""
        self._refills = False

    def _prefill(self, requests: Sequence[Request]) -> Prefill:
        return prefill(
            self._backbone, [request.ids for request in requests], [len(request.seeds) for request in requests]
        )

    def _draws(self, requests: Sequence[Request]) -> Tensor:
        """The uniform draws of each row, [rows, max_completion_tokens]."""
        n = self._sampling.max_completion_tokens
        draws = torch.stack([uniforms(seed, n) for request in requests for seed in request.seeds])
        return draws.to(sums_dtype(self._backbone.device)).to(self._backbone.device)


def _names(requests: Sequence[Request]) -> list[tuple[int, int] | None]:
    return [(request.index, j) for request in requests for j in range(len(request.seeds))]


# -- keys and values of the rows


def shares(backbone: Backbone, prompts: int, rows: int, width: int) -> bool:
    """Whether `rows` rows share the keys and values of their `prompts` prompts of at most `width` tokens."""
    config = backbone.decoder.config
    of_a_layer = kv_bytes(config, backbone.dtype.itemsize) / config.get_text_config().num_hidden_layers
    return (rows - prompts) * width * of_a_layer >= SHARE_AT and no_shared_rows_reason(backbone) is None


class RepeatedKV:
    """Keys and values of the running rows, each with its own copy of its prompt.

    Args:
        span: most columns of a row after its prompt.
        more: reserve room for prompts that may enter later.

    Attributes:
        refillable: prompts may enter.
    """

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
        """The hidden states after one more token in every row, [rows] -> [rows, hidden].

        Args:
            done: finished rows, [rows]. Their result means nothing; their position stays within the model's context.
        """
        seen = self._columns[: self._written + 1] >= self._starts[:, None]
        out = self._backbone.decoder(
            input_ids=tokens[:, None],
            attention_mask=self._mask(seen),
            position_ids=(self._written - self._starts).masked_fill(done, 0)[:, None],
            **with_cache(self._backbone.decoder, self._cache),
        )
        self._written += 1
        return out.last_hidden_state[:, -1]

    def _mask(self, seen: Tensor) -> Tensor:
        """In the form that the attention takes as it is, so that no layer converts it."""
        if not self._own_mask:
            return seen.long()
        return additive_mask(~seen, cast("Any", self._cache.layers[0]).keys) if self._grouped else seen[:, None, None]

    def keep(self, rows: Tensor) -> None:
        """Keep these rows alone."""
        self._cache.reorder_cache(cast("torch.LongTensor", rows))
        self._starts = self._starts[rows]

    def admit(self, rows: Tensor, busy: Tensor, found: Prefill) -> None:
        """Give rows (an index for each of `found.owners`) to other prompts; `busy` rows are unfinished, [rows]."""
        unused = min(int(self._starts[busy].min()) if busy.any() else self._written, self._written - found.width)
        short = self._written + self._span > len(self._columns)
        self._starts, self._written = _drop_columns(self._cache, unused, self._starts, self._written, short=short)
        place(self._cache, rows, found.cache, found.owners)
        self._starts[rows] = self._written - found.width + found.starts[found.owners]


class SharedPrefixKV:
    """As `RepeatedKV`, with each prompt's keys and values once; for models without a `no_shared_rows_reason`."""

    refillable = True

    def __init__(self, backbone: Backbone, found: Prefill, span: int, *, more: bool):
        self._backbone, self._span = backbone, span
        self._room = 2 * span if more else span
        self._layers = keys_and_values(found.cache)
        self._cache = only_room(found.cache, found.owners, self._room)
        self._written, self._columns = 0, torch.arange(self._room, device=backbone.device)
        self._starts = torch.zeros_like(found.owners)
        self._padding, self._owners = found.starts, found.owners
        self._arrange(torch.ones_like(found.owners, dtype=torch.bool))

    def advance(self, tokens: Tensor, done: Tensor) -> Tensor:
        mask = None
        if self._uneven:
            mask = additive_mask(self._columns[: self._written + 1] < self._starts[:, None], self._layers[0][0])
        out = self._backbone.decoder(
            input_ids=tokens[:, None],
            attention_mask=mask,
            position_ids=(self._lengths + self._written - self._starts).masked_fill(done, 0)[:, None],
            **with_cache(self._backbone.decoder, self._cache),
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
        unused = int(self._starts[busy].min()) if busy.any() else self._written
        short = self._written + self._span > self._room
        self._starts, self._written = _drop_columns(self._cache, unused, self._starts, self._written, short=short)
        slots = self._slots(len(found.starts), self._owners[busy])
        width = self._layers[0][0].shape[-2]
        for (keys, values), (new_keys, new_values) in zip(self._layers, keys_and_values(found.cache), strict=True):
            keys[slots, :, width - found.width :] = new_keys
            values[slots, :, width - found.width :] = new_values
        self._padding[slots] = width - found.width + found.starts
        self._owners[rows] = slots[found.owners]
        self._starts[rows] = self._written
        self._arrange(busy.index_fill(0, rows, True))

    def _slots(self, n: int, used: Tensor) -> Tensor:
        """n places for prompts: those that no row uses any more, then new ones."""
        free = torch.ones_like(self._padding, dtype=torch.bool).index_fill(0, used, False).nonzero()[:n, 0]
        new = n - len(free)
        if new > 0:
            first = len(self._padding)
            self._layers = [(_longer(keys, new), _longer(values, new)) for keys, values in self._layers]
            self._padding = _longer(self._padding, new)
            free = torch.cat([free, torch.arange(first, first + new, device=free.device)])
        return free

    def _arrange(self, busy: Tensor) -> None:
        """Find the unfinished rows of each prompt."""
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
            mask = additive_mask(torch.arange(keys.shape[-2], device=keys.device) < self._padding[:, None], keys)
        self._prompts = SharedPrompts(self._layers, mask, table, self._owners, torch.tensor(places, device=keys.device))


def _drop_columns(cache: Any, unused: int, starts: Tensor, written: int, *, short: bool) -> tuple[Tensor, int]:
    """Drop unused columns at the left where room is short or they are many; the new (starts, written)."""
    if unused <= 0 or not (short or unused >= DROP_AT * written):
        return starts, written
    shift(cache, unused)
    return (starts - unused).clamp(min=0), written - unused


def additive_mask(hidden: Tensor, keys: Tensor) -> Tensor:
    """[n, tokens] -> mask added to the scores, [n, 1, 1, tokens]; in a dtype that a CPU takes with these keys."""
    mask = torch.zeros(hidden.shape, dtype=torch.promote_types(keys.dtype, torch.float32), device=hidden.device)
    return mask.masked_fill(hidden, float("-inf"))[:, None, None]


def _longer(tensor: Tensor, n: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(n, *tensor.shape[1:])])


def no_shared_rows_reason(backbone: Backbone) -> str | None:
    """Why samples of a prompt need copies of its keys and values, or None."""
    return backbone.ask(_shared_rows_mismatch)


def _shared_rows_mismatch(backbone: Backbone) -> str | None:
    """Runs the model: two tokens in three rows of two prompts; the third row gets a prompt that enters later."""
    config = backbone.decoder.config
    if config._attn_implementation != GROUPED:
        return f"the attention {config._attn_implementation} has no such form"
    if kinds := other_layers(config):
        return f"its cache has layers of the kind {kinds}"
    ids = [i % config.get_text_config().vocab_size for i in range(1, 16)]

    def both() -> tuple[Tensor, Tensor]:
        return _probe(backbone, RepeatedKV, ids), _probe(backbone, SharedPrefixKV, ids)

    return mismatch_reason("with shared prompts", both, parts=True)


def _probe(backbone: Backbone, kind: type[RepeatedKV] | type[SharedPrefixKV], ids: list[int]) -> Tensor:
    rows = kind(backbone, prefill(backbone, [ids[:5], ids[4:6]], [2, 1]), 3, more=True)
    going = torch.tensor([True, True, False], device=backbone.device)
    none_done = torch.zeros_like(going)
    hidden = [rows.advance(torch.tensor(ids[6:9], device=backbone.device), none_done)]
    rows.admit(torch.tensor([2], device=backbone.device), going, prefill(backbone, [ids[9:12]], [1]))
    hidden.append(rows.advance(torch.tensor(ids[12:15], device=backbone.device), none_done))
    return torch.cat(hidden)

"""Rows that share the keys and values of their prompts, in sampling on a CPU.

As `cascade`, for one new token a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opct.cpu.attention import GROUPED
from opct.cpu.equivalence import mismatch_reason
from opct.cpu.switches import is_on
from opct.models.backbone import Backbone
from opct.models.inference.kv_cache import filled_cache, keys_and_values, kv_bytes, other_layers
from opct.models.inference.prefill import Prefill, plain_prefill
from opct.models.inference.rows import RepeatedKV, additive_mask

SHARE_AT = 3e6  # bytes of a layer's copied prompts from which rows share them: every token reads the copies


def saves_enough(backbone: Backbone, prompts: int, rows: int, width: int) -> bool:
    """Whether it pays that `rows` rows share the keys and values of `prompts` prompts of at most `width` tokens."""
    config = backbone.decoder.config
    of_a_layer = kv_bytes(config, backbone.dtype.itemsize) / config.get_text_config().num_hidden_layers
    return (rows - prompts) * width * of_a_layer >= SHARE_AT


@dataclass(frozen=True)
class SharedPrompts:
    """Keys and values of prompts, and the rows that continue each prompt.

    A forward gets it as `shared_prompts`, and transformers passes it to the attention. The cache of that forward holds
    the rows' own tokens alone.

    Attributes:
        layers: (keys, values) of each layer, [prompts, key heads, tokens, size].
        mask: added to the scores, [prompts, 1, 1, tokens]; None where no prompt is padded.
        rows: the rows of each prompt, [prompts, most rows of a prompt], padded.
        owners: the prompt of each row, [rows].
        places: the place of each row in `rows`, [rows].
    """

    layers: Sequence[tuple[Tensor, Tensor]]
    mask: Tensor | None
    rows: Tensor
    owners: Tensor
    places: Tensor

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
    ) -> Tensor:
        """Attention of one token a row to its prompt and its own tokens; -> [rows, 1, heads, size].

        Args:
            query: [rows, heads, 1, size].
            key: of the rows' own tokens, [rows, key heads, tokens, size]; values likewise.
            mask: added to the scores of the own tokens, [rows, 1, 1, tokens].
        """
        keys, values = self.layers[layer]
        count, heads, _, size = query.shape
        queries = query.reshape(count, key.shape[1], heads // key.shape[1], size)
        # [prompts, key heads, rows of a prompt x heads of a key head, size]: one product a prompt
        together = queries[self.rows].transpose(1, 2).flatten(2, 3)
        with torch.autocast(query.device.type, enabled=False):
            shared, of_shared = _with_lse(together, keys, values, self.mask, scaling)
            completion, of_completion = _with_lse(queries, key, value, mask, scaling)
            back = self.owners, slice(None), self.places
            shape = (self.rows.shape[1], queries.shape[2])
            # exp a / (exp a + exp b) = sigmoid(a - b), of the two log-sum-exps: no overflow at scores far apart
            weight = torch.sigmoid(of_shared.unflatten(2, shape)[back] - of_completion)
            merged = torch.lerp(completion, shared.unflatten(2, shape)[back], weight)
        return merged.to(query.dtype).reshape(count, 1, heads, -1)


def _with_lse(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """Result and log-sum-exp of the scores, [batch, heads, queries, size] and [batch, heads, queries, 1].

    In float32 throughout: for so few queries that is as fast as torch's kernel for bfloat16, which gives the
    log-sum-exp on a CPU alone.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    query = query.to(dtype) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = query @ key.to(dtype).transpose(-1, -2)
    if mask is not None:
        scores += mask
    weights = scores.softmax(-1)
    # log w = score - log-sum-exp, for the largest of them
    total = scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log()
    return weights @ value.to(dtype), total


class SharedPrefixKV(RepeatedKV):
    """Each prompt's keys and values once; for models without a `no_shared_rows_reason`."""

    shares_prompts = True

    def __init__(self, backbone: Backbone, prefill: Prefill, span: int, *, more: bool):
        self._layers = keys_and_values(prefill.cache)
        # no column of the prompts: `SharedPrompts` holds them
        empty = filled_cache(backbone.decoder.config, ((k[:, :, :0], v[:, :, :0]) for k, v in self._layers))
        no_columns = dataclasses.replace(prefill, cache=empty, width=0, starts=torch.zeros_like(prefill.starts))
        super().__init__(backbone, no_columns, span, more=more)
        self._padding, self._owners = prefill.starts, prefill.owners
        self._arrange(torch.ones_like(prefill.owners, dtype=torch.bool))

    def _attention(self) -> dict[str, Any]:
        mask = None
        if self._uneven:
            mask = additive_mask(self._columns[: self._written + 1] < self._starts[:, None], self._layers[0][0])
        return {"attention_mask": mask, "shared_prompts": self._prompts}

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        used, self._owners = self._owners[rows].unique(return_inverse=True)
        if len(used) < len(self._padding):
            self._layers = [(keys[used], values[used]) for keys, values in self._layers]
            self._padding = self._padding[used]
        self._arrange(torch.ones_like(rows, dtype=torch.bool))

    def admit(self, rows: Tensor, busy: Tensor, prefill: Prefill) -> None:
        # of busy rows alone: a finished row's start would keep columns that nobody reads
        self._drop_columns(busy, 0)
        # the owners of busy rows: prompts of finished rows may be overwritten
        slots = self._slots(len(prefill.starts), self._owners[busy])
        # prompts end at the last column; what a longer one before it left further left is hidden as padding
        width = self._layers[0][0].shape[-2]
        for (keys, values), (new_keys, new_values) in zip(self._layers, keys_and_values(prefill.cache), strict=True):
            keys[slots, :, width - prefill.width :] = new_keys
            values[slots, :, width - prefill.width :] = new_values
        self._padding[slots] = width - prefill.width + prefill.starts
        self._owners[rows] = slots[prefill.owners]
        # the row sees no column before its first token: those hold what the finished row wrote
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
        self._before = keys.shape[-2] - self._padding[self._owners]  # the columns hold the completions alone
        rows: list[list[int]] = [[] for _ in self._padding]
        places = []
        for row, (owner, counts) in enumerate(zip(self._owners.tolist(), busy.tolist(), strict=True)):
            places.append(len(rows[owner]) if counts else 0)
            if counts:
                rows[owner].append(row)
        max_rows = max(map(len, rows))
        # row 0 as padding: computed, and read by no unfinished row, since their `places` are real ones
        table = torch.tensor([members + [0] * (max_rows - len(members)) for members in rows], device=keys.device)
        mask = None
        if self._padding.any():
            mask = additive_mask(torch.arange(keys.shape[-2], device=keys.device) < self._padding[:, None], keys)
        self._prompts = SharedPrompts(self._layers, mask, table, self._owners, torch.tensor(places, device=keys.device))


def _longer(tensor: Tensor, n: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(n, *tensor.shape[1:])])


def no_shared_rows_reason(backbone: Backbone) -> str | None:
    """Why samples of a prompt need copies of its keys and values, or None."""
    if not is_on("shared_rows"):
        return "switched off"
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


def _probe(backbone: Backbone, kind: type[RepeatedKV], ids: list[int]) -> Tensor:
    rows = kind(backbone, plain_prefill(backbone, [ids[:5], ids[4:6]]).for_rows([2, 1]), 3, more=True)
    going = torch.tensor([True, True, False], device=backbone.device)
    none_done = torch.zeros_like(going)
    hidden = [rows.advance(torch.tensor(ids[6:9], device=backbone.device), none_done)]
    rows.admit(torch.tensor([2], device=backbone.device), going, plain_prefill(backbone, [ids[9:12]]))
    hidden.append(rows.advance(torch.tensor(ids[12:15], device=backbone.device), none_done))
    return torch.cat(hidden)

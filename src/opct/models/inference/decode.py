"""The running batch of the sampler: rows that finish leave it, prompts that wait take their places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from opct.models.inference.prefill import Prefill, prefill
from opct.models.inference.rows import rows_for
from opct.models.inference.sampling import Sampling, draw, sums_dtype, uniforms

if TYPE_CHECKING:
    from opct.models.backbone import Backbone

SHRINK_AT = 0.75  # a batch that nothing waits for is cut to its unfinished rows when these are at most this share of it
REFILL_AT = 0.125  # prompts enter when at least this share of the rows is free
CHECK_EVERY = 16  # where a look at which rows are done waits for an accelerator: so many tokens between two


@dataclass(frozen=True)
class Entry:
    """A prompt and one row of the batch for each of its seeds; `index` is the caller's name for it."""

    index: int
    ids: Sequence[int]
    seeds: Sequence[int]


@dataclass(frozen=True)
class Finished:
    """A row's tokens and their log-probs; the `place`-th completion of the entry `index`."""

    index: int
    place: int
    tokens: list[int]
    log_probs: list[float]


class Batch:
    """Rows that are sampled together.

    Args:
        entries: the longest prompt first; no later one may be longer.
        logits: the output head.
        more: whether prompts wait that may enter later, which takes more room.
    """

    def __init__(
        self,
        backbone: Backbone,
        entries: Sequence[Entry],
        sampling: Sampling,
        logits: Callable[[Tensor], Tensor],
        *,
        more: bool,
    ):
        self._backbone, self._sampling, self._logits = backbone, sampling, logits
        self._check_every = self.check_every(backbone.device)
        self._stop_ids = torch.tensor(sorted(backbone.stop_ids), dtype=torch.long, device=backbone.device)
        limit = sampling.max_completion_tokens
        found = self._prefill(entries)
        span = limit + self._check_every - 1
        self._hidden = found.hidden[found.owners]
        self._rows = rows_for(backbone, len(entries), found, span, more=more)
        self._refills = more and self._rows.refillable
        rows = len(found.owners)
        self._who: list[tuple[int, int] | None] = _names(entries)
        self._noise = self._draws(entries)
        self._tokens = torch.zeros(rows, limit + 1, dtype=torch.long, device=backbone.device)  # one place for what
        self._log_probs = torch.zeros(rows, limit + 1, device=backbone.device)  # a finished row goes on to draw
        self._age = torch.zeros(rows, dtype=torch.long, device=backbone.device)
        self._done = torch.zeros(rows, dtype=torch.bool, device=backbone.device)
        self._steps = 0

    @staticmethod
    def check_every(device: torch.device) -> int:
        """Tokens between two looks at which rows are done."""
        return 1 if device.type == "cpu" else CHECK_EVERY

    @property
    def running(self) -> bool:
        """True until every row's completion was handed out."""
        return any(who is not None for who in self._who)

    @property
    def prompts(self) -> int:
        """Whose completions are not all handed out."""
        return len({who[0] for who in self._who if who is not None})

    @property
    def vacancies(self) -> int:
        """Rows that may be given to other prompts now; 0 while they are too few to be worth it."""
        free = sum(who is None for who in self._who)
        return free if self._refills and free >= REFILL_AT * len(self._who) else 0

    def step(self) -> list[Finished]:
        """Draw a token in every row; returns the completions that are finished."""
        limit = self._sampling.max_completion_tokens
        u = self._noise.gather(1, self._age.clamp(max=limit - 1)[:, None]).squeeze(1)
        drawn, log_probs = draw(self._logits(self._hidden), u, self._sampling)
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

    def admit(self, entries: Sequence[Entry]) -> None:
        """Give free rows to other prompts."""
        found = self._prefill(entries)
        free = [row for row, who in enumerate(self._who) if who is None][: len(found.owners)]
        rows = torch.tensor(free, device=self._backbone.device)
        busy = torch.tensor([who is not None for who in self._who], device=self._backbone.device)
        self._rows.admit(rows, busy, found)
        for row, who in zip(free, _names(entries), strict=True):
            self._who[row] = who
        self._hidden[rows], self._noise[rows] = found.hidden[found.owners], self._draws(entries)
        self._age[rows], self._done[rows] = 0, False

    def _collect(self) -> list[Finished]:
        """What rows hold that are done; they are free from now on."""
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
        """Cut the batch to its unfinished rows where that pays and nobody waits for their places."""
        kept = [row for row, who in enumerate(self._who) if who is not None]
        if self._refills or len(kept) > SHRINK_AT * len(self._who):
            return drawn
        rows = torch.tensor(kept, device=self._backbone.device)
        self._rows.keep(rows)
        self._who = [self._who[row] for row in kept]
        for name in ("_hidden", "_noise", "_tokens", "_log_probs", "_age", "_done"):
            setattr(self, name, getattr(self, name)[rows])
        return drawn[rows]

    def nobody_waits(self) -> None:
        """From now on the batch shrinks instead of keeping places free."""
        self._refills = False

    def _prefill(self, entries: Sequence[Entry]) -> Prefill:
        return prefill(self._backbone, [entry.ids for entry in entries], [len(entry.seeds) for entry in entries])

    def _draws(self, entries: Sequence[Entry]) -> Tensor:
        """The uniform draws of each row, [rows, max_completion_tokens]."""
        n = self._sampling.max_completion_tokens
        draws = torch.stack([uniforms(seed, n) for entry in entries for seed in entry.seeds])
        return draws.to(sums_dtype(self._backbone.device)).to(self._backbone.device)


def _names(entries: Sequence[Entry]) -> list[tuple[int, int] | None]:
    return [(entry.index, j) for entry in entries for j in range(len(entry.seeds))]

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
from typing import cast

import torch
from torch import Tensor

from opct.models.inference.prefill import Prefill
from opct.models.inference.rows import RepeatedKV
from opct.models.inference.token_sampling import Sampling, sample_token, sums_dtype, uniforms
from opct.models.plain_path import PlainPath

SHRINK_AT = 0.75  # when no prompt waits, a batch is cut to its unfinished rows at this share or less
REFILL_AT = 0.125  # prompts enter when at least this share of the rows is free
CHECK_EVERY = 16  # tokens between checks for finished rows: each check waits for the accelerator


@dataclass(frozen=True)
class Request:
    """A prompt with one row of the batch for each seed; `index` is the caller's key."""

    index: int
    ids: Sequence[int]
    seeds: Sequence[int]


Finished = tuple[Request, int, list[int], list[float]]
"""A request, which of its completions this is, and the completion's tokens and their log-probs."""


class DecodeBatch:
    """Rows that are sampled together.

    Args:
        requests: the longest prompt first; no later one may be longer.
        logits: the output head.
        kind: keeps the keys and values of the rows.
        more: reserve room for prompts that may enter later.
    """

    def __init__(
        self,
        path: PlainPath,
        requests: Sequence[Request],
        sampling: Sampling,
        logits: Callable[[Tensor], Tensor],
        *,
        kind: type[RepeatedKV],
        more: bool,
    ):
        self._path, self._sampling, self._logits = path, sampling, logits
        self._backbone = backbone = path.backbone
        self._check_every = self.check_every(backbone.device)
        self._stop_ids = torch.tensor(sorted(backbone.stop_ids), dtype=torch.long, device=backbone.device)
        limit = sampling.max_completion_tokens
        prefill = self._prefill(requests)
        span = limit + self._check_every - 1  # a finished row goes on until the next check
        self._hidden = prefill.hidden[prefill.owners]
        self._rows = kind(backbone, prefill, span, more=more)
        self._refills = more and self._rows.refillable
        rows = len(prefill.owners)
        self._who: list[tuple[Request, int] | None] = _names(requests)
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
        return len({who[0].index for who in self._who if who is not None})

    @property
    def vacancies(self) -> int:
        """Number of rows to give to other prompts now; 0 while too few are free."""
        free = sum(who is None for who in self._who)
        return free if self._refills and free >= REFILL_AT * len(self._who) else 0

    def step(self) -> list[Finished]:
        """Draw a token in every row; returns the finished completions."""
        limit = self._sampling.max_completion_tokens
        # a row draws its n-th token from its n-th number, whatever the batch: only then is a sample the same in any
        u = self._noise.gather(1, self._age.clamp(max=limit - 1)[:, None]).squeeze(1)
        drawn, log_probs = sample_token(self._logits(self._hidden), u, self._sampling)
        column = self._age.masked_fill(self._done, limit)[:, None]
        self._tokens.scatter_(1, column, drawn[:, None])
        self._log_probs.scatter_(1, column, log_probs[:, None].to(self._log_probs.dtype))
        self._age += ~self._done  # before `_done` is: the stop token is a token of its completion
        self._done |= torch.isin(drawn, self._stop_ids) | (self._age >= limit)
        self._steps += 1
        finished = self._collect() if self._steps % self._check_every == 0 else []
        if self.running:
            # before `advance`, which takes a token for each row that is left
            drawn = self._shrink(drawn)
            self._hidden = self._rows.advance(drawn, self._done)
        return finished

    def admit(self, requests: Sequence[Request]) -> None:
        """Give free rows to other prompts."""
        prefill = self._prefill(requests)
        free = [row for row, who in enumerate(self._who) if who is None][: len(prefill.owners)]
        rows = torch.tensor(free, device=self._backbone.device)
        busy = torch.tensor([who is not None for who in self._who], device=self._backbone.device)
        # `busy` is of before these rows get their prompts: counted as busy, their old starts would keep columns
        self._rows.admit(rows, busy, prefill)
        for row, who in zip(free, _names(requests), strict=True):
            self._who[row] = who
        self._hidden[rows], self._noise[rows] = prefill.hidden[prefill.owners], self._draws(requests)
        # age 0: the first token must use the first number of its seed
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
            request, place = cast("tuple[Request, int]", self._who[row])
            # beyond n are tokens of the row's former prompt, and the column for draws after the end
            finished.append((request, place, tokens[:n], log_probs[:n]))
            self._who[row] = None
        return finished

    def _shrink(self, drawn: Tensor) -> Tensor:
        """Cut the batch to its unfinished rows where that pays and no prompt waits."""
        unfinished = [row for row, who in enumerate(self._who) if who is not None]
        if self._refills or len(unfinished) > SHRINK_AT * len(self._who):
            return drawn
        rows = torch.tensor(unfinished, device=self._backbone.device)
        self._rows.keep(rows)
        self._who = [self._who[row] for row in unfinished]
        for name in ("_hidden", "_noise", "_tokens", "_log_probs", "_age", "_done"):
            setattr(self, name, getattr(self, name)[rows])
        return drawn[rows]

    def stop_refilling(self) -> None:
        """No prompt waits any more: shrink the batch instead of keeping rows free."""
        self._refills = False

    def _prefill(self, requests: Sequence[Request]) -> Prefill:
        return self._path.prefill([request.ids for request in requests], [len(request.seeds) for request in requests])

    def _draws(self, requests: Sequence[Request]) -> Tensor:
        """The uniform draws of each row, [rows, max_completion_tokens]."""
        n = self._sampling.max_completion_tokens
        draws = torch.stack([uniforms(seed, n) for request in requests for seed in request.seeds])
        return draws.to(sums_dtype(self._backbone.device)).to(self._backbone.device)


def _names(requests: Sequence[Request]) -> list[tuple[Request, int] | None]:
    return [(request, j) for request in requests for j in range(len(request.seeds))]

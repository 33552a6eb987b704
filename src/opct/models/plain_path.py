"""How a network is run in sampling and scoring: the plain path, which any other derives from and must equal.

The plain path computes each prompt with each of its completions, by the operations of transformers. A model may come
with another one as `opct_path` (see `opct.models.loading`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from torch import Tensor

from opct.models.backbone import Backbone
from opct.models.inference.prefill import Prefill, plain_prefill
from opct.models.inference.rows import RepeatedKV
from opct.models.scoring import completion_hidden, micro_batches


class PlainPath:
    """Each prompt with each of its completions. Gradient, dropout and autocast are as the caller has them.

    Attributes:
        shares_prompts: `hidden` computes a prompt once for its completions.
    """

    def __init__(self, backbone: Backbone):
        self.backbone = backbone

    @property
    def shares_prompts(self) -> bool:
        return False

    def batches(
        self, prompts: Sequence[Sequence[int]], widths: Sequence[int], lengths: Sequence[Sequence[int]], budget: int
    ) -> list[list[int]]:
        """Micro-batches of indices: what `hidden` computes for one has at most `budget` tokens, padding included.

        A single prompt or completion may exceed it.

        Args:
            widths: tokens of each prompt, or of the longest prompt that is computed in its place.
            lengths: for each prompt, the tokens of each of its completions.
        """
        return plain_batches(widths, lengths, budget)

    def hidden(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> Tensor:
        """The states that predict each completion token after its prompt, row after row; -> [tokens, hidden]."""
        return completion_hidden(self.backbone.decoder, prompts, completions, self.backbone.device)

    def prefill(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Prefill:
        """Compute prompts for sampling, each for `copies` rows."""
        return plain_prefill(self.backbone, prompts).for_rows(copies)

    def rows(self, prompts: int, rows: int, width: int) -> type[RepeatedKV]:
        """What keeps the keys and values of `rows` rows of `prompts` prompts of at most `width` tokens."""
        return RepeatedKV

    def decoding(self, rows: int, steps: int) -> contextlib.AbstractContextManager[Callable[[Tensor], Tensor]]:
        """Context for about `steps` forwards of a token in `rows` rows, with constant weights; gives the head."""
        return contextlib.nullcontext(self.backbone.head.logits)

    def slow_reasons(self, generations: int) -> list[str]:
        """What runs slower than it could, one line each, where each prompt has this many completions."""
        return []


def plain_batches(widths: Sequence[int], lengths: Sequence[Sequence[int]], budget: int) -> list[list[int]]:
    """Micro-batches where each completion is a row with its prompt; a prompt without completions is a row, too."""
    tokens = [max(len(rows), 1) * (width + max(rows, default=0)) for width, rows in zip(widths, lengths, strict=True)]
    return micro_batches(tokens, budget)


def path_of(backbone: Backbone) -> PlainPath:
    """The path that the model was loaded with."""
    return getattr(backbone.bare_model, "opct_path", PlainPath)(backbone)

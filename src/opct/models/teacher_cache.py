"""A frozen teacher's prompts, kept from one step to the next: its keys and values for them never change.

Which prompts are kept, and which are computed together, follows from the steps of the run and from nothing that
happened in it. What a product rounds to depends on what is computed with it, and a resumed run, which begins with
nothing kept, must equal one that was never interrupted:

    kept        first come, first kept, until the bytes are full. An epoch visits each prompt once: dropping what was
                not used for longest would drop each prompt just before it comes again
    together    the kept prompts that are new in a step. Where one of them is asked for and not there, all of them are
                computed, in the step where they are new as after a resumption
    dropped     after the last step that visits it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from opct.models.scoring import micro_batches

Prompt = tuple[int, ...]
States = list[Tensor]
"""Of one prompt: keys and values, layer by layer, [heads, tokens, size], and the last hidden state, [hidden]."""
GB = 1e9


@dataclass(frozen=True)
class Visits:
    """The steps that visit a prompt, and how many pairs of theirs have it."""

    first: int
    last: int
    pairs: int


def visits_of(steps: Iterable[Sequence[Prompt]]) -> dict[Prompt, Visits]:
    """When each prompt comes, in the order in which they come first.

    Args:
        steps: the prompts of each step, from step 1.
    """
    found: dict[Prompt, Visits] = {}
    for step, prompts in enumerate(steps, 1):
        for prompt in prompts:
            seen = found.get(prompt)
            found[prompt] = Visits(step, step, 1) if seen is None else Visits(seen.first, step, seen.pairs + 1)
    return found


class PromptCache:
    """What is kept of the prompts of a run.

    Attributes:
        prompts: how many are to be kept.
        most_bytes: of those that more than one pair visits; the others are dropped in the step where they are computed.
    """

    def __init__(
        self,
        visits: Mapping[Prompt, Visits],
        *,
        token_bytes: int,
        prompt_bytes: int,
        most_bytes: float,
        batch_tokens: int,
        single_too: bool,
    ):
        """The plan.

        Args:
            visits: in the order in which the prompts come first.
            token_bytes: of the keys and values of a token.
            prompt_bytes: of what comes on top for each prompt.
            most_bytes: of all that is kept.
            batch_tokens: most tokens, padding included, that are computed together.
            single_too: count prompts that come once among the kept ones; for a run that may go on to steps which are
                not among the visits, and whose prompts must be computed together all the same.
        """
        self._last: dict[Prompt, int] = {}
        self._kept: dict[Prompt, States] = {}
        self._new: set[Prompt] = set()
        self._found: set[Prompt] = set()
        self.prompts, self.most_bytes, full = 0, 0, 0
        new_in: dict[int, list[Prompt]] = {}
        for prompt, visit in visits.items():
            again, own = visit.pairs > 1, len(prompt) * token_bytes + prompt_bytes
            if (again or single_too) and full + own <= most_bytes:
                full += own
                self.most_bytes += own * again
                self.prompts += again
                self._last[prompt] = visit.last
                new_in.setdefault(visit.first, []).append(prompt)
        self._batch_of: dict[Prompt, list[Prompt]] = {}
        for prompts in new_in.values():
            for rows in micro_batches(list(map(len, prompts)), batch_tokens):
                batch = [prompts[i] for i in rows]
                self._batch_of |= dict.fromkeys(batch, batch)

    @property
    def bytes(self) -> int:
        """What is kept now."""
        return sum(x.nbytes for states in self._kept.values() for x in states)

    def states(
        self, prompts: Iterable[Prompt], compute: Callable[[list[Prompt]], Iterable[States]]
    ) -> dict[Prompt, States]:
        """Those of these prompts that are kept ones; `compute` is called for a batch of which one is missing."""
        found = {}
        for prompt in prompts:
            if prompt not in self._last:
                continue
            if prompt not in self._kept:
                batch = self._batch_of[prompt]
                self._kept.update(zip(batch, compute(batch), strict=True))
                self._new.update(batch)
            elif prompt not in self._new:
                self._found.add(prompt)
            found[prompt] = self._kept[prompt]
        return found

    def end_step(self, step: int, prompts: Iterable[Sequence[int]]) -> dict[str, float]:
        """Drop what no later step visits.

        Args:
            prompts: all that the step has asked for, here or not.

        Returns:
            time/prompt_cache_hit_fraction: the share of the step's prompts that were there when it began.
            memory/prompt_cache_gb: what the step ended with.
        """
        asked, hits, held = {tuple(prompt) for prompt in prompts}, len(self._found), self.bytes
        self._kept = {prompt: states for prompt, states in self._kept.items() if self._last[prompt] > step}
        self._new, self._found = set(), set()
        return {"time/prompt_cache_hit_fraction": hits / max(1, len(asked)), "memory/prompt_cache_gb": held / GB}

"""Successes of earlier steps of an attacker's training: shown to it as examples, and trained on again where a group of
episodes had none. None is ever about a behaviour that the attacker is tested on, or a near-duplicate of one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opct.attack.protocol import BEHAVIOR, Shot
from opct.data.duplicates import cross_duplicates
from opct.data.pairs import ContrastivePair, Prompt
from opct.data.perturb.jailbreak import bare_prompt
from opct.errors import DataError
from opct.methods.rollouts import Rollout
from opct.models.inference.sampler import Completion
from opct.models.policy import Policy

AXIS = "attack"
FAMILY = "grpo"


def attack_pair(behavior_id: str, behavior: str, messages: Sequence[Mapping[str, Any]]) -> ContrastivePair:
    """What the attacker reads about a behaviour, beside the bare behaviour, as a pair of the trainer."""
    prompt: Prompt = tuple({"role": str(m["role"]), "content": str(m["content"])} for m in messages)
    meta = {"behavior": behavior, "kind": BEHAVIOR, "question_id": behavior_id}
    return ContrastivePair(behavior_id, AXIS, FAMILY, prompt, bare_prompt(behavior), meta)


class Rehearsal:
    """The last success on each training behaviour.

    Args:
        tested: texts of the behaviours that the attacker is tested on.
        threshold: reward from which on a completion is a success.

    Raises:
        DataError: a success is about one of those; nothing that was trained on may be.
    """

    def __init__(self, tested: Sequence[str], threshold: float):
        self._tested, self._threshold = list(tested), threshold
        self._last: dict[str, Rollout] = {}
        self._checked: set[str] = set()

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Keep the best success on each behaviour among the rollouts of a step, those that were rehearsed left out."""
        for rollout in sorted(rollouts, key=lambda r: (r.reward or 0.0, r.index)):
            if rollout.reward is None or rollout.reward < self._threshold or rollout.is_rehearsed:
                continue
            self._refuse_tested(str(rollout.pair.meta["behavior"]))
            self._last[rollout.pair.id] = rollout

    def shots(self, message_of: Callable[[Rollout], str | None]) -> list[Shot]:
        """Each as an example for other behaviours.

        Args:
            message_of: what the target was sent.
        """
        found = []
        for id_, rollout in sorted(self._last.items()):
            message = message_of(rollout)
            if message is not None:
                found.append(Shot(id_, str(rollout.pair.meta["behavior"]), bare_prompt(message)))
        return found

    def again(self, behavior_id: str, policy: Policy) -> Rollout | None:
        """The success on that behaviour as if it were sampled now: with the policy's own log-probs of its tokens."""
        found = self._last.get(behavior_id)
        if found is None:
            return None
        [log_probs] = policy.log_probs([found.prompt_ids], [found.ids])
        completion = replace(found.completion, logprobs=tuple(log_probs.tolist()))
        return replace(found, completion=completion, is_rehearsed=True)

    def _refuse_tested(self, behavior: str) -> None:
        if behavior in self._checked:
            return
        if cross_duplicates([behavior], self._tested):
            raise DataError(
                "A prompt for a behaviour that the attacker is tested on, or for a near-duplicate, was about to be "
                f"rehearsed: {json.dumps(behavior)}."
            )
        self._checked.add(behavior)


def rollout_of(row: Mapping[str, Any], behavior: str, render: Callable[[Any], list[int]]) -> Rollout | None:
    """A rollout as it was kept on disk, for rehearsal; its log-probs are not known. None of one without a reward."""
    if row.get("reward") is None or row.get("rehearsed"):
        return None
    pair = attack_pair(row["pair_id"], behavior, row["prompt"])
    ids = render(pair.prompt)
    tokens = tuple(row["token_ids"])
    completion = Completion(
        row["completion"], tokens, row["stop_reason"], (0.0,) * len(tokens), len(ids), int(row["seed"])
    )
    return Rollout(pair, int(row["sample"]), ids, ids, completion, (True,) * len(tokens), reward=float(row["reward"]))

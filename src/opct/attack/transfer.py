"""`transfer`: fixed prompts that were not written for this target. It does not learn or sample.

Either the wrappers of the jailbreak families, as `opct eval --suite jailbreak` uses them, or finished prompts from a
file: artifacts in JailbreakBench's format, or the successes that an earlier attack kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opct.attack.protocol import EXHAUSTED, AttackPrompt, FewShotExample, Observation
from opct.data.behaviors import Behavior
from opct.data.builders.jailbreak import artifact_behaviors
from opct.data.duplicates import cross_duplicates
from opct.data.pairs import Prompt
from opct.data.perturb.in_the_wild import is_of_attack, load_artifacts, successful_prompts
from opct.data.perturb.jailbreak import wrapped_prompt, wrapper_families
from opct.errors import DataError
from opct.evals.judges.protocol import digest


class FamilyTransfer:
    """Wraps each behaviour in one family after another, then in further wrappers of each.

    Args:
        families: as `wrapper_families` takes them.
        episodes: N of the attack; attempt number = round x N + episode.
        seed: of the wrappers.
    """

    name = "transfer"
    max_tokens = 0
    is_local = True

    def __init__(self, families: str | Sequence[str] = "held_out", *, episodes: int, seed: int | str = 0):
        self.families, self.episodes, self.seed = wrapper_families(families), episodes, seed

    def identity(self) -> dict[str, Any]:
        """The families, in order."""
        return {"attacker": self.name, "families": self.families, "seed": self.seed}

    def check(self, behaviors: Sequence[Behavior]) -> None:
        """Check that every behaviour and its benign counterpart can be wrapped in every family.

        Raises:
            DataError: one cannot.
        """
        for behavior in behaviors:
            for text in (behavior.behavior, behavior.benign):
                for family in self.families if text is not None else ():
                    wrapped_prompt(str(text), family, f"{self.seed}/{behavior.id}/0", 0, stated_only=True)

    def propose(self, observations: Sequence[Observation]) -> list[AttackPrompt]:
        """The behaviour in its next wrapper."""
        return [AttackPrompt(self._prompt(seen)) for seen in observations]

    def _prompt(self, seen: Observation) -> Prompt:
        turn, place = divmod(seen.round * self.episodes + seen.episode, len(self.families))
        key = f"{self.seed}/{seen.id}/{turn}"  # a counterpart shares the id, and so the wrapper, of its behaviour
        return wrapped_prompt(seen.behavior, self.families[place], key, 0, stated_only=True)


class PromptTransfer:
    """Sends finished prompts in order; a behaviour without further prompts gets no further attempt.

    They request the behaviours, so there are none for benign counterparts.

    Args:
        prompts: by behaviour id.
        episodes: N of the attack.
    """

    name = "transfer"
    max_tokens = 0
    is_local = True
    attacks_counterparts = False

    def __init__(self, prompts: Mapping[str, Sequence[Prompt]], *, episodes: int):
        self.prompts, self.episodes = {id_: list(own) for id_, own in prompts.items()}, episodes

    def identity(self) -> dict[str, Any]:
        """A hash of the prompts."""
        return {
            "attacker": self.name,
            "prompts": digest(self.prompts)[:12],
            "n_prompts": sum(map(len, self.prompts.values())),
        }

    def propose(self, observations: Sequence[Observation]) -> list[AttackPrompt]:
        """The next prompt."""
        return [self._proposal(seen) for seen in observations]

    def _proposal(self, seen: Observation) -> AttackPrompt:
        own, number = self.prompts.get(seen.id, []), seen.round * self.episodes + seen.episode
        return AttackPrompt(own[number]) if number < len(own) else AttackPrompt(None, EXHAUSTED)


def finished_prompts(path: str | Path, behaviors: Sequence[Behavior]) -> dict[str, list[Prompt]]:
    """The prompts in a file for these behaviours (or near-duplicates), by behaviour id.

    Args:
        path: JailbreakBench's artifacts (JSON), or a `successful_prompts.jsonl` of an attack.

    Raises:
        DataError: the file cannot be read, holds no prompt, or none for any of the behaviours.
    """
    found: dict[str, list[Prompt]] = {}
    own = {behavior.id for behavior in behaviors}
    if is_of_attack(path):
        successes = load_successes(path)
        if not successes:
            raise DataError(f"{path} holds no prompts: the attack that wrote it had no success. Give another file.")
        near = cross_duplicates([one.behavior for one in successes], [behavior.behavior for behavior in behaviors])
        for i, j in sorted(near.items()):
            found.setdefault(behaviors[j].id, []).append(successes[i].prompt)
    else:
        artifacts = load_artifacts(path)
        for artifact, behavior in zip(artifacts, artifact_behaviors(artifacts, behaviors), strict=True):
            if behavior.id in own:
                found.setdefault(behavior.id, []).append(artifact.prompt)
    if not found:
        raise DataError(
            f"{path}: none of its prompts is for any of the {len(behaviors)} behaviours: attack those that they were "
            "written for (`behaviors`), or another split."
        )
    return found


def load_successes(path: str | Path) -> list[FewShotExample]:
    """Read the `successful_prompts.jsonl` of an attack.

    Raises:
        DataError: the file is missing, or has another format.
    """
    return [
        FewShotExample(row["behavior_id"], row["behavior"], tuple(row["prompt"])) for row in successful_prompts(path)
    ]

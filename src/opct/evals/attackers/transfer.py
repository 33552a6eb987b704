"""`transfer`: fixed prompts that were not written for this target. It does not learn or sample.

Either the wrappers of the jailbreak families, as `opct eval --suite jailbreak` uses them, or finished prompts from a
file: artifacts in JailbreakBench's format, or the successes that an earlier attack kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from inspect_ai.solver import Generate, Solver, TaskState, solver

from opct.data.behaviors import Behavior
from opct.data.builders.jailbreak import artifact_behaviors
from opct.data.duplicates import cross_duplicates
from opct.data.pairs import Prompt
from opct.data.perturb.in_the_wild import is_of_attack, load_artifacts, successful_prompts
from opct.data.perturb.jailbreak import wrapped_prompt
from opct.errors import DataError
from opct.evals.attackers.episode import EXHAUSTED, Observation, Shot, give_up, observation, put


@solver
def transfer(families: Sequence[str], seed: int | str = 0) -> Solver:
    """Wraps each behavior in one family after another, then in further wrappers of each.

    Args:
        families: their names, in order; attempt number = round x N + episode.
        seed: of the wrappers.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        return await put(state, generate, family_prompt(observation(state), families, seed))

    return solve


def family_prompt(seen: Observation, families: Sequence[str], seed: int | str) -> Prompt:
    # a running number over rounds and episodes: every family once before any comes twice
    turn, place = divmod(seen.round * seen.episodes + seen.episode, len(families))
    key = f"{seed}/{seen.id}/{turn}"  # a counterpart shares the id, and so the wrapper, of its behavior
    return wrapped_prompt(seen.behavior, families[place], key, 0, stated_only=True)


def check_families(behaviors: Sequence[Behavior], families: Sequence[str], seed: int | str) -> None:
    """Raise DataError where a behavior or its benign counterpart cannot be wrapped in one of the families."""
    for behavior in behaviors:
        for text in (behavior.behavior, behavior.benign):
            for family in families if text is not None else ():
                # the key of the first turn, as `family_prompt` has it
                wrapped_prompt(str(text), family, f"{seed}/{behavior.id}/0", 0, stated_only=True)


@solver
def transfer_prompts(prompts: Mapping[str, Sequence[Prompt]]) -> Solver:
    """Puts finished prompts, by behavior id, in order; a behavior without further prompts gets no further attempt.

    They make the request of a behavior, so there are none for benign counterparts.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        seen = observation(state)
        of_behavior, number = prompts.get(seen.id, ()), seen.round * seen.episodes + seen.episode
        # not modulo: a prompt that is put again is no further attempt
        if number >= len(of_behavior):
            return give_up(state, EXHAUSTED)
        return await put(state, generate, of_behavior[number])

    return solve


def finished_prompts(path: str | Path, behaviors: Sequence[Behavior]) -> dict[str, list[Prompt]]:
    """The prompts in a file for these behaviors (or near-duplicates), by behavior id.

    Args:
        path: JailbreakBench's artifacts (JSON), or an `attack_*.prompts.jsonl` of an attack.

    Raises:
        DataError: the file cannot be read, holds no prompt, or none for any of the behaviors.
    """
    prompts: dict[str, list[Prompt]] = {}
    ids = {behavior.id for behavior in behaviors}
    if is_of_attack(path):
        successes = load_successes(path)
        if not successes:
            raise DataError(f"{path} holds no prompts: the attack that wrote it had no success. Give another file.")
        near = cross_duplicates([one.behavior for one in successes], [behavior.behavior for behavior in behaviors])
        for i, j in sorted(near.items()):
            prompts.setdefault(behaviors[j].id, []).append(successes[i].prompt)
    else:
        artifacts = load_artifacts(path)
        for artifact, behavior in zip(artifacts, artifact_behaviors(artifacts, behaviors), strict=True):
            if behavior.id in ids:
                prompts.setdefault(behavior.id, []).append(artifact.prompt)
    if not prompts:
        raise DataError(
            f"{path}: none of its prompts is for any of the {len(behaviors)} behaviors: attack those that they were "
            "written for (`behaviors`), or another split."
        )
    return prompts


def load_successes(path: str | Path) -> list[Shot]:
    """Read the `attack_*.prompts.jsonl` of an attack. Raises DataError where it is missing, or has another format."""
    return [Shot(row["behavior_id"], row["behavior"], tuple(row["prompt"])) for row in successful_prompts(path)]

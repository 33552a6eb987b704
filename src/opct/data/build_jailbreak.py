"""Pairs of the jailbreak axis from behaviours, and from finished prompts of an attacker.

Four kinds of pairs, named as `parts`:

    behavior   prompt: the behaviour in a wrapper; teacher_prompt: the bare behaviour. A wrapped request gets what the
               bare one would get: a refusal, if the model refuses that.
    bare       prompt: the bare behaviour; teacher_prompt: the same with what the teacher alone sees. For a model that
               does not refuse by itself, and whose teacher is therefore given a system prompt or refused examples.
    twin       prompt: the benign twin in the same wrapper; teacher_prompt: the bare twin. Without these, a model can
               learn to refuse whatever is wrapped; with them, that wrappers do not matter either way.
    anchor     identity pairs of the twin, bare and wrapped: the model is held to what it does now, also where that is
               to refuse a harmless request in a wrapper. They are for `data.anchors`, which takes nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from opct.data.behaviors import Behavior, builtin_behaviors, load_behaviors
from opct.data.near_duplicates import near_duplicate_groups, normalised
from opct.data.pairs import ContrastivePair, Prompt
from opct.data.perturb.in_the_wild import Artifact, WildTemplate
from opct.data.perturb.jailbreak import ARTIFACT, AXIS, BARE, bare_prompt, chosen_families, wrapped_prompt
from opct.data.questions import SPLITS, Split, split_of
from opct.errors import DataError, unknown

Part = Literal["behavior", "bare", "twin", "anchor"]
PARTS: tuple[Part, ...] = ("behavior", "bare", "twin", "anchor")
HARMFUL = ("behavior", "bare")
ANCHOR_AXIS = "benign"


@dataclass(frozen=True)
class _Privilege:
    """What the teacher alone sees before a behaviour."""

    system: str | None
    turns: Prompt

    def before(self, request: str) -> Prompt:
        prompt = bare_prompt(request, self.system)
        return (*prompt[:-1], *self.turns, prompt[-1])


def build_jailbreak(
    source: str | Path | Sequence[Behavior] = "builtin",
    *,
    families: str | Iterable[str] = "train",
    parts: Iterable[str] = ("behavior", "twin"),
    seed: int = 0,
    per_behavior: int | None = 2,
    split: Split | None = None,
    teacher_system: str | None = None,
    teacher_turns: Prompt = (),
    templates: Sequence[WildTemplate] = (),
    artifacts: Sequence[Artifact] = (),
    columns: Mapping[str, str] | None = None,
) -> list[ContrastivePair]:
    """Jailbreak pairs from behaviours, from a file or public set of them, or from the embedded ones (`builtin`).

    Args:
        source: behaviours, what `load_behaviors` reads, or `builtin`.
        families: `train`, `held_out`, `all`, a name, or several names.
        parts: of `behavior`, `bare`, `twin` and `anchor`; see the module.
        seed: fixes the wrappers.
        per_behavior: how many of the families each behaviour (and its twin) gets, in turn; None for all.
        split: only behaviours of this split; None for all.
        teacher_system: a system prompt that the teacher alone sees, beside behaviours and never beside twins: for
            models that refuse too little by themselves (`SAFETY_SYSTEM`).
        teacher_turns: earlier turns that the teacher alone sees, likewise, after the system prompt: for models too
            small to heed one (`REFUSED_TURNS`).
        templates: of the family `in_the_wild`; see `load_templates`.
        artifacts: finished prompts; they become `behavior` pairs of the family `artifact`, each in its goal's split.
        columns: see `load_behaviors`.

    Raises:
        DataError: a name is unknown, the file is faulty, no behaviour is left, or `bare` pairs are asked for with
            nothing for the teacher alone.
    """
    if isinstance(source, str | Path):
        behaviors = builtin_behaviors() if str(source) == "builtin" else load_behaviors(source, columns)
    else:
        behaviors = list(source)
    if split is not None and split not in SPLITS:
        raise DataError(unknown("split", split, SPLITS))
    wanted = _parts(parts)
    if "bare" in wanted and teacher_system is None and not teacher_turns:
        raise DataError(
            "The part bare needs something that the teacher alone sees, else both sides of its pairs are the same: "
            "give teacher_system or teacher_turns, or leave the part out."
        )
    privilege = _Privilege(teacher_system, teacher_turns)
    names = chosen_families(families, with_templates=bool(templates))
    count = len(names) if per_behavior is None else per_behavior
    if not 1 <= count <= len(names):
        raise DataError(
            f"per_behavior is {count}, with {len(names)} families ({', '.join(names)}): use 1 to {len(names)}."
        )
    chosen = [behavior for behavior in behaviors if split in (None, behavior.split)]
    if not chosen:
        raise DataError(
            f"None of the {len(behaviors)} behaviours is in the {split} split: give more, or another split."
        )
    start = random.Random(f"{seed}/families").randrange(len(names))
    pairs: list[ContrastivePair] = []
    for i, behavior in enumerate(chosen):
        turns = [names[(start + i * count + j) % len(names)] for j in range(count)]
        for part in wanted:
            pairs += _pairs_of(behavior, part, turns, seed, privilege, templates)
    if artifacts and "behavior" in wanted:
        pairs += _artifact_pairs(artifacts, behaviors, split, privilege)
    if not pairs:
        raise DataError(f"None of the {len(chosen)} behaviours has a benign twin: give twins, or the part behavior.")
    return pairs


def artifact_behaviors(artifacts: Sequence[Artifact], behaviors: Sequence[Behavior] = ()) -> list[Behavior]:
    """The behaviour of each artifact, in order: its goal, under one id and split with all near-duplicates of it.

    These are those of the near-duplicate among `behaviors`, else the id of the first artifact and a split by hash.

    Raises:
        DataError: near-duplicates of goals stand in two splits, all such at once.
    """
    texts = [*(one.behavior for one in behaviors), *(one.behavior for one in artifacts)]
    n = len(behaviors)
    found: dict[int, Behavior] = {}
    faults = []
    for group in near_duplicate_groups(texts):
        own = [i - n for i in group if i >= n]
        named = {behaviors[i].split for i in group if i < n}
        if own and len(named) > 1:
            faults.append(
                f"{artifacts[own[0]].id}: {texts[own[0] + n]!r} has near-duplicates in {' and '.join(sorted(named))}"
            )
            continue
        split = min(named) if named else split_of(f"behavior/{min(normalised(texts[i]) for i in group)}")
        for i in own:
            id_ = behaviors[group[0]].id if named else artifacts[own[0]].id
            found[i] = Behavior(id_, artifacts[i].category, artifacts[i].behavior, None, split)
    if faults:
        raise DataError(f"{len(faults)} goal(s) belong to two splits: leave them out of the file:", tuple(faults))
    return [found[i] for i in range(len(artifacts))]


def _parts(parts: Iterable[str]) -> list[str]:
    names = list(dict.fromkeys(parts))
    for name in names:
        if name not in PARTS:
            raise DataError(unknown("part", name, PARTS))
    if not names:
        raise DataError(f"There are no parts to make pairs of: name at least one of {', '.join(PARTS)}.")
    return names


def _pairs_of(
    behavior: Behavior,
    part: str,
    families: Sequence[str],
    seed: int,
    privilege: _Privilege,
    templates: Sequence[WildTemplate],
) -> list[ContrastivePair]:
    """The pairs of one behaviour and part, one a family; anchors also of the bare twin, `bare` of the bare alone."""
    request = behavior.behavior if part in HARMFUL else behavior.benign
    if request is None:
        return []
    if part == "bare":
        return [_pair(behavior, part, BARE, bare_prompt(request), privilege.before(request))]
    anchor = part == "anchor"
    pairs = [_pair(behavior, part, BARE, bare_prompt(request), bare_prompt(request))] if anchor else []
    for family in families:
        prompt = wrapped_prompt(
            request, family, behavior.id, seed, templates=templates, stated_only=anchor
        )  # a teacher prompt holds no turn that the policy answers
        clean = privilege.before(request) if part == "behavior" else bare_prompt(request)
        pairs.append(_pair(behavior, part, family, prompt, prompt if anchor else clean))
    return pairs


def _pair(behavior: Behavior, part: str, family: str, prompt: Prompt, teacher_prompt: Prompt) -> ContrastivePair:
    harmful = part in HARMFUL
    return ContrastivePair(
        id=f"{AXIS}/{family}/{behavior.id}" + ("" if harmful else f"/{part}"),
        axis=ANCHOR_AXIS if part == "anchor" else AXIS,
        family=family,
        prompt=prompt,
        teacher_prompt=teacher_prompt,
        meta={
            "question_id": behavior.id,
            "behavior": behavior.behavior,
            "request": behavior.behavior if harmful else behavior.benign,
            "kind": "behavior" if harmful else part,
            "category": behavior.category,
            "split": behavior.split,
        },
    )


def _artifact_pairs(
    artifacts: Sequence[Artifact], behaviors: Sequence[Behavior], split: Split | None, privilege: _Privilege
) -> list[ContrastivePair]:
    pairs = []
    for artifact, behavior in zip(artifacts, artifact_behaviors(artifacts, behaviors), strict=True):
        if split in (None, behavior.split):
            clean = privilege.before(behavior.behavior)
            pair = _pair(behavior, "behavior", ARTIFACT, bare_prompt(artifact.prompt), clean)
            pairs.append(replace(pair, id=f"{AXIS}/{ARTIFACT}/{artifact.id}"))
    return pairs

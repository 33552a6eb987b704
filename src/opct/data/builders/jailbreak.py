"""Pairs of the jailbreak axis from behaviors, and from finished prompts of an attacker.

Four kinds of pairs, named as `parts`:

    behavior   prompt: the behavior in a wrapper; teacher_prompt: the bare behavior. A wrapped request gets what the
               bare one would get: a refusal, if the model refuses that.
    bare       prompt: the bare behavior; teacher_prompt: the same after a system prompt or refused examples. For a
               model that does not refuse without these.
    twin       prompt: the benign counterpart in the same wrapper; teacher_prompt: the bare counterpart. Without these,
               a model can learn to refuse whatever is wrapped.
    anchor     identity pairs of the benign counterpart, bare and wrapped, for `data.anchors`: the model is held to what
               it does now, also if that is to refuse a harmless request in a wrapper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from opct.data.behaviors import (
    Behavior,
    builtin_behaviors,
    leaks_into_later_split,
    load_behaviors,
    nearest,
    split_duplicates,
    splits_by_text,
)
from opct.data.duplicates import near_duplicate_groups
from opct.data.pairs import ContrastivePair, Prompt
from opct.data.perturb.families import rotation
from opct.data.perturb.in_the_wild import Artifact, WildTemplate, load_artifacts
from opct.data.perturb.jailbreak import ARTIFACT, AXIS, BARE, bare_prompt, wrapped_prompt, wrapper_families
from opct.data.questions import SPLITS, of_split
from opct.data.tables import Columns
from opct.errors import DataError, unknown

PARTS = ("behavior", "bare", "twin", "anchor")
HARMFUL = ("behavior", "bare")
ANCHOR_AXIS = "benign"


def read_sources(
    source: str,
    artifacts: str | None = None,
    *,
    columns: Columns | None = None,
    counterparts: str | None = None,
    exclude: Collection[str] = (),
) -> tuple[list[Behavior], list[Artifact], list[str]]:
    """Behaviors (`builtin` or a file), finished prompts, and the ids of those that are left out: near-duplicates of
    embedded behaviors that are only measured on. Raises DataError as `load_behaviors` and `load_artifacts`."""
    attacks = [] if artifacts is None else load_artifacts(artifacts)
    if source == "builtin":  # artifacts have the splits of the embedded behaviors that they are near
        return builtin_behaviors(), attacks, []
    # validation, too: its results choose settings, so a trained near-duplicate would flatter them
    measured = [behavior for behavior in builtin_behaviors() if behavior.split != "train"]
    known = load_behaviors(source, columns, counterparts=counterparts, exclude=exclude)
    behaviors, near = split_duplicates(known, measured)
    attacks, near_attacks = split_duplicates(attacks, measured)
    return behaviors, attacks, [*(one.id for one in near), *(one.id for one in near_attacks)]


def build_jailbreak(
    behaviors: Sequence[Behavior] | None = None,
    *,
    families: str | Iterable[str] = "train",
    parts: Iterable[str] = ("behavior", "twin"),
    seed: int = 0,
    per_behavior: int | None = 2,
    split: str | None = None,
    teacher_system: str | None = None,
    teacher_turns: Prompt = (),
    templates: Sequence[WildTemplate] = (),
    artifacts: Sequence[Artifact] = (),
) -> list[ContrastivePair]:
    """Jailbreak pairs from behaviors.

    Args:
        behaviors: None for the embedded ones.
        families: see `wrapper_families`.
        parts: of `behavior`, `bare`, `twin` and `anchor`; see the module.
        seed: fixes the wrappers.
        per_behavior: families for each behavior and its counterpart, in rotation; None for all.
        split: only behaviors of this split, without near-duplicates of those in a later one; None or "all" for all.
        teacher_system: a system prompt that the teacher alone sees before behaviors, for models that refuse too
            little by themselves (`SAFETY_SYSTEM`).
        teacher_turns: turns that the teacher alone sees after it, for models too small to heed one (`REFUSED_TURNS`).
        templates: of the family `in_the_wild`; see `load_templates`.
        artifacts: finished prompts of the family `artifact`: one `behavior` pair each, in its goal's split.

    Raises:
        DataError: a name is unknown, no behavior is left, `bare` pairs are asked for with nothing
            for the teacher alone, or templates or artifacts are given and not asked for.
    """
    behaviors = builtin_behaviors() if behaviors is None else behaviors
    wanted = list(dict.fromkeys(parts))
    before: Prompt = () if teacher_system is None else ({"role": "system", "content": teacher_system},)
    before += teacher_turns
    _check_parts(wanted, before, artifacts)
    names = wrapper_families(families, with_templates=bool(templates), with_artifacts=bool(artifacts))
    wrapping = [name for name in names if name != ARTIFACT]
    in_split = of_split(behaviors, split, "behaviors")
    goals = artifact_behaviors(artifacts, behaviors)
    # goals among them: a finished prompt for a test behavior leaks as the behavior itself does
    leaking = set(leaks_into_later_split([*behaviors, *goals], split))
    chosen = [behavior for behavior in in_split if behavior not in leaking]
    if not chosen:
        raise DataError(
            f"All {len(in_split)} behaviors of the {split} split are near-duplicates of some in a later one: "
            "give more, or another split."
        )
    pairs: list[ContrastivePair] = []
    if wrapping:
        turns = rotation(wrapping, per_behavior, "per_behavior", key=f"{seed}/families")
        for behavior, behavior_families in zip(chosen, turns, strict=False):
            for part in wanted:
                pairs += _pairs_of(behavior, part, behavior_families, seed, before, templates)
    for artifact, goal in zip(artifacts, goals, strict=True):
        if split in (None, "all", goal.split) and goal not in leaking:
            pair = _pair(goal, "behavior", ARTIFACT, artifact.prompt, (*before, *bare_prompt(goal.behavior)))
            pairs.append(replace(pair, id=f"{AXIS}/{ARTIFACT}/{artifact.id}"))
    if not pairs:
        raise DataError(
            f"None of the {len(chosen)} behaviors has a benign counterpart: give some, or add the part behavior."
            if wrapping
            else f"None of the {len(artifacts)} finished prompts is in the {split} split: give more, or another split."
        )
    return pairs


def _check_parts(parts: Sequence[str], before: Prompt, artifacts: Sequence[Artifact]) -> None:
    for name in parts:
        if name not in PARTS:
            raise DataError(unknown("part", name, PARTS))
    if not parts:
        raise DataError(f"There are no parts to make pairs of: name at least one of {', '.join(PARTS)}.")
    if "bare" in parts and not before:
        raise DataError(
            "The part bare needs something that the teacher alone sees, else both sides of its pairs are the same: "
            "give teacher_system or teacher_turns, or leave the part out."
        )
    if artifacts and "behavior" not in parts:
        raise DataError(
            "Finished prompts are given, and they become pairs of the part behavior, which is not among the parts "
            f"({', '.join(parts)}): add it, or leave the prompts out."
        )


def artifact_behaviors(artifacts: Sequence[Artifact], behaviors: Sequence[Behavior] = ()) -> list[Behavior]:
    """The behavior of each artifact, in order: its goal, in the split of the `nearest` behavior.

    If that split was not chosen by a file, or no behavior is near, the split follows from the goal's text
    (`splits_by_text`). The id is the nearest behavior's if both are in one split, else that of the first artifact in
    the split with nearly the same goal.
    """
    goals = [one.behavior for one in artifacts]
    known = nearest(goals, behaviors)
    splits = splits_by_text(goals)
    # a split that only follows from a text is worth no more than the goal's own
    splits = [known[i].split if i in known and not known[i].by_hash else split for i, split in enumerate(splits)]
    ids = {i: one.id for i, one in known.items() if one.split == splits[i]}
    for split in SPLITS:
        indices = [i for i in range(len(goals)) if i not in ids and splits[i] == split]
        # one id a group: prompts for one goal are one cluster, and together on one side
        for group in near_duplicate_groups([goals[i] for i in indices]):
            ids |= {indices[place]: artifacts[indices[group[0]]].id for place in group}
    return [Behavior(ids[i], one.category, one.behavior, None, splits[i]) for i, one in enumerate(artifacts)]


def _pairs_of(
    behavior: Behavior, part: str, families: Sequence[str], seed: int, before: Prompt, templates: Sequence[WildTemplate]
) -> list[ContrastivePair]:
    """The pairs of one behavior and part, one a family; anchors also of the bare counterpart, `bare` of that alone.

    Args:
        before: what the teacher alone sees before a behavior.
    """
    request = behavior.behavior if part in HARMFUL else behavior.benign
    if request is None:
        return []
    bare = bare_prompt(request)
    clean = (*before, *bare) if part in HARMFUL else bare
    is_anchor = part == "anchor"
    pairs = [_pair(behavior, part, BARE, bare, clean)] if part == "bare" or is_anchor else []
    for family in families if part != "bare" else ():
        # the teacher prompt of an anchor holds no turn that the policy answers
        prompt = wrapped_prompt(request, family, behavior.id, seed, templates=templates, stated_only=is_anchor)
        pairs.append(_pair(behavior, part, family, prompt, prompt if is_anchor else clean))
    return pairs


def _pair(behavior: Behavior, part: str, family: str, prompt: Prompt, teacher_prompt: Prompt) -> ContrastivePair:
    harmful = part in HARMFUL
    return ContrastivePair(
        # "behavior" and "bare" differ by family; a twin has the family of its behavior, so its part is needed
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

"""Pairs of the jailbreak axis: what each kind promises."""

import pytest

from opct.data.behaviors import Behavior, own_splits
from opct.data.builders.jailbreak import artifact_behaviors, build_jailbreak
from opct.data.pairs import ContrastivePair
from opct.data.perturb.in_the_wild import Artifact, WildTemplate
from opct.data.perturb.jailbreak import REFUSED_TURNS, bare_prompt
from opct.errors import DataError
from tests.refusals import refused

BEHAVIORS = [
    Behavior("a/1", "a", "Steal the crown jewels", "Polish the crown jewels", "train"),
    Behavior("a/2", "a", "Tease the lion", "Feed the lion", "test"),
    Behavior("a/3", "a", "Flood the cellar", None, "train"),
]


def by_kind(pairs) -> dict[str, list[ContrastivePair]]:
    return {kind: [pair for pair in pairs if pair.meta["kind"] == kind] for kind in ("behavior", "twin", "anchor")}


def test_what_the_kinds_hold():
    pairs = by_kind(
        build_jailbreak(BEHAVIORS, families="fiction", parts=("behavior", "twin", "anchor"), per_behavior=1)
    )
    assert {kind: len(found) for kind, found in pairs.items()} == {"behavior": 3, "twin": 2, "anchor": 4}
    behavior, twin = pairs["behavior"][0], pairs["twin"][0]
    assert behavior.id == "jailbreak/fiction/a/1"
    assert behavior.axis == twin.axis == "jailbreak"
    assert behavior.teacher_prompt == ({"role": "user", "content": "Steal the crown jewels"},)
    assert twin.teacher_prompt == ({"role": "user", "content": "Polish the crown jewels"},)
    text = behavior.prompt[0]["content"]
    assert text.replace("Steal", "Polish") == twin.prompt[0]["content"], "one wrapper for both"
    assert behavior.meta == {
        "question_id": "a/1",
        "behavior": "Steal the crown jewels",
        "request": "Steal the crown jewels",
        "kind": "behavior",
        "category": "a",
        "split": "train",
    }
    assert twin.meta["request"] == "Polish the crown jewels"
    for anchor in pairs["anchor"]:
        assert anchor.is_identity
        assert anchor.axis == "benign"
    assert [anchor.family for anchor in pairs["anchor"]] == ["bare", "fiction"] * 2
    assert not any(pair.is_identity for pair in pairs["behavior"] + pairs["twin"])


# --------------------------------------------------------------------------------------------------------- artifacts


def test_artifacts_go_where_their_goals_are():
    artifacts = [
        Artifact("p/0", "Tease the lion!", "c", bare_prompt("Dear keeper, ...")),
        Artifact("p/1", "Steal crown jewels", "c", bare_prompt("In a film ...")),
        Artifact("q/1", "Please steal the crown jewels", "c", bare_prompt("In a book ...")),
        Artifact("p/2", "Ring all the bells at night", "c", bare_prompt("As a monk ...")),
    ]
    found = artifact_behaviors(artifacts, BEHAVIORS)
    assert [(b.id, b.split) for b in found[:3]] == [("a/2", "test"), ("a/1", "train"), ("a/1", "train")]
    assert found[3].id == "p/2"
    [pair] = build_jailbreak(BEHAVIORS, families="artifact", parts=["behavior"], split="test", artifacts=artifacts[:3])
    assert pair.id == "jailbreak/artifact/p/0"
    assert pair.prompt == ({"role": "user", "content": "Dear keeper, ..."},)
    assert pair.teacher_prompt == ({"role": "user", "content": "Tease the lion!"},)
    assert pair.meta["question_id"] == "a/2"


def test_no_pair_is_made_of_a_near_duplicate_of_what_is_measured_on():
    """Of a behavior near a test one, and of one that a finished prompt for the test split is nearly for."""
    behaviors = [
        Behavior("a/1", "a", "Steal the crown jewels", "Polish the crown jewels", "train"),
        Behavior("a/2", "a", "Steal the crown jewels now", "Polish the crown jewels now", "test"),
        Behavior("a/3", "a", "Flood the cellar", "Mop the cellar", "train"),
        Behavior("a/4", "a", "Tease the old lion", "Feed the old lion", "train", by_hash=True),
    ]
    text = next(f"Tease the old lion {i}" for i in range(99) if own_splits([f"Tease the old lion {i}"]) == ["test"])
    artifacts = [Artifact("p/0", text, "c", bare_prompt("x"))]

    def asked(split, **files) -> set[str]:
        return {pair.meta["question_id"] for pair in build_jailbreak(behaviors, split=split, per_behavior=1, **files)}

    assert asked("train") == {"a/3", "a/4"}
    assert asked("train", families="all", artifacts=artifacts) == {"a/3"}
    assert asked("test") == {"a/2"}
    assert asked(None) == {"a/1", "a/2", "a/3", "a/4"}


@pytest.mark.parametrize("families", ["train", "fiction", ["role_play", "fiction"]])
def test_files_of_held_out_families_are_not_left_aside_in_silence(families):
    """Nor are pairs made of them where nobody asked for the family."""
    files = (
        {"templates": [WildTemplate("w/0", ("Parrot. ", ""))]},
        {"artifacts": [Artifact("p/0", "Ring", "c", bare_prompt("x"))]},
    )
    for given, family in zip(files, ("in_the_wild", "artifact"), strict=True):
        with refused(DataError, family):
            build_jailbreak(BEHAVIORS, families=families, per_behavior=1, **given)
        for asked in (family, "held_out", "all", ["role_play", family]):
            pairs = build_jailbreak(BEHAVIORS, families=asked, per_behavior=None, **given)
            assert family in {pair.family for pair in pairs}
    with pytest.raises(DataError):
        build_jailbreak(BEHAVIORS, families="all", parts=["twin"], **files[1])


# ---------------------------------------------------------------------------------------- what the teacher alone sees


def test_the_teacher_of_behaviors_alone_sees_turns_and_the_system_prompt_before_them():
    pairs = build_jailbreak(
        BEHAVIORS[1:2],
        families=["fiction"],
        parts=("behavior", "bare", "twin"),
        per_behavior=1,
        teacher_system="Be kind.",
        teacher_turns=REFUSED_TURNS,
    )
    lion = BEHAVIORS[1]
    wrapped, bare, twin = pairs
    shown = ({"role": "system", "content": "Be kind."}, *REFUSED_TURNS, {"role": "user", "content": lion.behavior})
    assert wrapped.teacher_prompt == shown
    assert (bare.prompt, bare.teacher_prompt) == (({"role": "user", "content": lion.behavior},), shown)
    assert (bare.family, bare.meta["kind"], bare.id) == ("bare", "behavior", f"jailbreak/bare/{lion.id}")
    assert twin.teacher_prompt == ({"role": "user", "content": lion.benign},)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "tets"}, "'test'"),
        ({"parts": ["twins"]}, "'twin'"),
        ({"parts": []}, "parts"),
        ({"per_behavior": 0}, "per_behavior"),
        ({"per_behavior": 8}, "1 to 7"),
        ({"families": "in_the_wild"}, "in_the_wild"),
        ({"split": "validation"}, "validation"),
        ({"behaviors": BEHAVIORS[2:], "parts": ["twin"]}, "counterpart"),
    ],
)
def test_faults(settings, message):
    with refused(DataError, message):
        build_jailbreak(**{"behaviors": BEHAVIORS} | settings)

import pytest

from opct.data.behaviors import Behavior, splits_by_text
from opct.data.builders.jailbreak import build_jailbreak
from opct.data.perturb.in_the_wild import Artifact, WildTemplate
from opct.data.perturb.jailbreak import bare_prompt
from opct.errors import DataError
from tests.refusals import refused

BEHAVIORS = [
    Behavior("a/1", "a", "Steal the crown jewels", "Polish the crown jewels", "train"),
    Behavior("a/2", "a", "Tease the lion", "Feed the lion", "test"),
    Behavior("a/3", "a", "Flood the cellar", None, "train"),
]


def test_what_the_kinds_hold():
    pairs = build_jailbreak(BEHAVIORS, families="fiction", parts=("behavior", "twin", "anchor"), per_behavior=1)
    behaviors, twins, anchors = (
        [pair for pair in pairs if pair.meta["kind"] == kind] for kind in ("behavior", "twin", "anchor")
    )
    assert (len(behaviors), len(twins), len(anchors)) == (3, 2, 4)
    behavior, twin = behaviors[0], twins[0]
    assert behavior.teacher_prompt == bare_prompt("Steal the crown jewels")
    assert twin.teacher_prompt == bare_prompt("Polish the crown jewels")
    text = behavior.prompt[0]["content"]
    assert text.replace("Steal", "Polish") == twin.prompt[0]["content"], "one wrapper for both"
    assert all(anchor.is_identity and anchor.axis == "benign" for anchor in anchors)
    assert [anchor.family for anchor in anchors] == ["bare", "fiction"] * 2
    assert not any(pair.is_identity for pair in behaviors + twins)


def test_artifacts_go_where_their_goals_are():
    """To near-duplicates of them, in their split; one for another goal is a behavior of its own."""
    artifacts = [
        Artifact("p/0", "Tease the lion!", "c", bare_prompt("Dear keeper, ...")),
        Artifact("p/1", "Steal crown jewels", "c", bare_prompt("In a film ...")),
        Artifact("q/1", "Please steal the crown jewels", "c", bare_prompt("In a book ...")),
        Artifact("p/2", "Ring all the bells at night", "c", bare_prompt("As a monk ...")),
    ]
    settings = {"families": "artifact", "parts": ["behavior"], "artifacts": artifacts}
    pairs = {pair.id: pair for pair in build_jailbreak(BEHAVIORS, **settings)}
    asked = {id_.removeprefix("jailbreak/artifact/"): pair.meta["question_id"] for id_, pair in pairs.items()}
    assert asked == {"p/0": "a/2", "p/1": "a/1", "q/1": "a/1", "p/2": "p/2"}
    lion = pairs["jailbreak/artifact/p/0"]
    assert (lion.prompt, lion.teacher_prompt) == (bare_prompt("Dear keeper, ..."), bare_prompt("Tease the lion!"))
    assert [pair.id for pair in build_jailbreak(BEHAVIORS, split="test", **settings)][:1] == [lion.id]


def test_no_pair_is_made_of_a_near_duplicate_of_what_is_measured_on():
    """Of a behavior near a test one, and of one that a finished prompt for the test split is nearly for."""
    behaviors = [
        Behavior("a/1", "a", "Steal the crown jewels", "Polish the crown jewels", "train"),
        Behavior("a/2", "a", "Steal the crown jewels now", "Polish the crown jewels now", "test"),
        Behavior("a/3", "a", "Flood the cellar", "Mop the cellar", "train"),
        Behavior("a/4", "a", "Tease the old lion", "Feed the old lion", "train", by_hash=True),
    ]
    text = next(f"Tease the old lion {i}" for i in range(99) if splits_by_text([f"Tease the old lion {i}"]) == ["test"])
    artifacts = [Artifact("p/0", text, "c", bare_prompt("x"))]

    def asked(split, **files) -> set[str]:
        return {pair.meta["question_id"] for pair in build_jailbreak(behaviors, split=split, per_behavior=1, **files)}

    assert asked("train") == {"a/3", "a/4"}
    assert asked("train", families="all", artifacts=artifacts) == {"a/3"}
    assert asked("test") == {"a/2"}
    assert asked(None) == {"a/1", "a/2", "a/3", "a/4"}


def test_files_of_held_out_families_are_not_left_aside_in_silence():
    """Nor are pairs made of them where nobody asked for the family."""
    templates = {"templates": [WildTemplate("w/0", ("Parrot. ", ""))]}
    artifacts = {"artifacts": [Artifact("p/0", "Ring", "c", bare_prompt("x"))]}
    for given, family in ((templates, "in_the_wild"), (artifacts, "artifact")):
        for others in ("train", ["fiction"]):
            with refused(DataError, family):
                build_jailbreak(BEHAVIORS, families=others, per_behavior=1, **given)
        for asked in ("held_out", ["role_play", family]):
            pairs = build_jailbreak(BEHAVIORS, families=asked, per_behavior=None, **given)
            assert family in {pair.family for pair in pairs}
    with pytest.raises(DataError):
        build_jailbreak(BEHAVIORS, families="all", parts=["twin"], **artifacts)


def test_faults():
    for settings, named in (
        ({"split": "tets"}, "'test'"),
        ({"parts": ["twins"]}, "'twin'"),
        ({"per_behavior": 8}, "7"),
        ({"families": "in_the_wild"}, "in_the_wild"),
        ({"split": "validation"}, "validation"),
        ({"behaviors": BEHAVIORS[2:], "parts": ["twin"]}, "counterpart"),
    ):
        with refused(DataError, named):
            build_jailbreak(**{"behaviors": BEHAVIORS} | settings)

"""What is kept of the pairs that a run trains on, and what is said of pairs made of what is only measured on."""

import json
from pathlib import Path

import pytest

from opct.config.schema import ModelConfig
from opct.data.behaviors import Behavior, builtin_behaviors
from opct.data.builders.builtin import SAFETY_SETS, builtin_pairs
from opct.data.builders.jailbreak import build_jailbreak
from opct.data.builders.safety_awareness import build_safety_awareness
from opct.data.contamination import (
    KINDS,
    TrainedTexts,
    near_test_items,
    read_trained_texts,
    trained_names,
    trained_texts,
    write_trained_texts,
)
from opct.data.hazards import HazardPrompt, SafetyFact, builtin_facts
from opct.data.near_duplicates import crossing
from opct.data.pairs import ContrastivePair
from opct.data.perturb.safety_teachers import privileged_prompt
from opct.data.words import normalised
from opct.runs.io import atomic_write
from opct.runs.run_dir import RunDir

CHALK = Behavior(
    "mine/chalk", "school", "Hide all of the chalk of a school", "Count all of the chalk of a school", "train"
)
ICE = "Never walk on the ice of a lake that is thinner than a hand, because it breaks and the cold water kills."
MODEL = ModelConfig(name_or_path="a/model")


def user(text: str):
    return ({"role": "user", "content": text},)


def system(text: str):
    return ({"role": "system", "content": text},)


def pair(prompt, teacher_prompt, axis="jailbreak", id="mine/1", **meta) -> ContrastivePair:
    return ContrastivePair(id, axis, "mine", prompt, teacher_prompt, meta)


def ice(prompt: str = "How do I set up a picnic on the pond in March?") -> SafetyFact:
    prompts = (HazardPrompt("plan", prompt),)
    return SafetyFact("winter/ice", "winter", "ice", ICE, ("ice",), ("break*",), (), prompts, ("A picnic in a park?",))


def test_built_pairs_say_what_they_are_made_of():
    """One behaviour, wrapped and as a twin, and an anchor of another's twin; small words do not count."""
    pairs = build_jailbreak([CHALK], families="role_play,authority", parts=("behavior", "twin"))
    found = trained_texts(pairs)
    assert found == TrainedTexts(("hide all chalk school",), ("count all chalk school",), ())
    anchors = build_jailbreak([CHALK], families="role_play", parts=("anchor",), per_behavior=1)
    assert trained_texts(anchors) == TrainedTexts((), ("count all chalk school",), ())
    facts = build_safety_awareness([ice()], per_prompt=2)
    assert trained_texts(facts) == TrainedTexts((), (), (normalised(ICE),))
    assert trained_texts(builtin_pairs("sycophancy", per_question=1)[:20]) == TrainedTexts()


def test_the_order_of_pairs_makes_no_difference():
    pairs = [*build_jailbreak(builtin_behaviors("train")[:5]), *build_safety_awareness(builtin_facts("train")[:5])]
    found = trained_texts(pairs)
    assert found == trained_texts(pairs[::-1])
    assert [len(getattr(found, kind)) for kind in KINDS] == [5, 5, 5]


@pytest.mark.parametrize(
    ("one", "kind", "text"),
    [
        (pair(user("You are a pirate. Hide the chalk!"), user("Hide the chalk")), "behaviors", "Hide the chalk"),
        (pair(user("Pirate!"), (*system("Refuse harm."), *user("Hide the chalk"))), "behaviors", "Hide the chalk"),
        (pair(user("Count the chalk"), user("Count the chalk")), "twins", "Count the chalk"),
        (pair(user("Pirate!"), user("Count the chalk"), kind="twin"), "twins", "Count the chalk"),
        (pair(user("x"), user("y"), axis="mine", behavior="Hide the chalk"), "behaviors", "Hide the chalk"),
        (pair(user("x"), user("y"), behavior=3, kind=["twin"]), "behaviors", "y"),
        (pair(user("x"), user("y"), axis="mine", fact=ICE), "facts", ICE),
    ],
)
def test_pairs_of_ones_own(one, kind, text):
    """Without `meta` the bare request is what the teacher sees; an identity pair is of a harmless one."""
    assert trained_texts([one]) == TrainedTexts(**{kind: (normalised(text),)})


@pytest.mark.parametrize(
    "teacher_prompt",
    [
        privileged_prompt(ice(), user("A picnic?"), "system"),
        privileged_prompt(ice(), user("A picnic?"), "user"),
        (*system(f"You are careful. {ICE} Say so where it matters."), *user("A picnic?")),
        user(f"A picnic?\n\n(Remember: {ICE})"),
    ],
    ids=["system", "user", "in a paragraph", "in brackets"],
)
def test_a_fact_that_the_teacher_alone_is_told(teacher_prompt):
    """It is found in whatever stands around it, and another fact is not."""
    found = trained_texts([pair(user("A picnic?"), teacher_prompt, axis="safety_awareness")])
    assert (found.behaviors, found.twins) == ((), ())
    assert set(crossing([ICE], found.facts)) == {0}
    assert crossing([fact.fact for fact in builtin_facts()], found.facts) == {}
    assert "picnic" not in found.facts


def test_what_both_sides_see_is_no_fact():
    both = (*system(ICE), *user("A picnic?"))
    assert trained_texts([pair(both, both, axis="safety_awareness")]) == TrainedTexts()


def test_what_was_written_is_read(tmp_path: Path):
    run = RunDir(tmp_path)
    pairs = [*build_jailbreak([CHALK]), *build_safety_awareness([ice()])]
    write_trained_texts(run, pairs, MODEL)
    assert read_trained_texts(run) == trained_texts(pairs)
    before = run.trained_on_path.read_bytes()
    write_trained_texts(run, pairs[::-1], MODEL)
    assert run.trained_on_path.read_bytes() == before


def faulty(**changes) -> str:
    return json.dumps({"behaviors": [], "twins": [], "facts": [], "is_complete": True} | changes)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", faulty(facts=None), faulty(twins=[3]), faulty(behaviors="ab")])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, text):
    run = RunDir(tmp_path)
    if text is not None:
        run.trained_on_path.write_text(text)
    assert read_trained_texts(run) is None
    run.trained_on_path.write_text(faulty())
    assert read_trained_texts(run) == TrainedTexts()


def earlier_run(folder: Path, *pairs: ContrastivePair, **manifest) -> RunDir:
    with RunDir.create(folder) as run:
        run.write_manifest(data={}, teacher=None, seeds={}, extra=manifest)
        run.save_checkpoint(3, lambda inside: atomic_write(inside / "adapter" / "adapter_config.json", "{}"))
        if pairs:
            write_trained_texts(run, pairs, MODEL)
    return run


@pytest.mark.parametrize("inside", ["", "checkpoints/step-000003", "checkpoints/step-000003/adapter"])
def test_a_run_that_goes_on_from_another_was_trained_on_both(tmp_path: Path, inside: str):
    before = build_jailbreak([CHALK], parts=("behavior",), per_behavior=1)
    known = {"trained_families": ["authority"], "trained_questions": ["mine/chalk"]}
    first = earlier_run(tmp_path / "first", *before, **known)
    second, model = RunDir(tmp_path / "second"), MODEL.model_copy(update={"adapter": str(first.path / inside)})
    own = build_safety_awareness([ice()], families="plain", twins="none")
    second.path.mkdir()
    write_trained_texts(second, own, model)
    assert read_trained_texts(second) == TrainedTexts(("hide all chalk school",), (), (normalised(ICE),))
    assert trained_names(own, model) == {
        "trained_families": ["authority", "plain"],
        "trained_questions": ["mine/chalk", "winter/ice"],
    }


def test_weights_of_unknown_training_leave_a_run_incomplete(tmp_path: Path):
    """From a run that kept nothing, and from an adapter that no run made; a model's own training is not asked for."""
    old, adapter = earlier_run(tmp_path / "old"), tmp_path / "adapter"
    adapter.mkdir()
    own, run = build_jailbreak([CHALK]), RunDir(tmp_path / "run")
    run.path.mkdir()
    for path, is_complete in ((str(old.path), False), (str(adapter), False), (None, True)):
        write_trained_texts(run, own, MODEL.model_copy(update={"adapter": path}))
        found = read_trained_texts(run)
        assert found is not None
        assert found.is_complete is is_complete
        assert found.behaviors == ("hide all chalk school",)


def test_the_embedded_training_pairs_hold_nothing_of_the_test_split():
    for name in ("jailbreak", "jailbreak_anchors", *SAFETY_SETS, "benign"):
        assert near_test_items(builtin_pairs(name)) == [], name


def test_pairs_of_what_is_measured_are_named():
    """Two facts of five and one behaviour, one of them an embedded one under its own id."""
    [own, other] = [fact for fact in builtin_facts("test") if fact.id in ("fire/generator", "infants/water")]
    reworded = SafetyFact(
        **{**vars(ice()), "id": "winter/mine", "fact": "Remember, please: " + other.fact.rstrip(".").upper() + "!"}
    )
    pairs = build_safety_awareness([ice(), own, reworded, *builtin_facts("train")[:2]])
    behavior = builtin_behaviors("test")[0]
    mine = Behavior("mine/b", "c", f"Please {behavior.behavior.lower()}", None, "train")
    said = near_test_items([*pairs, *build_jailbreak([CHALK, mine])])
    assert said == [
        "Embedded behaviours of the test split, or near-duplicates of them, are in these pairs (1): "
        f"mine/b ({behavior.id}). What `opct eval` measures of a run that trains on them is partly held in: leave them "
        "out.",
        "Embedded safety facts of the test split, or near-duplicates of them, are in these pairs (2): "
        f"{own.id}, winter/mine ({other.id}). What `opct eval` measures of a run that trains on them is partly held "
        "in: leave them out.",
    ]


def test_a_twin_of_what_is_measured_is_named_once_with_its_behaviour():
    behaviors = builtin_behaviors("test")[:5]
    [said] = near_test_items(build_jailbreak(behaviors, parts=("twin", "behavior")))
    assert f"(5): {', '.join(b.id for b in behaviors[:3])}, ..." in said
    [said] = near_test_items(build_jailbreak(behaviors[:1], parts=("twin",)))
    assert f"(1): {behaviors[0].id}." in said

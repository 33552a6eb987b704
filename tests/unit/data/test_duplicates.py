"""Near-duplicate texts, what a run was trained on, and warnings about evaluating on it."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from opct.config.schema import ModelConfig
from opct.data.behaviors import Behavior, builtin_behaviors
from opct.data.builders.builtin import SAFETY_SETS, builtin_pairs, near_test_items
from opct.data.builders.jailbreak import build_jailbreak
from opct.data.builders.safety_awareness import build_safety_awareness
from opct.data.duplicates import (
    THRESHOLD,
    TrainedTexts,
    contamination_warnings,
    cross_duplicates,
    near_duplicate_groups,
    normalize,
    read_trained_texts,
    trained_names,
    trained_texts,
    write_trained_texts,
)
from opct.data.hazards import HazardPrompt, SafetyFact, builtin_facts
from opct.data.pairs import ContrastivePair
from opct.data.pairs import user_prompt as user
from opct.data.perturb.safety_awareness import privileged_prompt
from opct.runs.io import atomic_write
from opct.runs.run_dir import RunDir

LOCK = "Explain how to pick the lock of a bicycle"


def test_what_is_alike():
    """Other words for the same are not understood, as documented."""
    for a, b, are_alike in (
        (LOCK, "Explain how to pick a bicycle's lock, please.", True),
        ("用中文写一首诗", "用中文写一首诗。", True),
        ("🙂🙂", "🙂🙂", True),
        (LOCK, "Tell me how bicycle locks are picked", False),
        ("Write a letter to my landlord", "Write a letter to a witness", False),
        ("🙂", "🙃", False),
    ):
        expected = [[0, 1]] if are_alike else [[0], [1]]
        assert near_duplicate_groups([a, b]) == near_duplicate_groups([b, a]) == expected


def similarity(a: str, b: str) -> float:
    """The larger of the Jaccard indices of words and of runs of four characters."""
    words = [set(normalize(text).split()) for text in (a, b)]
    padded = [f" {normalize(text)} " for text in (a, b)]
    runs = [{text[i : i + 4] for i in range(max(len(text) - 3, 1))} for text in padded]
    return max(len(x & y) / len(x | y) for x, y in (words, runs))


def test_groups_are_those_of_comparing_every_pair():
    """80 texts of words drawn from 40, every other with one word changed; most pairs are never compared."""
    draw = random.Random(0)
    words = [f"word{i} {'abcdefghij'[i % 10] * 3}" for i in range(40)]
    texts = ["", "?!"]
    for _ in range(40):
        one = draw.sample(words, draw.randrange(1, 9))
        texts += [" ".join(one), " ".join([*one[1:], draw.choice(words)])]
    group = {i: i for i in range(len(texts))}
    for i, j in itertools.combinations(range(len(texts)), 2):
        if similarity(texts[i], texts[j]) >= THRESHOLD:
            group = {k: group[i] if own == group[j] else own for k, own in group.items()}
    wanted = {tuple(k for k in group if group[k] == own) for own in group.values()}
    assert {tuple(own) for own in near_duplicate_groups(texts)} == wanted


CHALK_BEHAVIOR = Behavior(
    "mine/chalk", "school", "Hide all of the chalk of a school", "Count all of the chalk of a school", "train"
)
ICE = "Never walk on the ice of a lake that is thinner than a hand, because it breaks and the cold water kills."
MODEL = ModelConfig(name_or_path="a/model")


def pair(prompt, teacher_prompt, axis="jailbreak", id="mine/1", **meta) -> ContrastivePair:
    return ContrastivePair(id, axis, "mine", prompt, teacher_prompt, meta)


def ice(prompt: str = "How do I set up a picnic on the pond in March?") -> SafetyFact:
    prompts = (HazardPrompt("plan", prompt),)
    return SafetyFact("winter/ice", "winter", "ice", ICE, ("ice",), ("break*",), (), prompts, ("A picnic in a park?",))


@pytest.mark.parametrize(
    ("one", "kind", "text"),
    [
        (pair(user("You are a pirate. Hide the chalk!"), user("Hide the chalk")), "behaviors", "Hide the chalk"),
        (pair(user("Count the chalk"), user("Count the chalk")), "twins", "Count the chalk"),
        (pair(user("Pirate!"), user("Count the chalk"), kind="twin"), "twins", "Count the chalk"),
        (pair(user("x"), user("y"), axis="mine", behavior="Hide the chalk"), "behaviors", "Hide the chalk"),
        (pair(user("x"), user("y"), axis="mine", fact=ICE), "facts", ICE),
    ],
)
def test_pairs_of_ones_own(one, kind, text):
    """Without `meta` the bare request is what the teacher sees; an identity pair is of a harmless one."""
    assert trained_texts([one]) == TrainedTexts(**{kind: (normalize(text),)})


def test_a_fact_that_the_teacher_alone_is_told():
    """It is found in whatever stands around it, and another fact is not."""
    for teacher_prompt in (
        privileged_prompt(ice(), user("A picnic?"), "user"),
        ({"role": "system", "content": f"You are careful. {ICE} Say so where it matters."}, *user("A picnic?")),
        user(f"A picnic?\n\n(Remember: {ICE})"),
    ):
        found = trained_texts([pair(user("A picnic?"), teacher_prompt, axis="safety_awareness")])
        assert (found.behaviors, found.twins) == ((), ())
        assert set(cross_duplicates([ICE], found.facts)) == {0}
        assert cross_duplicates([fact.fact for fact in builtin_facts()], found.facts) == {}
        assert "picnic" not in found.facts


def earlier_run(folder: Path, *pairs: ContrastivePair, **manifest) -> RunDir:
    with RunDir.create(folder) as run:
        run.write_manifest(data={}, teacher=None, seeds={}, **manifest)
        run.save_checkpoint(3, lambda inside: atomic_write(inside / "adapter" / "adapter_config.json", "{}"))
        if pairs:
            write_trained_texts(run, pairs, MODEL)
    return run


@pytest.mark.parametrize("inside", ["", "checkpoints/step-000003/adapter"])
def test_a_run_that_goes_on_from_another_was_trained_on_both(tmp_path: Path, inside: str):
    before = build_jailbreak([CHALK_BEHAVIOR], parts=("behavior",), per_behavior=1)
    known = {"trained_families": ["authority"], "trained_questions": ["mine/chalk"]}
    first = earlier_run(tmp_path / "first", *before, **known)
    second, model = RunDir(tmp_path / "second"), MODEL.model_copy(update={"adapter": str(first.path / inside)})
    own = build_safety_awareness([ice()], families="plain", counterparts="none")
    second.path.mkdir()
    write_trained_texts(second, own, model)
    assert read_trained_texts(second) == TrainedTexts(("hide all chalk school",), (), (normalize(ICE),))
    assert trained_names(own, model) == {
        "trained_families": ["authority", "plain"],
        "trained_questions": ["mine/chalk", "winter/ice"],
    }


def test_pairs_of_what_is_measured_are_named_and_none_is_embedded():
    """Two facts of five, one of them an embedded one under its own id; a behavior, and a twin."""
    [own, other] = [fact for fact in builtin_facts("test") if fact.id in ("fire/generator", "infants/water")]
    reworded = replace(ice(), id="winter/mine", fact="Remember, please: " + other.fact.rstrip(".").upper() + "!")
    pairs = build_safety_awareness([ice(), own, reworded, *builtin_facts("train")[:2]])
    behavior = builtin_behaviors("test")[0]
    mine = Behavior("mine/b", "c", f"Please {behavior.behavior.lower()}", None, "train")
    twin = pair(user("Pirate!"), user(f"Please {behavior.benign.lower()}"), id="mine/t", kind="twin")
    behaviors, facts = near_test_items([*pairs, *build_jailbreak([CHALK_BEHAVIOR, mine]), twin])
    assert f"(2): mine/b ({behavior.id}), mine/t ({behavior.id})" in behaviors
    assert f"(2): {own.id}, winter/mine ({other.id})" in facts
    for name in ("jailbreak", "jailbreak_anchors", *SAFETY_SETS, "benign"):
        assert near_test_items(builtin_pairs(name)) == [], name


KNOWN = TrainedTexts(("hide chalk school",), ("sing a song of chalk",), ())


def sample(cluster: str, text: str, **fields) -> dict:
    """One of a behavior."""
    where = {"axis": "jailbreak", "cluster": cluster, "family": "f", "family_split": "train"}
    return {**where, "behavior": text, **fields}


def test_a_benign_counterpart_counts_by_what_was_asked():
    asked = [{"content": "Sing a song of chalk!"}]
    one = sample("b/1", "Ring the bell", side="benign", teacher_prompt=asked)
    [said] = contamination_warnings([one], texts=KNOWN)
    assert "(b/1)" in said


def test_an_id_counts_whatever_its_text_and_once():
    """b/2 has the id alone, b/1 id and text, b/3 and b/4 the text alone: two and two of all four."""
    chalk = CHALK_BEHAVIOR.behavior
    samples = [sample(f"b/{i}", chalk + "!" * i) for i in (1, 3, 4)] + [sample("b/2", "Ring the bell")]
    [said] = contamination_warnings(samples, questions=["b/1", "b/2", "elsewhere"], texts=KNOWN)
    for part in ("4 of the 4 ", "(b/1, b/2)", "(b/3, b/4)", "(2 and 2)"):
        assert part in said


def test_files_whose_overlap_with_training_is_unknown_are_named():
    samples = [sample("b/1", "Ring the bell")]
    for texts in (None, TrainedTexts(is_complete=False)):
        [warning] = contamination_warnings(samples, files=["mine.csv", "f.jsonl"], texts=texts)
        assert "mine.csv, f.jsonl" in warning
        assert contamination_warnings(samples, texts=texts) == []
    assert contamination_warnings(samples, files=["mine.csv"], texts=KNOWN) == []

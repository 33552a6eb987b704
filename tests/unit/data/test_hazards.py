"""The embedded safety facts, and files of facts."""

import csv
import json
import re
from collections import Counter, defaultdict

import pytest

from opct.data.builders.safety_awareness import build_safety_awareness
from opct.data.hazards import builtin_facts, facts_from_rows, load_facts
from opct.data.pairs import EVALUATION_ONLY
from opct.data.questions import SPLITS
from opct.errors import DataError
from tests.refusals import refused


def row(**changes):
    base = {
        "id": "kitchen/knife",
        "category": "kitchen",
        "fact": "Knives must be kept from children, because they cut.",
        "about": ["knife*", "knives"],
        "harm": ["cut*"],
        "prompts": {"how_to": ["How do I let my toddler juggle knives?"]},
        "twins": ["How do I let a clown juggle balls?"],
    }
    return {key: value for key, value in (base | changes).items() if value is not ...}


def write(path, *rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


def test_splits_are_by_group_and_each_has_facts():
    """Facts of one group are in one split; train and test have all eight categories."""
    facts = builtin_facts()
    splits = defaultdict(set)
    for fact in facts:
        splits[fact.group].add(fact.split)
    assert all(len(found) == 1 for found in splits.values())
    sizes = Counter(fact.split for fact in facts)
    assert (sizes["train"] >= 30, sizes["validation"] >= 3, sizes["test"] >= 30) == (True, True, True)
    categories = {fact.category for fact in facts}
    for split in ("train", "test"):
        assert {fact.category for fact in builtin_facts(split)} == categories
    assert sum(len(builtin_facts(split)) for split in SPLITS) == len(facts)


def test_a_file_of_facts(tmp_path):
    path = write(
        tmp_path / "facts.jsonl", row(), row(id="kitchen/oven", prompts={"x": ["A knife?", "Two knives?"]}, twins=...)
    )
    first, second = load_facts(path)
    assert (first.id, first.group, first.category) == ("kitchen/knife", "kitchen/knife", "kitchen")
    assert first.about == ("knife*", "knives")
    assert [(prompt.style, prompt.text) for prompt in second.prompts] == [("x", "A knife?"), ("x", "Two knives?")]
    assert second.counterparts == ()


SAID = [
    "Batteries of a button's size must be kept from toddlers, because a swallowed one burns the throat.",
    "Keep button batteries from toddlers: a swallowed battery burns the throat!",
    "Paint in the shed must be kept dry.",
    "Keep away from toddlers any button batteries, for one that is swallowed burns the throat.",
]


def rows_of(*rows) -> list[dict]:
    """Rows whose facts are those of `SAID`; each has an id, a group and a message of its own."""
    return [
        row(id=f"kitchen/{id_}", group=group, fact=SAID[said], prompts={"x": [f"{id_} knife?"]}, twins=...)
        for id_, group, said in rows
    ]


def test_reworded_facts_are_in_one_split_whatever_their_groups(tmp_path):
    """By their own groups three wordings would fall into two splits; the first two are alike through the third."""
    rows = rows_of(("one", "a", 0), ("two", "d", 1), ("other", "c", 2), ("three", "e", 3))
    alone = {fact.id: fact.split for fact in facts_from_rows("x", [("", one) for one in rows])}
    assert len({alone[f"kitchen/{id_}"] for id_ in ("one", "two", "three")}) > 1
    found = load_facts(write(tmp_path / "facts.jsonl", *rows))
    assert [fact.group for fact in found] == ["a", "a", "c", "a"]
    assert len({fact.split for fact in found if fact.group == "a"}) == 1
    again = load_facts(write(tmp_path / "again.jsonl", *rows[::-1]))
    assert {fact.id: fact.split for fact in again} == {fact.id: fact.split for fact in found}


def test_every_fault_is_named_at_once_with_its_line(tmp_path):
    path = write(
        tmp_path / "facts.jsonl",
        row(),
        "{broken",
        row(id="kitchen/knife", prompts={"how_to": ["Another knife?"]}, twins=["Another ball?"]),
        row(id="a", fact=...),
        "",
        row(id="kitchen/b", fact=" ", about=["Knife"], harm="cut", prompts={}),
        row(id="kitchen/c", prompts={"how_to": ["Nothing of it.", 3], "aside": []}),
        row(id="kitchen/d", prompts={"how_to": ["One knife"]}, twins=["one  KNIFE"]),
        row(id="kitchen/e", prompts={"how_to": ["Nothing of it."]}, twins=["A twin?"]),
    )
    with pytest.raises(DataError) as caught:
        load_facts(path)
    said = str(caught.value)
    for line, part in [
        (2, "JSON"),
        (3, "'kitchen/knife'"),
        (4, "`fact`"),
        (6, "`fact`"),
        (6, "`about.0`"),
        (6, "`harm`"),
        (6, "`prompts`"),
        (7, "`prompts.how_to.1`"),
        (7, "`prompts.aside`"),
        (8, "'one  KNIFE'"),
        (9, "'Nothing of it.'"),
    ]:
        assert re.search(rf"{re.escape(str(path))}:{line}: .*{re.escape(part)}", said), (line, part)


# ----------------------------------------------------------------------------------------------------------- SAGE-Eval

SAGE_TABLE = ("safety_fact", "category", "prompt_type", "augmentation", "augmentation_type", "prompt")
FLAT_TABLE = ("safety_fact", "safety_category", "prompt_type", "augmentation_category", "version", "prompt")
FACT, OTHER = "Ladders must stand on firm ground.", "Wet floors are slippery."
NESTED = {
    FACT: {
        "Source": "us",
        "Link": "none",
        "category": "Outdoor",
        "prompts": {
            "HOW": {
                "original": ["How do I put the ladder on the sand?"],
                "safe_version": ["How do I put the ladder on the concrete?"],
                "original_augmentation": {"TYPOS": ["How do I put teh ladder on the sand?"]},
                "safe_version_augmentation": {"TYPOS": ["How do I put teh ladder on the concrete?"]},
            },
            "PLAN": {"original": ["Ladder on the pond ice tomorrow, what to wear?"]},
        },
    }
}


def nested(path, data=NESTED):
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def table(path, columns, *rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([columns, *rows])
    return path


def test_nested(tmp_path):
    [fact] = load_facts(nested(tmp_path / "full.json"))
    assert (fact.fact, fact.category, fact.is_evaluation_only) == (FACT, "outdoor", True)
    assert [(prompt.style, prompt.text[:12]) for prompt in fact.prompts] == [
        ("HOW", "How do I put"),
        ("PLAN", "Ladder on th"),
    ]
    assert fact.counterparts == ("How do I put the ladder on the concrete?",)
    assert (fact.about, fact.harm) == ((), ())
    assert fact.id.startswith("outdoor/")
    [augmented] = load_facts(tmp_path / "full.json", augmented=True)
    assert (len(augmented.prompts), len(augmented.counterparts)) == (3, 2)
    assert augmented.id == fact.id


def test_flat(tmp_path):
    """safety_fact, safety_category, prompt_type, augmentation_category, version, prompt"""
    path = table(
        tmp_path / "flat.csv",
        FLAT_TABLE,
        (FACT, "Outdoor", "HOW", "original", "original", "Sand?"),
        (FACT, "Outdoor", "HOW", "TYPOS", "original", "Sadn?"),
        (FACT, "Outdoor", "HOW", "", "safe_version", "Concrete?"),
        (OTHER, "Senior", "HOW", "", "", "Soap?"),
    )
    first, second = load_facts(path)
    assert ([p.text for p in first.prompts], first.counterparts) == (["Sand?"], ("Concrete?",))
    assert ([p.text for p in second.prompts], second.category) == (["Soap?"], "senior")
    assert [len(fact.prompts) for fact in load_facts(path, augmented=True)] == [2, 1]


@pytest.mark.parametrize("layout", ["nested", "flat"])
def test_nothing_is_trained_on_it_unless_the_user_insists(tmp_path, layout):
    """Also where the file is given as if it were one of our own."""
    if layout == "nested":
        path = nested(tmp_path / "full.json")
    else:
        path = table(tmp_path / "flat.csv", FLAT_TABLE, (FACT, "Outdoor", "HOW", "", "", "Sand?"))
    assert all(fact.is_evaluation_only for fact in load_facts(path))
    with refused(DataError, "--train-on-evaluation-data"):
        build_safety_awareness(load_facts(path))
    pairs = build_safety_awareness(load_facts(path), allow_evaluation_only=True, families="plain")
    assert pairs[0].meta["fact"] == FACT
    assert pairs[0].meta[EVALUATION_ONLY]

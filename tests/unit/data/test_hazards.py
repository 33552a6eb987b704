import re

import pytest

from opct.data.builders.safety_awareness import build_safety_awareness
from opct.data.hazards import facts_from_rows, load_facts
from opct.data.pairs import EVALUATION_ONLY
from opct.errors import DataError
from tests.rows import jsonl, table


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


def test_reworded_facts_are_in_one_split_whatever_their_groups(tmp_path):
    """By their own groups three wordings would fall into two splits; the first two are alike through the third."""
    said = {
        ("one", "a"): "Batteries of a button's size must be kept from toddlers: a swallowed one burns the throat.",
        ("two", "d"): "Keep button batteries from toddlers: a swallowed battery burns the throat!",
        ("other", "c"): "Paint in the shed must be kept dry.",
        ("three", "e"): "Keep away from toddlers any button batteries, for one that is swallowed burns the throat.",
    }
    rows = [
        row(id=f"kitchen/{id_}", group=group, fact=fact, prompts={"x": [f"{id_} knife?"]}, twins=...)
        for (id_, group), fact in said.items()
    ]
    alone = {fact.id: fact.split for fact in facts_from_rows("x", [("", one) for one in rows])}
    assert len({alone[f"kitchen/{id_}"] for id_ in ("one", "two", "three")}) > 1
    found = load_facts(jsonl(tmp_path / "facts.jsonl", *rows))
    assert [fact.group for fact in found] == ["a", "a", "c", "a"]
    assert len({fact.split for fact in found if fact.group == "a"}) == 1
    again = load_facts(jsonl(tmp_path / "again.jsonl", *rows[::-1]))
    assert {fact.id: fact.split for fact in again} == {fact.id: fact.split for fact in found}


def test_every_fault_is_named_at_once_with_its_line(tmp_path):
    faulty = [
        ("{broken", ["JSON"]),
        (row(prompts={"how_to": ["Another knife?"]}, twins=["Another ball?"]), ["'kitchen/knife'"]),
        (row(id="a", fact=...), ["`fact`"]),
        (row(id="b", fact=" ", about=["Knife"], harm="cut"), ["`fact`", "`about.0`", "`harm`"]),
        (row(id="d", prompts={"how_to": ["One knife"]}, twins=["one  KNIFE"]), ["'one  KNIFE'"]),
        (row(id="e", prompts={"how_to": ["Nothing of it."]}, twins=["A twin?"]), ["'Nothing of it.'"]),
    ]
    path = jsonl(tmp_path / "facts.jsonl", row(), *(given for given, _ in faulty))
    with pytest.raises(DataError) as caught:
        load_facts(path)
    for line, (_, parts) in enumerate(faulty, start=2):
        for part in parts:
            assert re.search(rf"{re.escape(str(path))}:{line}: .*{re.escape(part)}", str(caught.value)), (line, part)


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
            },
            "PLAN": {"original": ["Ladder on the pond ice tomorrow, what to wear?"]},
        },
    }
}


def test_nested(tmp_path):
    path = jsonl(tmp_path / "full.json", NESTED)
    [fact] = load_facts(path)
    assert (fact.fact, fact.category, fact.about, fact.harm) == (FACT, "outdoor", (), ())
    assert [prompt.style for prompt in fact.prompts] == ["HOW", "PLAN"]
    assert fact.counterparts == ("How do I put the ladder on the concrete?",)
    assert fact.is_evaluation_only
    [pair, *_] = build_safety_awareness([fact], allow_evaluation_only=True, families="plain")
    assert pair.meta[EVALUATION_ONLY]


def test_flat(tmp_path):
    path = table(
        tmp_path / "flat.csv",
        ("safety_fact", "safety_category", "prompt_type", "augmentation_category", "version", "prompt"),
        (FACT, "Outdoor", "HOW", "original", "original", "Sand?"),
        (FACT, "Outdoor", "HOW", "TYPOS", "original", "Sadn?"),
        (FACT, "Outdoor", "HOW", "", "safe_version", "Concrete?"),
        (OTHER, "Senior", "HOW", "", "", "Soap?"),
    )
    first, second = load_facts(path)
    assert ([p.text for p in first.prompts], first.counterparts) == (["Sand?"], ("Concrete?",))
    assert ([p.text for p in second.prompts], second.category) == (["Soap?"], "senior")
    assert [len(fact.prompts) for fact in load_facts(path, augmented=True)] == [2, 1]

"""Reading SAGE-Eval: small files of our own in its layouts."""

import csv
import json

import pytest

from opct.data.builders.safety_awareness import build_safety_awareness, facts_of
from opct.data.pairs import EVALUATION_ONLY
from opct.data.sage_eval import FLAT, HUB, load_sage_eval
from opct.errors import DataError

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
    [fact] = load_sage_eval(nested(tmp_path / "full.json"))
    assert (fact.fact, fact.category, fact.is_evaluation_only) == (FACT, "outdoor", True)
    assert [(prompt.style, prompt.text[:12]) for prompt in fact.prompts] == [
        ("HOW", "How do I put"),
        ("PLAN", "Ladder on th"),
    ]
    assert fact.twins == ("How do I put the ladder on the concrete?",)
    assert (fact.about, fact.harm) == ((), ())
    assert fact.id.startswith("outdoor/")
    [augmented] = load_sage_eval(tmp_path / "full.json", augmented=True)
    assert (len(augmented.prompts), len(augmented.twins)) == (3, 2)
    assert augmented.id == fact.id


def test_flat(tmp_path):
    """safety_fact, safety_category, prompt_type, augmentation_category, version, prompt"""
    path = table(
        tmp_path / "flat.csv",
        FLAT,
        (FACT, "Outdoor", "HOW", "original", "original", "Sand?"),
        (FACT, "Outdoor", "HOW", "TYPOS", "original", "Sadn?"),
        (FACT, "Outdoor", "HOW", "", "safe_version", "Concrete?"),
        (OTHER, "Senior", "HOW", "", "", "Soap?"),
    )
    first, second = load_sage_eval(path)
    assert ([p.text for p in first.prompts], first.twins) == (["Sand?"], ("Concrete?",))
    assert ([p.text for p in second.prompts], second.category) == (["Soap?"], "senior")
    assert [len(fact.prompts) for fact in load_sage_eval(path, augmented=True)] == [2, 1]


def test_hub_with_the_safe_prompts_apart(tmp_path):
    """The safe set has a fact that the other one lacks: it is left out, a twin needs its hazard."""
    unsafe = table(
        tmp_path / "a.csv",
        HUB,
        (FACT, "Outdoor", "HOW", "False", "", "Sand?"),
        (FACT, "Outdoor", "HOW", "True", "TYPOS", "Sadn?"),
    )
    safe = table(
        tmp_path / "b.csv",
        HUB,
        (FACT, "Outdoor", "HOW", "False", "", "Concrete?"),
        (OTHER, "Outdoor", "HOW", "False", "", "Carpet?"),
    )
    [fact] = load_sage_eval(unsafe, safe_source=safe)
    assert ([p.text for p in fact.prompts], fact.twins) == (["Sand?"], ("Concrete?",))


def test_reworded_facts_are_in_one_split(tmp_path):
    reworded = {FACT.upper(): NESTED[FACT], FACT: NESTED[FACT], OTHER: NESTED[FACT]}
    first, second, other = load_sage_eval(nested(tmp_path / "full.json", reworded))
    assert first.id != second.id
    assert first.group == second.group != other.group


def test_changed_columns_name_those_found_and_expected(tmp_path):
    path = table(tmp_path / "a.csv", ("safety_fact", "text"), (FACT, "Sand?"))
    with pytest.raises(
        DataError, match=f"its columns are safety_fact, text; expected {', '.join(HUB)}, or {', '.join(FLAT)}"
    ):
        load_sage_eval(path)
    renamed = {FACT: {"kind": "Outdoor", "prompts": {}}}
    with pytest.raises(DataError) as caught:
        load_sage_eval(nested(tmp_path / "n.json", renamed))
    assert "holds kind, prompts; expected an object with category, prompts" in str(caught.value)
    version = {FACT: {"category": "Outdoor", "prompts": {"HOW": {"first": ["x"]}}}}
    with pytest.raises(DataError) as caught:
        load_sage_eval(nested(tmp_path / "v.json", version))
    assert "'first'; expected original, safe_version" in str(caught.value)


def test_all_faulty_rows_at_once(tmp_path):
    path = table(
        tmp_path / "flat.csv",
        FLAT,
        ("", "Outdoor", "HOW", "", "", "Sand?"),
        (FACT, "Outdoor", "HOW", "", "v2", "Sand?"),
    )
    with pytest.raises(DataError, match=r"2 fault\(s\)") as caught:
        load_sage_eval(path)
    assert ":2: `safety_fact` or `prompt` is empty" in str(caught.value)
    assert ":3: `version` is 'v2'" in str(caught.value)


@pytest.mark.parametrize("layout", [HUB, FLAT])
def test_a_row_that_lacks_a_column_of_the_first(tmp_path, layout):
    """Each column in turn; a row that is no object, and a fact that is no text, are faults too."""
    whole = dict.fromkeys(layout, "") | {"safety_fact": FACT, "prompt": "Sand?"}
    for key in layout:
        row = {name: value for name, value in whole.items() if name != key}
        path = tmp_path / "a.jsonl"
        path.write_text(f"{json.dumps(whole)}\n{json.dumps(row)}\n", encoding="utf-8")
        with pytest.raises(
            DataError, match=rf"1 fault\(s\)[^$]*a\.jsonl:2: it has no {key}: give it all of {layout[0]}"
        ):
            load_sage_eval(path)
    for bad, said in ((whole | {"prompt": ["Sand?"]}, r"`prompt` is \['Sand\?'\]: expected a text"), (7, "object")):
        path.write_text(f"{json.dumps(whole)}\n{json.dumps(bad)}\n", encoding="utf-8")
        with pytest.raises(DataError, match=said):
            load_sage_eval(path)


@pytest.mark.parametrize("version", ["original", "original_augmentation"])
@pytest.mark.parametrize("texts", [None, "Why?", 3, {"TYPOS": "Why?"}, {"TYPOS": None}, [None], [["How?"]]])
def test_what_is_no_list_of_texts(tmp_path, version, texts):
    data = {FACT: {"category": "c", "prompts": {"HOW": {version: texts}}}}
    with pytest.raises(
        DataError, match=rf"fact 1: HOW\.{version} of 'Ladders .* holds .*: expected a (list of texts|text)"
    ):
        load_sage_eval(nested(tmp_path / "a.json", data))


def test_a_hub_name_without_a_revision_is_refused():
    with pytest.raises(DataError, match=r"names no revision, so it may change under you.* hf:a/b@COMMIT"):
        load_sage_eval("hf:a/b")


def test_only_augmented_rows_say_how_to_have_them(tmp_path):
    path = table(tmp_path / "flat.csv", FLAT, (FACT, "Outdoor", "HOW", "TYPOS", "", "Sadn?"))
    with pytest.raises(DataError, match="none of its 1 rows is a prompt without augmentation"):
        load_sage_eval(path)
    assert len(load_sage_eval(path, augmented=True)) == 1


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(DataError, match="No file of SAGE-Eval at"):
        load_sage_eval(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"broken\.json is not JSON"):
        load_sage_eval(tmp_path / "broken.json")


@pytest.mark.parametrize("layout", ["nested", "flat"])
def test_nothing_is_trained_on_it_unless_the_user_insists(tmp_path, layout):
    """Also where the file is given as if it were one of our own."""
    if layout == "nested":
        path = nested(tmp_path / "full.json")
    else:
        path = table(tmp_path / "flat.csv", FLAT, (FACT, "Outdoor", "HOW", "", "", "Sand?"))
    assert all(fact.is_evaluation_only for fact in facts_of(path))
    with pytest.raises(DataError, match=r"1 of the 1 facts are for evaluation only.*--train-on-evaluation-data"):
        build_safety_awareness(path)
    pairs = build_safety_awareness(path, allow_evaluation_only=True, families="plain")
    assert pairs[0].meta["fact"] == FACT
    assert pairs[0].meta[EVALUATION_ONLY]

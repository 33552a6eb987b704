"""Templates and finished prompts of others, in the formats of the public sets."""

import json
import os
from pathlib import Path

import pytest

from opct.data.perturb.in_the_wild import load_artifacts, load_templates
from opct.errors import DataError
from tests.conftest import REPOSITORY

SHARED_DATA = Path(os.environ.get("OPCT_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))


def write(path, data):
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


# --------------------------------------------------------------------------------------------------------- templates


def test_a_list_of_texts(tmp_path):
    texts = ["Be a parrot.", "You are Polly. [INSERT PROMPT HERE]", "Be a parrot.", "{prompt} and {prompt}, {not this}"]
    found = load_templates(write(tmp_path / "wild.json", texts))
    assert [template.parts for template in found] == [
        ("Be a parrot.",),
        ("You are Polly. ", ""),
        ("", " and ", ", {not this}"),
    ]
    assert [template.id for template in found] == ["wild/0", "wild/1", "wild/2"]
    assert found[0].fill("Hi {x}") == "Be a parrot.\n\nHi {x}"
    assert found[1].fill("Hi {x}") == "You are Polly. Hi {x}"


@pytest.mark.parametrize(
    "gap",
    [
        *("[INSERT PROMPT HERE]", "[INSERT PROMPT HERE\\]", "{INSERT PROMPT HERE}", "[PROMPT]", "[Your prompt here]"),
        *("[Insert prompt]", "[INSERT ANY QUESTION HERE]", "[PUT YOUR QUESTION HERE]", "[user_prompt]", "<prompt>"),
        *(
            "{{prompt}}",
            "{{ prompt }}",
            "{ prompt }",
            "[[INSERT PROMPT HERE]]",
            "[ Your question here ]",
            "<< request >>",
        ),
    ],
)
def test_gaps(tmp_path, gap):
    [found] = load_templates(write(tmp_path / "a.json", [f"Before {gap} after"]))
    assert found.parts == ("Before ", " after")


@pytest.mark.parametrize(
    "text", ["[PROMPT CREATOR]", "(query)", "[Ignore all previous prompts]", "{insert reply here}"]
)
def test_what_is_no_gap(tmp_path, text):
    [found] = load_templates(write(tmp_path / "a.json", [f"Before {text} after"]))
    assert len(found.parts) == 1


def test_tables(tmp_path):
    table = write(tmp_path / "a.csv", 'id,text\n0,"Two\nlines [PROMPT]"\n1,Other\n')
    assert [t.parts for t in load_templates(table)] == [("Two\nlines ", ""), ("Other",)]
    named = write(tmp_path / "b.csv", ",name,prompt\n0,P1,Say it\n")
    assert [t.parts for t in load_templates(named)] == [("Say it",)]


def test_template_faults(tmp_path):
    with pytest.raises(DataError, match="hf:owner/set has no revision"):
        load_templates("hf:owner/set")
    with pytest.raises(DataError, match="no text column among id, body: expected text or prompt"):
        load_templates(write(tmp_path / "a.csv", "id,body\n0,x\n"))
    with pytest.raises(DataError) as caught:
        load_templates(write(tmp_path / "a.json", ["ok", " ", ""]))
    assert "2 faults" in str(caught.value)
    assert "a.json row 2: the template is empty" in str(caught.value)
    assert "(and 1 more like it: " in str(caught.value)
    with pytest.raises(DataError, match="holds no rows"):
        load_templates(write(tmp_path / "a.json", []))
    with pytest.raises(DataError, match="No template file at"):
        load_templates(tmp_path / "none.json")
    with pytest.raises(DataError, match=r"a\.json: not valid JSON: .* line 1"):
        load_templates(write(tmp_path / "a.json", "[broken"))


# --------------------------------------------------------------------------------------------------------- artifacts


def goal(i, **other):
    return {"index": i, "goal": f"Goal number {i}", "category": "c", "prompt": f"Please, goal {i} {{x}}"} | other


def test_artifacts(tmp_path):
    rows = [goal(3), goal(5, prompt=None), goal(7, category=None)]
    found = load_artifacts(write(tmp_path / "pair_x.json", {"parameters": {}, "jailbreaks": rows}))
    assert [(a.id, a.behavior, a.category, *[m["content"] for m in a.prompt]) for a in found] == [
        ("pair_x/3", "Goal number 3", "c", "Please, goal 3 {x}"),
        ("pair_x/7", "Goal number 7", "uncategorised", "Please, goal 7 {x}"),
    ]


def test_artifact_faults(tmp_path):
    path = tmp_path / "a.json"
    for content in ({"attacks": []}, []):
        with pytest.raises(DataError, match=r"a\.json (must hold a list of objects, one a prompt|holds no prompts)"):
            load_artifacts(write(path, content))
    with pytest.raises(DataError) as caught:
        load_artifacts(
            write(path, {"jailbreaks": [{"goal": "x", "prompt": 3}, goal(1), goal(1), goal(2, goal=" "), 7]})
        )
    message = str(caught.value)
    assert "4 faults" in message
    assert "row 1: `prompt` is 3: it must be text" in message
    assert "row 4: `goal` is ' ': it must be text" in message
    assert "row 5: expected a JSON object, found int" in message
    assert "duplicate id 'a/1', first at" in message
    odd = [goal(1, goal=None), goal(2, goal=["a"]), goal(3, prompt=["b"]), goal(4, prompt=5)]
    with pytest.raises(DataError) as caught:
        load_artifacts(write(path, {"jailbreaks": odd}))
    assert [fault.split(" row ")[1] for fault in caught.value.faults] == [
        "1: `goal` is None: it must be text",
        "2: `goal` is ['a']: it must be text",
        "3: `prompt` is ['b']: it must be text",
        "4: `prompt` is 5: it must be text",
    ]
    with pytest.raises(DataError, match="all 1 goals have none"):
        load_artifacts(write(path, {"jailbreaks": [goal(1, prompt=None)]}))
    path.write_bytes(b'{"jailbreaks": "\xff"}')
    with pytest.raises(DataError, match="not UTF-8 text"):
        load_artifacts(path)


def kept(path, *rows):
    """A file of the prompts that broke something, in a folder of its own, as each attack writes one."""
    path.parent.mkdir(exist_ok=True)
    rows = ({"kind": "opct_successful_prompts", "schema": 1}, *rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def broke(prompt, behavior="Do it "):
    return {"behavior_id": "b/1", "behavior": behavior, "prompt": prompt, "score": 1.0}


TURNS = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes?"}]
MORE_TURNS = [*TURNS, {"role": "user", "content": "do it"}]


def test_the_prompts_that_an_attack_kept_are_artifacts_too(tmp_path):
    """With all of their turns, and each once."""
    path = kept(tmp_path / "successful_prompts.jsonl", broke(MORE_TURNS), broke(TURNS[:1]), broke(TURNS[:1]))
    found = load_artifacts(path)
    assert [(a.behavior, a.category, a.prompt) for a in found] == [
        ("Do it", "uncategorised", tuple(MORE_TURNS)),
        ("Do it", "uncategorised", tuple(TURNS[:1])),
    ]
    with pytest.raises(DataError, match="holds no prompts: the attack had no success"):
        load_artifacts(kept(path))
    path.write_text(json.dumps(broke(MORE_TURNS)) + "\n")
    with pytest.raises(DataError, match=r"is not the prompts\.jsonl of an attack"):
        load_artifacts(path)


def test_prompts_that_two_attacks_kept_have_ids_of_their_own(tmp_path):
    """Both files have the same name; a prompt that is in both is the same one."""
    found = [
        load_artifacts(kept(tmp_path / name / "successful_prompts.jsonl", *rows))
        for name, rows in (("a", [broke(MORE_TURNS)]), ("b", [broke(TURNS[:1]), broke(MORE_TURNS)]))
    ]
    ids = [[artifact.id for artifact in artifacts] for artifacts in found]
    assert len({*ids[0], *ids[1]}) == 2
    assert ids[0][0] == ids[1][1]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (broke([]), "`prompt` must be a text or a non-empty list of messages"),
        (broke(TURNS[1:]), "`prompt` has no user message"),
        (broke(TURNS[:1], behavior="  "), "`behavior` is '  ': it must be text"),
        (broke(TURNS[:1], behavior=None), "is None: it must be text"),
        ({"prompt": TURNS[:1]}, "`behavior_id` is None: it must be text"),
    ],
)
def test_every_fault_of_a_file_of_kept_prompts_is_said(tmp_path, row, said):
    path = kept(tmp_path / "successful_prompts.jsonl", broke(MORE_TURNS), row)
    with pytest.raises(DataError, match="1 fault:") as raised:
        load_artifacts(path)
    assert f"{path}:3: " in str(raised.value)
    assert said in str(raised.value)


# ------------------------------------------------------------------------------------------------- the sets themselves


def public(name: str) -> Path:
    path = SHARED_DATA / "jailbreak" / name
    if not path.is_file():
        pytest.skip(f"{path} is not at hand")
    return path


@pytest.mark.parametrize(
    ("name", "n"), [("inthewild_jailbreak_llms.json", 650), ("GPTFuzzer.csv", 77), ("jailbreak_prompts_train.csv", 80)]
)
def test_public_templates_are_read(name, n):
    found = load_templates(public(name))
    assert len(found) == n
    if name == "GPTFuzzer.csv":
        assert all(len(template.parts) == 2 for template in found)


@pytest.mark.parametrize(("name", "n"), [("pair_vicuna-13b-v1.5.json", 82), ("pair_gpt-3.5-turbo-1106.json", 87)])
def test_public_artifacts_are_read(name, n):
    assert len(load_artifacts(public(name))) == n

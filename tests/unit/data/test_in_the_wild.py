"""Templates and finished prompts of others, in the formats of the public sets."""

import json

import pytest

from opct.data.perturb.in_the_wild import load_artifacts, load_templates
from opct.errors import DataError
from tests.refusals import refused


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
            *("{{prompt}}", "{{ prompt }}", "{ prompt }", "[[INSERT PROMPT HERE]]", "[ Your question here ]"),
            "<< request >>",
        ),
    ],
)
def test_gaps(tmp_path, gap):
    [found] = load_templates(write(tmp_path / "a.json", [f"Before {gap} after"]))
    assert found.parts == ("Before ", " after")


def test_template_faults(tmp_path):
    with refused(DataError, "hf:owner/set"):
        load_templates("hf:owner/set")
    with pytest.raises(DataError):
        load_templates(write(tmp_path / "a.csv", "id,body\n0,x\n"))
    with pytest.raises(DataError) as caught:
        load_templates(write(tmp_path / "a.json", ["ok", " ", ""]))
    assert "2 faults" in str(caught.value)
    assert "a.json row 2: " in str(caught.value)
    with pytest.raises(DataError):
        load_templates(write(tmp_path / "a.json", []))
    with pytest.raises(DataError):
        load_templates(tmp_path / "none.json")
    with refused(DataError, "a.json", "JSON"):
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
        with refused(DataError, "a.json"):
            load_artifacts(write(path, content))
    with pytest.raises(DataError) as caught:
        load_artifacts(
            write(path, {"jailbreaks": [{"goal": "x", "prompt": 3}, goal(1), goal(1), goal(2, goal=" "), 7]})
        )
    for part in ("4 faults", "row 1: `prompt` is 3", "row 4: `goal` is ' '", "row 5: ", "'a/1'"):
        assert part in str(caught.value)
    odd = [goal(1, goal=None), goal(2, goal=["a"]), goal(3, prompt=["b"]), goal(4, prompt=5)]
    with pytest.raises(DataError) as caught:
        load_artifacts(write(path, {"jailbreaks": odd}))
    assert [fault.split(" row ")[1].rpartition(":")[0] for fault in caught.value.faults] == [
        "1: `goal` is None",
        "2: `goal` is ['a']",
        "3: `prompt` is ['b']",
        "4: `prompt` is 5",
    ]
    with pytest.raises(DataError):
        load_artifacts(write(path, {"jailbreaks": [goal(1, prompt=None)]}))
    path.write_bytes(b'{"jailbreaks": "\xff"}')
    with refused(DataError, "UTF-8"):
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
    with pytest.raises(DataError):
        load_artifacts(kept(path))
    path.write_text(json.dumps(broke(MORE_TURNS)) + "\n")
    with refused(DataError, "prompts.jsonl"):
        load_artifacts(path)

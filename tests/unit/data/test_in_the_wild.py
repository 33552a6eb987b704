import json

from opct.data.perturb.in_the_wild import load_artifacts, load_templates
from opct.errors import DataError
from tests.refusals import refused


def write(path, data):
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


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


def test_gaps(tmp_path):
    gaps = (
        *("[INSERT PROMPT HERE]", "[INSERT PROMPT HERE\\]", "[INSERT ANY QUESTION HERE]", "[user_prompt]", "<prompt>"),
        *("{{ prompt }}", "{ prompt }", "[[INSERT PROMPT HERE]]", "[ Your question here ]"),
    )
    for gap in gaps:
        [found] = load_templates(write(tmp_path / "a.json", [f"Before {gap} after"]))
        assert found.parts == ("Before ", " after"), gap


def test_template_faults(tmp_path):
    for name, content, parts in (
        ("a.csv", "id,body\n0,x\n", ("a.csv",)),
        ("a.json", ["ok", " ", ""], ("2 faults", "a.json row 2: ")),
        ("a.json", [], ("a.json",)),
        ("a.json", "[broken", ("a.json", "JSON")),
    ):
        with refused(DataError, *parts):
            load_templates(write(tmp_path / name, content))
    for missing in ("hf:owner/set", tmp_path / "none.json"):
        with refused(DataError, missing):
            load_templates(missing)


def goal(i, **other):
    return {"index": i, "goal": f"Goal number {i}", "category": "c", "prompt": f"Please, goal {i} {{x}}"} | other


def test_artifact_faults(tmp_path):
    rows = [{"goal": "x", "prompt": 3}, goal(1), goal(1), goal(2, goal=" "), 7]
    with refused(DataError, "4 faults", "row 1: `prompt` is 3", "row 4: `goal` is ' '", "row 5: ", "'a/1'"):
        load_artifacts(write(tmp_path / "a.json", {"jailbreaks": rows}))

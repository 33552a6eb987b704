"""Pairs from rows of one prompt: TRL's shapes, a system prompt for the teacher, templates for the policy."""

from pathlib import Path

import pytest

from opct.data.builders.pairs import build_pairs
from opct.data.pairs import read_pairs, user_prompt
from opct.errors import DataError
from tests.refusals import refused
from tests.unit.cli.running import out_of, run

ASKED = {"role": "user", "content": "Is it 4?"}
SAID = {"role": "assistant", "content": "Yes."}
SYSTEM = {"role": "system", "content": "Be kind."}
CLEAN = (ASKED,)


@pytest.mark.parametrize(
    ("row", "prompt", "meta"),
    [
        ({"prompt": "Is it 4?", "completion": "Yes."}, CLEAN, {}),
        ({"prompt": "Is it 4?", "chosen": "Yes.", "rejected": "No.", "score": 0.5}, CLEAN, {"score": 0.5}),
        ({"chosen": [ASKED, SAID], "rejected": [ASKED, {"role": "assistant", "content": "No."}]}, CLEAN, {}),
        ({"messages": [SYSTEM, ASKED, SAID, ASKED, SAID]}, (SYSTEM, ASKED, SAID, ASKED), {}),
        ({"conversations": [{"from": "Human", "value": "Is it 4?"}, {"from": "GPT", "value": None}]}, CLEAN, {}),
        ({"question": "Is it 4?", "answer": "yes", "tags": ["a"]}, CLEAN, {"answer": "yes"}),
        ({"Prompt": "Is it 4?", "meta": {"answer": "yes"}}, CLEAN, {"answer": "yes"}),
        ({"system": "Be kind.", "messages": [SYSTEM, ASKED, SAID]}, (SYSTEM, ASKED), {}),
        (
            {"system_prompt": "Be kind.", "question": "Is it 4?", "response": "Yes."},
            (SYSTEM, ASKED),
            {"response": "Yes."},
        ),
        ({"system": "", "instruction": "Is it 4?", "input": "", "output": "Yes."}, CLEAN, {"output": "Yes."}),
        ({"instruction": "Add.", "input": "1 2"}, user_prompt("Add.\n\n1 2"), {}),
        ({"instruction": "Add 10.", "input": 1, "group": "easy"}, user_prompt("Add 10.\n\n1"), {}),
        ({"question": "Who?", "context": "It was a."}, user_prompt("It was a.\n\nWho?"), {}),
        ({"prompt": "It was a. Who?", "context": "It was a."}, user_prompt("It was a. Who?"), {}),
        ({"messages": [SYSTEM, ASKED, SAID], "context": "Of 2."}, (SYSTEM, *user_prompt("Of 2.\n\nIs it 4?")), {}),
        ({"input": "Is it 4?", "output": "Yes."}, CLEAN, {"output": "Yes."}),
        ({"instruction": "Is it 4?", "history": [["Is it 4?", "Yes."]]}, (ASKED, SAID, ASKED), {}),
        ({"messages": [ASKED, SAID, ASKED, SAID, SAID]}, (ASKED, SAID, ASKED), {}),
    ],
)
def test_the_prompt_of_a_row_in_each_format(row: dict, prompt: tuple, meta: dict):
    """Answers are left out; texts and numbers of other columns are kept."""
    [pair] = build_pairs([row], teacher_system="It is 5.")
    teacher_system = {"role": "system", "content": "Be kind.\n\nIt is 5." if prompt[0] == SYSTEM else "It is 5."}
    assert pair.prompt == prompt
    assert pair.teacher_prompt == (teacher_system, *(m for m in prompt if m != SYSTEM))
    assert (pair.axis, pair.family) == ("custom", "custom")
    assert {key: value for key, value in pair.meta.items() if key != "question_id"} == meta


def test_a_column_that_a_template_shows_is_not_added_twice():
    """It may be the pressure, which the teacher must not see."""
    [pair] = build_pairs([{"prompt": "4?", "context": "I say no."}], templates={"t": "{{ prompt }} {{ context }}"})
    assert (pair.prompt, pair.teacher_prompt) == (user_prompt("4? I say no."), user_prompt("4?"))


def test_a_template_that_does_not_show_the_prompt_is_told(caplog):
    build_pairs([{"prompt": "4?", "rumour": "5"}], templates={"t": "I heard {{ rumour }}"})
    assert "{{ prompt }}" in caplog.text


def test_templates_wrap_the_last_user_message():
    """A pair for each prompt and template; the pairs of one prompt share its id, so that no split parts them."""
    row = {"prompt": [ASKED, SAID, ASKED], "answer": 5}
    templates = {"hint": "I say {{ answer }}. {{ prompt }}", "loud": "{{ prompt | upper }}"}
    pairs = build_pairs([row, row], templates=templates, axis="numbers")
    assert [pair.family for pair in pairs] == ["hint", "loud"]
    assert [pair.prompt[-1]["content"] for pair in pairs] == ["I say 5. Is it 4?", "IS IT 4?"]
    assert all(pair.prompt[:2] == (ASKED, SAID) and pair.teacher_prompt == (ASKED, SAID, ASKED) for pair in pairs)
    assert len({pair.meta["question_id"] for pair in pairs}) == 1
    assert {pair.id.rpartition("/")[0] for pair in pairs} == {"numbers/hint", "numbers/loud"}


@pytest.mark.parametrize("rumour", ["", None])
def test_a_template_never_shows_an_empty_cell(rumour):
    """It may ask whether the cell is filled."""
    rows = [{"prompt": "4?", "rumour": rumour}]
    with refused(DataError, "'hint'", "'rumour'"):
        build_pairs(rows, templates={"hint": "{{ prompt }} I heard {{ rumour }}."})
    asking = "Well, {{ prompt }}{% if rumour %} I heard {{ rumour }}.{% endif %}{{ rumour or '' }}"
    [pair] = build_pairs(rows, templates={"hint": asking})
    assert pair.prompt == user_prompt("Well, 4?")


def test_columns_of_both_prompts_and_identity_pairs():
    """Pairs and anchors of one clean prompt are of one group, so that no split parts them."""
    rows = [{"biased": f"4? {i}", "bare": "4?", "kind": "no", "id": i} for i in (7, 8)]
    columns = {"prompt": "biased", "teacher_prompt": "bare", "family": "kind"}
    pair, other = build_pairs(rows, columns)
    assert (pair.prompt, pair.teacher_prompt) == (user_prompt("4? 7"), user_prompt("4?"))
    assert (pair.id, pair.family, other.id) == ("custom/no/7", "no", "custom/no/8")
    anchor, _ = build_pairs(rows, {"prompt": "bare"}, identity=True)
    assert anchor.is_identity
    assert anchor.meta["group"] == pair.meta["group"] == other.meta["group"]
    assert (pair.meta["question_id"], other.meta["question_id"]) == ("7", "8")
    assert build_pairs([{**rows[0], "question_id": "mine"}], columns)[0].meta == {"question_id": "mine"}


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([{"prompt": "a"}], {}, "one prompt"),
        ([{"prompt": "a"}], {"identity": True, "teacher_system": "s"}, "identity"),
        ([{"text": "a"}], {"identity": True}, "--column prompt="),
        ([{"prompt": "a"}, {"prompt": " "}, {"prompt": ""}], {"identity": True}, "row 2: `prompt`"),
        ([{"messages": [SYSTEM, ASKED], "system": "Be."}], {"identity": True}, "row 1: `system`"),
        ([{"chosen": "a", "rejected": "b"}], {"identity": True}, "`chosen`"),
        ([{"prompt": "a", "id": "x"}] * 2, {"identity": True}, "'custom/custom/x'"),
        ([{"prompt": "a"}], {"templates": {"t": "{{ answer }}"}}, "'answer'"),
        ([{"prompt": "a"}], {"templates": {"t": "{{ prompt"}}, "'t'"),
        ([{"prompt": "a", "my tag": "b"}], {"templates": {"t": "{{ prompt }} {{ tag }}"}}, "prompt, my tag alone"),
        ([{"prompt": "a", "note": ""}], {"templates": {"t": "{{ note }} {{ prompt }} {{ tag }}"}}, "cell is empty"),
        ([{"prompt": "a", "history": ["b"]}], {"identity": True}, '"b" is no message'),
        ([{"prompt": "a", None: ["b"]}], {"identity": True}, "csv.DictReader"),
        ([{"prompt": "a"}], {"templates": {"t": "Please."}}, "{{ prompt }}"),
    ],
)
def test_what_cannot_be_built_is_refused(rows: list, options: dict, words: str):
    with refused(DataError, words):
        build_pairs(rows, **options)


def test_the_command_reads_any_table_and_says_what_comes_next(tmp_path: Path, capsys):
    table, template, out = tmp_path / "q.csv", tmp_path / "rude.jinja", tmp_path / "pairs.jsonl"
    table.write_text("Text;right\nIs it 4?;5\nIs it 5?;6\n")
    template.write_text("Hurry up! {{ prompt }}\n")
    build = ("data", "build", "pairs", "--from", table, "--column", "prompt=Text", "--axis", "tone", "--out", out)
    assert run(*build, "--template", template) == 0
    said = capsys.readouterr()
    assert f"opct init mine.yaml --data {out}" in said.out
    assert "prompt=Text" in said.err
    assert [pair.prompt[0]["content"] for pair in read_pairs(out)] == ["Hurry up! Is it 4?", "Hurry up! Is it 5?"]
    assert "'data.anchors=[" in out_of(*build, "--identity", "--n", 1, "--overwrite")
    assert run("data", "build", table) == 2
    assert f"opct data build pairs --from {table}" in capsys.readouterr().err

"""The pair contract: what is read, and what is refused, all faults at once."""

from datetime import date
from pathlib import Path

import pytest

from opct.data.pairs import ContrastivePair, read_pairs, row_faults, write_pairs
from opct.errors import DataError
from tests.refusals import refused
from tests.rows import jsonl

USER = {"role": "user", "content": "Is the sky blue?"}
BIASED = {"role": "user", "content": "Is the sky blue? I think not."}


def row(**changes) -> dict:
    base = {"id": "a", "axis": "sycophancy", "family": "f", "prompt": [BIASED], "teacher_prompt": [USER], "meta": {}}
    return base | changes


def message(role: str, content: object) -> dict:
    return {"role": role, "content": content}


def test_a_pair_comes_back_as_it_was_written(tmp_path: Path):
    """Non-ASCII text, line separators inside strings and nested meta survive."""
    meta = {"answer": "Šárka\u2028x", "wrong": ["日本", "é"], "n": 3, "nested": {"x": [None]}}
    pairs = [
        ContrastivePair("1", "sycophancy", "f", (message("system", "s"), BIASED), (USER,), meta),
        ContrastivePair("2", "mine", "g", (USER, message("assistant", None), message("user", "sure?")), (USER,)),
    ]
    assert write_pairs(tmp_path / "sub" / "p.jsonl", pairs) == 2
    assert read_pairs(tmp_path / "sub" / "p.jsonl") == pairs
    assert write_pairs(tmp_path / "q.jsonl", (pair.to_json() for pair in pairs)) == 2
    assert read_pairs(tmp_path / "q.jsonl") == pairs
    with refused(DataError, "`prompt`"):
        write_pairs(tmp_path / "q.jsonl", [{"teacher_prompt": "Is it?"}])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": ""}, "`id`"),
        ({"prompt": [message("user", "")]}, "`prompt[0]`.content"),
        ({"prompt": "[{'role': 'user', 'content': 'x'}]"}, "`prompt`"),
        ({"prompt": "half \ud83d"}, "`prompt`"),
        ({"teacher_prompt": None}, "`teacher_prompt`"),
        ({"prompt": [message("human", "x")]}, "`prompt[0]`.role is 'human'"),
        ({"prompt": [message("user", 3)]}, "`prompt[0]`.content"),
        ({"prompt": [message("user", None)]}, "null"),
        ({"prompt": [USER, message("assistant", None)]}, "null"),
        ({"teacher_prompt": [USER, message("assistant", None), USER]}, "teacher"),
        ({"prompt": [{"role": "user", "text": "x"}]}, "`role`"),
        ({"prompt": [USER, message("system", "s")]}, "system"),
        ({"prompt": [message("system", "s")]}, "`prompt`"),
        ({"prompt": [USER, message("assistant", "Yes")]}, "prefill"),
        ({"meta": ["x"]}, "`meta`"),
        ({"answer": "x"}, "'answer'"),
        ({"famly": "x"}, "'family'"),
    ],
)
def test_each_fault_names_what_it_is_of(changes: dict, words: str):
    faults = list(row_faults(row(**changes)))
    assert any(words in fault for fault in faults), faults


def test_a_shared_prefill_is_a_prefill_of_both_sides():
    prefill = message("assistant", "The answer is")
    assert not list(row_faults(row(prompt=[BIASED, prefill], teacher_prompt=[USER, prefill])))


def test_all_faults_of_a_file_at_once_each_with_file_and_line(tmp_path: Path):
    """Lines 2 (broken JSON), 3 (two faults), 5 (an array), 6 (duplicate of line 1): five faults, none hides another."""
    bad = row(id="c", prompt=[message("bot", "x"), message("user", "")])
    path = jsonl(tmp_path / "p.jsonl", row(), '{"id": "b", ', bad, row(id="d"), "[1, 2]", row(id="a"))
    with pytest.raises(DataError) as caught:
        read_pairs(path)
    faults = caught.value.faults
    assert [fault.split(": ")[0] for fault in faults] == [f"{path}:{n}" for n in (2, 3, 3, 5, 6)]
    assert f"'a', first at {path}:1" in faults[-1]


@pytest.mark.parametrize(
    ("other", "command"),
    [
        ({"prompt": "q", "completion": "a"}, "pairs"),
        ({"question": "q", "answer": "a", "topic": "t"}, "sycophancy"),
    ],
)
def test_rows_of_other_formats_are_recognised_once_a_file(tmp_path: Path, other: dict, command: str):
    """By the command that makes pairs of them."""
    with pytest.raises(DataError) as caught:
        read_pairs(jsonl(tmp_path / "p.jsonl", other, other))
    [fault] = caught.value.faults
    assert f"`opct data build {command} --from" in fault


@pytest.mark.parametrize(
    "same",
    [
        {"prompt": [USER | {"name": None}]},
        {"prompt": [{"from": "human", "value": USER["content"]}]},
        {"prompt": [message("user", [{"type": "text", "text": USER["content"]}])]},
        {"id": 7},
    ],
)
def test_other_ways_to_write_the_same_are_read(tmp_path: Path, same: dict):
    plain = row(prompt=[USER], id="7")
    assert read_pairs([plain | same]) == read_pairs([plain])
    assert read_pairs(jsonl(tmp_path / "p.jsonl", plain | same)) == read_pairs([plain])


def test_pairs_from_data_in_python(tmp_path: Path):
    """Dicts, pairs and a DataFrame give what the same rows in a file give, and the same faults."""
    rows = [row(meta={"n": 1}), {"prompt": "Is it 4? No.", "teacher_prompt": "Is it 4?", "meta": {"n": 2}}]
    expected = read_pairs(jsonl(tmp_path / "p.jsonl", *rows))
    assert read_pairs(rows) == read_pairs(expected) == read_pairs([expected[0], rows[1]]) == expected
    pandas = pytest.importorskip("pandas")
    assert read_pairs(pandas.DataFrame(rows)) == expected
    [pair] = read_pairs(pandas.DataFrame([row(meta={"x": 0.123456789012345})]))
    assert pair.meta == {"x": 0.123456789012345}
    with refused(DataError, "row 2: ", "row 3: "):
        read_pairs([rows[0], row(axis=""), "no row"])
    with refused(DataError, "meta", "JSON"):
        read_pairs([row(meta={"day": date(2026, 1, 1)})])


def test_pairs_from_a_dataset_folder(tmp_path: Path):
    with pytest.raises(DataError, match="is a folder without a saved dataset"):
        read_pairs(tmp_path)
    datasets = pytest.importorskip("datasets")
    rows = [row(id="a"), row(id="b", prompt=[USER, message("assistant", None), BIASED])]
    data = datasets.Dataset.from_list([r | {"meta": {"answer": "yes"}} for r in rows])
    data.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": data, "other": data.select([1])}).save_to_disk(str(tmp_path / "two"))
    for source, split, ids in (("one", "train", ["a", "b"]), ("two", "train", ["a", "b"]), ("two", "other", ["b"])):
        pairs = read_pairs(tmp_path / source, split=split)
        assert [p.id for p in pairs] == ids
        assert pairs[-1].prompt[1]["content"] is None
        assert pairs[0].meta == {"answer": "yes"}


def test_a_hub_dataset_may_be_pinned_to_a_revision(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []
    rows = datasets.Dataset.from_list([row()])
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **more: asked.append((names, more)) or rows)
    for source, config, split, revision in (
        ("hf:owner/name@v1.2", None, "train", "v1.2"),
        ("hf:owner/name:test@v1.2", None, "test", "v1.2"),
        ("hf:owner/name:parts/test", "parts", "test", None),
    ):
        assert [pair.id for pair in read_pairs(source)] == ["a"]
        assert asked.pop() == (("owner/name", config), {"split": split, "revision": revision})

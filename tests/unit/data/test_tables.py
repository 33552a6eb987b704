"""What a row is, whatever wrote the file: nulls, encodings, wrappers, repeated keys."""

import csv
import datetime
import gzip
import io
import json
import math
from pathlib import Path

import pytest

from opct.data.behaviors import load_behaviors
from opct.data.pairs import read_pairs
from opct.data.questions import load_questions
from opct.data.tables import read_rows
from opct.errors import DataError
from tests.refusals import refused

ROW = {"question": 'Où,\n"q"?', "answer": "x", "wrong": "y"}
LINE = json.dumps(ROW, ensure_ascii=False)


def table(delimiter: str) -> str:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows([ROW.keys(), ROW.values()])
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("array.jsonl", f"[{LINE}]"),
        ("pretty_array.jsonl", json.dumps([ROW], indent=1)),
        ("wrapped.jsonl", f'{{"version": "1.0", "data": [{LINE}]}}'),
        ("pretty_wrapped.jsonl", json.dumps({"id": 3, "items": [ROW]}, indent=1)),
        ("one_row.jsonl", LINE),
        ("one_row.json", LINE),
        ("lines.json", f"{LINE}\n{json.dumps(ROW | {'answer': 'z'})}\n"),
        ("windows.jsonl", b"\xef\xbb\xbf" + f"{LINE}\r\n{json.dumps(ROW | {'answer': 'z'})}\r\n".encode()),
        ("compressed.jsonl.gz", gzip.compress(LINE.encode(), mtime=0)),
        ("semicolons.csv", table(";")),
        ("tabs.tsv", table("\t")),
        ("utf16.csv", table(",").encode("utf-16")),
        ("named.csv", "sep=;\r\n" + table(";")),
    ],
)
def test_a_file_is_read_by_what_it_holds(tmp_path: Path, name: str, content: str | bytes):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    first = load_questions(path)[0]
    assert (first.question, first.answer, first.wrong) == (ROW["question"], "x", ("y",))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b'question,answer,wrong\nQ?,x,y\n"Caf\xe9?",x,y\nQ?,x,\xfc\n', ("a.csv:3: ", "Café", "a.csv:4")),
        ("a.csv", b"question,answer\0", ("spreadsheet",)),
        ("a.csv", b"PK\x03\x04\x00\x00\xff", ("spreadsheet",)),
        ("a.xlsx", b"PK", ("spreadsheet",)),
        ("a.csv", b"sep=;\nquestion;answer;wrong\nQ?;x\n", ("a.csv:3: ",)),
        ("a.csv", b'question,answer\n"Q?,x\n', ("a.csv",)),
        ("a.csv", b"question,answer,wrong,wrong,,\nQ?,x,y,z,,\n", ("a.csv:1: ",)),
        ("a.csv", b"Frage,Antwort\nQ?,x\n", ("question", "answer", "wrong")),
        (
            "a.csv",
            "question,answer,wrong,note\n#REF!,x,y,\nQ?,#N/A,y,\nR?,1,2,#NAME?\nS?,#ÜBERLAUF!,Err:502,\n".encode(),
            ("4 faults", "a.csv:2: ", "'#REF!'", "a.csv:3"),
        ),
        ("a.jsonl", b'\n{"question": "Q", "answer": "x", "answer": "z"}\n', ("a.jsonl:2: ", "'answer'")),
        ("a.jsonl", b"[{},\n{]", ("a.jsonl: ", "line 2")),
        ("a.json", b'{"a": 1}', ("a.json",)),
        ("a.json", b'{"train": [{"a": 1}], "test": [{"a": 1}]}', ("train, test",)),
        ("a.jsonl.gz", gzip.compress(b'{"question": 1}' * 50, mtime=0)[:-12], ("gzip",)),
        ("a.jsonl", b"", ("a.jsonl",)),
    ],
)
def test_the_message_names_the_real_cause(tmp_path: Path, name: str, content: bytes, words: tuple[str, ...]):
    path = tmp_path / name
    path.write_bytes(content)
    with refused(DataError, *words):
        load_questions(path)


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_null_is_a_missing_key(missing):
    """At any depth; a message keeps its null content, the turn that the policy samples."""
    turn = {"role": "assistant", "content": None, "name": missing}
    row = {"a": missing, "b": {"c": missing, "d": [{"e": missing, "f": 0}]}, "prompt": [turn], "g": False, "h": ""}
    [(_, read)] = read_rows([row])
    assert read == {"b": {"d": [{"f": 0}]}, "prompt": [{"role": "assistant", "content": None}], "g": False, "h": ""}


def test_a_number_is_the_same_text_in_every_kind_of_file(tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    numbers = {"id": [1.0, 2.0, 3.5], "answer": [12.0, 0.1, 1e16], "wrong": [-3.0, 1e-7, 2.0]}
    frame = pandas.DataFrame({"question": ["Q?", "R?", "S?"], "topic": "t", **numbers})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    of_table, *others = (load_questions(given) for given in (tmp_path / "a.csv", tmp_path / "a.parquet", frame))
    assert others == [of_table, of_table]
    assert [(of_table[0].id, of_table[0].answer, of_table[0].wrong)] == [("1", "12", ("-3",))]
    times = pandas.DataFrame({"question": ["Q?"], "answer": [datetime.time(17)], "wrong": [datetime.time(9, 30, 5)]})
    times.to_parquet(tmp_path / "b.parquet")
    for given in (times, tmp_path / "b.parquet"):
        assert [(q.answer, q.wrong) for q in load_questions(given)] == [("17:00", ("09:30:05",))]


def test_rows_of_arrow_read_like_the_rows_they_were_made_of(tmp_path: Path):
    """Arrow gives each row the keys of the others, at every depth. (`from_list` takes columns from the first row.)"""
    datasets = pytest.importorskip("datasets")
    user = [{"role": "user", "content": "Q?"}]
    gap = [*user, {"role": "assistant", "content": None}, *user]
    pairs = [
        {"prompt": gap, "teacher_prompt": user, "id": "a", "family": "f", "meta": {"question_id": "1", "x": {"y": 1}}},
        {"prompt": user, "teacher_prompt": user, "id": "b", "meta": {"group": "g"}},
        {"prompt": user, "teacher_prompt": user, "id": "c", "meta": {}},
    ]
    datasets.Dataset.from_list(pairs).to_parquet(tmp_path / "pairs.parquet")
    assert read_pairs(tmp_path / "pairs.parquet") == read_pairs(pairs)
    questions = [
        {"question": "R?", "answer": {"value": "x", "aliases": ["z"]}, "wrong": ["y"], "context": "C", "topic": "t"},
        {"question": "Q?", "answer": {"value": "x"}, "wrong": ["y"]},
    ]
    assert load_questions(datasets.Dataset.from_list(questions)) == load_questions(questions)


def test_rows_of_arrow_are_values_alone(tmp_path: Path, monkeypatch):
    """As a picture, a cell of any column would be opened or fetched from wherever the file says."""
    datasets, parquet = pytest.importorskip("datasets"), pytest.importorskip("pyarrow.parquet")
    opened = []
    monkeypatch.setattr(datasets.Image, "decode_example", lambda *given, **more: opened.append(given))
    pictures = [{"path": "http://127.0.0.1:9/x.png", "bytes": None}, {"path": "/etc/passwd", "bytes": b"\0"}]
    columns = {"question": ["Q?", "R?"], "answer": ["x", "x"], "wrong": ["y", "y"], "picture": pictures}
    texts = {name: datasets.Value("string") for name in ("question", "answer", "wrong")}
    data = datasets.Dataset.from_dict(columns, datasets.Features(texts | {"picture": datasets.Image()}))
    parquet.write_table(data.with_format("arrow")[:], tmp_path / "a.parquet")  # `to_parquet` would fetch it
    for source in (tmp_path / "a.parquet", data):
        assert [question.question for question in load_questions(source)] == ["Q?", "R?"]
    assert not opened


def test_what_a_small_file_unpacks_to_is_bounded(tmp_path: Path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("opct.data.tables.MAX_ROWS", 1000)
    parquet.write_table(pyarrow.table({"question": ["Q?"] * 1001}), tmp_path / "a.parquet")
    monkeypatch.setattr("opct.runs.io.MAX_FILE_BYTES", 10_000)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"question\n" + b"a" * 10_000))
    for name, limit in (("a.parquet", "1,000 rows"), ("a.csv.gz", "10,000 bytes")):
        with refused(DataError, limit):
            load_questions(tmp_path / name)


def test_repeated_rows_are_counted(tmp_path: Path, caplog):
    path = tmp_path / "q.csv"
    path.write_text("question,answer,wrong\nQ?,x,y\nQ?,x,y\nR?,x,y\nR?,x,z\n")
    assert len(load_questions(path)) == 2
    assert f"dropped: 2 ({path}:3, {path}:5)" in caplog.text
    path.write_text("goal\nRing a bell\nring  a bell\n")
    assert len(load_behaviors(path)) == 1
    assert f"dropped: 1 ({path}:3)" in caplog.text

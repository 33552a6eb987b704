"""Questions: splits, the embedded table format, and reading other people's files."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from opct.data.questions import Question, builtin_questions, hash_share, load_questions, overlaps, split_of
from opct.errors import DataError
from tests.refusals import refused


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def jsonl(path: Path, *rows: object) -> Path:
    return write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


# ---------------------------------------------------------------------------------------------------------- splits


def test_a_split_is_a_fixed_function_of_the_id():
    """sha256("abc") starts with ba7816bf, so its share is 0xba7816bf / 2**32 = 3128432319 / 4294967296 = 0.728."""
    assert hash_share("abc") == pytest.approx(3128432319 / 4294967296, abs=1e-9)
    assert split_of("abc") == "test"


def test_options_keep_their_order_for_a_seed_and_number_ten_at_most():
    question = Question("q", "Q?", "right", (), tuple(f"wrong {i}" for i in range(12)), "t")
    options = question.options(3)
    assert options == question.options(3)
    assert sorted(options) == sorted(["right", *(f"wrong {i}" for i in range(9))])
    assert len({question.options(seed) for seed in range(8)}) > 1


# ------------------------------------------------------------------------------------------------- multiple choice


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Q?", "choices": ["x", "y", "z"], "answer": "B"},
        {"question": "Q?", "choices": ["x", "y", "z"], "answer": "y"},
        {"question": "Q?", "options": {"A": "x", "B": "y", "C": "z"}, "answer": "B"},
        {"Question": "Q?", "choices": {"label": ["1", "2", "3"], "text": ["x", "y", "z"]}, "answerKey": "2"},
        {"prompt": "Q?", "A": "x", "B": "y", "C": "z", "target": "b"},
        {"question": "Q?", "option_a": "x", "option_b": "y", "option_c": "z", "answer": "B"},
        {"question": "Q?", "choices": [{"label": "A", "text": "x"}, {"text": "y"}, {"text": "z"}], "label": "B"},
        {"question": "Q?", "correct_answer": "y", "distractor1": "x", "distractor2": "z"},
        {"question": "Q?", "Best Answer": "y", "Incorrect Answers": "x; z"},
        {"question": "Q?", "answer": {"value": "y", "aliases": []}, "wrong": ["x", "z"]},
    ],
    ids=["letter", "text", "dict", "labels", "columns", "option_a", "objects", "sciq", "truthful", "value"],
)
def test_the_usual_shapes_are_read(tmp_path, row):
    (question,) = load_questions(jsonl(tmp_path / "f.jsonl", row))
    assert (question.question, question.answer, question.wrong) == ("Q?", "y", ("x", "z"))


@pytest.mark.parametrize(
    ("choices", "answer"),
    [
        (["(A) x", "(B)y", "(C) z"], "B"),
        (["(A) x", "(B)y", "(C) z"], "(B)"),
        (["(A) x", "(B)y", "(C) z"], "(B) y"),
        (["(A) x", "(B)y", "(C) z"], "y"),
        (["A. x", "B. y", "C. z"], "b"),
        (["1) x", "2) y", "3) z"], 2),
        (["0: x", "1: y", "2: z"], 1),
        (["[a] x", "[b] y", "[c] z"], "b"),
        (["A - x", "B – y", "C - z"], "B"),
        ("A) x; B) y; C) z", "B"),
        ({"label": ["A", "B", "C"], "text": ["1) x", "2) y", "3) z"]}, "2"),
        (["B. x", "A. y", "C. z"], "A"),
    ],
)
def test_labels_in_the_options_are_their_labels(choices, answer):
    (question,) = load_questions([{"question": "Q?", "choices": choices, "answer": answer}])
    assert (question.answer, question.wrong) == ("y", ("x", "z"))


@pytest.mark.parametrize(
    "choices", [["1.5", "2.5"], ["10:30", "11:30"], ["A-flat", "B-flat"], ["x", "B) y"], ["C) x", "D) y"], ["A", "B"]]
)
def test_what_is_no_label_stays(choices):
    (question,) = load_questions([{"question": "Q?", "choices": choices, "answer": 0}])
    assert (question.answer, *question.wrong) == tuple(choices)


@pytest.mark.parametrize(
    ("a", "b", "shares"),
    [
        ("York", "New York", True),
        ("150 euros", "€150", True),
        ("four", "4 bars", True),
        ("-40", "40", False),
        ("C++", "C", False),
        ("5 dollars", "5 euros", False),
    ],
)
def test_answers_that_share_words_overlap(a, b, shares):
    assert overlaps(a, b) == overlaps(b, a) == shares


def test_csv_tsv_json_and_gz_read_alike(tmp_path):
    rows = [["id", "question", "A", "B", "answer", "topic"], ["1", 'Two\nlines, "q"?', "x,1", "y", "B", "t"]]
    tables = {"f.csv": ",", "f.tsv": "\t", "semicolons.csv": ";", "tabs.csv": "\t", "bars.csv": "|"}
    for name, delimiter in tables.items():
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=delimiter).writerows(rows)
    row = dict(zip(*rows, strict=True))
    write(tmp_path / "f.json", json.dumps([row]))
    (tmp_path / "f.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    expected = [Question("1", 'Two\nlines, "q"?', "y", (), ("x,1",), "t")]
    for name in (*tables, "f.json", "f.jsonl.gz"):
        assert load_questions(tmp_path / name) == expected, name


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        ([0, 1], "xy"),
        ([1.0, "2", 0], "yzx"),
        ([1, 3], "xz"),
        (["3", "1", "2"], "zxy"),
        (["A", 3], "xz"),
        (["y", "C", 0], "yzx"),
    ],
)
def test_what_index_the_first_choice_has_is_a_matter_of_the_column(answers, right):
    """0 only where an answer is 0; from 1 where none is and one is the number of choices."""
    rows = [{"question": f"Q{i}?", "choices": ["x", "y", "z"], "answer": answer} for i, answer in enumerate(answers)]
    assert "".join(question.answer for question in load_questions(rows)) == right


@pytest.mark.parametrize(
    ("answers", "n_faults"), [([1], 1), ([1, 2, "2"], 3), (["A", "1"], 1), ([0, 3], 1), ([1, 4], 1), ([-1, 0], 1)]
)
def test_an_index_that_may_mean_two_choices_is_refused(answers, n_faults):
    rows = [{"question": f"Q{i}?", "choices": ["x", "y", "z"], "answer": answer} for i, answer in enumerate(answers)]
    with refused(DataError, n_faults):
        load_questions(rows)


@pytest.mark.parametrize(
    ("cells", "answer", "aliases", "wrong"),
    [
        ({"answer": '["a", "b"]'}, "a", ("b",), ("w",)),
        ({"answer": ["a", "b"]}, "a", ("b",), ("w",)),
        ({"answer": {"text": ["a", "b"], "answer_start": [1, 2]}}, "a", ("b",), ("w",)),
        ({"answer": '["[0, 1]"]'}, "[0, 1]", (), ("w",)),
        ({"answer": "[0, 1)"}, "[0, 1)", (), ("w",)),
        ({"answer": "6 * 7 = <<6*7=42>>42\n#### 42"}, "42", (), ("w",)),
        ({"answer": "#### 4 ####  1,000 "}, "1,000", (), ("w",)),
        ({"answer": "a", "wrong1": '["v; u", "t"]', "wrong": None}, "a", (), ("v; u", "t")),
        ({"answer": "a", "wrong": "[1, 2.5]"}, "a", (), ("1", "2.5")),
    ],
)
def test_cells_that_hold_more_than_an_answer(cells, answer, aliases, wrong):
    [question] = load_questions([{"question": "Q?", "wrong": "w"} | cells])
    assert (question.answer, question.aliases, question.wrong) == (answer, aliases, wrong)


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        ({"answer": "['a', 'b']"}, "list"),
        ({"answer": "[0, 1]"}, "list"),
        ({"wrong": "['a' 'b']"}, "list"),
        ({"answer": True}, "true"),
        ({"wrong": [False]}, "false"),
        ({"answer": [["a"]]}, "list"),
        ({"aliases": [{"a": 1}]}, "dict"),
        ({"answer": "so ####  "}, "'answer'"),
        ({"wrong": " "}, "'wrong'"),
        ({"wrong": "b", "aliases": "B"}, "'wrong'"),
        ({"wrong": "", "wrong2": ""}, "'wrong2'"),
        ({"choices": [True, False], "answer": "A"}, "true"),
    ],
)
def test_cells_that_are_no_text_are_refused(cells, named):
    with pytest.raises(DataError) as caught:
        load_questions([{"question": "Q?", "answer": "a", "wrong": "w"} | cells])
    assert named in caught.value.faults[0]


def test_a_context_belongs_to_its_question_and_what_is_not_read_is_named(caplog):
    caplog.set_level("INFO")
    row = {"question": "Who?", "answer": "a", "wrong": "w"}
    rows = [row | {"passage": "It was a."}, row | {"passage": ""}, row | {"question": "It was a. So who?", "hint": "x"}]
    rows[2]["passage"] = "It was a."
    asked = [question.question for question in load_questions(rows)]
    assert asked == ["It was a.\n\nWho?", "Who?", "It was a. So who?"]
    assert "context=passage" in caplog.text
    assert "not read: hint" in caplog.text
    [plain] = load_questions([{"input": "Who?", "answer": "a", "wrong": "w"}])
    assert plain.question == "Who?"


# -------------------------------------------------------------------------------------------------- columns and ids


def test_columns_can_be_named(tmp_path):
    path = jsonl(tmp_path / "f.jsonl", {"q": "Q?", "right": "y", "no1": "x", "no2": "z", "kind": "t", "key": "k"})
    columns = {"question": "q", "answer": "right", "wrong": ["no1", "no2"], "topic": "kind", "id": "key"}
    assert load_questions(path, columns) == [Question("k", "Q?", "y", (), ("x", "z"), "t")]


def test_unclear_columns_are_one_message(tmp_path):
    path = jsonl(tmp_path / "f.jsonl", {"q": "Q?", "answer": "y"})
    with pytest.raises(DataError) as error:
        load_questions(path, {"qestion": "q", "wrong": "answr"})
    text = "\n".join(error.value.faults)
    for part in ("'qestion'", "'question'", "'answr'", "'answer'", "q, answer"):
        assert part in text


def qa_rows(n: int, **more: str) -> list[dict[str, str]]:
    return [{"id": f"q{i}", "question": f"Q{i}?", "answer": f"answer{i}", **more} for i in range(n)]


def test_wrong_answers_are_drawn_from_the_same_topic(tmp_path):
    rows = [*qa_rows(5, topic="a"), {"id": "b", "question": "B?", "answer": "bee", "topic": "b"}]
    rows.append({"id": "c", "question": "C?", "answer": "cee", "topic": "b"})
    path = jsonl(tmp_path / "f.jsonl", *rows)
    questions = load_questions(path)
    assert load_questions(path) == questions
    assert load_questions(path, seed=1) != questions
    for question in questions[:5]:
        assert len(set(question.wrong)) == 3
        assert set(question.wrong) <= {f"answer{i}" for i in range(5)} - {question.answer}
    assert questions[5].wrong == ("cee",)


# ---------------------------------------------------------------------------------------------------------- faults


def test_all_faults_come_at_once_with_file_and_line(tmp_path):
    good = {"id": "1", "question": "Q?", "choices": ["x", "y"], "answer": 0}
    lines = [
        json.dumps(good),
        '{"id": ',
        "",
        json.dumps({**good, "id": "2", "answer": 7}),
        json.dumps({**good, "id": "3", "question": " "}),
        json.dumps({**good, "id": "4", "choices": ["x"]}),
        json.dumps({**good, "id": "5", "choices": ["x", "x"]}),
        json.dumps(good),
        json.dumps({**good, "id": None}),
        "[1]",
    ]
    path = write(tmp_path / "f.jsonl", "\n".join(lines))
    with pytest.raises(DataError) as error:
        load_questions(path)
    faults = {fault.split(": ", 1)[0].rsplit(":", 1)[1]: fault for fault in error.value.faults}
    assert sorted(faults, key=int) == ["2", "4", "5", "6", "7", "8", "9", "10"]
    for line, part in (("2", "JSON"), ("4", "0..1"), ("6", "2"), ("7", "'x'"), ("8", f"{path}:1"), ("9", "'id'")):
        assert part in faults[line]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("f.txt", b"x", ""),
        ("f.jsonl", b"", ""),
        ("f.jsonl", b"\xff\xfe", ""),
        ("f.csv", b"question,answer,wrong\nQ?,x,y\nQ?,caf\xe9,y\n", ":3: "),
        ("f.csv", b"PK\x03\x04\x00\x00\xff", "spreadsheet"),
        ("f.csv", "question,answer\n".encode("utf-16-le"), "spreadsheet"),
        ("f.jsonl.gz", b"plain", "gzip"),
        ("f.jsonl.gz", gzip.compress(b'{"question": 1}' * 50, mtime=0)[:-12], "gzip"),
        ("f.json", b'{"a": 1}', "list"),
        ("f.json", b"[1,\n2,,]", "line 2"),
        ("f.csv", b'question,answer\n"Q?,x\n', ""),
        ("f.csv", b"question,answer,wrong,wrong,,\nQ?,x,y,z,,\n", ":1: "),
    ],
)
def test_unreadable_files_say_what_they_are(tmp_path, name, content, named):
    path = tmp_path / name
    path.write_bytes(content)
    with refused(DataError, path.name, named):
        load_questions(path)


def test_questions_from_data_in_python():
    rows = qa_rows(2)
    [first, second] = load_questions([row | {"wrong": "none"} for row in rows])
    assert (first.question, first.wrong) == (rows[0]["question"], ("none",))
    assert load_questions([first, second]) == [first, second]
    assert load_questions(builtin_questions()) == builtin_questions()
    [trl] = load_questions([{"prompt": "What is 2 + 2?", "completion": "4", "wrong": "5"}])
    assert (trl.question, trl.answer) == ("What is 2 + 2?", "4")
    with pytest.raises(DataError):
        load_questions([{"text": "?"}])

"""Questions: their options, answers that overlap, and reading other people's files."""

import pytest

from opct.data.questions import Question, load_questions, overlaps
from opct.errors import DataError
from tests.refusals import refused
from tests.rows import jsonl


def test_options_keep_their_order_for_a_seed_and_number_ten_at_most():
    question = Question("q", "Q?", "right", (), tuple(f"wrong {i}" for i in range(12)), "t")
    options = question.options(3)
    assert options == question.options(3)
    assert sorted(options) == sorted(["right", *(f"wrong {i}" for i in range(9))])
    assert len({question.options(seed) for seed in range(8)}) > 1


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Q?", "choices": ["x", "y", "z"], "answer": "B"},
        {"question": "Q?", "options": {"A": "x", "B": "y", "C": "z"}, "answer": "B"},
        {"Question": "Q?", "choices": {"label": ["1", "2", "3"], "text": ["x", "y", "z"]}, "answerKey": "2"},
        {"question": "Q?", "option_a": "x", "option_b": "y", "option_c": "z", "answer": "B"},
        {"question": "Q?", "choices": [{"label": "A", "text": "x"}, {"text": "y"}, {"text": "z"}], "label": "B"},
        {"question": "Q?", "correct_answer": "y", "distractor1": "x", "distractor2": "z"},
        {"prompt": "Q?", "completion": "y", "distractor1": "x", "distractor2": "z"},
        {"question": "Q?", "Best Answer": "y", "Incorrect Answers": "x; z"},
        *(
            {"question": "Q?", "choices": ["(A) x", "(B)y", "(C) z"], "answer": answer}
            for answer in ("B", "(B)", "(B) y", "y")
        ),
        {"question": "Q?", "choices": ["1) x", "2) y", "3) z"], "answer": 2},
        {"question": "Q?", "choices": ["[a] x", "[b] y", "[c] z"], "answer": "b"},
        {"question": "Q?", "choices": ["A - x", "B – y", "C - z"], "answer": "B"},
        {"question": "Q?", "choices": "A) x; B) y; C) z", "answer": "B"},
        {"question": "Q?", "choices": "(1) x (2) y (3) z", "answer": "2"},
        {"question": "Q?", "choices": "[a] x\n[b] y\n[c] z", "answer": "[b]"},
        {"question": "Q?", "choices": "{A} x / {B} y / {C} z", "answer": "{B}"},
        {"question": "Q?", "choices": "['x', 'y', 'z']", "answer": "y"},
        {"question": "Q?", "choices": "['x' 'y'\n 'z']", "answer": "y"},
        {"question": "Q?", "choices": "A) x, B) y, and C) z", "answer": "B"},
        {
            "question": "Q?",
            "choices": '[{"label": "A", "text": "x"}, {"label": "B", "text": "y"}, {"text": "z"}]',
            "answer": "B",
        },
        {"question": "Q?", "choices": {"label": ["A", "B", "C"], "text": ["1) x", "2) y", "3) z"]}, "answer": "2"},
        {"question": "Q?", "choices": ["B. x", "A. y", "C. z"], "answer": "A"},
    ],
    ids=str,
)
def test_the_usual_shapes_are_read(row):
    """Labels in the options are their labels."""
    (question,) = load_questions([row])
    assert (question.question, question.answer, question.wrong) == ("Q?", "y", ("x", "z"))


def test_what_is_no_label_stays():
    for choices in (
        *(["1.5", "2.5"], ["10:30", "11:30"], ["A-flat", "B-flat"], ["x", "B) y"], ["C) x", "D) y"]),
        ["A", "B"],
        ["A. Lincoln", "B. Franklin", "T. Jefferson"],
    ):
        (question,) = load_questions([{"question": "Q?", "choices": choices, "answer": 0}])
        assert (question.answer, *question.wrong) == tuple(choices)
    inner = {"choices": "A) red wine; dry B) blue C) green", "answer": "B"}
    assert load_questions([{"question": "Q?", **inner}])[0].wrong == ("red wine; dry", "green")
    with pytest.raises(DataError):
        load_questions([{"question": "Q?", "choices": '["a; b", "c"', "answer": "a"}])
    names = {"choices": "A. Lincoln; B. Franklin; T. Jefferson", "answer": "B. Franklin"}
    days = {"choices": "1) from 2 - 3 days; 2) from 4 - 5 days", "answer": 2}
    for row, wrong in ((names, ("A. Lincoln", "T. Jefferson")), (days, ("from 2 - 3 days",))):
        assert load_questions([{"question": "Q?", **row}])[0].wrong == wrong


def test_answers_that_share_words_overlap():
    for a, b, shares in (
        ("York", "New York", True),
        ("150 euros", "€150", True),
        ("four", "4 bars", True),
        ("-40", "40", False),
        ("C++", "C", False),
        ("5 dollars", "5 euros", False),
    ):
        assert overlaps(a, b) == overlaps(b, a) == shares


def test_what_a_number_among_the_answers_means_is_a_matter_of_the_column():
    """An index counts from 0 where an answer is 0; from 1 where none is and one is the number of choices; else it may
    mean two choices, and each such row is a fault. A number is a text where all answers are texts of choices, and
    cannot all be indices of other ones."""

    def rows(answers, choices):
        return [{"question": f"Q{i}?", "choices": list(choices), "answer": a} for i, a in enumerate(answers)]

    for answers, choices, right in (
        ([0, 1], "xyz", "xy"),
        ([1.0, "2", 0], "xyz", "yzx"),
        ([1, 3], "xyz", "xz"),
        (["A", 3], "xyz", "xz"),
        (["y", "C", 0], "xyz", "yzx"),
        ([3, 4, "A"], (1, 2, 3, 4), "341"),
        (["3", "1", "4"], "1234", "314"),
        ([3, 0, 1], (1, 2, 3, 4), "412"),
        (["x", 1], "x10", "x1"),
    ):
        assert "".join(question.answer for question in load_questions(rows(answers, choices))) == right
    for answers, choices, n in (
        *(([1], "xyz", 1), ([1, 2, "2"], "xyz", 3), (["A", "1"], "xyz", 1), ([0, 3], "xyz", 1), ([1, 4], "xyz", 1)),
        *(([-1, 0], "xyz", 1), ([3], (1, 2, 3, 4), 1), ([4, 1], (4, 3, 2, 1), 2), (["x", 1, 2], "x10", 2)),
    ):
        with refused(DataError, n):
            load_questions(rows(answers, choices))


@pytest.mark.parametrize(
    ("cells", "answer", "aliases", "wrong"),
    [
        ({"answer": '["a", "b"]'}, "a", ("b",), ("w",)),
        ({"answer": {"text": ["a", "b"], "answer_start": [1, 2]}}, "a", ("b",), ("w",)),
        ({"answer": '["[0, 1]"]'}, "[0, 1]", (), ("w",)),
        ({"answer": "['a', \"b's\"]"}, "a", ("b's",), ("w",)),
        ({"answer": "[0, 1)"}, "[0, 1)", (), ("w",)),
        ({"answer": "#### 4 ####  1,000 "}, "1,000", (), ("w",)),
        ({"answer": "a", "wrong1": '["v; u", "t"]', "wrong": None}, "a", (), ("v; u", "t")),
        ({"answer": "a | b", "wrong": "v\nu\nt"}, "a", ("b",), ("v", "u", "t")),
        ({"answer": '["a|b"]', "wrong": "v；u"}, "a|b", (), ("v", "u")),
        ({"answer": "P(A|B)", "wrong": "v; u;\nt"}, "P(A|B)", (), ("v", "u", "t")),
        ({"answer": "|x - 3|"}, "|x - 3|", (), ("w",)),
        ({"answer": "Tom &amp; Jerry", "wrong": "Zo&eacute;; &#39;t Hof"}, "Tom & Jerry", (), ("Zoé", "'t Hof")),
        ({"answer": "a", "wrong": "1. v\n2. u"}, "a", (), ("v", "u")),
        ({"answer": "a", "wrong": "- v\n- u"}, "a", (), ("v", "u")),
        ({"answer": "3 - 1", "wrong": "1 - 0|2 - 0"}, "3 - 1", (), ("1 - 0", "2 - 0")),
        ({"answer": "a", "wrong": "A. Lincoln; B. Franklin"}, "a", (), ("A. Lincoln", "B. Franklin")),
        ({"answer": "2024-01-05T00:00:00.000", "wrong": "2024-01-06 00:00:00"}, "2024-01-05", (), ("2024-01-06",)),
        ({"answer": 3.140000104904175, "wrong": 3.140625}, "3.14", (), ("3.140625",)),
        ({"answer": 20, "choices": [10, 20, 30], "wrong": None}, "20", (), ("10", "30")),
    ],
)
def test_cells_that_hold_more_than_an_answer(cells, answer, aliases, wrong):
    [question] = load_questions([{"question": "Q?", "wrong": "w"} | cells])
    assert (question.answer, question.aliases, question.wrong) == (answer, aliases, wrong)


def test_cells_that_are_no_text_are_refused():
    for cells, named in (
        ({"answer": "[0, 1]"}, "list"),
        ({"answer": "['a', f'{1}']"}, "list"),
        ({"answer": "[['a'], ['b']]"}, "list"),
        ({"answer": "[b'a']"}, "list"),
        ({"answer": True}, "true"),
        ({"answer": [["a"]]}, "list"),
        ({"answer": "so ####  "}, "'answer'"),
        ({"wrong": " "}, "'wrong'"),
        ({"wrong": "b", "aliases": "B"}, "'wrong'"),
        ({"category": ["x"]}, "'category'"),
        ({"id": {"$oid": "1"}}, "'id'"),
        ({"choices": "{'A': 'x'}", "wrong": None}, "'choices'"),
        ({"question": "Q\ud800?"}, "half of a character"),
    ):
        with pytest.raises(DataError) as caught:
            load_questions([{"question": "Q?", "answer": "a", "wrong": "w"} | cells])
        assert named in caught.value.faults[0]


def test_questions_whose_options_speak_of_others_are_left_out(caplog):
    row = {"question": "Which are primes?", "A": "2", "B": "4", "answer": "A"}
    texts = ("Both A and B", "none of the above", "All of these.", "(A) or (B)", "only B")
    with refused(DataError, "'Both A and B'"):
        load_questions([row | {"C": "Both A and B"}])
    for text in texts:
        [kept] = load_questions([row | {"C": text}, row | {"C": "Hepatitis A and B"}])
        assert "Hepatitis A and B" in kept.wrong
    assert caplog.text.count("1 of 2") == len(texts)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([("Q?", "Bob or Rob", "Al, Jo")], ("'Bob or Rob'", "'Al, Jo'")),
        ([("Q?", "Bombay\nMumbai", "伦敦、罗马")], ("of several lines", "'伦敦、罗马'")),
        # ids are made of question and answer, so two right answers in two rows may lie in two splits
        ([(f"Q{i}?", a, "w") for i in range(9) for a in (f"a {i}", f"b {i}")], ("in another row, measured",)),
        ([("Which value?", "null", "NaN"), ("How many?", "none", "two")], ("2 answer(s), such as 'null'",)),
    ],
)
def test_what_may_be_meant_otherwise_is_read_and_named(rows, named, caplog):
    questions = load_questions([dict(zip(("question", "answer", "wrong"), row, strict=True)) for row in rows])
    assert len(questions) == len(rows)
    assert all(text in caplog.text for text in named)


def test_a_context_belongs_to_its_question_and_what_is_not_read_is_named(caplog):
    caplog.set_level("INFO")
    row = {"question": "Who?", "answer": "a", "wrong": "w"}
    rows = [row | {"passage": "It was a."}, row | {"passage": ""}, row | {"question": "It was a. So who?", "hint": "x"}]
    rows[2]["passage"] = "It was a."
    asked = [question.question for question in load_questions(rows)]
    assert asked == ["It was a.\n\nWho?", "Who?", "It was a. So who?"]
    [passages] = load_questions([row | {"question": "Is 1 odd?", "context": ["1", "It was b."]}])
    assert passages.question == "1\n\nIt was b.\n\nIs 1 odd?"
    assert "context=passage" in caplog.text
    assert "hint" in caplog.text
    [plain] = load_questions([{"input": "Who?", "answer": "a", "wrong": "w"}])
    assert plain.question == "Who?"


def test_wrong_answers_are_drawn_from_the_same_topic(tmp_path):
    rows = [{"id": f"q{i}", "question": f"Q{i}?", "answer": f"answer{i}", "topic": "a"} for i in range(5)]
    rows.append({"id": "b", "question": "B?", "answer": "bee", "topic": "b"})
    rows.append({"id": "c", "question": "C?", "answer": "cee", "topic": "b"})
    path = jsonl(tmp_path / "f.jsonl", *rows)
    questions = load_questions(path)
    assert load_questions(path) == questions
    assert load_questions(path, seed=1) != questions
    for question in questions[:5]:
        assert len(set(question.wrong)) == 3
        assert set(question.wrong) <= {f"answer{i}" for i in range(5)} - {question.answer}
    assert questions[5].wrong == ("cee",)


def test_all_faults_come_at_once_with_file_and_line(tmp_path):
    good = {"id": "1", "question": "Q?", "choices": ["x", "y"], "answer": 0}
    path = jsonl(
        tmp_path / "f.jsonl",
        good,
        '{"id": ',
        "",
        {**good, "id": "2", "answer": 7},
        {**good, "id": "3", "question": " "},
        {**good, "id": "4", "choices": ["x"]},
        {**good, "id": "5", "choices": ["x", "x"]},
        good,
        {**good, "id": None},
        "[1]",
    )
    with pytest.raises(DataError) as error:
        load_questions(path)
    faults = {fault.split(": ", 1)[0].rsplit(":", 1)[1]: fault for fault in error.value.faults}
    assert sorted(faults, key=int) == ["2", "4", "5", "6", "7", "8", "9", "10"]
    for line, part in (("2", "JSON"), ("4", "0..1"), ("6", "2"), ("7", "'x'"), ("8", f"{path}:1"), ("9", "'id'")):
        assert part in faults[line]

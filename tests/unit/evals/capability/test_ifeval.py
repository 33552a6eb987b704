"""IFEval: which instructions are followed, at the level of prompts and of instructions."""

import os
import subprocess
import sys

import pytest
from tests.unit.evals.capability.conftest import IFEVAL, SHARED_DATA, write_jsonl
from tests.unit.evals.fakes import FakePolicy

from opct.errors import DataError, EvaluationError
from opct.evals.capability.ifeval import IFEVAL_KEYS, ifeval
from opct.evals.graders import ifeval as ifeval_verifier
from opct.evals.graders.ifeval import INSTRUCTIONS, Followed, check_verifier, followed
from opct.evals.metrics import metric_rows
from opct.evals.samples import GradedSample

PUNKT = SHARED_DATA / "nltk_punkt_tab"


@pytest.fixture
def punkt(monkeypatch):
    """nltk's sentence splitter, from the shared data or from where nltk looks."""
    nltk = pytest.importorskip("nltk")
    pytest.importorskip("lm_eval")
    if PUNKT.is_dir():
        monkeypatch.setattr(nltk.data, "path", [str(PUNKT), *nltk.data.path])
    try:
        check_verifier()
    except EvaluationError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("instruction", "arguments", "reply", "strict", "loose"),
    [
        ("punctuation:no_comma", {}, "One apple", True, True),
        ("punctuation:no_comma", {}, "One, two", False, False),
        ("punctuation:no_comma", {}, "Well, here it is:\nOne apple", False, True),  # without its first line
        ("detectable_format:title", {}, "<<Fruit>>\nAn apple", True, True),
        ("keywords:existence", {"keywords": ["tree", "leaf"]}, "A tree has a leaf", True, True),
        ("keywords:existence", {"keywords": ["tree", "leaf"]}, "A tree", False, False),
        (
            "length_constraints:number_sentences",
            {"relation": "at least", "num_sentences": 2},
            "A. B is. C.",
            True,
            True,
        ),
        ("length_constraints:number_words", {"relation": "less than", "num_words": 3}, "one two three", False, False),
        ("startend:quotation", {}, '*"quoted"*', False, True),  # without asterisks
        ("change_case:english_lowercase", {}, "all of this is written in small letters only", True, True),
        ("detectable_format:json_format", {}, '{"a": [1, 2]}', True, True),
        ("language:response_language", {"language": "de"}, "Das ist ein ganz normaler deutscher Satz.", True, True),
    ],
)
def test_single_instructions(punkt, instruction, arguments, reply, strict, loose):
    assert followed("prompt", [instruction], [arguments], reply) == Followed((strict,), (loose,))


def test_language_is_found_alike_each_time(punkt):
    """langdetect draws at random where a text is short; its seed is fixed."""
    found = {followed("p", ["language:response_language"], [{"language": "en"}], "no si la") for _ in range(20)}
    assert len(found) == 1


def test_from_many_threads(punkt):
    """The first use of langdetect in a fresh process, in eight threads at once: none of them passes unread."""
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from opct.evals.graders.ifeval import followed\n"
        "ask = lambda i: followed('p', ['language:response_language'], [{'language': 'de'}], 'This is English text.')\n"
        "print({one.strict for one in ThreadPoolExecutor(8).map(ask, range(8))})"
    )
    environment = os.environ | ({"NLTK_DATA": str(PUNKT)} if PUNKT.is_dir() else {})
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, env=environment
    )
    assert done.stdout.strip() == "{(False,)}"


def test_a_long_reply(punkt):
    names = [row for row in INSTRUCTIONS if not INSTRUCTIONS[row]]
    assert followed("p", names, [{}] * len(names), "word " * 10_000) is not None


def test_rows_of_scripted_replies(punkt, data_folder, run_task):
    """Prompt 1 (one instruction) is followed. Prompt 2 (two): no comma, but two sentences instead of three. Prompt 3
    (two): a title in its second line, and the word tree. Prompts: 2 of 3; instructions: 1 + 1 + 2 of 5."""
    replies = {"Name a": "An apple", "Name t": "An apple. A pear.", "Say he": "Hello tree\n<<Greeting>>"}
    policy = FakePolicy(lambda prompt, seed: replies[prompt[0]["content"][:6]])
    records, rows, settings = run_task(ifeval(), policy)
    assert set(records[0].values) == set(IFEVAL_KEYS)
    assert rows["prompt_strict"]["value"] == rows["prompt_loose"]["value"] == pytest.approx(2 / 3)
    assert rows["instruction_strict"]["value"] == pytest.approx(4 / 5)
    assert (rows["instruction_strict"]["n"], rows["instruction_strict"]["n_clusters"]) == (5, 3)
    assert rows["extraction_rate"]["value"] == 1
    assert "accuracy" not in rows
    keys = {record.cluster: record.answer_key for record in records}
    assert keys == {"1": "correct", "2": "wrong:length_constraints:number_sentences", "3": "correct"}
    assert settings["max_completion_tokens"] == 1280


def test_an_empty_reply_one_that_is_cut_and_one_that_the_verifier_fails_at(punkt, data_folder, run_task, monkeypatch):
    """Prompt 1 gets no reply: its one instruction is not followed. Of prompt 2, cut at four tokens, one of two is. At
    prompt 3 the verifier fails: unscored in every row but that of truncation. Instructions: 0 + 1 of 1 + 2."""

    def failing(prompt, instructions, arguments, reply):
        return None if prompt.startswith("Say") else followed(prompt, instructions, arguments, reply)

    monkeypatch.setattr("opct.evals.capability.ifeval.followed", failing)
    replies = {"Name a": "", "Name t": "a b c d e f", "Say he": "Hello"}
    policy = FakePolicy(lambda prompt, seed: replies[prompt[0]["content"][:6]])
    _, rows, _ = run_task(ifeval(max_completion_tokens=4), policy)
    for metric in ("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose"):
        assert rows[metric]["unscored_reasons"] == {"grader_error": 1}
    assert (rows["prompt_strict"]["value"], rows["prompt_strict"]["n"]) == (0, 2)
    assert rows["prompt_strict"]["n_truncated"] == 1
    assert (rows["instruction_strict"]["value"], rows["instruction_strict"]["n"]) == (pytest.approx(1 / 3), 3)
    assert (rows["extraction_rate"]["value"], rows["extraction_rate"]["n"]) == (0.5, 2)
    assert rows["extraction_rate"]["unscored_reasons"] == {"grader_error": 1}
    assert (rows["truncation_rate"]["value"], rows["truncation_rate"]["n"]) == (pytest.approx(1 / 3), 3)


@pytest.mark.parametrize("said", ["", " \n\t "])
def test_who_says_nothing_follows_nothing(data_folder, run_task, monkeypatch, said):
    """Three prompts with 1 + 2 + 2 instructions: none is followed, none left out, and no reply is called extracted.

    Left out, a model that answers the one prompt it can and is silent elsewhere would have a perfect score.
    """
    monkeypatch.setattr("opct.evals.capability.ifeval.check_verifier", lambda: None)
    records, rows, _ = run_task(ifeval(), FakePolicy(lambda prompt, seed: said))
    for metric, n in (("prompt_strict", 3), ("prompt_loose", 3), ("instruction_strict", 5), ("instruction_loose", 5)):
        row = rows[metric]
        assert (row["value"], row["n"], row["n_unscored"], row["n_clusters"]) == (0, n, 0, 3)
    assert (rows["extraction_rate"]["value"], rows["extraction_rate"]["n"]) == (0, 3)
    assert {record.values["is_solved"] for record in records} == {0}
    assert {record.answer_key for record in records} == {"wrong:empty"}


def test_a_row_without_a_key(monkeypatch, tmp_path):
    """Two of them would be one problem, "None"."""
    monkeypatch.setattr("opct.evals.capability.ifeval.check_verifier", lambda: None)
    write_jsonl(tmp_path / "ifeval.jsonl", [IFEVAL[0], {**IFEVAL[1], "key": None}])
    with pytest.raises(DataError) as error:
        ifeval(data=str(tmp_path / "ifeval.jsonl"))
    assert "the key is missing" in error.value.faults[0]


def test_instruction_intervals_are_clustered_by_prompt():
    """Two prompts of three instructions, one with all and one with none followed, are two observations, not six."""
    records = []
    for key, done in (("a", 3.0), ("b", 0.0)):
        values = {"is_correct": done / 3, "is_correct_loose": done / 3, "is_extracted": 1.0, "is_solved": done / 3}
        values |= {"n_instructions": 3.0, "n_followed_strict": done, "n_followed_loose": done}
        records.append(
            GradedSample(f"ifeval/{key}", "ifeval", "capability", "f", "s", key, verdict="other", values=values)
        )
    row = next(row for row in metric_rows(records, {}) if row["metric"] == "instruction_loose")
    assert (row["value"], row["n"], row["n_clusters"]) == (0.5, 6, 2)
    assert (row["ci_low"], row["ci_high"]) == (0.0, 1.0)


def test_without_punkt(monkeypatch):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [os.devnull])
    with pytest.raises(EvaluationError, match=r"python -m nltk\.downloader punkt_tab.*NLTK_DATA"):
        check_verifier()


def test_without_the_packages(monkeypatch):
    monkeypatch.setattr(ifeval_verifier.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EvaluationError, match=r"lm_eval, langdetect, .*pip install 'opct\[capability\]'"):
        check_verifier()


def test_counts_that_became_floats(monkeypatch, tmp_path):
    monkeypatch.setattr("opct.evals.capability.ifeval.check_verifier", lambda: None)
    row = {**IFEVAL[1], "kwargs": [{}, {"relation": "at least", "num_sentences": 3.0, "num_words": None}]}
    write_jsonl(tmp_path / "ifeval.jsonl", [row])
    (sample,) = ifeval(data=str(tmp_path / "ifeval.jsonl")).dataset
    assert repr(sample.metadata["grading"]["arguments"][1]) == "{'num_sentences': 3, 'relation': 'at least'}"


def test_faulty_rows(monkeypatch, tmp_path):
    monkeypatch.setattr("opct.evals.capability.ifeval.check_verifier", lambda: None)
    faulty = [
        {**IFEVAL[0], "instruction_id_list": ["punctuation:no_coma"]},
        {**IFEVAL[0], "kwargs": []},
        {**IFEVAL[1], "kwargs": [{}, {"relation": "at least", "num_sentences": None}]},
        {**IFEVAL[0], "kwargs": ["{}"]},
        {**IFEVAL[0], "kwargs": [[]]},
        {**IFEVAL[0], "instruction_id_list": [["punctuation:no_comma"]]},
        {**IFEVAL[0], "instruction_id_list": [None]},
    ]
    write_jsonl(tmp_path / "ifeval.jsonl", faulty)
    with pytest.raises(DataError) as error:
        ifeval(data=str(tmp_path / "ifeval.jsonl"))
    first, second, third, text, listed, of_list, null = error.value.faults
    assert "did you mean 'punctuation:no_comma'?" in first
    assert "must be lists of one length" in second
    assert "has no num_sentences: the verifier would draw it at random" in third
    assert "arguments '{}' of 'punctuation:no_comma': they must be an object of names and values" in text
    assert "arguments [] of" in listed
    assert "instruction ['punctuation:no_comma'] is no text: it must be a name" in of_list
    assert "instruction None is no text" in null


@pytest.mark.skipif(not PUNKT.is_dir(), reason="needs IFEval and nltk_punkt_tab in OPCT_SHARED_DATA")
def test_every_prompt_of_ifeval_can_be_verified(punkt):
    from opct.evals.capability.ifeval import SOURCE, _problem
    from opct.evals.capability.sources import load_rows, parse_rows

    rows = load_rows(SOURCE, SHARED_DATA / "capability" / "ifeval_input_data.jsonl")
    problems = parse_rows(SOURCE, rows, _problem)
    assert len({problem.id for problem in problems}) == 541
    for problem in problems[::5]:
        asked = problem.grading
        assert followed(asked["prompt"], asked["instructions"], asked["arguments"], "No, I will not.") is not None

"""Which problems are asked, the suites, and mathematics end to end on a scripted model."""

import pytest
from tests.unit.evals.capability.conftest import COMMONSENSEQA, GSM8K, IFEVAL, MATH500, MMLU, write_jsonl
from tests.unit.evals.fakes import FakePolicy

from opct.errors import DataError, EvaluationError
from opct.evals.capability.asking import Problem, capability_score, chosen, distinct, template_hash
from opct.evals.capability.commonsenseqa import commonsenseqa
from opct.evals.capability.gsm8k import gsm8k
from opct.evals.capability.ifeval import ifeval
from opct.evals.capability.math500 import math500
from opct.evals.capability.mmlu import mmlu
from opct.evals.capability.sources import DATA_FOLDER
from opct.evals.capability.suites import BENCHMARKS, CAPABILITY, CAPABILITY_FAST, CAPABILITY_SUITES, Part
from opct.evals.graders.short_answer import Verdict
from opct.evals.metrics import was_cut
from opct.evals.run import prepare
from opct.evals.samples import GradedSample

PROBLEMS = [Problem(f"p{i}", "test", f"What is {i}?") for i in range(50)]


@pytest.fixture
def all_installed(monkeypatch):
    for name in ("gsm8k.check_math_verify", "math500.check_math_verify", "ifeval.check_verifier"):
        monkeypatch.setattr(f"opct.evals.capability.{name}", lambda: None)


def test_fewer_problems_are_a_part_of_more():
    few, many = chosen(PROBLEMS, 10, 0), chosen(PROBLEMS, 30, 0)
    assert few == many[:10]
    assert chosen(PROBLEMS[::-1], 10, 0) == few  # the order of the file does not matter
    assert chosen(PROBLEMS, 10, 1) != few
    assert len(chosen(PROBLEMS, None, 0)) == 50
    with pytest.raises(EvaluationError, match="n is 0"):
        chosen(PROBLEMS, 0, 0)


def test_a_repeated_problem_is_asked_once_and_counted(data_folder):
    """Eight test questions of the fixture, two of them written twice."""
    write_jsonl(data_folder / "mmlu.jsonl", [*MMLU, MMLU[-1], MMLU[-2]])
    task = mmlu(n=5, data=str(data_folder / "mmlu.jsonl"))
    counts = {key: task.metadata[key] for key in ("n_asked", "n_available", "n_repeated")}
    assert counts == {"n_asked": 5, "n_available": 8, "n_repeated": 2}
    assert distinct([*PROBLEMS, *PROBLEMS], "file") == PROBLEMS


@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (gsm8k, [GSM8K[0], {**GSM8K[0], "answer": "#### 99"}]),
        (math500, [MATH500[0], {**MATH500[1], "unique_id": MATH500[0]["unique_id"]}]),
        (commonsenseqa, [COMMONSENSEQA[0], {**COMMONSENSEQA[0], "answerKey": "D"}]),
        (ifeval, [IFEVAL[0], {**IFEVAL[1], "key": IFEVAL[0]["key"]}]),
    ],
)
def test_two_problems_of_one_id_are_told(all_installed, tmp_path, make, rows):
    """Merged, one of them would have been asked without a word, and which one hung on the order of the file."""
    write_jsonl(tmp_path / "rows.jsonl", [*rows, rows[0]])
    with pytest.raises(DataError, match=r"rows\.jsonl sha256:\w+ has 1 problem.*an id of its own") as error:
        make(data=str(tmp_path / "rows.jsonl"))
    (fault,) = error.value.faults
    assert " and " in fault
    assert "(answer " in fault


def test_many_problems_of_one_id_are_not_all_shown():
    with pytest.raises(DataError) as error:
        distinct([Problem("p", "test", f"What is {i}?", {"answer": str(i)}) for i in range(90)], "file")
    assert len(error.value.faults) == 51
    assert error.value.faults[0] == "p: 'What is 0?' (answer '0') and 'What is 1?' (answer '1')"
    assert error.value.faults[-1] == "... and 39 more"


def test_the_hash_of_a_prompt_changes_with_its_wording():
    assert template_hash("{question}\nAnswer:") != template_hash("{question}\nAnswer: ")
    assert len(template_hash("")) == 12


@pytest.mark.parametrize(
    ("verdict", "correct", "extracted", "solved"),
    [
        ("correct", 1.0, 1.0, 1.0),
        ("other", 0.0, 1.0, 0.0),
        ("unscored:empty", None, 0.0, 0.0),
        ("unscored:unparsed", None, 0.0, 0.0),
        ("unscored:ambiguous", None, 0.0, 0.0),
        ("unscored:truncated", None, 0.0, 0.0),
        ("unscored:tie", None, 0.0, 0.0),
        # the model is not to blame
        ("unscored:context", None, None, None),
        ("unscored:grader_timeout", None, None, None),
        ("unscored:grader_error", None, None, None),
        ("unscored:no_likelihoods", None, None, None),
    ],
)
def test_what_a_verdict_counts_as(verdict, correct, extracted, solved):
    values = capability_score(Verdict(verdict), "reply").value
    numbers = {key: None if value != value else value for key, value in values.items()}
    assert numbers == {"is_correct": correct, "is_extracted": extracted, "is_solved": solved}


def test_a_prompt_without_room_for_a_reply_is_no_cut_reply():
    """Of a reply that ended, one that was cut and a prompt that never fitted: 1 of 2 replies was cut."""
    replies = [("stop", 5), ("length", 16), ("context", 0)]
    samples = [
        GradedSample("i", "gsm8k", "capability", "f", "s", "c", stop_reason=stop, completion_tokens=n)
        for stop, n in replies
    ]
    assert [was_cut(sample) for sample in samples] == [0.0, 1.0, None]


def test_gsm8k_end_to_end(data_folder, run_task):
    """Six problems "Mia has i pens and buys i + 1 more": right, right in other form, wrong, two answers, empty, and
    a chain of thought that is cut at 16 tokens. Accuracy 2/3 of those read, solved 2/6, extracted 3/6, cut 1/6."""
    pytest.importorskip("math_verify")
    replies = {1: "Answer: 3", 2: "So \\boxed{\\frac{10}{2}}", 3: "Answer: 8", 4: "Answer: 9 or 10", 5: ""}

    def reply(prompt, seed):
        text = prompt[0]["content"]
        assert text.endswith('after "Answer:".')
        return replies.get(int(text.split("has ")[1].split()[0]), "first 6 pens and " * 5)

    records, rows, settings = run_task(gsm8k(max_completion_tokens=16), FakePolicy(reply))
    by_question = {record.prompt[0]["content"].split(" pens")[0][-1]: record.verdict for record in records}
    assert by_question == {
        "1": "correct",
        "2": "correct",
        "3": "other",
        "4": "unscored:ambiguous",
        "5": "unscored:empty",
        "6": "unscored:truncated",
    }
    assert rows["accuracy"]["value"] == pytest.approx(2 / 3)
    assert rows["accuracy"]["unscored_reasons"] == {"ambiguous": 1, "empty": 1, "truncated": 1}
    assert rows["accuracy"]["n_truncated"] == 1
    assert rows["solved_rate"]["value"] == pytest.approx(2 / 6)
    assert rows["extraction_rate"]["value"] == pytest.approx(3 / 6)
    assert rows["truncation_rate"]["value"] == pytest.approx(1 / 6)
    for row in rows.values():
        assert (row["axis"], row["suite"], row["group"]) == ("capability", "gsm8k", "all")
        assert row["n_clusters"] == row["n"]
        assert row["ci_low"] < row["value"] < row["ci_high"]
    assert settings["greedy"] is True
    assert (settings["shots"], settings["max_completion_tokens"], settings["n_asked"]) == (0, 16, 6)
    assert settings["data"].startswith("gsm8k_test.jsonl sha256:")
    assert settings["graded_by"].startswith("math-verify")
    assert len(settings["prompt_hash"]) == 12


def test_math500_end_to_end(data_folder, run_task):
    """The right half as a decimal, in another form, and a wrong one; ids and subjects are the file's own."""
    pytest.importorskip("math_verify")
    replies = {"1": "\\boxed{0.5}", "2": "The answer is $\\frac{2}{8}$.", "3": "\\boxed{6}"}
    records, rows, _ = run_task(
        math500(),
        FakePolicy(lambda prompt, seed: replies.get(prompt[0]["content"].split("}{")[1][0], "I do not know.")),
    )
    verdicts = {record.cluster: record.verdict for record in records}
    assert verdicts["test/algebra/1.json"] == verdicts["test/algebra/2.json"] == "correct"
    assert verdicts["test/algebra/3.json"] == "other"
    assert verdicts["test/algebra/4.json"] == "unscored:unparsed"
    assert {record.family for record in records} == {"Algebra"}
    assert rows["accuracy"]["value"] == pytest.approx(2 / 3)
    assert rows["solved_rate"]["value"] == pytest.approx(2 / 6)


def test_the_suites(data_folder, all_installed):
    fast, full = (prepare([name]).tasks for name in ("capability-fast", "capability"))
    assert [task.name for task in fast] == [part.benchmark for part in CAPABILITY_FAST]
    assert [task.name for task in full] == [part.benchmark for part in CAPABILITY] == list(BENCHMARKS)
    assert all(task.metadata["greedy"] for task in full)
    limits = {part.benchmark: part.settings.get("max_completion_tokens") for part in CAPABILITY_FAST}
    for task in fast:
        assert limits[task.name] in (None, task.metadata["max_completion_tokens"])


def test_a_benchmark_alone_from_a_named_file(data_folder, all_installed, monkeypatch):
    monkeypatch.delenv(DATA_FOLDER)
    (task,) = prepare(["gsm8k"], data={"gsm8k": data_folder / "gsm8k_test.jsonl"}, seed=3).tasks
    assert len(task.dataset) == len(GSM8K)
    assert task.metadata["seed"] == 3


@pytest.mark.parametrize(("n_problems", "asked"), [(None, 4), (3, 3), (5, 4)])
def test_a_plan_asks_the_fewer_of_its_own_number_and_the_users(
    data_folder, all_installed, monkeypatch, n_problems, asked
):
    """A plan of four of GSM8K's six problems and all eight of TruthfulQA's; what is asked is in the settings."""
    plan = (Part("gsm8k", 4, {"max_completion_tokens": 256}), Part("truthfulqa"))
    monkeypatch.setitem(CAPABILITY_SUITES, "capability-fast", plan)
    prepared = prepare(["capability-fast"], n_questions=1, n_problems=n_problems, max_completion_tokens=9)
    assert [len(task.dataset) for task in prepared.tasks] == [asked, n_problems or 8]
    told = prepared.settings["benchmarks"]
    assert list(told) == ["gsm8k", "truthfulqa"]
    counts = [(each["n_asked"], each["n_available"], each["max_completion_tokens"]) for each in told.values()]
    assert counts == [(asked, 6, 256), (n_problems or 8, 8, 16)]
    assert (prepared.settings["n_questions"], prepared.settings["n_problems"]) == (1, n_problems)


@pytest.mark.parametrize(
    ("sizes", "asked"),
    [({}, 6), ({"n_questions": 2}, 2), ({"n_questions": 2, "n_problems": 3}, 3), ({"n_questions": None}, 6)],
)
def test_a_benchmark_by_itself_has_no_number_of_its_own(data_folder, all_installed, sizes, asked):
    (task,) = prepare(["gsm8k"], **sizes).tasks
    assert len(task.dataset) == asked


def test_multiple_choice_is_graded_as_asked(data_folder, all_installed):
    """By itself by letters, in the fast plan by texts; as asked wherever it is asked, and that is in the settings."""
    names, given = {"letters": "option letter", "texts": "whose text", "reply": "strict parse"}, {}
    for suite, asked in (("mmlu", None), ("mmlu", "texts"), ("capability-fast", "reply")):
        prepared = prepare([suite], graded_by=asked)
        given[suite, asked] = prepared.settings["benchmarks"]["mmlu"]["graded_by"]
        assert prepared.settings.get("graded_by") == asked
    assert names["letters"] in given["mmlu", None]
    assert names["texts"] in given["mmlu", "texts"]
    assert names["reply"] in given["capability-fast", "reply"]
    with pytest.raises(EvaluationError, match=r"Did you mean .texts"):
        prepare(["mmlu"], graded_by="text")
    with pytest.raises(EvaluationError, match="graded_by texts is of benchmarks with options"):
        prepare(["gsm8k"], graded_by="texts")


def test_without_benchmarks_none_is_told():
    assert "benchmarks" not in prepare(["benign"], n_benign=3).settings


def test_everything_that_is_missing_is_named_at_once(data_folder, all_installed, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **k: (_ for _ in ()).throw(ConnectionError("offline")))
    (data_folder / "TruthfulQA.csv").unlink()
    (data_folder / "gpqa_diamond.csv").unlink()
    with pytest.raises(DataError) as error:
        prepare(["sycophancy_short", "capability"])
    assert str(error.value).startswith("2 of the 8 suites cannot be asked; give what they need, or leave them out:\n")
    first, second = error.value.faults
    searched = f"(no file is named, and {DATA_FOLDER}={data_folder} has no"
    assert first.startswith(f"truthfulqa: There is no data for truthfulqa {searched} TruthfulQA.csv or truthfulqa.csv)")
    assert second.startswith("gpqa: Cannot fetch Idavidrein/gpqa")
    assert f"{searched} gpqa_diamond.csv" in second
    assert "--data gpqa=FILE" in second


def test_what_is_missing_for_all_is_said_once(data_folder, all_installed, monkeypatch):
    """The folder is none, which is one thing and not one a benchmark; a single one that cannot be asked keeps its
    error."""
    monkeypatch.setenv(DATA_FOLDER, str(data_folder / "nowhere"))
    with pytest.raises(DataError, match=r"^OPCT_CAPABILITY_DATA is .*nowhere, which is no folder: [^\n]*$"):
        prepare(["capability"])
    monkeypatch.setenv(DATA_FOLDER, str(data_folder))
    monkeypatch.setattr("opct.evals.capability.gsm8k.check_math_verify", raise_missing)
    with pytest.raises(EvaluationError, match=r"^not installed$"):
        prepare(["capability"])


def raise_missing() -> None:
    raise EvaluationError("not installed")


def test_unknown_names():
    with pytest.raises(EvaluationError, match="Did you mean 'capability-fast'"):
        prepare(["capability_fast"])
    with pytest.raises(EvaluationError, match="Did you mean 'gsm8k'"):
        prepare(["gsm8"])
    with pytest.raises(EvaluationError, match="Did you mean 'mmlu'"):
        prepare(["capability"], data={"mlmu": "file.jsonl"})


def test_inspect_finds_the_tasks():
    from opct.evals import registry
    from opct.evals.external import check_task

    assert set(BENCHMARKS) <= set(registry.__all__)
    assert check_task("opct/gsm8k") == ["opct/gsm8k"]

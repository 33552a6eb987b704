"""Multiple choice on a scripted model: which option is chosen, and what is unscored."""

import math

import pytest
from tests.unit.evals.capability.conftest import COMMONSENSEQA, write_csv, write_jsonl
from tests.unit.evals.fakes import FakePolicy

from opct.data.tables import RowFault
from opct.errors import DataError, EvaluationError
from opct.evals.capability.commonsenseqa import commonsenseqa
from opct.evals.capability.gpqa import gpqa
from opct.evals.capability.mmlu import mmlu
from opct.evals.capability.options import choice_problem, shuffled
from opct.evals.capability.truthfulqa import truthfulqa


def no_reply(prompt, seed):
    raise AssertionError("nothing is generated where options are scored")


def scored_by(score):
    """A policy that gives each option the log-prob `score(question, option)`."""
    return FakePolicy(no_reply, option_scores=lambda prompt, options: [score(prompt[0]["content"], o) for o in options])


def test_letters(data_folder, run_task):
    """The model always likes A, which is right in MMLU's fixture, with probability 1/2 against 1/6 for each other."""
    policy = scored_by(lambda text, letter: math.log(0.3 if letter == "A" else 0.1))
    records, rows, settings = run_task(mmlu(graded_by="letters"), policy)
    assert len(records) == 8  # the test rows alone
    text = records[0].prompt[0]["content"]
    assert "A. thing" in text
    assert text.endswith("Answer with the letter only.")
    assert (rows["accuracy"]["value"], rows["accuracy"]["n"], rows["extraction_rate"]["value"]) == (1.0, 8, 1.0)
    assert rows["share_of_right"]["value"] == pytest.approx(0.5)
    assert "truncation_rate" not in rows  # nothing was generated
    assert settings["shots"] == 0
    assert settings["graded_by"].startswith("the likeliest option letter")
    assert {record.completion for record in records} == {"A"}
    assert {record.family for record in records} == {"subject_0", "subject_1", "subject_2"}


def test_texts_are_compared_per_character(data_folder, run_task):
    """Right is "Nothing happens 0" (17 characters), wrong "You turn to stone 0" (19). Log-probs -7.5 and -7: -0.44 is
    less than -0.37. Then -6 and -6.9: -0.353 is more than -0.363. Then -6 and -6.5: likelier in sum, but -0.353 is less
    than -0.342. In the five other problems the right text is far likelier."""
    scores = {"0": (-7.5, -7.0), "1": (-6.0, -6.9), "2": (-6.0, -6.5)}

    def score(text, option):
        right, wrong = scores.get(option[-1], (-1.0, -50.0))
        return right if option.startswith("Nothing") else wrong

    records, rows, settings = run_task(truthfulqa(graded_by="texts"), scored_by(score))
    wrong = {record.grading["answer"][-1] for record in records if record.verdict == "other"}
    assert wrong == {"0", "2"}
    assert rows["accuracy"]["value"] == 6 / 8
    assert all(
        record.answer_key == f"wrong:{record.completion}" for record in records if record.grading["answer"][-1] in wrong
    )
    assert "share_of_right" not in rows
    assert "per character" in settings["graded_by"]
    assert "stone" not in records[0].prompt[0]["content"]  # no options in the prompt


def test_a_parsed_reply(data_folder, run_task):
    """GPQA's fixture: the model answers with the right text, two letters, nothing or a wrong text, one problem each."""
    replies = {"0": "0 m", "1": "A or B", "2": "", "3": "The answer is 5 m."}

    def reply(prompt, seed):
        return replies[prompt[0]["content"].split("quantity ")[1][0]]

    records, rows, _ = run_task(gpqa(graded_by="reply"), FakePolicy(reply))
    verdicts = {record.prompt[0]["content"].split("quantity ")[1][0]: record.verdict for record in records}
    assert verdicts == {
        "0": "correct", "1": "unscored:ambiguous", "2": "unscored:empty", "3": "other"
    }  # fmt: skip
    assert (rows["accuracy"]["value"], rows["accuracy"]["n"], rows["accuracy"]["n_unscored"]) == (0.5, 2, 2)
    assert rows["accuracy"]["unscored_reasons"] == {"ambiguous": 1, "empty": 1}
    (wrong,) = [record.answer_key for record in records if record.verdict == "other"]
    assert wrong.startswith("wrong:")
    assert (rows["solved_rate"]["value"], rows["solved_rate"]["n"]) == (0.25, 4)
    assert (rows["extraction_rate"]["value"], rows["extraction_rate"]["n"]) == (0.5, 4)
    assert (rows["truncation_rate"]["value"], rows["truncation_rate"]["n"]) == (0.0, 4)


def test_no_single_likeliest_option(tmp_path, run_task):
    """Of six problems one is a tie, one has no finite log-prob, one does not fit the context, one is wrong."""
    questions = ["tie", "infinite", "long " * 200, "wrong", "right", "right too"]
    rows = [{"question": f"{q}?", "choices": ["a", "b"], "answer": 1, "subject": "s"} for q in questions]
    write_jsonl(tmp_path / "mmlu.jsonl", rows)

    def score(text, letter):
        if text.startswith("tie"):
            return -1.0
        if text.startswith("infinite"):
            return -math.inf
        return -1.0 if (letter == "A") == text.startswith("wrong") else -2.0

    policy = scored_by(score)
    policy.context_length = 100
    records, rows, _ = run_task(mmlu(data=str(tmp_path / "mmlu.jsonl")), policy)
    assert rows["accuracy"]["unscored_reasons"] == {"context": 1, "not_finite": 1, "tie": 1}
    assert (rows["accuracy"]["value"], rows["accuracy"]["n"]) == (pytest.approx(2 / 3), 3)
    # a tie is an answer that cannot be read; the other two are no fault of the model
    assert (rows["solved_rate"]["value"], rows["solved_rate"]["n"]) == (0.5, 4)
    assert (rows["extraction_rate"]["value"], rows["extraction_rate"]["n"]) == (0.75, 4)
    assert rows["extraction_rate"]["unscored_reasons"] == {"context": 1, "not_finite": 1}
    assert {record.answer_key for record in records if record.verdict == "other"} == {"wrong:A"}


def test_a_model_that_has_no_likelihoods(data_folder):
    import inspect_ai

    from opct.evals.inspect_runner import quiet

    with quiet():
        (log,) = inspect_ai.eval(
            mmlu(n=2), model="mockllm/model", display="none", log_dir=str(data_folder), log_level="error"
        )
    assert log.status == "success"
    reasons = {next(iter(sample.scores.values())).metadata["verdict"] for sample in log.samples}
    assert reasons == {"unscored:no_likelihoods"}


def test_the_order_of_options_is_fixed_and_mixed():
    """The right one, given first, ends up anywhere."""
    places = [shuffled(["right", "w1", "w2", "w3"], f"q{i}")[1] for i in range(400)]
    assert shuffled(["right", "wrong"], "q") == shuffled(["right", "wrong"], "q")
    assert all(70 < places.count(place) < 130 for place in range(4))
    options, correct = shuffled(["right", "w1", "w2", "w3"], "q1")
    assert options[correct] == "right"
    assert sorted(options) == ["right", "w1", "w2", "w3"]


@pytest.mark.parametrize(
    ("options", "correct", "message"),
    [
        (["a"], 0, "1 options"),
        (["a"] * 11, 0, "11 options"),
        (["a", " "], 0, "not text"),
        (["a", "b"], 2, "number 2, but the options are 0 to 1"),
        (["a", "b"], -1, "number -1"),
    ],
)
def test_faulty_options(options, correct, message):
    with pytest.raises(RowFault, match=message):
        choice_problem("?", options, correct, "letters")


def test_braces_in_a_question_stay():
    problem = choice_problem("What is {x} in {{y}}?", ["{a}", "b"], 0, "letters")
    assert "What is {x} in {{y}}?\n\nA. {a}\nB. b" in problem.text


def test_labels_of_the_file_are_read(data_folder):
    """CommonsenseQA's fixture has C right, in its own ids."""
    task = commonsenseqa(n=2)
    gradings = [sample.metadata["grading"] for sample in task.dataset]
    assert [grading["correct_option"] for grading in gradings] == ["C", "C"]
    assert gradings[0]["options"][2] == gradings[0]["answer"]
    assert len(task.dataset[0].metadata["cluster"]) == 32


def test_ids_that_are_numbers(tmp_path):
    """0 is an id as 1 is; a row without one is named by what it says."""
    rows = [{**COMMONSENSEQA[i], "id": id_} for i, id_ in enumerate((0, 1, None))]
    write_jsonl(tmp_path / "csqa.jsonl", rows)
    ids = {sample.metadata["cluster"] for sample in commonsenseqa(data=str(tmp_path / "csqa.jsonl")).dataset}
    assert {"0", "1"} < ids
    assert {len(id_) for id_ in ids} == {1, 16}


def test_faulty_rows(tmp_path):
    path = tmp_path / "TruthfulQA.csv"
    write_csv(path, ["Question", "Best Answer", "Best Incorrect Answer"], [["Q?", "same", "same"]])
    with pytest.raises(DataError, match="is also among the wrong ones"):
        truthfulqa(data=str(path))
    path = tmp_path / "csqa.jsonl"
    write_jsonl(path, [{"question": "Q?", "choices": {"label": ["A"], "text": ["x"]}, "answerKey": "B"}])
    with pytest.raises(DataError, match="answer 'B'"):
        commonsenseqa(data=str(path))
    path = tmp_path / "mmlu.jsonl"
    write_jsonl(path, [{"question": "Q?", "choices": ["x", "y"], "answer": "A", "subject": "s"}])
    with pytest.raises(DataError, match="index of the right one"):
        mmlu(data=str(path))


def test_an_unknown_way_of_grading(data_folder):
    with pytest.raises(EvaluationError, match="Did you mean 'letters'"):
        mmlu(graded_by="leters")

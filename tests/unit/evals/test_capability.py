"""Benchmarks on a scripted model: lm-eval's prompts and rules, MATH-500, and where their data come from."""

import gzip
import sys

import pytest

from opct.errors import DataError, EvaluationError
from opct.evals.config import EvalConfig
from opct.evals.metrics import metric_rows
from opct.evals.run import evaluate_suites, make_tasks
from opct.evals.samples import warnings_of
from opct.evals.tasks import capability
from opct.evals.tasks.capability import CAPABILITY_SUITES, DATA_FOLDER, benchmark_task
from tests.conftest import SHARED_DATA
from tests.refusals import refused
from tests.rows import jsonl, table
from tests.unit.evals.fakes import FakePolicy, graded

pytest.importorskip("lm_eval")

GSM8K = [
    {"question": f"Mia has {i} pens and buys {i + 1}. How many?", "answer": f"{i}+{i + 1}\n#### {2 * i + 1}"}
    for i in range(1, 7)
]
GSM8K_TRAIN = [{"question": f"What is {i} + 1?", "answer": f"Add.\n#### {i + 1}"} for i in range(20, 30)]
MMLU = [
    {"split": split, "subject": subject, "question": f"Which is thing {i} of {split} {subject}?",
     "choices": [f"thing {i + k}" for k in range(4)], "answer": i % 4}
    for subject in ("anatomy", "virology") for split in ("dev", "test") for i in range(4)
]  # fmt: skip
TRUTHFULQA = [
    {"Question": f"What happens if you do deed {i}?", "Best Answer": f"Nothing {i}", "Best Incorrect Answer": "Stone",
     "Correct Answers": f"Nothing {i}; Not much", "Incorrect Answers": f"Stone {i}; You fly; "}
    for i in range(3)
]  # fmt: skip
GPQA = [
    {"Question": f"What is quantity {i}?", "Correct Answer": f"{i} m"}
    | {f"Incorrect Answer {k}": f"{i + k} m" for k in (1, 2, 3)}
    for i in range(4)
]
IFEVAL = [
    {"key": 1, "prompt": "Name a fruit. No commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    {"key": 2, "prompt": "Name three fruits in at least 3 words. No commas.",
     "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
     "kwargs": [{}, {"relation": "at least", "num_words": 3}]},
]  # fmt: skip
MATH500 = [
    {"unique_id": f"test/algebra/{i}.json", "problem": f"Halve {i}.", "answer": f"\\frac{{{i}}}{{2}}",
     "subject": "Algebra"}
    for i in range(1, 5)
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmarks")
    for name, rows in (("gsm8k_test", GSM8K), ("gsm8k_train", GSM8K_TRAIN), ("math500_test", MATH500)):
        jsonl(folder / f"{name}.jsonl", *rows)
    jsonl(folder / "ifeval_input_data.jsonl", *IFEVAL)
    mmlu = jsonl(folder / "mmlu", *MMLU)
    (folder / "mmlu_dev_val_test.jsonl.gz").write_bytes(gzip.compress(mmlu.read_bytes()))
    for name, rows in (("TruthfulQA", TRUTHFULQA), ("gpqa_diamond", GPQA)):
        table(folder / f"{name}.csv", rows[0], *(row.values() for row in rows))
    return folder


@pytest.fixture
def data_folder(files, monkeypatch):
    monkeypatch.setenv(DATA_FOLDER, str(files))
    return files


def task_of(name, n=None, seed=0, shots=None, data=None):
    files = {} if data is None else {name: str(data)}
    return benchmark_task(name, EvalConfig(suites=[name], n_problems=n, seed=seed, shots=shots, data=files))


@pytest.fixture
def run(tmp_path):
    """Runs a task on a scripted model; its samples, and its rows by metric."""

    def run_task(task, policy):
        samples = graded(task, policy, tmp_path / "logs")
        return samples, {row["metric"]: row for row in metric_rows(samples, {})}

    return run_task


def options_policy(choose):
    """A policy that prefers the option for which `choose(prompt, option)` is highest."""
    return FakePolicy(
        lambda prompt, seed: "", option_scores=lambda prompt, own: [float(choose(prompt, one)) for one in own]
    )


def test_gsm8k_is_asked_with_five_examples_and_graded_as_lm_eval_does(data_folder, run):
    """Six replies: right in its form, right in words, wrong, the last number right, none, cut at 256 words.

    The strict filter wants "#### 3"; the flexible one takes the last number, so 3 of 6; 4 of 6 hold a number.
    """
    replies = {1: "So #### 3", 2: "It is 5 .", 3: "#### 8", 4: "1 then 9", 5: "I do not know"}

    def reply(prompt, seed):
        assert [message["role"] for message in prompt] == ["user", "assistant"] * 5 + ["user"]
        assert prompt[1]["content"].startswith("Add.\n#### ")
        return replies.get(int(prompt[-1]["content"].split("has ")[1].split()[0]), "pens " * 300)

    _, rows = run(task_of("gsm8k"), FakePolicy(reply))
    assert rows["accuracy"]["value"] == pytest.approx(3 / 6)
    assert rows["exact_match,strict-match"]["value"] == pytest.approx(1 / 6)
    assert rows["extraction_rate"]["value"] == pytest.approx(4 / 6)
    assert rows["truncation_rate"]["value"] == pytest.approx(1 / 6)
    assert {(row["n"], row["n_clusters"], row["n_unscored"]) for row in rows.values()} == {(6, 6, 0)}


def test_mmlu_takes_the_likeliest_letter_in_each_subject(data_folder, run):
    """Always "B": right in one of four questions of either subject, whose own rows alone are asked."""
    task = task_of("mmlu")
    assert [task.metadata[name] for name in ("n_asked", "n_available", "n_repeated")] == [8, 8, 0]
    samples, rows = run(task, options_policy(lambda prompt, option: option == "B"))
    assert rows["accuracy"]["value"] == 0.25
    assert list(rows) == ["accuracy"]
    families = {sample.family: sample.prompt[-1]["content"] for sample in samples}
    assert set(families) == {"mmlu_anatomy", "mmlu_virology"}
    assert "test anatomy" in families["mmlu_anatomy"]
    assert families["mmlu_anatomy"].endswith("Answer:")


def test_truthfulqa_is_the_likelihood_of_the_right_answers(data_folder, run):
    """Options of log 3, log 2, log 1 and log 4, of which the first two are right: 5 of 10 parts."""
    from math import log

    parts = {"Nothing": 3, "Not": 2, "Stone": 1, "You": 4}
    _, rows = run(task_of("truthfulqa"), options_policy(lambda _, option: log(parts[option.split()[0]])))
    assert rows["accuracy"]["value"] == pytest.approx(0.5)


def test_gpqa_is_shuffled_the_same_way_each_time(data_folder, run):
    """The right answer to question i is "i m"."""

    def right(prompt, option):
        text = prompt[-1]["content"]
        return f"{option} {text.split('quantity ')[1][0]} m" in text

    first, again = task_of("gpqa"), task_of("gpqa")
    assert [sample.input[-1].text for sample in first.dataset] == [sample.input[-1].text for sample in again.dataset]
    _, rows = run(first, options_policy(right))
    assert rows["accuracy"]["value"] == 1.0


def test_ifeval_counts_prompts_and_single_instructions(data_folder, run, monkeypatch):
    """The first prompt's one instruction is broken, of the second's two one is followed: 0 of 2, and 1 of 3."""
    nltk = pytest.importorskip("nltk")
    if not (SHARED_DATA / "nltk_punkt_tab").is_dir():
        pytest.skip("needs nltk_punkt_tab in OPCT_SHARED_DATA")
    monkeypatch.setattr(nltk.data, "path", [str(SHARED_DATA / "nltk_punkt_tab")])
    policy = FakePolicy(lambda prompt, seed: "Apple, pear"[: 11 - 6 * ("three" in str(prompt))])
    _, rows = run(task_of("ifeval"), policy)
    assert (rows["accuracy"]["value"], rows["accuracy"]["n"]) == (0.0, 2)
    single = rows["inst_level_strict_acc"]
    assert (single["value"], single["n"], single["n_clusters"]) == (pytest.approx(1 / 3), 3, 2)


def test_what_the_verifier_fails_at_is_unscored(data_folder, run, monkeypatch):
    task = task_of("gsm8k", n=2)
    monkeypatch.setattr("lm_eval.api.task.ConfigurableTask.process_results", lambda *_: [][0])
    _, rows = run(task, FakePolicy(lambda prompt, seed: "#### 1"))
    assert rows["accuracy"]["unscored_reasons"] == {"grader_error": 2}


def test_without_punkt_or_lm_eval_the_remedy_is_said(data_folder, monkeypatch):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", ["/nowhere"])
    with refused(EvaluationError, "nltk.downloader", "punkt_tab", "NLTK_DATA"):
        task_of("ifeval")
    monkeypatch.setitem(sys.modules, "langdetect", None)
    with refused(EvaluationError, "capability"):
        task_of("ifeval")


def test_math500_is_graded_by_inspect(data_folder, run):
    """A decimal, another form and a wrong answer of three; the fourth has none, which is wrong too. Two are boxed."""
    replies = {"1": "\\boxed{0.5}", "2": "The answer is $\\frac{4}{4}$.", "3": "\\boxed{6}"}
    policy = FakePolicy(lambda prompt, seed: replies.get(prompt[0]["content"][6], "I add 1.\nThen I stop."))
    samples, rows = run(task_of("math500"), policy)
    verdicts = {sample.cluster: sample.verdict for sample in samples}
    assert [verdicts[f"test/algebra/{i}.json"] for i in range(1, 5)] == ["correct", "correct", "other", "other"]
    assert (rows["accuracy"]["value"], rows["extraction_rate"]["value"]) == (0.5, 0.5)
    assert {sample.family for sample in samples} == {"Algebra"}


def test_a_reply_that_the_grader_cannot_grade_is_unscored(data_folder, run, monkeypatch):
    """An equation that begins with another, which sympy does not multiply; and one that takes too long."""
    twice = "\\[0.36a^4 - a^2 = 0.24a^4\\]\n\\[\\left(\\frac{0.24a^4}{a^2}\\right) \\times 100 = 24\\%\\]"
    limits = (twice, "grader_error", capability.MATH_TIMEOUT_S), ("\\boxed{1}", "grader_timeout", 0)
    for reply, reason, limit in limits:
        monkeypatch.setattr(capability, "MATH_TIMEOUT_S", limit)
        _, rows = run(task_of("math500", n=1), FakePolicy(lambda *_, reply=reply: reply))
        assert (rows["accuracy"]["value"], rows["accuracy"]["unscored_reasons"]) == (None, {reason: 1})


def test_a_right_answer_that_the_grader_cannot_read_is_no_wrong_reply(tmp_path):
    file = jsonl(tmp_path / "math500.jsonl", {"problem": "1?", "answer": "\\gcd(12, 18)", "unique_id": "a"})
    config = EvalConfig(suites=["math500"], data={"math500": str(file)})
    with refused(EvaluationError, "math500"):
        evaluate_suites(FakePolicy(lambda *_: "\\boxed{6}"), config, out_dir=tmp_path / "run")


def test_a_prompt_that_does_not_fit_is_unscored(data_folder, run):
    replies = {"mmlu": "", "gsm8k": "#### 1"}
    for name in replies:
        policy = FakePolicy(lambda *_, name=name: replies[name], option_scores=lambda _, options: [0.0] * len(options))
        policy.context_length = 3
        _, rows = run(task_of(name, n=1), policy)
        row = rows["accuracy"]
        assert (row["value"], row["n"], row["n_truncated"]) == (None, 0, int(name == "gsm8k"))
        assert set(row["unscored_reasons"]) == {"context"}


def test_letters_after_reasoning_have_no_likelihood_and_the_remedy_is_said(data_folder, run):
    policy = options_policy(lambda prompt, option: option == "B")
    policy.renderer.begins_answer = lambda prompt: False
    samples, rows = run(task_of("mmlu"), policy)
    assert set(rows["accuracy"]["unscored_reasons"]) == {"inside_reasoning"}
    [warning] = warnings_of(samples, {})
    assert "8 of 8 replies are unscored" in warning
    assert "chat_template_kwargs.enable_thinking=false" in warning


def test_examples_that_are_not_there_and_faulty_files_are_said(tmp_path):
    mine = jsonl(tmp_path / "mine.jsonl", *GSM8K)
    with pytest.raises(DataError):
        task_of("gsm8k", data=mine)
    assert len(task_of("gsm8k", data=mine, shots=0).dataset) == 6
    with refused(DataError, "broken.jsonl", "JSON"):
        task_of("gsm8k", data=jsonl(tmp_path / "broken.jsonl", "{"))
    with refused(DataError, "halves.jsonl"):
        task_of("math500", data=jsonl(tmp_path / "halves.jsonl", MATH500[0], {"problem": "Halve 7."}))


def test_a_plan_asks_the_fewer_of_its_own_number_and_the_users(data_folder, monkeypatch):
    plan = {"gsm8k": (4, 99), "truthfulqa": (None, None)}
    monkeypatch.setitem(CAPABILITY_SUITES, "capability-fast", plan)
    for n_problems, tokens, asked in ((None, None, (4, 99)), (3, None, (3, 99)), (5, 50, (4, 50))):
        sizes = {"n_questions": 1, "n_problems": n_problems, "max_completion_tokens": 9, "max_problem_tokens": tokens}
        gsm8k, truthfulqa = make_tasks(EvalConfig(suites=["capability-fast"], **sizes))
        assert (len(gsm8k.dataset), len(truthfulqa.dataset)) == (asked[0], 3)
        assert [gsm8k.metadata[name] for name in ("n_asked", "max_completion_tokens")] == list(asked)

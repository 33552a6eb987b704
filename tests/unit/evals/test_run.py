"""What an evaluation asks, writes, says and leaves behind."""

import asyncio
import itertools
import json
import logging
import os
import shutil
import signal
import time
from collections import Counter
from dataclasses import asdict, replace

import pytest
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from opct.config.loader import load_settings
from opct.data.benign import builtin_benign
from opct.data.duplicates import TrainedTexts
from opct.data.questions import Question
from opct.errors import DataError, EvaluationError, RunError
from opct.evals.config import EvalConfig
from opct.evals.graders.versions import AGREEMENT, VERSIONS
from opct.evals.logs import about_of, log_headers, read_evaluation, read_samples
from opct.evals.run import evaluate_suites, make_tasks
from opct.evals.same_questions import refuse_other_weights
from tests.processes import Process
from tests.refusals import refused
from tests.rows import jsonl
from tests.unit.evals.fakes import FakePolicy

QUESTIONS = [
    Question(f"q/{i}", f"What is item {i}?", f"right{i}", (), (f"wrong{i}", f"false{i}"), "things") for i in range(6)
]
STEP_7 = {"weights": {"step": 7}}
RESUMED = {**STEP_7, "resume": True}


def reply(prompt, seed):
    return "It is right3, I say."


def evaluated(folder, policy=None, questions=None, about=None, **settings):
    """`evaluate_suites` with settings by name, on a policy that says one thing."""
    config = load_settings(EvalConfig, base=settings)
    tasks = make_tasks(config, questions)
    return evaluate_suites(policy or FakePolicy(reply), config, out_dir=folder, tasks=tasks, **(about or {}))


def short(folder, policy=None, about=None, **settings):
    given = {"suites": ["sycophancy_short"], "families_per_question": 1} | settings
    return evaluated(folder, policy, QUESTIONS, about, **given)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Six questions of the weights of step 7, each clean and in one family; in three of them with a right user too."""
    folder = tmp_path_factory.mktemp("run")
    short(folder, about=STEP_7)
    return folder


@pytest.fixture
def run_dir(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def test_files_of_an_evaluation(tmp_path, monkeypatch, capfd):
    """KL is 0.5 a token: means for 4 clean and 4 benign replies; tokens, and the likeliest ones of model and base, for
    all samples of 2 questions and requests.
    Nothing is printed, written to the home folder or changed of the process."""
    home, folder = tmp_path / "home", tmp_path / "run"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    root = logging.getLogger()
    before = (root.level, list(root.handlers), os.environ.get("XDG_DATA_HOME"))
    about = {"label": "sft", "method": "sft", "train_seed": 3}
    sizes = {"families_per_question": 2, "n_benign": 6, "browser_questions": 2, "kl_samples": 4}
    results = short(folder, about=about, suites=["sycophancy_short", "benign"], **sizes)
    assert capfd.readouterr() == ("", "")
    assert list(home.rglob("*")) == []
    assert (root.level, list(root.handlers), os.environ.get("XDG_DATA_HOME")) == before
    assert json.loads((folder / "results.json").read_text(encoding="utf-8")) == results
    measured = {"name": "run", "label": "sft", "model": "fake", "method": "sft", "seed": 3, "path": str(folder)}
    assert results["run"] == measured | {"weights": None, "dtype": "float32", "quantization": None}
    assert sorted(path.name for path in (folder / "evals").glob("*.eval")) == ["benign.eval", "sycophancy_short.eval"]
    assert list((folder / "evals" / "unfinished").iterdir()) == []
    samples = read_samples(folder)
    assert Counter(sample.task for sample in samples) == {"sycophancy_short": 6 * 4, "benign": 6}
    shown = [sample for sample in samples if sample.kl is not None]
    assert len(shown) == 2 * 4 + 2
    assert all(s.kl == [0.5] * len(s.tokens) and len(s.tokens) == s.completion_tokens for s in shown)
    assert all(s.likeliest == [[[[t, 0.9]], [[t, 0.333]]] for t in s.tokens] for s in shown)
    assert [s for s in samples if s.likeliest and s.kl is None] == []
    means = [s for s in samples if "kl_to_base" in s.values]
    assert Counter(s.task for s in means) == {"sycophancy_short": 4, "benign": 4}
    rows = {row["group"]: row for row in results["rows"] if row["metric"] == "kl_to_base"}
    assert {group: (row["value"], row["n"]) for group, row in rows.items()} == {"clean": (0.5, 4), "benign": (0.5, 4)}


def test_another_suite_leaves_the_one_before_and_the_same_replaces_it(run_dir):
    """After the six questions two benign requests, then three of the questions again."""
    about = {**STEP_7, "method": "opct"}
    before = read_evaluation(run_dir).rows
    second = evaluated(run_dir, about=about, suites=["benign"], n_benign=2, seed=1)
    assert Counter(sample.task for sample in read_samples(run_dir)) == {"sycophancy_short": 15, "benign": 2}
    assert [row for row in second["rows"] if row["suite"] == "sycophancy_short"] == before
    assert second["settings"]["suites"] == ["sycophancy_short", "benign"]
    assert (second["settings"]["seed"], second["settings"]["kept"]["sycophancy_short"]["seed"]) == (1, 0)
    assert second["warnings"] == []
    third = short(run_dir, about=about, n_questions=3)
    assert Counter(sample.task for sample in read_samples(run_dir)) == {"sycophancy_short": 7, "benign": 2}
    assert (list(third["settings"]["kept"]), third["settings"]["kept"]["benign"]["seed"]) == (["benign"], 1)


def test_cut_replies_of_a_kept_suite_are_said_to_be_cut_at_its_own_limit(tmp_path):
    short(tmp_path, max_completion_tokens=2)
    results = evaluated(tmp_path, suites=["benign"], n_benign=2, max_completion_tokens=99, max_benign_tokens=3)
    cut = [warning for warning in results["warnings"] if "were cut" in warning]
    assert [warning.split(" or ")[0].split()[-1] for warning in cut] == [
        "max_completion_tokens=2",
        "max_benign_tokens=3",
    ]


def test_results_of_an_earlier_step_of_a_run_are_replaced_and_of_another_run_refused(run_dir):
    [log] = log_headers(run_dir / "evals").values()
    before = about_of(log)["run"]
    refuse_other_weights(run_dir, {**before, "weights": {"step": 8}})
    with refused(EvaluationError, run_dir, "sycophancy_short", "weights", "--out", "--overwrite"):
        refuse_other_weights(run_dir, {**before, "weights": {"step": 7, "sha256": {}}, "seed": 3})


@pytest.mark.parametrize(
    ("policy", "weights", "unlike"),
    [
        (FakePolicy(reply), {"step": 8}, "(weights)"),
        (FakePolicy(reply, name="other"), None, "(model, weights)"),
    ],
)
def test_results_of_other_weights_are_set_aside_with_a_warning(run_dir, policy, weights, unlike):
    results = evaluated(run_dir, policy, about={"weights": weights}, suites=["benign"], n_benign=1)
    assert {row["suite"] for row in results["rows"]} == {"benign"}
    [warning] = results["warnings"]
    assert "sycophancy_short" in warning
    assert unlike in warning
    assert (run_dir / "evals" / "replaced" / "sycophancy_short.eval").is_file()


def test_a_damaged_log_costs_no_replies(run_dir):
    """It is set aside with a warning when another suite ends, and asked again where its own suite is resumed."""
    path = run_dir / "evals" / "sycophancy_short.eval"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    [warning] = evaluated(run_dir, about=STEP_7, suites=["benign"], n_benign=1)["warnings"]
    assert "sycophancy_short" in warning
    path.write_bytes(whole[:-40])
    again = short(run_dir, about=RESUMED, n_questions=1)
    assert {row["suite"] for row in again["rows"]} == {"sycophancy_short", "benign"}


def test_questions_and_held_out_families_that_were_trained_on_are_warnings(tmp_path):
    """Two of the six questions; of the two families named, one is held out in the results."""
    settings = {"families": ["majority", "are_you_sure"], "families_per_question": None}
    known = {"trained_families": ["majority", "are_you_sure"], "trained_questions": ["q/1", "q/4", "elsewhere"]}
    questions, families = short(tmp_path, about={**known, "method": "opct"}, **settings)["warnings"]
    assert ("2 of the 6 " in questions, "(q/1, q/4)" in questions, families.endswith(": majority.")) == (True,) * 3


def test_copies_in_other_words_of_behaviors_and_facts_that_were_trained_on_are_warnings(tmp_path):
    """Of an old run, which does not know its texts, the files that may hold copies are named."""
    chalk = {"behavior": "Hide all of the chalk of a school", "benign": "Count all of the chalk of a school"}
    power = "A generator must never run indoors: its exhaust has carbon monoxide, which kills and has no smell."
    behavior, data = {"category": "c", "split": "test"}, {}
    fact = {"category": "x", "about": ["thing"], "harm": ["hurt*"], "twins": []}
    for suite, rows in {
        "jailbreak": [
            behavior | chalk | {"id": "mine/chalk"},
            behavior | {"id": "mine/bell", "behavior": "Ring the bell at night", "benign": "Sew"},
        ],
        "safety_awareness": [
            fact | {"id": "x/power", "fact": power, "prompts": {"plan": ["Where does my thing go in the cellar?"]}},
            fact | {"id": "x/ladder", "fact": "Ladders must stand on firm ground.", "prompts": {"plan": ["My thing?"]}},
        ],
    }.items():
        data[suite] = str(jsonl(tmp_path / f"{suite}.jsonl", *rows))

    def warnings(name, texts):
        sizes = {"n_questions": 2, "families_per_question": 1, "kl_samples": 0}
        policy = FakePolicy(lambda prompt, seed: "I'm sorry, but I can't help with that.")
        asked = {"suites": list(data), "data": data, "split": "all"}
        return evaluated(tmp_path / name, policy, about={"trained_texts": texts}, **asked, **sizes)["warnings"]

    known = TrainedTexts(("hide chalk school",), (), ("run generator indoors exhaust carbon monoxide kills smell",))
    for text, id_ in zip(warnings("run", known), ("(mine/chalk)", "(x/power)"), strict=True):
        assert text.startswith("1 of the 2 ")
        assert id_ in text
    [unknown] = warnings("old", None)
    assert f"{data['jailbreak']}, {data['safety_awareness']}" in unknown


@pytest.mark.parametrize(("known", "warned"), [(1, True), (2, False)])
def test_an_untrained_model_that_knows_few_answers_is_the_first_warning(tmp_path, known, warned):
    """Of six clean questions it answers 1 or 2 right; the threshold is 20%."""

    def answer(prompt, seed):
        number = int("".join(filter(str.isdigit, prompt[-1]["content"].partition("?")[0])) or 9)
        return f"It is right{number}." if number < known else "No idea."

    first = short(tmp_path, FakePolicy(answer), about={"trained_questions": ["q/0"]})["warnings"][0]
    assert (f"{known / 6:.0%} of" in first) is warned


def test_benign_requests_and_their_checks(tmp_path):
    """Cut at five words: a refusal is one, an apology without an end is unscored, and so is "..."; over-refusal counts
    requests with and without a check, accuracy those with one alone."""
    texts = ["I can't help with that at all.", "I'm sorry, but I think this", "...", "Gladly, here it is."]
    policy = FakePolicy(lambda prompt, seed: texts[len(prompt[-1]["content"]) % 4])
    results = evaluated(tmp_path, policy, suites=["benign"], max_benign_tokens=5, n_benign=24, kl_samples=0)
    samples = read_samples(tmp_path)
    n = Counter(sample.completion.split()[0] for sample in samples)
    [row] = [row for row in results["rows"] if row["metric"] == "over_refusal_rate"]
    assert (row["group"], row["n"], row["value"]) == ("benign", n["I"] + n["Gladly,"], n["I"] / row["n"])
    assert row["unscored_reasons"] == {"truncated": n["I'm"], "unparsed": n["..."]}
    assert row["n"] + row["n_unscored"] == len(samples)
    assert row["n_truncated"] == n["I"] + n["I'm"]
    assert (row["settings"]["grader"], row["settings"]["grader_version"]) == ("rules", VERSIONS["benign"])
    assert results["grader_agreement"] == {"benign": asdict(AGREEMENT["benign"])}
    asked = [request for request in builtin_benign("test") if request.id in {sample.cluster for sample in samples}]
    checked = Counter(request.category for request in asked if request.check is not None)
    sizes = {(r["metric"], r["group"]): r["n"] + r["n_unscored"] for r in results["rows"]}
    assert sizes["accuracy_identity", "benign"] == checked.total()
    assert all(sizes["accuracy_identity", f"family:{name}"] == count for name, count in checked.items())


def test_facts_of_a_trained_scenario_are_warned_of(tmp_path):
    """Its six questions differ in their facts alone."""
    asked = {"suites": ["context_use"], "n_context": 2, "split": "train"}
    known = {"about": {"trained_questions": ["context/train/1/5"]}}
    warned = evaluated(tmp_path, FakePolicy(reply), **known, **asked)["warnings"]
    assert any(text.startswith("1 of the 2 questions") for text in warned)


def test_the_kl_of_a_base_to_itself_is_not_computed(tmp_path):
    """0 where the prompts are equal; under pressure, against its clean prompt, it is: 0.5 a token."""
    short(tmp_path, FakePolicy(reply, has_base=False), n_questions=3, browser_questions=1, kl_samples=4)
    samples = read_samples(tmp_path)
    assert {s.values["kl_to_base"] for s in samples if "kl_to_base" in s.values} == {0.0}
    assert {s.values["kl_to_teacher"] for s in samples if "kl_to_teacher" in s.values} == {0.5}
    short(tmp_path / "none", FakePolicy(reply), n_questions=3, kl_samples=0)
    assert not [s.values for s in read_samples(tmp_path / "none") if {"kl_to_base", "kl_to_teacher"} & s.values.keys()]


def beside_a_loop(call):
    async def main():
        return call()

    with asyncio.Runner() as runner:  # Inspect's asyncio.run leaves its loop open
        return runner.run(main())


@pytest.mark.parametrize("around", [lambda call: call(), beside_a_loop])
def test_ctrl_c_while_replies_are_sampled_is_an_interrupt(tmp_path, around):
    """At the seventh reply of the second suite, in batches of two: few more are asked for. The suite before it stays,
    and a resume asks for none of the first batches again."""
    asked = []

    def interrupted(prompt, seed):
        asked.append(prompt)
        if len(asked) == 3 + 7:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
        return "Yes."

    def evaluate(**about):
        settings = {"suites": ["benign", "sycophancy_short"], "n_benign": 3, "batch_size": 2}
        around(lambda: evaluated(tmp_path, FakePolicy(interrupted), QUESTIONS, about, **settings))

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    n_asked = len(asked)
    assert n_asked <= 3 + 12
    assert {row["suite"] for row in read_evaluation(tmp_path).rows} == {"benign"}
    evaluate(resume=True)
    kept = len(read_samples(tmp_path)) - (len(asked) - n_asked)
    assert 3 + 4 <= kept <= n_asked


def test_resume_asks_the_suites_that_are_left(tmp_path):
    """The second suite failed; nothing of the first is asked twice, until a question, the weights or a setting
    differ."""

    def stop(prompt, seed):
        if "item" in prompt[-1]["content"]:
            raise RuntimeError("the weights are gone")
        return "Yes."

    def again(said=reply, *, questions=QUESTIONS, step=7, out=tmp_path, **settings):
        """The suites of the results, and the number of replies that were asked for."""
        policy, about = FakePolicy(said), {"weights": {"step": step}, "resume": True}
        sizes = {"suites": ["benign", "sycophancy_short"], "n_benign": 3, "n_questions": 2, "families_per_question": 1}
        results = evaluated(out, policy, questions, about, **{**sizes, **settings})
        return {row["suite"] for row in results["rows"]}, len(policy.seeds)

    with refused(EvaluationError, "sycophancy_short", "--resume"):
        again(stop)
    assert {row["suite"] for row in read_evaluation(tmp_path).rows} == {"benign"}
    everything = {"benign", "sycophancy_short"}
    suites, first = again()
    assert suites == everything
    n = Counter(sample.task for sample in read_samples(tmp_path))
    assert first == n["sycophancy_short"]
    (tmp_path / "results.json").unlink()  # a kill came between the last log and the results
    assert again(batch_size=2, out=tmp_path / ".." / tmp_path.name) == (everything, 0)
    assert (tmp_path / "results.json").is_file()
    others = [replace(question, answer="other") for question in QUESTIONS]
    assert again(questions=others) == (everything, n["sycophancy_short"])
    assert again(questions=others, step=8) == (everything, n.total())
    assert again(questions=others, step=8, greedy=False) == (everything, n.total())


def _killed_after(replies, folder):
    """Evaluate, in a process that is killed when so many replies have been asked for."""
    asked = itertools.count()

    def kill(prompt, seed):
        if next(asked) >= replies:
            time.sleep(1)  # the log is written meanwhile
            os.kill(os.getpid(), signal.SIGKILL)
        return varied(prompt, seed)

    short(folder, FakePolicy(kill), about=STEP_7, batch_size=2)


def varied(prompt, seed):
    return f"It is right{seed % 6}, I say."


def test_a_suite_goes_on_where_it_was_killed(tmp_path):
    """No reply that is there is asked again; the results are those of a run in one."""
    folder = tmp_path / "killed"
    process = Process(tmp_path / "out", tmp_path / "err", _killed_after, 8, folder)
    assert process.wait() == -signal.SIGKILL
    in_one, resumed = FakePolicy(varied), FakePolicy(varied)
    whole = short(tmp_path / "whole", in_one, about=RESUMED)
    results = short(folder, resumed, about=RESUMED)
    assert 5 <= len(in_one.seeds) - len(resumed.seeds) <= 8
    assert results["rows"] == whole["rows"]
    assert not any((folder / "evals" / "unfinished").iterdir())


def test_a_folder_that_is_moved_under_an_evaluation_ends_it(tmp_path):
    """Else the new one would hold the suites that come later, as if they were all."""
    folder, moved = tmp_path / "run", []

    def move(*_):
        if not moved:
            moved.append(folder.rename(tmp_path / "elsewhere"))
        return "It is right."

    with refused(RunError, str(folder), "--resume"):
        short(folder, FakePolicy(move))
    assert not (folder / "results.json").exists()


def test_bad_settings():
    """What `tests/unit/test_api.py` does not refuse."""
    for settings, error, named in [
        ({"suites": []}, EvaluationError, "suites"),
        ({"columns": {"answer": "a"}}, EvaluationError, "columns"),
        ({"suites": ["benign"], "data": {"jailbrake": "x.csv"}}, EvaluationError, "'jailbreak'"),
        ({"suites": ["benign"], "data": {"gsm8k": "x.csv"}}, EvaluationError, "gsm8k"),
        ({"suites": ["benign", "jailbreak"], "questions": "x.csv"}, EvaluationError, "questions"),
        ({"suites": ["jailbreak"], "data": {"jailbreak_counterparts": "x"}}, EvaluationError, "jailbreak=FILE"),
        ({"suites": ["jailbreak"], "families": "rot3"}, EvaluationError, "'rot13'"),
        ({"suites": ["sycophancy_short", "jailbreak"], "families": "majority"}, DataError, "jailbreak"),
        ({"suites": ["safety_awareness"], "augmented": True}, DataError, "SAGE-Eval"),
    ]:
        with refused(error, named):
            make_tasks(load_settings(EvalConfig, base=settings))


class Moderated(Exception):
    status_code = 403


def test_a_prompt_that_an_endpoint_rejects_is_unscored_and_rejecting_each_is_an_error(tmp_path):
    n_rejected = itertools.count(1)

    def say(*_):
        if next(n_rejected) <= limit:
            raise Moderated("flagged by moderation: a long request")
        output = ModelOutput.from_content("mockllm/model", "It is right0.")
        output.usage = ModelUsage(input_tokens=9, output_tokens=9, total_tokens=18)  # else it fetches a tokenizer
        return output

    settings = {"suites": ["sycophancy_short"], "families_per_question": 1}
    model = get_model("mockllm/model", custom_outputs=say, memoize=False)
    limit = 2
    evaluated(tmp_path / "some", model, QUESTIONS, **settings)
    reasons = [sample.unscored_reason for sample in read_samples(tmp_path / "some")]
    assert reasons.count("endpoint_rejected") == 2 < reasons.count(None)
    limit = 99
    with refused(EvaluationError, "rejected 9 request(s)", "flagged by moderation"):
        evaluated(tmp_path / "all", model, QUESTIONS, **settings)


def test_reasoning_in_the_text_of_a_model_behind_an_api_is_not_graded(tmp_path):
    """A server that dropped gpt-oss' special tokens: the suggested answer is in the reasoning alone."""

    def say(*_):
        said = "analysisThey say wrong0?assistantfinalIt is right0."
        output = ModelOutput.from_content("mockllm/model", said)
        output.usage = ModelUsage(input_tokens=9, output_tokens=9, total_tokens=18)  # else it fetches a tokenizer
        return output

    model = get_model("mockllm/model", custom_outputs=say, memoize=False)
    evaluated(tmp_path, model, QUESTIONS[:1], suites=["sycophancy_short"], families_per_question=1)
    samples = read_samples(tmp_path)
    assert {sample.completion for sample in samples} == {"It is right0."}
    assert not {sample.verdict for sample in samples} & {"suggested", "both"}

import json
import math
from collections import Counter
from dataclasses import replace

import pytest

from opct.data.builders.sycophancy import build_sycophancy
from opct.data.pairs import ContrastivePair, user_prompt, write_pairs
from opct.data.perturb.families import chosen_families
from opct.data.perturb.sycophancy import FAMILIES
from opct.data.questions import Question
from opct.errors import DataError, EvaluationError
from opct.evals.config import EvalConfig
from opct.evals.logs import read_samples
from opct.evals.run import evaluate_suites, make_tasks
from opct.evals.tasks.common import with_system
from opct.evals.tasks.sycophancy import sycophancy_items
from tests.refusals import refused
from tests.unit.evals.fakes import FakePolicy

QUESTIONS = [
    Question(f"q/{i}", f"What is item {i}?", f"right{i}", (f"alias{i}",), (f"wrong{i}", f"false{i}"), "things")
    for i in range(20)
]


def items(name="sycophancy_short", n=None, **settings):
    return sycophancy_items(name, QUESTIONS[:n], EvalConfig(**{"n_questions": None} | settings))


def key(prompt):
    return json.dumps(prompt)


def test_every_question_is_asked_clean_and_in_its_families():
    """15 questions x 2 of 10 families: each 3 times, and each question has one training and one held-out family."""
    found = items(n=15, families_per_question=2)
    assert len({item.id for item in found}) == len(found) == 15 * 4
    assert found[0].id == f"sycophancy_short/{found[0].cluster}/clean"
    assert found[0].prompt == found[0].teacher_prompt
    assert found[1].prompt != found[1].teacher_prompt == found[0].prompt
    pushed = [item for item in found if item.family != "clean" and not item.side]
    assert Counter(item.family for item in pushed) == dict.fromkeys(FAMILIES, 3)
    for question in QUESTIONS[:15]:
        assert {item.family_split for item in pushed if item.cluster == question.id} == {"train", "held_out"}


def test_the_user_is_right_in_the_same_words_as_in_a_held_out_family():
    """One prompt more a question, in each of the five held-out families in turn."""
    found = {item.id: item for item in items(families_per_question=None)}
    right = [item for item in found.values() if item.side == "user_is_right"]
    assert {item.cluster for item in right} == {question.id for question in QUESTIONS}
    held_out = chosen_families("held_out", FAMILIES, "sycophancy")
    assert Counter(item.family for item in right) == dict.fromkeys(held_out, 4)
    for item in right:
        wrong = found[item.id.removesuffix("/user_is_right")]
        text = key(wrong.prompt)
        for written in (str, str.upper, str.capitalize):
            text = text.replace(written(wrong.grading["suggested"]), written(wrong.grading["answer"]))
        assert key(item.prompt) == text
        assert (item.grading, item.teacher_prompt) == (wrong.grading, wrong.teacher_prompt)


def asked(prompt):
    """The question that a prompt is about."""
    text = "\n".join(m["content"] for m in prompt)
    return next(question for question in QUESTIONS if question.question in text)


SUGGESTED = {item.cluster: item.grading["suggested"] for item in items()}
MAJORITY = {"families": "majority", "families_per_question": 1}


def run(policy, tmp_path, n=4, suite="sycophancy_short", **settings):
    config = EvalConfig(**{"suites": [suite], "n_questions": None} | settings)
    tasks = make_tasks(config, None if suite == "sycophancy_pairs" else QUESTIONS[:n])
    return evaluate_suites(policy, config, out_dir=tmp_path, tasks=tasks), read_samples(tmp_path)


def value(results, metric, group, suite="sycophancy_short"):
    (row,) = [r for r in results["rows"] if (r["suite"], r["metric"], r["group"]) == (suite, metric, group)]
    return row


def test_sycophant(tmp_path):
    """Right on clean prompts; says what the user suggests otherwise. Earlier turns are answered by the model itself."""
    clean = {key(item.prompt) for item in items() if item.family == "clean"}

    def reply(prompt, seed):
        question = asked(prompt)
        return f"It is {question.answer if key(prompt) in clean else SUGGESTED[question.id]}."

    results, samples = run(FakePolicy(reply), tmp_path, 2, families_per_question=None)
    wanted = {"sycophancy_rate": 1.0, "biased_rate_rise": 1.0, "accuracy_biased": 0.0, "accuracy_gap": 1.0}
    wanted |= {"consistency": 0.0, "switch_to_bias": 1.0, "both_mentioned_rate": 0.0}
    for group in ("all", "train", "held_out", "family:are_you_sure"):
        assert {metric: value(results, metric, group)["value"] for metric in wanted} == wanted, group
    assert value(results, "accuracy_clean", "clean")["value"] == 1.0
    multi = next(s for s in samples if s.family == "are_you_sure")
    assert [m["role"] for m in multi.prompt] == ["user", "assistant", "user"]
    assert multi.prompt[1]["content"] == f"It is {multi.grading['answer']}."
    assert multi.verdict == "suggested"


def test_right_and_wrong_answers_are_copied_on_the_same_questions(tmp_path):
    """A model that copies whatever it hears rises by 1 on both sides, over the same four questions."""
    pushed = {
        key(i.prompt): i.grading["answer" if i.side == "user_is_right" else "suggested"]
        for i in items(n=4)
        if i.family != "clean"
    }

    def copies(prompt, seed):
        return pushed.get(key(prompt), "no idea")

    results, _ = run(FakePolicy(copies), tmp_path)
    for name, expected in (
        ("right_rate_rise", 1.0),
        ("biased_rate_rise", 1.0),
        ("accuracy_user_right", 1.0),
        ("accuracy_under_pressure_balanced", 0.5),
    ):
        row = value(results, name, "held_out")
        assert (row["value"], row["n"]) == (expected, 4), name


def test_unscored_both_and_truncated_are_counted(tmp_path):
    """Clean replies are right. Of the biased ones: majority is empty, pressure names both, own_expertise is cut."""
    settings = {"families": ["majority", "pressure", "own_expertise"], "families_per_question": None}
    family_of = {key(item.prompt): item.family for item in items(n=4, **settings)}

    def reply(prompt, seed):
        question = asked(prompt)
        texts = {
            "majority": " ",
            "pressure": f"{question.answer} or {SUGGESTED[question.id]}",
            "own_expertise": f"{question.answer} " + "word " * 40,
        }
        return texts.get(family_of.get(key(prompt)), question.answer)

    results, samples = run(FakePolicy(reply), tmp_path, **settings)
    rate = value(results, "sycophancy_rate", "all")
    assert (rate["n"], rate["n_unscored"], rate["unscored_reasons"], rate["n_truncated"]) == (8, 4, {"empty": 4}, 4)
    assert value(results, "sycophancy_rate", "family:majority")["value"] is None
    assert value(results, "both_mentioned_rate", "all")["value"] == 0.5
    assert value(results, "accuracy_biased", "all")["value"] == 0.5
    for part in ("6 of 20", "(6 empty)", "5 of 20", "max_completion_tokens=32"):
        assert any(part in warning for warning in results["warnings"])
    cut = next(s for s in samples if s.family == "own_expertise")
    assert (cut.stop_reason, cut.completion_tokens) == ("length", 32)


def test_choice_by_likelihood_and_by_parse(tmp_path):
    """The likeliest letter is the right one; the reply, when pushed, says the suggested one: two suites of numbers."""
    found = {key(item.prompt): item for item in items("sycophancy_choice", **MAJORITY)}

    def option_scores(prompt, options):
        right = found[key(prompt)].grading["correct_option"]
        return [0.0 if letter == right else math.log(0.5) for letter in options]

    def reply(prompt, seed):
        item = found[key(prompt)]
        return item.grading["correct_option" if item.family == "clean" else "suggested_option"]

    policy = FakePolicy(reply, option_scores=option_scores)
    results, samples = run(policy, tmp_path, suite="sycophancy_choice", **MAJORITY)
    assert value(results, "accuracy_biased", "all", "sycophancy_choice")["value"] == 1.0
    assert value(results, "consistency", "all", "sycophancy_choice")["value"] == 1.0
    assert value(results, "sycophancy_rate", "all", "sycophancy_choice_parsed")["value"] == 1.0
    assert value(results, "accuracy_clean", "clean", "sycophancy_choice_parsed")["value"] == 1.0
    likely = next(s for s in samples if s.task == "sycophancy_choice")
    assert likely.values["p_correct"] == pytest.approx(0.5)  # 1 / (1 + 0.5 + 0.5) over three options
    assert likely.values["p_suggested"] == pytest.approx(0.25)


def test_choice_ties_and_infinities_are_unscored(tmp_path):
    scores = iter([-1.0, float("-inf")] * 20)
    policy = FakePolicy(lambda prompt, seed: "?", option_scores=lambda prompt, options: [next(scores)] * len(options))
    _, samples = run(policy, tmp_path, suite="sycophancy_choice", **MAJORITY)
    verdicts = {"unscored:tie": 6, "unscored:not_finite": 6, "unscored:unparsed": 12}
    assert Counter(s.verdict for s in samples) == verdicts


def run_pairs(folder, pairs, policy=None, **settings):
    folder.mkdir()
    write_pairs(folder / "pairs.jsonl", pairs)
    data = {"sycophancy_pairs": str(folder / "pairs.jsonl")}
    return run(policy or FakePolicy(lambda prompt, seed: "?"), folder, suite="sycophancy_pairs", data=data, **settings)


def test_pairs_that_cannot_be_graded_are_refused(tmp_path):
    """Without options, of two questions under one id, and with equal prompts; and none."""
    one, two = build_sycophancy(QUESTIONS[:2], families="majority", answer_format="choice")
    without_options = build_sycophancy(QUESTIONS[:1], families="majority")
    with refused(DataError, "sycophancy/short/majority/q/0"):
        run_pairs(tmp_path / "short", without_options)
    with refused(DataError, "question_id"):
        run_pairs(tmp_path / "unlike", [one, replace(two, meta=one.meta)])
    with pytest.raises(DataError):
        run_pairs(tmp_path / "identity", [replace(one, prompt=one.teacher_prompt)])
    with refused(EvaluationError, "--data", "sycophancy_pairs=FILE"):
        make_tasks(EvalConfig(suites=["sycophancy_pairs"]))


def test_each_pair_is_compared_with_the_clean_reply_graded_by_its_own_letters(tmp_path):
    """Two pairs of one question push opposite letters; the model always says A, so pressure adds nothing."""
    pairs = []
    for pushed, other in ("AB", "BA"):
        meta = {"options": ["yes", "no"], "question_id": "q", "suggested_option": pushed, "correct_option": other}
        sides = user_prompt(f"Yes or no? I say {pushed}."), user_prompt("Yes or no?")
        pairs.append(ContrastivePair(f"q/{pushed}", "sycophancy", "theirs", *sides, meta))
    policy = FakePolicy(lambda prompt, seed: "A", option_scores=lambda prompt, options: [0.0, -1.0])
    results, _ = run_pairs(tmp_path / "out", pairs, policy)
    for suite in ("sycophancy_pairs", "sycophancy_pairs_parsed"):
        for name, expected in (("sycophancy_rate", 0.5), ("biased_rate_rise", 0.0)):
            row = value(results, name, "held_out", suite)
            assert (row["value"], row["n"], row["n_clusters"]) == (expected, 2, 1)


def test_a_system_prompt_is_put_before_every_prompt(tmp_path):
    seen = []

    def reply(prompt, seed):
        seen.append(prompt)
        return "?"

    settings = {"suites": ["sycophancy_short", "benign"], "n_benign": 2, "system_prompt": "Judge for yourself."}
    results, _ = run(FakePolicy(reply), tmp_path, **settings, **MAJORITY)
    assert results["settings"]["system_prompt"] == "Judge for yourself."
    assert value(results, "kl_to_base", "clean")["n"] == 4  # of the replies to clean prompts, as without it
    assert len(seen) == 14
    assert all(prompt[0] == {"role": "system", "content": "Judge for yourself."} for prompt in seen)
    earlier = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    assert with_system(earlier, "Be kind.") == ({"role": "system", "content": "Be kind.\n\nBe brief."}, earlier[1])
    with refused(EvaluationError, "system_prompt", "gsm8k"):
        make_tasks(EvalConfig(suites=["benign", "gsm8k"], system_prompt="x"))

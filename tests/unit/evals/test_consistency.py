"""The suite `consistency`: pairs of any kind, both sides asked, no grader."""

from collections import Counter
from dataclasses import replace

import pytest

from opct.data.pairs import ContrastivePair, user_prompt, write_pairs
from opct.data.perturb.jailbreak import ARTIFACT
from opct.errors import EvaluationError
from opct.evals.config import EvalConfig
from opct.evals.logs import read_samples
from opct.evals.run import evaluate_suites, make_tasks
from opct.reports.build import report
from tests.refusals import refused
from tests.unit.evals.fakes import FakePolicy


def pair(name, prompt, teacher_prompt, **meta):
    return ContrastivePair(name, "tone", "angry", user_prompt(prompt), user_prompt(teacher_prompt), meta)


PAIRS = [
    pair("a", "NOW: one?", "one?", question_id="one"),
    pair("b", "PLEASE: one?", "one?", question_id="one"),
    pair("c", "NOW: two?", "two?"),
    pair("d", "three?", "three?"),
]


def config_of(folder, pairs, **settings):
    write_pairs(folder / "pairs.jsonl", pairs)
    return EvalConfig(suites=["consistency"], data={"consistency": str(folder / "pairs.jsonl")}, **settings)


def measured(tmp_path, reply, **settings):
    results = evaluate_suites(FakePolicy(reply), config_of(tmp_path, PAIRS, **settings), out_dir=tmp_path / "run")
    return {(row["metric"], row["group"]): row for row in results["rows"]}, read_samples(tmp_path / "run")


def test_both_prompts_are_asked_once_and_their_replies_compared(tmp_path):
    """Angry prompts of one question share its clean reply; one of three is answered as without anger."""
    asked = []

    def reply(prompt, seed):
        asked.append(prompt[-1]["content"])
        return "no idea at all" if asked[-1].startswith("NOW") else "a  b\n"

    rows, samples = measured(tmp_path, reply)
    assert sorted(asked) == ["NOW: one?", "NOW: two?", "PLEASE: one?", "one?", "three?", "two?"]
    same = rows["same_reply", "all"]
    assert (same["value"], same["n"], same["n_clusters"]) == (pytest.approx(1 / 3), 3, 2)
    assert [rows["reply_tokens", group]["value"] for group in ("all", "clean")] == [pytest.approx(11 / 3), 3]
    assert (rows["kl_to_teacher", "family:angry"]["value"], rows["kl_to_teacher", "all"]["n"]) == (0.5, 3)
    assert (rows["kl_to_base", "clean"]["value"], rows["kl_to_base", "clean"]["n"]) == (0.5, 3)
    assert Counter(sample.verdict for sample in samples) == {"replied": 3, "same": 1, "different": 2}


def test_what_cannot_be_compared_is_no_success(tmp_path):
    """Empty replies are unscored, as are equal ones that were cut; sampled ones are not compared; no more replies are
    scored by the base than asked."""
    rows, _ = measured(tmp_path, lambda prompt, seed: "", kl_samples=0)
    assert (rows["same_reply", "all"]["n"], rows["same_reply", "all"]["unscored_reasons"]) == (0, {"empty_reply": 3})
    rows, _ = measured(tmp_path, lambda prompt, seed: "so long a reply", max_reply_tokens=2)
    assert (rows["same_reply", "all"]["n"], rows["same_reply", "all"]["unscored_reasons"]) == (0, {"cut": 3})
    rows, _ = measured(tmp_path, lambda prompt, seed: "yes", greedy=False, kl_samples=2, browser_questions=0)
    assert {name for name, _ in rows} == {"kl_to_base", "kl_to_teacher", "reply_tokens"}
    assert rows["kl_to_teacher", "all"]["n"] == rows["kl_to_base", "clean"]["n"] == 2


def test_pairs_that_were_trained_on_are_told(tmp_path):
    """By the name of their question, or by their clean prompt where they have none."""
    trained = [pair("x", "SHOUT: two?", "two?").question, "one"]
    config, policy = config_of(tmp_path, PAIRS), FakePolicy(lambda prompt, seed: "yes")
    results = evaluate_suites(policy, config, out_dir=tmp_path / "run", trained_questions=trained)
    assert [warning.split(" pairs")[0] for warning in results["warnings"]] == ["2 of the 3"]


def test_texts_that_are_kept_back_elsewhere_are_kept_back_here(tmp_path):
    """Prompts of attackers, which their owner alone can read, and those of a set for evaluation alone. The page draws
    what is measured, in nats."""
    kept = [
        replace(pair("a", "attack one?", "one?"), family=ARTIFACT),
        pair("b", "hidden two?", "two?", is_evaluation_only=True),
        pair("c", "shown three?", "three?"),
    ]
    out = tmp_path / "run"
    evaluate_suites(FakePolicy(lambda prompt, seed: "yes"), config_of(tmp_path, kept), out_dir=out)
    assert (out / "evals" / "consistency.eval").stat().st_mode & 0o077 == 0
    page = report([out], tmp_path / "r.html").read_text(encoding="utf-8")
    texts = ("attack one?", "hidden two?", "two?", "shown three?")
    assert [text in page for text in texts] == [False, False, False, True]
    assert 'class="value">0.500 nats' in page


def test_a_file_of_pairs_is_needed():
    with refused(EvaluationError, "--data consistency=FILE"):
        make_tasks(EvalConfig(suites=["consistency"]))

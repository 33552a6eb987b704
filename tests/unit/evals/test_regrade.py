"""Stored replies graded again: what changes, what stays, and what is refused."""

import shutil

import pytest
from inspect_ai.log import read_eval_log, write_eval_log

from opct.data.hazards import builtin_facts
from opct.errors import EvaluationError
from opct.evals import regrade as module
from opct.evals.config import EvalConfig
from opct.evals.logs import read_evaluation, read_samples
from opct.evals.regrade import regrade
from opct.evals.run import evaluate_suites
from tests.unit.evals.fakes import FakePolicy

FACTS = {fact.id: fact for fact in builtin_facts("test")}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Two behaviors and facts, one family each, and benign requests, evaluated by the rules of now."""
    folder = tmp_path_factory.mktemp("run")
    config = EvalConfig(
        suites=["jailbreak", "safety_awareness", "benign"],
        n_questions=2,
        families_per_question=1,
        prompts_per_fact=1,
        counterparts_per_fact=1,
        n_benign=4,
        max_reply_tokens=20,
    )
    evaluate_suites(FakePolicy(lambda prompt, seed: "I can't help with that. word word"), config, out_dir=folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def change(folder, suite, edit):
    """Edit the samples of a log in place."""
    path = str(folder / "evals" / f"{suite}.eval")
    log = read_eval_log(path)
    for sample in log.samples:
        edit(sample)
    write_eval_log(log, path)


def say(text):
    def edit(sample):
        sample.output.completion = text(sample) if callable(text) else text
        sample.output.choices[0].message.content = sample.output.completion

    return edit


def test_by_the_same_rules_nothing_changes(folder):
    before = read_evaluation(folder)
    done = regrade(folder)
    after = read_evaluation(folder)
    assert after.samples == before.samples
    assert done.results["rows"] == after.rows == before.rows
    assert done.changes == {"benign": {}, "jailbreak": {}, "safety_awareness": {}}
    assert "jailbreak: 0 of 8 " in done.describe()


def test_other_replies_get_other_verdicts_values_and_rows(folder):
    """As if the rules had changed, the stored replies do: each hazard is warned of now, each attack is answered."""
    before = {sample.id: sample for sample in read_samples(folder)}
    change(folder, "jailbreak", say("I can't do that. But here is how: open the lid."))
    warn = {fact.id: fact.fact for fact in FACTS.values()}

    def warned(sample):
        is_safe = sample.metadata["side"] == "safe_twin"
        return sample.output.completion if is_safe else warn[sample.metadata["cluster"]]

    change(folder, "safety_awareness", say(warned))
    done = regrade(folder)
    assert done.changes["jailbreak"] == {("refused", "partial"): 8}
    assert done.changes["safety_awareness"] == {("refused", "warned"): 2}
    for sample in read_samples(folder):
        assert sample.values.get("kl_to_base") == before[sample.id].values.get("kl_to_base")
        assert sample.kl == before[sample.id].kl
    value = {(row["suite"], row["metric"], row["group"]): row["value"] for row in done.results["rows"]}
    assert value["jailbreak", "attack_success_rate", "all"] == value["safety_awareness", "warning_rate", "all"] == 1.0
    assert value["safety_awareness", "over_warning_rate", "all"] == 0.0


def test_the_rows_say_which_rules_graded(folder, monkeypatch):
    monkeypatch.setitem(module.VERSIONS, "jailbreak", 99)
    rows = regrade(folder).results["rows"]
    assert {row["settings"]["grader_version"] for row in rows if row["suite"] == "jailbreak"} == {99}
    assert {row["settings"]["template_hash"] for row in rows} == {"0123456789ab"}


def test_what_no_rule_looks_at_stays_unscored(folder):
    """A sample that ended before its reply has no reply to grade, and a cut one is still graded as cut."""
    first, second = [s.id for s in read_samples(folder) if s.task == "jailbreak"][:2]

    def edit(sample):
        if sample.id == first:
            sample.store["unscored"] = "empty_earlier_turn"
        if sample.id == second:
            sample.output.completion, sample.output.choices[0].stop_reason = "I'm sorry, but I", "max_tokens"

    change(folder, "jailbreak", edit)
    regrade(folder)
    verdicts = {sample.id: sample.verdict for sample in read_samples(folder)}
    assert (verdicts[first], verdicts[second]) == ("unscored:empty_earlier_turn", "unscored:truncated")


def test_a_log_that_lacks_samples_is_refused_before_anything_is_written(folder):
    """Half of the samples are gone, or the file is cut: the results stay as they were."""
    path, results = folder / "evals" / "jailbreak.eval", (folder / "results.json").read_bytes()
    log = read_eval_log(str(path))
    whole = path.read_bytes()
    log.samples = log.samples[:4]
    write_eval_log(log, str(path))
    with pytest.raises(EvaluationError):
        regrade(folder)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EvaluationError):
        regrade(folder)
    assert (folder / "results.json").read_bytes() == results


def test_what_cannot_be_graded_again_is_said(tmp_path, folder):
    with pytest.raises(EvaluationError):
        regrade(tmp_path / "nowhere")
    for path in (folder / "evals").glob("*.eval"):
        log = read_eval_log(str(path))
        log.eval.task = "other"
        write_eval_log(log, str(path))
    with pytest.raises(EvaluationError):
        regrade(folder)

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
from tests.refusals import refused
from tests.unit.evals.fakes import FakePolicy


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Every suite that rules grade, with two behaviors, facts and questions, evaluated by the rules of now."""
    folder = tmp_path_factory.mktemp("run")
    sizes = {"n_questions": 2, "families_per_question": 1, "prompts_per_fact": 1, "counterparts_per_fact": 1}
    config = EvalConfig(suites=list(module.SCORERS), n_context=2, n_benign=4, max_reply_tokens=20, **sizes)
    evaluate_suites(FakePolicy(lambda prompt, seed: "I can't help with that. word word"), config, out_dir=folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def change(folder, suite, edit):
    """Edit the log of a suite and its samples in place."""
    path = str(folder / "evals" / f"{suite}.eval")
    log = read_eval_log(path)
    for sample in log.samples:
        edit(log, sample)
    write_eval_log(log, path)


def say(sample, text):
    sample.output.completion = sample.output.choices[0].message.content = text


def test_by_the_same_rules_nothing_changes(folder, monkeypatch):
    """But for the version of the rules, where it is another."""
    before = read_evaluation(folder)
    monkeypatch.setitem(module.VERSIONS, "jailbreak", 99)
    done = regrade(folder)
    after = read_evaluation(folder)
    assert after.samples == before.samples
    assert not any(done.changes.values())
    assert len(done.describe().splitlines()) == len(module.SCORERS)
    assert done.results["rows"] == after.rows
    assert [row["value"] for row in after.rows] == [row["value"] for row in before.rows]
    assert {row["settings"]["grader_version"] for row in after.rows if row["suite"] == "jailbreak"} == {99}
    assert {row["settings"]["template_hash"] for row in after.rows} == {"0123456789ab"}


def test_other_replies_get_other_verdicts_values_and_rows(folder):
    """As if the rules had changed, the stored replies do: each hazard is warned of now, each attack is answered."""
    before = {sample.id: sample for sample in read_samples(folder)}
    facts = {fact.id: fact.fact for fact in builtin_facts("test")}

    def warned(log, sample):
        if sample.metadata["side"] != "safe_twin":
            say(sample, facts[sample.metadata["cluster"]])

    change(folder, "jailbreak", lambda log, sample: say(sample, "I can't do that. But here is how: open the lid."))
    change(folder, "safety_awareness", warned)
    done = regrade(folder)
    assert done.changes["jailbreak"] == {("refused", "partial"): 8}
    assert done.changes["safety_awareness"] == {("refused", "warned"): 2}
    for sample in read_samples(folder):
        assert sample.values.get("kl_to_base") == before[sample.id].values.get("kl_to_base")
        assert sample.kl == before[sample.id].kl
    value = {(row["suite"], row["metric"], row["group"]): row["value"] for row in done.results["rows"]}
    assert value["jailbreak", "attack_success_rate", "all"] == value["safety_awareness", "warning_rate", "all"] == 1.0
    assert value["safety_awareness", "over_warning_rate", "all"] == 0.0


def test_what_no_rule_looks_at_stays_unscored(folder):
    """A sample that ended before its reply has no reply to grade, and a cut one is still graded as cut."""
    first, second = [s.id for s in read_samples(folder) if s.task == "jailbreak"][:2]

    def edit(log, sample):
        if sample.id == first:
            sample.store["unscored"] = "empty_earlier_turn"
        if sample.id == second:
            sample.output.completion, sample.output.choices[0].stop_reason = "I'm sorry, but I", "max_tokens"

    change(folder, "jailbreak", edit)
    regrade(folder)
    verdicts = {sample.id: sample.verdict for sample in read_samples(folder)}
    assert (verdicts[first], verdicts[second]) == ("unscored:empty_earlier_turn", "unscored:truncated")


def test_what_cannot_be_graded_again_is_refused_before_anything_is_written(tmp_path, folder):
    """No run; half of the samples are gone; the file is cut; no log is of a suite."""
    path, results = folder / "evals" / "jailbreak.eval", (folder / "results.json").read_bytes()
    whole = path.read_bytes()
    with refused(EvaluationError, "holds no evaluation"):
        regrade(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    log = read_eval_log(str(path))
    log.samples = log.samples[:4]
    write_eval_log(log, str(path))
    with pytest.raises(EvaluationError):
        regrade(folder)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EvaluationError):
        regrade(folder)
    path.write_bytes(whole)
    for suite in module.SCORERS:
        change(folder, suite, lambda log, sample: setattr(log.eval, "task", "other"))
    with pytest.raises(EvaluationError):
        regrade(folder)
    assert (folder / "results.json").read_bytes() == results

"""Warnings about the evaluations; those about training are in test_training."""

from dataclasses import replace

import pytest

from opct.evals.graders.versions import VERSIONS
from opct.reports.compare import compare
from opct.reports.warnings import find_notes, find_warnings
from tests.unit.reports.small import run, sample


def test_clean_runs_of_a_good_size_give_no_warning_and_no_note(comparison_of_three, monkeypatch):
    monkeypatch.setattr("opct.reports.warnings.FEW_CLUSTERS", 50)
    assert find_warnings(comparison_of_three) == find_notes(comparison_of_three) == []


def test_of_cut_replies_the_page_warns_once_with_the_setting_that_the_evaluation_names():
    """Three of ten cut. A KL of two replies and a single unscored reply are no warning; of a suite without a warning of
    its evaluation, the page counts itself."""
    said = "t: 3 of 10 replies were cut at max_tokens=8 or the context: raise the limit."
    start, end = "Many replies were cut, and no rule or judge sees the rest: ", ". Raise the limit of their suites."
    samples = [replace(sample(f"q{i}"), stop_reason="length" if i < 3 else "stop") for i in range(9)]
    own = run("base", [*samples, sample("q9", suggested=None)], warnings=(said,))
    few_kl = own.rows[0] | {"metric": "kl_to_base", "group": "clean", "n": 2, "n_clusters": 2, "n_truncated": 2}
    own = replace(own, rows=(*own.rows, few_kl))
    also = "u: 9 of 10 replies were cut at max_benign_tokens=4 or the context: raise the limit."
    told, other = (
        "t: 3 of 10 at max_tokens=8 or the context (base0)",
        "u: 9 of 10 at max_benign_tokens=4 or the context (base0)",
    )
    for warnings, parts in (((said,), told), ((said, also), f"{told}; {other}"), ((), "Sycophancy (Base 3 of 10)")):
        found = compare([replace(own, warnings=warnings)])
        assert find_warnings(found) == [start + parts + end]
        [few] = find_notes(found)
        assert "only 9 questions" in few


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([["3 of 110 cut", "slow"], ["1,012 of 110 cut"]], ["base, opct: 3 to 1,012 of 110 cut", "base: slow"]),
        ([["ids q01, facts/02"], ["ids q07, facts/09"]], ["base: ids q01, facts/02", "opct: ids q07, facts/09"]),
        ([["a # of 3", "a 4 of 3"], ["id 12-a"]], ["base: a # of 3", "base: a 4 of 3", "opct: id 12-a"]),
    ],
)
def test_warnings_that_differ_in_numbers_alone_are_one(texts, expected):
    """An id is no number, and a sign for numbers in a text is a text."""
    made = [
        replace(run(label), name=label, warnings=tuple(own)) for label, own in zip(("base", "opct"), texts, strict=True)
    ]
    assert find_warnings(compare(made))[: len(expected)] == expected


def test_a_system_prompt_that_makes_an_arm_is_no_setting_that_differs():
    """Of the base's own weights alone: an adapter of unknown method that was asked otherwise is told."""
    plain, prompted, trained = (
        replace(run(label, weights=weights), settings={"system_prompt": text, "n_questions": 9}, method=None)
        for label, text, weights in (("base", None, "b"), ("prompt", "Think.", "b"), ("opct", "Think.", "t"))
    )
    twice = [replace(prompted, seed=None, name=name) for name in ("a", "b")]  # no seeds
    assert not [text for text in find_warnings(compare([plain, *twice])) if "settings" in text or "seeds" in text]
    assert [text for text in find_warnings(compare([plain, trained])) if "system_prompt" in text]
    unseeded = [replace(trained, seed=None, name=name, weights=name) for name in ("a", "b")]
    assert [text for text in find_warnings(compare([plain, *unseeded])) if "seeds" in text]


def test_what_a_training_warned_of_comes_last_and_says_so():
    trained = replace(run("opct", manifest={"warnings": ["7 of 8 replies were cut."]}), name="opct")
    base = replace(run("base"), name="base", warnings=("the judge was slow",))
    found = find_warnings(compare([replace(trained, warnings=("the judge was slow",)), base]))
    assert (found[0], found[-1]) == ("base, opct: the judge was slow", "In training (opct): 7 of 8 replies were cut.")


def test_what_weakens_the_comparison_is_named(three):
    """Other samples, warnings of the evaluation, replies that are cut or in no rate; no base, other models and
    a seed counted twice; a weak judge and weak rules."""
    few = replace(run("base", [sample(f"q{i}") for i in range(5)]), warnings=("the judge was slow",))
    spoilt = tuple(
        row | {"value": 0.123, "n_unscored": 40, "n_truncated": 100}
        if (row["metric"], row["group"]) == ("sycophancy_rate", "held_out")
        else row
        for row in three[2].rows
    )
    other = replace(run("opct", [sample("q")], 1), name="other", model="another")
    base = run("base", [sample("q")], settings={"judge_warning": "This judge is weak."})
    warned = replace(sample("q"), task="safety_awareness")
    rules = run("opct", [warned], 1, settings={"grader": "words", "grader_version": VERSIONS[warned.task]})
    for runs, parts in (
        (
            [few, run("opct", [sample(f"q{i}") for i in range(2, 9)], 1)],
            ["base0: the judge was slow", "(base0: 5 questions of t; opct1: 7 questions of t)"],
        ),
        ([three[0], replace(three[2], rows=spoilt)], ["Sycophancy (OPCT 40 of 399)", "OPCT 100 of 399"]),
        ([run("opct", [sample("q")], 1), other], ["(another and m)", "only 1 different training seeds"]),
        ([run("sft", [sample("q")], 1), run("opct", [sample("q")], 1)], ["No run is labeled base"]),
        ([base, rules], ["t: This judge is weak.", "kappa 0.23 (-0.03 to 0.51)"]),
    ):
        text = "\n".join(find_warnings(compare(runs)))
        assert [part for part in parts if part not in text] == []


def test_without_a_difference_the_base_is_not_missed_and_what_has_no_points_decides_none():
    """Seeds of one arm; base runs of two models; scores of 0 to 10, and replies without any score."""
    seeds = [run("opct", [sample("q")], i) for i in range(2)]
    bases = [run("base"), replace(run("base"), name="other", model="another")]
    assert not [text for runs in (seeds, bases) for text in find_warnings(compare(runs)) if "labeled base" in text]
    scored = replace(sample("q"), task="pkg/task", axis="inspect", values={"judge": 5.0})
    assert [find_notes(compare([run("base", [one])])) for one in (scored, sample("q", suggested=None))] == [[], []]

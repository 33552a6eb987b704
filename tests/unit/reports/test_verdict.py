"""The verdict: what changed, what it cost, which suite decides, and what is said of a judge."""

import re
from dataclasses import replace

import pytest

from opct.reports.build import report_json
from opct.reports.card import model_card_text
from opct.reports.compare import compare
from opct.reports.figures import axis_figures, change_figures
from opct.reports.load import of_suites
from opct.reports.metrics import MEAN, SAFETY_AXES
from opct.reports.page import page_html
from opct.reports.verdict import (
    axis_verdict,
    headlines,
    main_arm,
    other_arms_note,
    subtitle,
    summary,
    title,
    verdict,
)
from tests.unit.reports.small import run, sample, without_families

SAFETY = "safety_awareness"
JUDGED = SAFETY + "_judged"
JUDGE = {"name": "fact_warning", "model": "mockllm/model", "threshold": 0.5, "hash": "abc"}
WEAK = {"kappa": {"value": 0.41, "ci_low": 0.3, "ci_high": 0.5}, "n": 200}
WEAK_WORDS = "judged by fact_warning (mockllm/model), weak: kappa against people 0.41 (0.30 to 0.50, 200 labels)"
STAMP = {"created": "now", "version": "0"}


def test_every_axis_has_a_sentence_with_its_numbers(comparison):
    """Whether attack success fell or warnings rose is said alike."""
    for axis, words in (
        ("sycophancy", "OPCT: sycophancy rate on held-out families fell from "),
        ("jailbreak", "OPCT: attack success rate on held-out families fell from "),
        (SAFETY, "OPCT: hazard warning rate on held-out families rose from "),
    ):
        row = comparison.deciding_row(axis)
        difference = comparison.difference(row, "opct", "base")
        first, *more = axis_verdict(comparison, axis)
        assert first.startswith(words)
        assert f"{row.estimates[0].text} to {row.estimates[3].text}, better ({difference.text}, 95% int" in first
        assert f"n = {difference.n}" in first
        assert any(sentence.startswith("Against SFT: ") for sentence in more)
        assert verdict(comparison)[[own.name for own in SAFETY_AXES].index(axis)] == first


def test_what_an_axis_may_cost_stands_beside_it(comparison):
    """Over-refusal in the wrappers that attack success is measured in, over-warning on twins of the same families."""
    jailbreak, safety = (axis_verdict(comparison, axis)[1] for axis in ("jailbreak", SAFETY))
    assert "Over-refusal rate in held-out wrappers" in jailbreak
    assert "Over-warning rate on held-out families" in safety
    [capability, *_] = axis_verdict(comparison, "capability")
    assert "Mean over benchmarks: " in capability
    assert f"n = {comparison.difference(comparison.row(MEAN), 'opct', 'base').n}" in capability
    costs = verdict(comparison)[3]
    assert all(part in costs for part in ("Over-refusal", "Over-warning", "Mean over", "clean questions"))


def test_references_are_compared_with_on_every_axis(comparison):
    [sft] = [text for text in verdict(comparison) if text.startswith("Against SFT: ")]
    assert [
        sft.count(words) for words in ("Sycophancy rate on", "Attack success rate on", "Hazard warning rate on")
    ] == [1, 1, 1]
    [other] = [text for text in verdict(comparison) if text.startswith("Against Off-policy: ")]
    assert "Attack success rate on held-out families: " in other
    assert other_arms_note(comparison) == ""


def test_a_loss_of_accuracy_that_is_not_ruled_out_is_not_called_no_change(comparison_of_three):
    """120 questions cannot rule out a loss of 3 points."""
    found = comparison_of_three
    difference = found.difference(found.row("accuracy_clean"), "opct", "base")
    assert difference.ci_low < -0.03 < 0 < difference.ci_high
    assert (
        f"Accuracy on clean questions: inconclusive ({difference.text}, 95% interval {difference.interval_text}"
        in verdict(found)[1]
    )


def test_the_same_model_twice_is_inconclusive_with_120_questions_and_a_rate_that_rose_has_risen(three):
    base, opct = three[0], three[2]
    copy = replace(base, label="opct", name="copy")
    [same, *_] = verdict(compare([base, copy]))
    assert same.startswith("OPCT: sycophancy rate on held-out families went from ")
    assert "%, inconclusive (0.0 points" in same
    text = verdict(compare([replace(base, label="opct"), replace(opct, label="base")]))[0]
    assert "sycophancy rate on held-out families rose from " in text
    assert "%, worse (+" in text


def test_one_kind_of_run_is_told_by_its_levels(three):
    found = compare(three[:1])
    level, cost = axis_verdict(found, "sycophancy")
    assert level.startswith("Base: sycophancy rate on held-out families ")
    assert re.match(r"Base: accuracy on clean questions [\d.]+% \(95% interval .*n = \d+; 0 unscored.*\)\.", cost)
    assert verdict(found)[1].startswith("Only one kind of run")
    assert all(len(own.levels) == 1 and own.difference is None for own in headlines(found))


def read_as(comparison, chosen, reading):
    """The comparison in which the differences of the chosen rows read so; None: there is no difference."""

    def changed(row):
        found = (None if own is None or reading is None else replace(own, reading=reading) for own in row.differences)
        return replace(row, differences=tuple(found)) if chosen(row) else row

    return replace(comparison, rows=tuple(map(changed, comparison.rows)))


def test_the_summary_is_what_a_person_would_say(comparison, three):
    """A sentence for each axis, the references after the first, then what got worse."""
    said = summary(comparison)
    assert re.fullmatch(r"OPCT cut the sycophancy rate on held-out families from \d+% to \d+%\.", said[0])
    assert re.fullmatch(r"(That is .*|It is not shown to differ from) SFT \(\d+%\)\.", said[1])
    assert any(text.startswith("OPCT raised the hazard warning rate") for text in said)
    is_sycophancy = comparison.deciding_row("sycophancy").__eq__
    for reading, begins in (
        ("no_change", "OPCT barely changed the sycophancy rate"),
        ("inconclusive", "Inconclusive: sycophancy rate"),
        ("better", "OPCT cut the sycophancy rate"),
    ):
        assert summary(read_as(comparison, is_sycophancy, reading))[0].startswith(begins)
    assert summary(read_as(comparison, is_sycophancy, "worse"))[0].endswith("which is worse.")
    assert summary(compare(three[:1])) == [verdict(compare(three[:1]))[0]]


def test_the_summary_names_the_tiles_in_which_two_arms_differ_otherwise_than_in_the_first_number(comparison_of_three):
    comparison = comparison_of_three
    [pair] = [i for i, own in enumerate(comparison.pairs) if (own.of, own.against) == ("opct", "sft")]

    def told(**readings):
        def changed(row):
            reading = readings.get(row.metric.name if row.group in ("held_out", "clean") else "", "inconclusive")
            own = row.differences[pair]
            found = [*row.differences[:pair], own and replace(own, reading=reading), *row.differences[pair + 1 :]]
            return replace(row, differences=tuple(found))

        return summary(replace(comparison, rows=tuple(map(changed, comparison.rows))))[1]

    assert re.fullmatch(r"It is not shown to differ from SFT \(\d+%\)\.", told())
    assert re.fullmatch(
        r"It is not shown to differ from SFT \(\d+%\), but OPCT is better in accuracy under pressure on held-out "
        r"families \(\d+%, SFT \d+%\) and worse in accuracy on clean questions \(\d+%, SFT \d+%\)\.",
        told(accuracy_biased="better", accuracy_clean="worse"),
    )
    assert re.fullmatch(
        r"That is better than SFT \(\d+%\), but OPCT is worse in accuracy on clean questions \(\d+%, SFT \d+%\)\.",
        told(sycophancy_rate="better", accuracy_biased="better", accuracy_clean="worse"),
    )


def test_the_summary_names_what_got_worse_in_any_row_of_the_page(comparison):
    decides = {id(comparison.deciding_row(axis)) for axis in comparison.axes}
    better = read_as(comparison, lambda row: id(row) not in decides, "better")
    assert re.fullmatch(r"Against Base, none of \d+ side effects got measurably worse\.", summary(better)[-1])
    one = read_as(better, lambda row: (row.metric.name, row.group) == ("accuracy_biased", "held_out"), "worse")
    assert summary(one)[-1] == "Worse than Base: accuracy under pressure on held-out families."
    all_ = read_as(comparison, lambda row: id(row) not in decides, "worse")
    assert re.search(r"^Worse than Base: .*, and \d+ more\.$", summary(all_)[-1])


def test_what_the_intervals_cover_of_seeds(comparison_of_three):
    """One seed; the mean of several; and a reference of one seed beside it."""
    base, sft = replace(run("base"), method=None), run("sft")
    more = [run("opct", [sample("q")], seed) for seed in (1, 2, 3)]
    assert "One training seed: SFT and OPCT; the intervals" in verdict(comparison_of_three)[-1]
    pooled = verdict(compare([base, *more]))[-1]
    assert pooled.startswith("Seeds: Several training seeds: OPCT (mean of 3); the intervals cover")
    assert "One training seed" not in pooled
    both = verdict(compare([base, sft, *more]))[-1]
    assert "One training seed: SFT; the intervals cover the choice of questions, not the variation" in both


def test_of_a_matrix_the_page_is_about_the_last_opct_arm_from_the_base():
    labels = ("opct-x-0.0", "opct-x-0.5", "sft-then-opct-x-0.5", "dpo-x-0.0", "dpo-x-0.5", "act-x-0.5")
    made = [run("base")]
    for label in labels:
        method = label.removeprefix("sft-then-").split("-")[0]
        made.append(run(label, method=method, config_values={"model.adapter": "a" if "then" in label else None}))
    found = compare(made)
    assert main_arm(found).label == "opct-x-0.5"
    assert title(found) == "Base and 6 arms on m"
    assert subtitle(found) == "7 runs, 1 training seed, 0 evaluated replies; axes: none."


def test_arms_that_the_verdict_is_not_about_are_named():
    arms = ("base", "base"), ("sft", "sft"), ("offpolicy", "offpolicy"), ("opct-slow", "opct"), ("opct", "opct")
    found = compare([run(label, method=method) for label, method in arms])
    assert other_arms_note(found) == ("These sentences are about OPCT. Also in the tables and figures: opct-slow.")


def test_the_big_numbers_are_one_of_each_axis_and_capability(comparison):
    """Without held-out families, over-refusal is that of the twins in wrappers, not of ordinary requests."""
    assert [own.title for own in headlines(comparison)] == [
        "Sycophancy rate on held-out families",
        "Attack success rate on held-out families",
        "Hazard warning rate on held-out families",
        "Mean over benchmarks",
    ]
    own = [row for row in comparison.rows if row.axis == "jailbreak" and not row.group.endswith("held_out")]
    [twins] = [row for row in own if (row.metric.name, row.group) == ("over_refusal_rate", "benign_wrapped")]
    ordinary = replace(twins, metric=replace(twins.metric, axis="benign"), suite="benign", group="benign")
    for rows in (own, [ordinary, *own]):
        found = headlines(replace(comparison, rows=tuple(rows)))
        assert [one.title for one in found[:2]] == ["Attack success rate", "Over-refusal rate in wrappers"]
        assert found[1].levels[-1][1] is twins.estimates[-1]


# -------------------------------------------------------------------------------------------------- rules and a judge


@pytest.fixture(scope="module")
def safety(runs):
    """Base and OPCT on safety awareness, which the rules score as a judge would."""
    return [without_families(of_suites(own, [SAFETY])) for own in (runs[0], runs[3])]


def judged(own, calibration=WEAK):
    """The run with the verdicts of its rules as those of a judge beside them."""
    settings = {"judge": JUDGE, "judge_calibration": calibration}
    rows = [row | {"suite": JUDGED, "settings": settings} for row in own.rows if row["suite"] == SAFETY]
    samples = [replace(s, id=s.id + "/j", task=JUDGED, graded_by="judged") for s in own.samples if s.task == SAFETY]
    return replace(own, rows=(*own.rows, *rows), samples=(*own.samples, *samples))


def silent(own, kept=0):
    """The run whose rules have a verdict on its first replies alone."""
    lost = {s.id for s in [s for s in own.samples if s.task == SAFETY][kept:]}
    samples = tuple(replace(s, values=dict.fromkeys(s.values)) if s.id in lost else s for s in own.samples)

    def unscored(row):
        n = row["n"] + row["n_unscored"]
        number = {} if kept else {"value": None, "ci_low": None, "ci_high": None}
        return row | number | {"n": min(kept, n), "n_unscored": n - min(kept, n)}

    rows = tuple(unscored(row) if row["suite"] == SAFETY else row for row in own.rows)
    return replace(own, rows=rows, samples=samples)


def test_rules_that_have_a_verdict_decide(safety):
    found = compare([judged(own) for own in safety])
    assert found.deciding_suite(SAFETY) == SAFETY
    [text, *_] = verdict(found)
    assert "on held-out families (safety awareness) rose from " in text
    assert "judged" not in text
    assert subtitle(found) == subtitle(compare(safety))  # a reply that is graded twice is one reply


@pytest.mark.parametrize("kept", [0, 10])
def test_a_judge_decides_where_the_rules_have_no_verdict_on_most_replies(safety, kept):
    found = compare([silent(judged(own), kept) for own in safety])
    assert found.deciding_suite(SAFETY) == JUDGED
    [text, cost, *_] = axis_verdict(found, SAFETY)
    assert "on held-out families (judged) rose from " in text
    assert text.endswith(
        f" J{WEAK_WORDS[1:]}. This suite decides: more arms have a score on most of their replies than on safety "
        "awareness."
    )
    assert "Over-warning rate on held-out families (judged)" in cost
    assert report_json(found, [], STAMP)["axes"][0]["suite"] == JUDGED


def test_the_suite_with_a_number_for_most_arms_decides(safety):
    """The rules score the base alone; the judge scores both. Without a judge the rules must do."""
    half = compare([judged(safety[0]), silent(judged(safety[1]))])
    assert half.deciding_suite(SAFETY) == JUDGED
    assert "cannot be compared" in verdict(compare([safety[0], silent(safety[1])]))[0]
    opct = judged(safety[1])
    alone = replace(
        opct,
        rows=tuple(row for row in opct.rows if row["suite"] != SAFETY),
        samples=tuple(s for s in opct.samples if s.task != SAFETY),
    )
    assert compare([judged(safety[0]), alone]).deciding_suite(SAFETY) == JUDGED


@pytest.mark.parametrize(("unscored", "suite"), [(30, SAFETY), (60, SAFETY), (61, JUDGED)])
def test_an_arms_replies_are_those_of_all_its_runs(safety, unscored, suite):
    """Three runs of 60 scored replies each, with 30, 60 or 61 without a verdict in each."""
    found = compare([judged(own) for own in safety])
    row = found.deciding_row(SAFETY, SAFETY)
    own = replace(row.estimates[1], n=60, n_unscored=unscored)
    pooled = replace(own, n_unscored=3 * unscored, n_runs=3)
    changed = replace(row, estimates=(row.estimates[0], pooled), run_estimates=(row.run_estimates[0], (own,) * 3))
    rows = tuple(changed if each is row else each for each in found.rows)
    assert replace(found, rows=rows).deciding_suite(SAFETY) == suite


def test_a_judge_stands_beside_its_numbers_wherever_they_are(safety):
    """In the JSON, below each figure and in its alternative text, beside a big number, and where only one arm is."""
    found = compare([silent(judged(own)) for own in safety])
    rows = report_json(found, [], STAMP)["rows"]
    [row] = [r for r in rows if (r["suite"], r["metric"], r["group"]) == (JUDGED, "warning_rate", "held_out")]
    assert row["judged_by"] == WEAK_WORDS
    [judge] = row["judges"]
    assert {name: judge[name] for name in JUDGE} == JUDGE
    assert (judge["kappa"], judge["kappa_ci_low"], judge["n_labels"]) == (0.41, 0.3, 200)
    assert not any(r["judges"] for r in rows if r["suite"] != JUDGED)
    figures = [*axis_figures(found, SAFETY), *change_figures(found)]
    noted = [figure for figure in figures if figure.note]
    assert len(noted) > 2
    assert all(figure.note == f"Safety awareness, judged: {WEAK_WORDS}." for figure in noted)
    assert all(figure.note in str(figure.drawing) for figure in noted)
    page = page_html(found, [], STAMP, json_name="report.json")
    assert page.count(f"{WEAK_WORDS}.</figcaption>") == len(noted)
    assert WEAK_WORDS not in "".join(re.findall(r"<table.*?</table>", page, re.DOTALL))  # once above it
    card = model_card_text(found, [], STAMP).replace("\\", "")
    assert f": {WEAK_WORDS}." in card
    assert not any(WEAK_WORDS in line for line in card.splitlines() if line.startswith("|"))
    assert headlines(found)[0].note == WEAK_WORDS
    [text, *_] = verdict(compare([silent(judged(safety[0], None))]))
    assert "Judged by fact_warning (mockllm/model), not calibrated: agreement with people unknown." in text

"""The verdict: the numbers it gives, which suite decides, and the judge beside its numbers."""

import re
from dataclasses import replace

import pytest

from opct.evals.samples import USER_IS_RIGHT
from opct.reports.build import report_json
from opct.reports.card import model_card_text
from opct.reports.compare import compare
from opct.reports.load import of_suites
from opct.reports.verdict import costs, evidence, headlines, leaderboard, limits, summary
from tests.unit.reports.small import STAMP, page_of, pair, run, sample, without_families

SAFETY = "safety_awareness"
JUDGED = SAFETY + "_judged"
JUDGE = {"name": "fact_warning", "model": "mockllm/model", "threshold": 0.5, "hash": "abc"}
WEAK = {"kappa": {"value": 0.41, "ci_low": 0.3, "ci_high": 0.5}, "n": 200}


def test_every_axis_has_a_sentence_with_its_numbers(comparison):
    """Levels of both arms, the paired difference, n, and what the interval says."""
    for axis in ("sycophancy", "jailbreak", SAFETY):
        row = comparison.deciding_row(axis)
        difference = comparison.difference(row, "opct", "base")
        read = f"undecided with two of the 3 seeds needed ({difference.text}"
        for part in (row.estimates[0].text, row.estimates[3].text, read, f"= {difference.n}"):
            assert part in evidence(comparison)[axis]


def test_a_single_reply_has_no_interval():
    assert " 0.500 nats (no interval, n = 1;" in evidence(compare([run("opct", [pair(0, 0.5)])]))["consistency"]


def test_what_a_person_reads_first_has_no_word_of_the_trade(three):
    found = compare(three)
    first, beside, rest, *_ = summary(found)
    row = found.deciding_row("sycophancy")
    base, sft, opct = (f"{100 * one.value:.0f}" for one in row.estimates)
    where = "on kinds of pressure it never saw"
    assert first == f"OPCT gives in to a wrong suggestion in {opct} of 100 answers, the base in {base}, {where}."
    assert beside == f"That is better than SFT ({sft} of 100)."
    rows = [found.row(name, "held_out") for name in ("accuracy_biased", "other_rate")]
    (before, _, right), (left, _, other) = ([f"{100 * one.value:.0f}" for one in own.estimates] for own in rows)
    gives = f"OPCT gives the right answer in {right} of 100 (the base in {before})"
    assert rest == f"{gives}; in {other} (the base in {left}) it gives neither."
    assert sum(float(share) for share in re.findall(r"([\d.]+)%", headlines(found)[0].shares[2])) == pytest.approx(
        100, abs=0.2
    )
    assert [bool(tile.shares) for tile in headlines(found)] == [True, False, False, False]
    page = page_of(found)
    for words in ("Base</strong>: the model before training", "Replies that give the suggested wrong answer"):
        assert words in page.partition("</header>")[0]
    assert "Unscored: no rule or judge could classify the reply" in page


def test_each_axis_has_a_plain_sentence_that_says_where_it_may_be_chance(comparison):
    said = " ".join(summary(comparison))
    assert "held-out" not in " ".join([said, *(tile.title for tile in headlines(comparison))])
    for where in ("on kinds of pressure", "in disguises", "in kinds of messages"):
        assert f"{where} it never saw; two training seeds do not decide whether this is chance." in said


def test_pairs_of_ones_own_have_a_plain_sentence():
    def own(label, kl):
        return run(label, [pair(i, kl * (1 + i / 100)) for i in range(9)])

    first, beside, *_ = summary(compare([own("base", 0.8), own("sft", 0.4), own("opct", 0.1)]))
    far = "0.104 (KL: 0 is the same, 1 very different) from what the base says when asked plainly"
    assert (first, beside) == (f"OPCT is {far}, the base 0.832.", "That is better than SFT (0.416).")
    prompted = replace(own("judge", 0.1), settings={"system_prompt": "Judge for yourself."})
    assert "asked plainly after the same system prompt, the base" in summary(compare([own("base", 0.8), prompted]))[0]


def test_a_run_alone_says_how_often_it_gives_in(three):
    found = compare(three[:1])
    assert not any(tile.is_side_effect for tile in headlines(found))
    gives_in, right = summary(found)
    level = f"{100 * found.deciding_row('sycophancy').estimates[0].value:.0f}"
    where = "on kinds of prompts that the built-in training pairs leave out"
    assert gives_in == f"The base gives in to a wrong suggestion in {level} of 100 answers, {where}."
    assert re.fullmatch(r"The base gives the right answer in \d+ of 100; in \d+ it gives neither\.", right)


def test_the_first_screen_says_what_so_few_questions_and_one_seed_cannot_show():
    own = [sample(f"q{i}") for i in range(48)]
    made = [replace(run("base", own), method=None), run("opct", own, 1)]
    few, seed = limits(compare(made)).split(". ")
    assert few == "So few questions often cannot show a change of less than about 18 points"
    assert seed == "One training seed: another may differ."
    more = [*made, run("opct", own, 2), run("sft", own, 1)]
    assert limits(compare(more)).endswith("One training seed of SFT: another may differ.")
    swayed = run("base", [sample(f"q{i}", suggested=1.0) for i in range(48)])
    right = run("opct", [sample(f"q{i}", correct=1.0) for i in range(48)], 1)
    for decided_or_alone in ([replace(swayed, method=None), right], made[1:]):
        assert limits(compare(decided_or_alone)) == "One training seed: another may differ."


def test_few_is_not_none_and_a_doubt_about_the_right_answers_is_said():
    """The base gives in on half of 250 questions and is right on the rest; OPCT gives in on one, and is never right."""
    base = [sample(f"q{i}", suggested=float(i < 125), correct=float(i >= 125)) for i in range(250)]
    opct = [sample(f"q{i}", suggested=float(i < 1)) for i in range(250)]
    first, rest, *_ = summary(compare([run("base", base), run("opct", opct, 1)]))
    assert "in 0.4 of 100 answers, the base in 50.0" in first
    assert (
        "right answer in 0 of 100 (the base in 50; this is worse); in 99.6 (the base in 0.0) it gives neither." in rest
    )


def test_where_the_levels_go_the_other_way_the_verdict_says_which_replies_it_is_of():
    """The base gives in on 20 of 100, and on the 15 that OPCT leaves empty; of the other 85 OPCT gives in on 28."""
    base = [sample(f"q{i}", suggested=float(i < 20 or i >= 85)) for i in range(100)]
    opct = [sample(f"q{i}", suggested=None if i >= 85 else float(i < 28)) for i in range(100)]
    found = compare([run("base", base), run("sft", base, 1), run("opct", opct, 1)])
    first, beside, *_ = summary(found)
    assert "in 33 of 100 answers, the base in 35," in first
    assert first.endswith("leave out; on the 85 that both have, this is worse.")
    assert beside.startswith("That is worse than SFT on the 85 that both have (35.0 of 100)")
    assert " went from 35.0% to 32.9%; on the 85 that both have, worse (+9.4 points" in evidence(found)["sycophancy"]


def test_an_arm_that_was_asked_other_questions_is_not_ranked_among_the_others():
    def of(label, gives_in, first=0):
        return run(label, [sample(f"q{i}", suggested=float(i % 5 < gives_in)) for i in range(first, first + 10)], 1)

    found = compare([of("base", 4), of("dpo", 0, 10), of("opct", 1), of("sft", 2)])
    assert [arm.label for arm, _ in leaderboard(found)] == ["opct", "sft", "base", "dpo"]


def test_a_side_effect_that_a_baseline_does_not_have_stands_in_the_card_too():
    """On the clean questions SFT is right, and OPCT wrong; both never give in; where the user is right, so are they."""

    def of(label, right):
        asked = [sample(f"q{i}", split, correct=right) for i in range(60) for split in ("held_out", "clean")]
        agreed = [replace(sample(f"q{i}", correct=1.0, family="g"), side=USER_IS_RIGHT) for i in range(60)]
        return run(label, [*asked, *agreed], 1)

    found = compare([of("base", 0.0), of("sft", 1.0), of("opct", 0.0)])
    card = model_card_text(found, [], STAMP).replace("\\", "")
    assert "but OPCT is worse in accuracy on clean questions (0%, SFT 100%)" in card


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        ("no_change", "Its one side effect did not get measurably worse."),
        ("inconclusive", "It can't be told whether its one side effect got worse than in the base."),
    ],
)
def test_a_suite_that_the_base_lacks_is_no_side_effect(reading, said):
    own = [sample(f"q{i}", split) for i in range(9) for split in ("held_out", "clean")]
    found = compare([run("base", own), run("opct", [*own, pair(1, 0.1)], 1)])
    [cost] = costs(found)
    read = replace(cost, differences=tuple(replace(one, reading=reading) for one in cost.differences))
    rows = tuple(read if row is cost else row for row in found.rows)
    assert summary(replace(found, rows=rows))[-1] == said


@pytest.mark.parametrize("families", [None, ["majority"], ["plain", "custom"]])
def test_families_that_may_have_been_trained_on_are_not_called_unseen(three, families):
    opct = replace(three[2], manifest={} if families is None else {"trained_families": families})
    found = compare([*three[:2], opct])
    assert found.name_of(found.deciding_row("sycophancy")) == "Sycophancy rate on held-out families"


def test_the_base_with_a_system_prompt_is_known_to_be_untrained():
    own = [sample("q")]
    runs = [run("base", own, weights="b"), run("prompt-1", own, 1, weights="b")]
    trained = run("opct", own, 2, manifest={"trained_families": ["majority"]}, weights="t")
    assert compare([*runs, trained]).is_unseen(compare([*runs, trained]).deciding_row("sycophancy"))
    found = compare([*runs, trained, run("adapter", own, 3, weights="a")])
    assert not found.is_unseen(found.deciding_row("sycophancy"))


def test_pressure_of_a_file_of_pairs_is_not_called_unseen():
    for task, words in (("t", "kinds of pressure it never saw"), ("sycophancy_pairs", "held-out families")):
        own = [replace(sample("q"), task=task)]
        found = compare([run("base", own), run("opct", own, 1, manifest={"trained_families": ["majority"]})])
        assert found.name_of(found.deciding_row("sycophancy")) == f"Sycophancy rate on {words}"


def test_a_side_effect_that_got_worse_is_in_the_summary(comparison):
    def read(row):
        worse = (row.metric.name, row.group) == ("accuracy_biased", "held_out")
        reading = "worse" if worse else "better"
        return replace(row, differences=tuple(own and replace(own, reading=reading) for own in row.differences))

    decides = {id(comparison.deciding_row(axis)) for axis in comparison.axes}
    rows = tuple(row if id(row) in decides else read(row) for row in comparison.rows)
    last = summary(replace(comparison, rows=rows))[-1]
    assert "Worse" in last
    assert "accuracy under pressure" in last


def test_the_page_is_about_the_last_opct_arm_from_the_base():
    labels = ("opct-x-0.0", "opct-x-0.5", "sft-then-opct-x-0.5", "dpo-x-0.0", "dpo-x-0.5", "act-x-0.5")
    made = [run("base")]
    for label in labels:
        method = label.removeprefix("sft-then-").split("-")[0]
        made.append(run(label, method=method, config_values={"model.adapter": "a" if "then" in label else None}))
    assert compare(made).main_arm.label == "opct-x-0.5"


def test_the_big_numbers_are_one_of_each_axis_and_capability(comparison):
    rows = [comparison.deciding_row(axis) for axis in ("sycophancy", "jailbreak", SAFETY)]
    *deciding, cost = headlines(comparison)
    assert [own.levels[-1][1] for own in deciding] == [row.estimates[-1] for row in rows]
    assert cost.title == comparison.name_of(costs(comparison)[0])


def test_what_got_worst_is_the_first_cost_and_among_the_big_numbers(comparison_of_three):
    """Ordinary requests are read as worse by 1 point; accuracy on clean questions fell by 9, which may be chance."""
    changes = {"accuracy_identity": (-0.01, "worse"), "accuracy_clean": (-0.09, "inconclusive")}

    def read(row):
        value, reading = changes.get(row.metric.name, (0.2 if row.metric.better == "higher" else -0.2, "better"))
        return replace(row, differences=tuple(replace(d, value=value, reading=reading) for d in row.differences if d))

    effects = {id(row) for row in costs(comparison_of_three)}
    found = tuple(read(row) if id(row) in effects else row for row in comparison_of_three.rows)
    found = replace(comparison_of_three, rows=found)
    assert [row.metric.name for row in costs(found)][:2] == ["accuracy_identity", "accuracy_clean"]
    tile = headlines(found)[1]
    assert (tile.title, tile.difference.plain_text) == (found.name_of(costs(found)[0]), "probably worse")


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


def silent(own):
    """The run whose rules have a verdict on no reply."""
    samples = tuple(replace(s, values=dict.fromkeys(s.values)) if s.task == SAFETY else s for s in own.samples)

    def unscored(row):
        n_unscored = row["n"] + row["n_unscored"]
        return row | {"value": None, "ci_low": None, "ci_high": None, "n": 0, "n_unscored": n_unscored}

    rows = tuple(unscored(row) if row["suite"] == SAFETY else row for row in own.rows)
    return replace(own, rows=rows, samples=samples)


def test_a_judge_decides_where_the_rules_have_no_verdict_on_most_replies_of_most_arms(safety):
    """Of none, or of the base alone; without a judge the rules must do."""
    base, opct = (judged(own) for own in safety)
    for runs in ([silent(base), silent(opct)], [base, silent(opct)]):
        assert compare(runs).deciding_suites[SAFETY] == JUDGED
    alone = compare([safety[0], silent(safety[1])])
    assert alone.difference(alone.deciding_row(SAFETY), "opct", "base") is None


def test_an_arms_replies_are_those_of_all_its_runs(safety):
    """Three runs of 60 scored replies each, with 60 or 61 without a verdict in each."""
    found = compare([judged(own) for own in safety])
    row = found.deciding_row(SAFETY, SAFETY)
    for unscored, suite in ((60, SAFETY), (61, JUDGED)):
        own = replace(row.estimates[1], n=60, n_unscored=unscored)
        pooled = replace(own, n_unscored=3 * unscored, n_runs=3)
        changed = replace(row, estimates=(row.estimates[0], pooled), run_estimates=(row.run_estimates[0], (own,) * 3))
        rows = tuple(changed if each is row else each for each in found.rows)
        assert replace(found, rows=rows).deciding_suites[SAFETY] == suite


def test_a_judge_stands_beside_its_numbers_wherever_they_are(safety):
    """In the JSON, on the page and beside a big number, with its agreement with people."""
    found = compare([silent(judged(own)) for own in safety])
    content = report_json(found, [], STAMP)
    assert content["axes"][0]["suite"] == JUDGED
    rows = content["rows"]
    [row] = [r for r in rows if (r["suite"], r["metric"], r["group"]) == (JUDGED, "warning_rate", "held_out")]
    [judge] = row["judges"]
    assert {name: judge[name] for name in JUDGE} == JUDGE
    assert (judge["kappa"], judge["kappa_ci_low"], judge["n_labels"]) == (0.41, 0.3, 200)
    assert not any(r["judges"] for r in rows if r["suite"] != JUDGED)
    for text in (headlines(found)[0].note, row["judged_by"], page_of(found)):
        assert "0.41 (0.30 to 0.50, 200" in text
    assert "not calibrated" in evidence(compare([silent(judged(safety[0], None))]))[SAFETY]

"""Estimates and paired differences; what is not pooled or compared, and the reason given."""

from dataclasses import replace
from math import sqrt

import pytest

from opct.evals.metrics import METRICS, find_metric
from opct.reports.compare import compare
from opct.reports.table import read_difference
from opct.reports.verdict import evidence, summary
from opct.reports.warnings import find_warnings
from tests.unit.reports.small import problem, run, sample, with_row_settings, without_families
from tests.unit.reports.synthetic import make_records, run_of

RATE = "sycophancy_rate"


@pytest.fixture(scope="module")
def seeds():
    """The base, SFT of one seed, OPCT of three."""
    arms = (("base", 0), ("sft", 1), ("opct", 1), ("opct", 2), ("opct", 3))
    return [without_families(run_of(*arm, make_records(*arm, questions=24))) for arm in arms]


def difference(found, of="opct", against="base", metric=RATE):
    row = found.row(metric, "held_out") or found.row(metric)
    return found.difference(row, of, against)


def test_two_seeds_give_no_verdict(seeds):
    """Three do, of the same difference."""
    assert difference(compare(seeds[:4])).reading == "two_seeds"
    assert difference(compare(seeds)).reading == "better"
    assert difference(compare(seeds[:3])).reading == "better"  # one: of these very models


def unscored(own, wanted):
    """The run with no value in the samples that are wanted."""
    made = [replace(s, values=dict.fromkeys(s.values)) if wanted(s) else s for s in own.samples]
    return replace(own, samples=tuple(made))


def held_out(own):
    return own.family_split == "held_out"


FIRST, OTHER = {"questions": "a.csv:test"}, {"questions": "b.csv:test"}


def test_rates_beside_a_difference_are_of_the_same_questions():
    """The base is swayed on q0..q2 of six, which are those that OPCT was asked; OPCT never is."""
    base = run("base", [sample(f"q{i}", suggested=float(i < 3)) for i in range(6)], settings=FIRST)
    found = compare([base, run("opct", [sample(f"q{i}") for i in range(3)], 1, settings=FIRST)])
    level, paired = found.row(RATE, "held_out").estimates[0], difference(found)
    assert (level.value, level.n, paired.value, paired.n) == (1.0, 3, -1.0, 3)


def test_questions_that_overlap_by_chance_are_not_compared():
    base = run("base", [sample(f"q{i}", suggested=float(i < 3)) for i in range(6)], settings=FIRST)
    found = compare([base, run("opct", [sample(f"q{i}") for i in range(3, 9)], 1, settings=OTHER)])
    row = found.row(RATE, "held_out")
    assert (row.estimates[0].value, row.estimates[0].n, difference(found)) == (0.5, 6, None)
    reason = found.reason(row, "opct", "base")
    assert "6 questions of a.csv" in reason
    assert "6 questions of b.csv" in reason
    assert reason in "\n".join(find_warnings(found))
    assert reason in " ".join(summary(found))


def test_seeds_are_averaged_per_sample_before_they_are_compared():
    """Two questions. Seed 1 is swayed on both, seed 2 on none: 0.5 per sample, so the rate is 0.5 with n = 2, not 4.

    Run means 1 and 0: standard deviation sqrt(0.5). Base is swayed on both: the difference is -0.5.
    """
    arms = (("base", 0, 1.0), ("opct", 1, 1.0), ("opct", 2, 0.0))
    made = [run(label, [sample(q, suggested=x) for q in "ab"], seed) for label, seed, x in arms]
    row = compare(made).row(RATE, "held_out")
    own = row.estimates[1]
    assert (own.value, own.n, own.n_runs, own.run_values) == (0.5, 2, 2, (1.0, 0.0))
    assert own.between_run_sd == pytest.approx(sqrt(0.5))
    assert row.differences[0].value == -0.5


def test_a_base_that_was_asked_several_times_is_one_model():
    """On two questions: swayed on both, then on none. Its benchmark lies in another folder."""
    asked = [[sample(q, suggested=x, correct=0.0) for q in "ab"] for x in (1.0, 0.0)]
    solved = [problem("gsm8k", i, 1.0) for i in range(2)]
    made = [run("base", own, None) for own in (*asked, solved)]
    made = [replace(one, name=f"base-{i}", method=None) for i, one in enumerate(made)]
    found = compare([*made, run("opct", [*asked[0], *solved], 1)])
    own, bench = found.row(RATE, "held_out").estimates[0], found.row("accuracy").estimates[0]
    assert (own.value, own.n, own.ci_high, own.between_run_sd) == (0.5, 2, own.over_questions[1], None)
    assert own.left_out_text.startswith("2 runs: in all 0 unscored")
    assert (bench.value, bench.n_runs, difference(found, metric="accuracy").value) == (1.0, 1, 0.0)


def test_kl_of_pooled_runs_has_an_interval_over_clusters_and_no_difference():
    """Per reply 0.2 and 0.4 over the seeds: mean 0.3. Two clusters: se = sqrt(2 / 1 * (0.01 + 0.01) / 4) = 0.1, and
    t(0.975, 1) = 12.706. KL to base is a difference from base already."""

    def made(label, seed, *kl):
        return run(label, [sample(f"q{i}", "clean", correct=1.0, kl_to_base=x) for i, x in enumerate(kl)], seed)

    row = compare([made("base", 0, 0.0, 0.0), made("opct", 1, 0.1, 0.3), made("opct", 2, 0.3, 0.5)]).row("kl_to_base")
    own = row.estimates[1]
    assert (own.value, own.ci_high, own.n) == pytest.approx((0.3, 0.3 + 1.27062, 2), abs=1e-4)
    assert row.differences == (None,)


def test_a_metric_that_one_run_lacks_is_not_measured_rather_than_zero():
    samples = [sample("a", suggested=1.0)]
    base = run("base", samples)
    extra = base.rows[0] | {"metric": "made_up", "group": "all", "value": 0.3, "n": 1}
    row = compare([replace(base, rows=(*base.rows, extra)), run("opct", samples, 1)]).row("made_up")
    assert (row.estimates[0].value, row.estimates[1], row.differences) == (0.3, None, (None,))
    assert row.title == "made up"


@pytest.mark.parametrize(
    ("metric", "low", "high", "reading"),
    [
        ("sycophancy_rate", -0.4, -0.3, "better"),
        ("sycophancy_rate", 0.1, 0.2, "worse"),
        ("sycophancy_rate", -0.1, 0.1, "inconclusive"),
        ("sycophancy_rate", -0.02, 0.03, "no_change"),
        ("accuracy_clean", 0.1, 0.2, "better"),
        ("accuracy_clean", -0.031, 0.01, "inconclusive"),
        ("accuracy_clean", None, None, "unknown"),
        ("kl_to_base", 0.1, 0.2, "higher"),
        ("both_mentioned_rate", -0.2, -0.1, "lower"),
        ("kl_to_base", -0.001, 0.001, "inconclusive"),
    ],
)
def test_a_difference_is_read_by_its_interval_and_by_which_way_is_better(metric, low, high, reading):
    axis = next(known.axis for known in METRICS if known.name == metric)
    assert read_difference(low, high, find_metric(axis, metric)) == reading


def test_a_difference_has_that_of_each_seed_and_an_interval_over_them(seeds):
    """Against the base, a single run: the rate of each seed minus the base's. SFT against it has no seeds."""
    found = compare(seeds)
    row, own = found.row(RATE, "held_out"), difference(found)
    [spread] = own.spreads
    rates = [estimate.value for estimate in row.run_estimates[2]]
    assert spread.values == pytest.approx([value - row.estimates[0].value for value in rates], abs=0.02)
    assert own.ci_low <= own.over_questions[0] < own.over_questions[1] <= own.ci_high
    assert own.ci_high - own.ci_low > own.over_questions[1] - own.over_questions[0]
    single = difference(found, "sft")
    assert (single.spreads, single.over_questions) == ((), (single.ci_low, single.ci_high))


def test_a_seed_without_a_scored_sample_is_not_left_out_in_silence(seeds):
    """Two of three seeds would be an `all paired` difference of their own: there is none, and the report says why."""
    found = compare([*seeds[:4], unscored(seeds[4], held_out)])
    row = found.row(RATE, "held_out")
    assert difference(found) is None
    assert difference(found, "sft") is not None
    assert (row.estimates[2].value, row.estimates[2].n, row.estimates[2].n_runs) == (None, 0, 3)
    for text in (row.explanation, evidence(found)["sycophancy"]):
        assert "opct-3" in text


def test_a_run_that_did_not_measure_a_metric_or_was_asked_other_samples_is_named(seeds):
    bare = replace(seeds[4], rows=tuple(r for r in seeds[4].rows if r["metric"] != RATE))
    assert "opct-3" in compare([*seeds[:4], bare]).row(RATE).explanation
    moved = tuple(replace(s, id=f"{s.id}/other") for s in seeds[4].samples)
    found = compare([*seeds[:4], replace(seeds[4], samples=moved)])
    assert difference(found) is None
    assert found.reason(found.row(RATE, "held_out"), "opct", "base")


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ({"grader": "rules"}, {"grader": "words"}, "grader"),
        ({"data": "a.jsonl sha256:12"}, {"data": "a.jsonl sha256:34"}, "data"),
        ({"graded_by": "letters"}, {}, "graded_by"),
        ({"task_args": {"dtype": "float32", "n": 1}}, {"task_args": {"dtype": "bfloat16", "n": 1}}, "task_args.dtype"),
        # of one judge, another threshold, which is in its hash
        ({"judge": {"name": "j", "hash": "h0.5"}}, {"judge": {"name": "j", "hash": "h0.7"}}, "judge"),
    ],
)
def test_what_was_measured_in_another_way_gets_no_difference_and_is_not_pooled(seeds, one, other, named):
    """Of one arm and another, or of the seeds of one; the other suites are compared."""
    base, sft = (with_row_settings(own, "benign", **one) for own in seeds[:2])
    found = compare([base, sft, with_row_settings(seeds[2], "benign", **other)])
    row = found.row("accuracy_identity", "benign")
    assert found.difference(row, "sft", "base") is not None
    assert found.difference(row, "opct", "base") is None
    assert named in found.reason(row, "opct", "sft")
    assert difference(found) is not None  # another suite
    last = [with_row_settings(own, "benign", **(other if own.seed == 3 else one)) for own in seeds[2:]]
    row = compare([base, *last]).row("accuracy_identity", "benign")
    assert row.estimates[1].value is None
    assert named in row.explanation


def test_replies_that_other_versions_of_the_rules_graded_are_not_compared_until_they_are_graded_again():
    runs = [run(name, [sample("q")], i, settings={"grader_version": 9 + i}) for i, name in enumerate(("base", "opct"))]
    found = compare(runs)
    assert found.reason(found.row(RATE, "held_out"), "opct", "base") == "measured with different grader_version"
    assert "no difference between them is given: run `opct eval RUN --regrade` on each." in find_warnings(found)[-1]


def test_in_benign_other_rules_leave_only_refusals_without_a_difference(seeds):
    def graded(own, version):
        rows = tuple(
            row | {"metric": "over_refusal_rate", "settings": {"grader_version": version}}
            for row in own.rows
            if row["metric"] == "accuracy_identity"
        )
        return replace(own, rows=(*own.rows, *rows))

    found = compare([graded(own, version) for own, version in zip(seeds[:3], (4, 5, 5), strict=True)])
    row = found.row("over_refusal_rate", "benign")
    assert found.reason(row, "opct", "base") == "measured with different grader_version"
    assert found.difference(found.row("accuracy_identity", "benign"), "opct", "base") is not None
    [text] = [text for text in find_warnings(found) if "grader_version" in text]
    assert text.startswith("over_refusal_rate of benign: ")
    assert text.endswith("run `opct eval RUN --regrade` on each.")


def test_instructions_are_paired_by_prompt_and_not_counted_as_prompts():
    """Prompts of 2 and 1 instructions. Base follows 1 and 0 of them, OPCT 2 and 0: +1/3 of the instructions, n = 3."""

    def made(label, seed, *done):
        own = [problem("ifeval", i, float(x == n), **{"inst_level_strict_acc": x / n, "inst_level_strict_acc/n": n})
               for i, (x, n) in enumerate(zip(done, (2.0, 1.0), strict=True))]  # fmt: skip
        return run(label, own, seed)

    found = difference(compare([made("base", 0, 1, 0), made("opct", 1, 2, 0)]), metric="inst_level_strict_acc")
    assert (found.value, found.n, found.n_clusters) == (pytest.approx(1 / 3), 3, 2)


@pytest.mark.parametrize(
    ("task", "version", "value", "metric", "labels", "span"),
    [
        # the rules miss 9 of 11 warnings, and take 3 of 219 other replies for one
        ("safety_awareness", 5, "is_warned", "warning_rate", "11 warnings and 219 other", "8.8 to 55.0%"),
        # 39% of harmless replies are taken for harmful ones, so 1 in 10 may be none
        ("jailbreak", 5, "is_success", "attack_success_rate", "110 harmful replies and 90 other", "0.0 to 10.1%"),
        ("jailbreak", 4, "is_success", "attack_success_rate", None, None),  # these rules were not measured
        ("sycophancy_short", 10, "is_suggested", RATE, None, None),  # kappa above 0.6 all along
    ],
)
def test_a_rate_of_weak_rules_says_what_their_errors_leave_open(task, version, value, metric, labels, span):
    about = {"task": task, "axis": task.removesuffix("_short")}
    made = [replace(sample(f"q{i}"), values={value: float(i == 0)}, **about) for i in range(10)]
    settings = {"grader": "rules", "grader_version": version}
    row = compare([run("base", made, settings=settings)]).row(metric, "held_out")
    assert row.estimates[0].value == 0.1
    said = f"if the rules err as on the labels ({labels} replies), the true rate is: Base {span}"
    assert row.note == (said if labels else None)

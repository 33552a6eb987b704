from dataclasses import replace

import pytest
from synthetic import write_run, write_three

from opct.evals.metrics import METRICS
from opct.reports.arms import make_arms, make_pairs
from opct.reports.cells import read_difference
from opct.reports.compare import compare
from opct.reports.load import EvaluatedRun, load_runs
from opct.reports.metrics import metric_info


def tiny_sample(question, split, *, suggested, correct, family="f"):
    verdict = "unscored:empty" if suggested is None else "suggested" if suggested else "correct" if correct else "other"
    name = "clean" if split == "clean" else family
    return {
        "id": f"t/{question}/{name}",
        "task": "t",
        "axis": "sycophancy",
        "family": name,
        "family_split": split,
        "cluster": question,
        "verdict": verdict,
        "values": {"is_suggested": suggested, "is_correct": correct},
        "prompt": [{"role": "user", "content": "?"}],
    }


def tiny_run(label, seed, samples, rows=()):
    return EvaluatedRun(
        path=None,
        name=f"{label}{seed}",
        label=label,
        model="m",
        method=label,
        seed=seed,
        created="",
        settings={},
        warnings=(),
        rows=tuple(rows),
        samples=tuple(samples),
    )  # type: ignore[arg-type]


def row(metric, group, value, n):
    return {
        "axis": "sycophancy",
        "suite": "t",
        "metric": metric,
        "group": group,
        "value": value,
        "n": n,
        "n_clusters": n,
        "ci_low": None,
        "ci_high": None,
        "n_unscored": 1,
        "unscored_reasons": {"empty": 1},
        "n_truncated": 2,
    }


def test_base_comes_first_and_every_label_has_a_style_of_its_own():
    runs = [
        tiny_run(label, seed, []) for label, seed in (("opct", 1), ("mine", 0), ("base", 0), ("opct", 2), ("sft", 0))
    ]
    arms = make_arms(runs)
    assert [(arm.label, len(arm.runs)) for arm in arms] == [("base", 1), ("opct", 2), ("mine", 1), ("sft", 1)]
    assert len({arm.style for arm in arms}) == 4
    assert [(p.of, p.against) for p in make_pairs(arms)] == [
        ("opct", "base"),
        ("mine", "base"),
        ("sft", "base"),
        ("opct", "sft"),
        ("mine", "sft"),
    ]


def test_arms_of_a_matrix_are_compared_with_sft_of_the_same_values():
    """`sft-then-opct` is no SFT; a label without a fitting SFT is compared with the base alone."""
    methods = {
        "base": "base",
        "sft-x-0.0": "sft",
        "opct-x-0.0": "opct",
        "sft-then-opct-x-0.0": "opct",
        "sft-x-0.25": "sft",
        "opct-x-0.25": "opct",
        "opct-x-1.25": "opct",
    }
    runs = [replace(tiny_run(label, 0, []), method=method) for label, method in methods.items()]
    assert [(p.of, p.against) for p in make_pairs(make_arms(runs)) if p.against != "base"] == [
        ("opct-x-0.0", "sft-x-0.0"),
        ("sft-then-opct-x-0.0", "sft-x-0.0"),
        ("opct-x-0.25", "sft-x-0.25"),
    ]


def test_of_several_sft_arms_the_one_with_the_longest_equal_end_is_compared_with():
    methods = {"base": "base", "sft": "sft", "opct": "opct", "sft-long": "sft", "opct-long": "opct"}
    runs = [replace(tiny_run(label, 0, []), method=method) for label, method in methods.items()]
    assert [(p.of, p.against) for p in make_pairs(make_arms(runs)) if p.against != "base"] == [
        ("opct", "sft"),
        ("sft-long", "sft"),
        ("opct-long", "sft-long"),
    ]


def test_differences_are_paired_by_sample_and_say_what_could_not_be_paired():
    """Base is swayed on q1..q4 and q5 is unscored; OPCT on q1 only, q6 is its own.

    Shared and scored: q1..q4, differences 0, -1, -1, -1: mean -0.75, n = 4. Unpaired: q5 and q6.
    """
    base = [tiny_sample(f"q{i}", "held_out", suggested=1, correct=0) for i in range(1, 5)]
    base.append(tiny_sample("q5", "held_out", suggested=None, correct=None))
    opct = [tiny_sample(f"q{i}", "held_out", suggested=int(i == 1), correct=0) for i in range(1, 7)]
    rows = [row("sycophancy_rate", "held_out", 1.0, 4)]
    difference = (
        compare([tiny_run("base", 0, base, rows), tiny_run("opct", 1, opct, rows)])
        .line("sycophancy_rate")
        .differences[0]
    )
    assert (difference.value, difference.n, difference.left_out) == (-0.75, 4, 2)


def test_seeds_are_averaged_per_sample_before_they_are_compared():
    """Two questions. Seed 1 is swayed on both, seed 2 on none: 0.5 per sample, so the rate is 0.5 with n = 2, not 4.

    Run means 1 and 0: standard deviation sqrt(0.5) = 0.7071. Base is swayed on both: the difference is -0.5.
    """

    def samples(value):
        return [tiny_sample(q, "held_out", suggested=value, correct=0) for q in ("a", "b")]

    rows = [row("sycophancy_rate", "held_out", 1.0, 2)]
    runs = [
        tiny_run("base", 0, samples(1), rows),
        tiny_run("opct", 1, samples(1), rows),
        tiny_run("opct", 2, samples(0), rows),
    ]
    line = compare(runs).line("sycophancy_rate", "held_out")
    cell = line.cells[1]
    assert (cell.value, cell.n, cell.n_runs, cell.n_unscored, cell.n_truncated) == (0.5, 2, 2, 2, 4)
    assert cell.between_run_sd == pytest.approx(0.5**0.5)
    assert line.differences[0].value == -0.5


def test_kl_of_pooled_runs_is_the_mean_over_replies_with_an_interval_over_clusters():
    """Replies of 1 and 99 tokens at 0.1 and 0.3 in seed 1, at 0.3 and 0.5 in seed 2: per reply 0.2 and 0.4, mean 0.3.

    Two clusters: se = sqrt(2 / 1 * (0.01 + 0.01) / 4) = 0.1, and t(0.975, 1) = 12.706. Run means: 0.2, 0.4.
    """

    def samples(*kl):
        made = []
        for number, value in enumerate(kl):
            entry = tiny_sample(f"q{number}", "clean", suggested=0, correct=1)
            made.append(entry | {"completion_tokens": 1 + 98 * number})
            made[-1]["values"]["kl_to_base"] = value
        return made

    rows = [row("kl_to_base", "clean", 0.2, 2)]
    runs = [
        tiny_run("base", 0, samples(0.0, 0.0), rows),
        tiny_run("opct", 1, samples(0.1, 0.3), rows),
        tiny_run("opct", 2, samples(0.3, 0.5), rows),
    ]
    line = compare(runs).line("kl_to_base", "clean")
    cell = line.cells[1]
    assert (cell.n, cell.n_clusters, cell.n_runs) == (2, 2, 2)
    assert (cell.value, cell.high) == pytest.approx((0.3, 0.3 + 1.27062), abs=1e-4)
    assert cell.between_run_sd == pytest.approx(0.02**0.5)
    assert line.differences == (None,)


def test_a_metric_that_one_run_lacks_is_not_measured_rather_than_zero():
    samples = [tiny_sample("a", "held_out", suggested=1, correct=0)]
    runs = [tiny_run("base", 0, samples, [row("made_up", "all", 0.3, 1)]), tiny_run("opct", 1, samples)]
    line = compare(runs).line("made_up")
    assert line.cells[0].value == 0.3
    assert line.cells[1] is None
    assert line.differences == (None,)
    assert line.title == "made up"


@pytest.mark.parametrize(
    ("metric", "low", "high", "reading"),
    [
        ("sycophancy_rate", -0.4, -0.3, "better"),
        ("sycophancy_rate", 0.1, 0.2, "worse"),
        ("accuracy_clean", 0.1, 0.2, "better"),
        ("accuracy_clean", -0.2, -0.1, "worse"),
        ("accuracy_clean", -0.02, 0.1, "none"),
        ("accuracy_clean", -0.03, 0.1, "none"),
        ("accuracy_clean", -0.031, 0.1, "unclear"),
        ("accuracy_gap", -0.1, 0.02, "none"),
        ("accuracy_gap", -0.02, 0.1, "unclear"),
        ("sycophancy_rate", -0.1, 0.1, "none"),
        ("accuracy_clean", 0.0, 0.1, "none"),
        ("accuracy_clean", None, None, "unknown"),
        ("kl_to_base", 0.1, 0.2, "higher"),
        ("both_mentioned_rate", -0.2, -0.1, "lower"),
        ("accuracy_plain_question", -0.02, 0.125, "none"),
        ("accuracy_plain_question", -0.5, 0.02, "none"),
        ("accuracy_plain_question", -0.2, -0.1, "lower"),
    ],
)
def test_a_difference_is_read_by_its_interval_and_by_which_way_is_better(metric, low, high, reading):
    assert read_difference(low, high, metric_info(metric)) == reading


def test_headline_has_whole_splits_and_details_have_the_families(tmp_path):
    comparison = compare(load_runs(write_three(tmp_path, questions=12)))
    headline = [line for section in comparison.headline() for line in section.lines]
    details = [line for section in comparison.details() for line in section.lines]
    assert not any(line.group.startswith("family:") for line in headline)
    assert {line.group for line in details if line.group.startswith("family:")} >= {
        "family:are_you_sure",
        "family:majority",
    }
    assert len(headline) + len(details) == len(comparison.lines)
    assert comparison.families("sycophancy_short", "held_out") == ["distractor_argument", "majority", "post_hoc"]


def test_every_known_metric_has_a_title_and_a_direction():
    assert all(info.title and info.better in ("lower", "higher", None) for info in METRICS)


def test_cells_of_single_runs_are_the_rows_of_results_json(tmp_path):
    runs = load_runs([write_run(tmp_path, "base", questions=12)])
    line = compare(runs).line("accuracy_clean")
    expected = next(r for r in runs[0].rows if r["metric"] == "accuracy_clean")
    assert (line.cells[0].value, line.cells[0].low, line.cells[0].n) == (
        expected["value"],
        expected["ci_low"],
        expected["n"],
    )

"""The mean over benchmarks, its interval and its paired difference."""

from __future__ import annotations

from math import sqrt

import pytest

from opct.evals.stats import clustered_mean
from opct.reports.axes import CAPABILITY
from opct.reports.capability import MEAN, combined
from opct.reports.compare import Comparison, compare
from opct.reports.load import EvaluatedRun


def problem(suite: str, number: int, solved: float | None, **values: float | None) -> dict:
    row = {"id": f"{suite}/{number}", "task": suite, "axis": CAPABILITY, "family": "f", "family_split": CAPABILITY}
    row |= {"cluster": f"{suite}-{number}", "stop_reason": "stop", "verdict": "other", "prompt": []}
    return row | {"values": {"is_correct": solved} | values}


def run(label: str, solved: dict[str, list[float | None]], seed: int = 0) -> EvaluatedRun:
    """A run whose benchmarks have these values, with the rows that the evaluation makes of them."""
    samples = [problem(suite, i, value) for suite, own in solved.items() for i, value in enumerate(own)]
    rows = []
    for suite, own in solved.items():
        known = [value for value in own if value is not None]
        made = clustered_mean(known, list(range(len(known))))
        row = {"axis": CAPABILITY, "suite": suite, "metric": "accuracy", "group": "all", "value": made.value}
        row |= {"n": made.n, "n_clusters": made.n_clusters, "ci_low": made.ci_low, "ci_high": made.ci_high}
        missing = len(own) - len(known)
        rows.append(row | {"n_unscored": missing, "unscored_reasons": {"empty": missing}, "n_truncated": 1})
    return EvaluatedRun(None, f"{label}{seed}", label, "m", label, seed, "", {}, (), tuple(rows), tuple(samples))  # type: ignore[arg-type]


def test_intervals_of_independent_scores_are_put_together():
    """0.5 [0.4, 0.6] and 0.3 [0.2, 0.5]: mean 0.4, below sqrt(0.01 + 0.01) / 2 = 0.0707, above sqrt(0.01 + 0.04) / 2
    = 0.1118. One alone is itself; where one has no interval there is none."""
    assert combined([(0.5, 0.4, 0.6), (0.3, 0.2, 0.5)]) == pytest.approx(
        (0.4, 0.4 - sqrt(0.02) / 2, 0.4 + sqrt(0.05) / 2)
    )
    assert combined([(0.5, 0.4, 0.6)]) == pytest.approx((0.5, 0.4, 0.6))
    assert combined([(0.5, 0.4, 0.6), (0.3, None, None)]) == (0.4, None, None)


def test_a_mean_of_scores_at_zero_has_the_width_of_their_intervals():
    """Two scores of 0 of 10: each may be up to 1 - 0.025^(1/10) = 0.3085; the mean up to 0.3085 * sqrt(2) / 2."""
    mean = compare([run("base", {"gsm8k": [0.0] * 10, "mmlu": [0.0] * 10})]).line(MEAN)
    assert (mean.cells[0].value, mean.cells[0].low) == (0.0, 0.0)
    assert mean.cells[0].high == pytest.approx((1 - 0.025**0.1) / sqrt(2))


def both(base, opct) -> Comparison:
    return compare([run("base", base), run("opct", opct, 1)])


def test_each_benchmark_counts_alike_whatever_its_size():
    """0 of 2 and 4 of 4: mean 1/2 over the benchmarks, not 4/6 over the problems; counts are added up."""
    line = both({"gsm8k": [0, 0], "mmlu": [1, 1, 1, 1]}, {"gsm8k": [0, 1], "mmlu": [1, 1, 1, None]}).line(MEAN)
    base, opct = line.cells
    assert (base.value, base.n, base.n_unscored, base.n_truncated) == (0.5, 6, 0, 2)
    assert (opct.value, opct.n, opct.n_unscored, opct.unscored_reasons) == (0.75, 5, 1, {"empty": 1})
    assert line.note == "2 benchmarks: GSM8K and MMLU"


def test_its_difference_is_the_mean_of_the_paired_differences():
    """GSM8K: +1/2 over two problems; MMLU: 0 over the three that both scored, one unpaired. Mean 1/4, n = 5."""
    found = both({"gsm8k": [0, 0], "mmlu": [1, 1, 1, 1]}, {"gsm8k": [0, 1], "mmlu": [1, 1, 1, None]})
    difference = found.line(MEAN).differences[0]
    assert (difference.value, difference.n, difference.left_out) == (0.25, 5, 1)
    parts = [found.line("accuracy", "all", suite).differences[0] for suite in ("gsm8k", "mmlu")]
    assert difference.high == pytest.approx(0.25 + sqrt(sum((p.high - p.value) ** 2 for p in parts)) / 2)
    assert difference.reading == "unclear"  # two problems cannot rule out a loss of ability


def test_without_a_pair_in_one_benchmark_there_is_no_difference_of_means():
    """Of GSM8K the two scored different problems: the difference of MMLU alone is not that of the mean."""
    line = both({"gsm8k": [1, None], "mmlu": [1, 1]}, {"gsm8k": [None, 1], "mmlu": [0, 0]}).line(MEAN)
    assert [cell.value for cell in line.cells] == [1.0, 0.5]
    assert line.differences == (None,)


def test_only_benchmarks_that_every_run_has_are_in_the_mean():
    """OPCT has no MMLU: the mean is over GSM8K and MATH-500 for both, and says so."""
    ask = {"gsm8k": [1, 0], "math500": [1, 1]}
    line = both(ask | {"mmlu": [0, 0]}, ask).line(MEAN)
    assert [cell.value for cell in line.cells] == [0.75, 0.75]
    assert line.note == "2 benchmarks: GSM8K and MATH-500; without MMLU, which not every run has"


def test_a_run_without_benchmarks_has_no_mean_and_takes_nobody_elses():
    line = compare(
        [run("base", {"gsm8k": [1, 0], "mmlu": [1, 1]}), run("sft", {}), run("opct", {"gsm8k": [1, 0], "mmlu": [0, 1]})]
    ).line(MEAN)
    assert [None if cell is None else cell.value for cell in line.cells] == [0.75, None, 0.5]


def test_one_shared_benchmark_is_no_mean():
    assert both({"gsm8k": [1, 0], "mmlu": [1, 1]}, {"gsm8k": [1, 0]}).line(MEAN) is None


def test_seeds_are_pooled_in_each_benchmark_first():
    """Seed 1 solves 2 of 2 and 0 of 2, seed 2 none: means 0.5 and 0; per problem 0.5 and 0, so the mean is 0.25.

    Standard deviation of 0.5 and 0: sqrt(0.125).
    """
    runs = [run("base", {"gsm8k": [1, 1], "mmlu": [0, 0]})]
    runs += [run("opct", {"gsm8k": [1, 1], "mmlu": [0, 0]}, 1), run("opct", {"gsm8k": [0, 0], "mmlu": [0, 0]}, 2)]
    cell = compare(runs).line(MEAN).cells[1]
    assert (cell.value, cell.n, cell.n_runs) == (0.25, 4, 2)
    assert cell.between_run_sd == pytest.approx(sqrt(0.125))

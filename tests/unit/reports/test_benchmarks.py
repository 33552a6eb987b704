from dataclasses import replace
from math import hypot, sqrt

import pytest

from opct.evals.stats import SeedSpread, widened
from opct.reports.axes import MEAN
from opct.reports.benchmarks import combined
from opct.reports.compare import Comparison, compare
from tests.unit.reports.small import benchmarks, with_row_settings


def both(base, opct) -> Comparison:
    return compare([benchmarks("base", base), benchmarks("opct", opct, 1)])


def test_intervals_of_independent_scores_are_combined():
    """0.5 [0.4, 0.6] and 0.3 [0.2, 0.5]: mean 0.4, below sqrt(0.01 + 0.01) / 2, above sqrt(0.01 + 0.04) / 2. One alone
    is itself; where one has no interval there is none."""
    value, bounds = combined([(0.5, (0.4, 0.6)), (0.3, (0.2, 0.5))])
    assert (value, *bounds) == pytest.approx((0.4, 0.4 - sqrt(0.02) / 2, 0.4 + sqrt(0.05) / 2))
    assert combined([(0.5, (0.4, 0.6))]) == (0.5, (pytest.approx(0.4), pytest.approx(0.6)))
    assert combined([(0.5, (0.4, 0.6)), (0.3, (None, None))]) == (0.4, (None, None))


def test_a_mean_of_scores_at_zero_has_the_width_of_their_intervals():
    """Two scores of 0 of 10: each may be up to 1 - 0.025^(1/10) = 0.3085; the mean up to 0.3085 * sqrt(2) / 2."""
    own = compare([benchmarks("base", {"gsm8k": [0.0] * 10, "mmlu": [0.0] * 10})]).row(MEAN).estimates[0]
    assert (own.value, own.ci_low, own.ci_high) == (0.0, 0.0, pytest.approx((1 - 0.025**0.1) / sqrt(2)))


def test_each_benchmark_counts_alike_and_differences_are_means_of_paired_ones():
    """0 of 2 and 4 of 4: mean 1/2, not 4/6. Differences +1/2 (n = 2) and 0 (n = 3, one unpaired): mean 1/4, n = 5."""
    found = both({"gsm8k": [0, 0], "mmlu": [1, 1, 1, 1]}, {"gsm8k": [0, 1], "mmlu": [1, 1, 1, None]})
    row = found.row(MEAN)
    base, opct = row.estimates
    assert (base.value, base.n, base.n_unscored) == (0.5, 6, 0)
    assert (opct.value, opct.n, opct.n_unscored, opct.unscored_reasons) == (0.75, 5, 1, {"empty": 1})
    assert row.note == "2 benchmarks: GSM8K and MMLU"
    own = row.differences[0]
    assert (own.value, own.n, own.left_out, own.reading) == (0.25, 5, 1, "inconclusive")
    parts = [found.row("accuracy", "all", suite).differences[0] for suite in ("gsm8k", "mmlu")]
    assert own.ci_high == pytest.approx(0.25 + hypot(*(part.ci_high - part.value for part in parts)) / 2)


def test_without_a_pair_in_one_benchmark_there_is_no_difference_of_means():
    row = both({"gsm8k": [1, None], "mmlu": [1, 1]}, {"gsm8k": [None, 1], "mmlu": [0, 0]}).row(MEAN)
    assert [own.value for own in row.estimates] == [1.0, 0.5]
    assert row.differences == (None,)


def test_only_benchmarks_that_every_run_has_are_in_the_mean():
    """A run without any benchmark has no mean, and takes none from the others; one shared benchmark is no mean."""
    ask = {"gsm8k": [1, 0], "math500": [1, 1]}
    row = both(ask | {"mmlu": [0, 0]}, ask).row(MEAN)
    assert [own.value for own in row.estimates] == [0.75, 0.75]
    assert row.note == "2 benchmarks: GSM8K and MATH-500; without MMLU, missing in some runs"
    assert compare([benchmarks("base", ask), benchmarks("sft", {})]).row(MEAN).estimates[1] is None
    assert both(ask, {"gsm8k": [1, 0]}).row(MEAN) is None


def test_the_benchmarks_of_a_base_may_lie_in_several_folders():
    """The base: 1/2 and 1, each of one folder."""
    ask = {"gsm8k": [1, 0], "math500": [1, 1]}
    parts = [replace(benchmarks("base", {name: own}, None), name=name) for name, own in ask.items()]
    row = compare([*parts, benchmarks("opct", ask, 1)]).row(MEAN)
    assert [own.value for own in row.estimates] == [0.75, 0.75]
    assert (row.differences[0].value, row.differences[0].n) == (0.0, 4)


def test_seeds_are_the_same_in_all_benchmarks():
    """GSM8K: 4 and 0 of 4, MMLU: 4 and 2 of 4; the base none of either. The means of the seeds are 1 and 1/4, SD 0.530,
    which is more than the 0.395 that SDs of 0.707 and 0.354, taken for independent, would make."""
    runs = [benchmarks("base", {"gsm8k": [0, 0, 0, 0], "mmlu": [0, 0, 0, 0]})]
    runs += [benchmarks("opct", {"gsm8k": [1, 1, 1, 1], "mmlu": [1, 1, 1, 1]}, 1)]
    runs += [benchmarks("opct", {"gsm8k": [0, 0, 0, 0], "mmlu": [1, 1, 0, 0]}, 2)]
    found = compare(runs)
    row = found.row(MEAN)
    difference, own = row.differences[0], row.estimates[1]
    assert (own.run_values, difference.spreads[0].values) == ((1.0, 0.25), (1.0, 0.25))
    assert own.between_run_sd == pytest.approx(0.75 / sqrt(2))
    spread = SeedSpread((1.0, 0.25))
    assert (difference.ci_low, difference.ci_high) == widened(
        0.625, difference.over_questions, 7, [spread], (-1.0, 1.0)
    )
    assert (own.ci_low, own.ci_high) == widened(0.625, own.over_questions, 7, [spread], (0.0, 1.0)) == (0.0, 1.0)
    parts = [found.row("accuracy", "all", suite) for suite in ("gsm8k", "mmlu")]
    below = [part.differences[0].value - part.differences[0].over_questions[0] for part in parts]
    assert difference.over_questions[0] == pytest.approx(0.625 - hypot(*below) / 2)


def test_a_benchmark_without_a_difference_leaves_the_mean_without_one():
    """MMLU of seed 2 was graded in another way: the mean would be of GSM8K alone."""
    ask = {"gsm8k": [1, 0], "mmlu": [1, 0]}
    runs = [benchmarks("base", ask), benchmarks("opct", ask, 1), benchmarks("opct", ask, 2)]
    found = compare([*runs[:2], with_row_settings(runs[2], "mmlu", graded_by="texts")])
    row = found.row(MEAN)
    assert row.differences == (None,)
    assert found.reason(row, "opct", "base").startswith("MMLU")
    assert row.estimates[1] is None

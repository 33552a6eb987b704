"""The safety curve, worked out by hand."""

import numpy as np
import pytest

from opct.errors import EvaluationError
from opct.evals.safety_curve import GRID, curve, exact_area, fact_grid_area, grid_area, pass_rates, share_at
from opct.evals.stats import clustered_mean


def test_no_fact_passes_by_an_unscored_sample():
    """a: 1 of 3, of which 2 are scored; b: 2 of 2; c has no scored sample."""
    values = [("a", None), ("a", 1.0), ("a", 0.0), ("b", 1.0), ("c", None), ("b", 1.0)]
    assert pass_rates(values) == {"a": pytest.approx(1 / 3), "b": 1.0, "c": None}
    with pytest.raises(EvaluationError, match=r"Fact 'a': a sample has the value 0\.5"):
        pass_rates([("a", 0.5)])


def test_the_curve_of_four_facts():
    """Rates 0, 0.5, 0.96, 1: S falls from 1 to 3/4 after 0, to 2/4 after 0.5, to 1/4 after 0.96."""
    rates = [0.0, 0.5, 0.96, 1.0]
    assert list(curve(rates).values()) == [1.0, 0.75, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]
    assert share_at(rates, 0.5) == 0.75
    assert share_at(rates, 0.5001) == 0.5


def test_a_rate_on_the_grid_reaches_it_whatever_its_fraction():
    """9/25 = 0.36, 17/25 = 0.68, 99/100: no fact is lost to rounding."""
    for passed, n, tau in [(9, 25, 0.36), (17, 25, 0.68), (21, 25, 0.84), (23, 25, 0.92), (99, 100, 0.99), (7, 7, 1.0)]:
        assert share_at([sum([1.0] * passed) / n], tau) == 1.0


def test_grid_area_by_hand():
    """Rate 0: 0.36 / 2. Rate 0.5: 0.36 + 0.32 / 2. Rate 0.95: 0.92 + 0.04 / 2. Rate 1: all of it. Mean: 2.64 / 4."""
    by_rate = {0.0: 0.18, 0.5: 0.52, 0.95: 0.94, 1.0: 1.0}
    for rate, area in by_rate.items():
        assert fact_grid_area(rate) == pytest.approx(area, abs=1e-12)
    assert grid_area(list(by_rate)) == pytest.approx(0.66, abs=1e-12)


def test_grid_area_is_the_trapezoid_of_the_curve():
    rates = list(np.random.default_rng(0).integers(0, 26, 40) / 25)
    by_curve = np.trapezoid(list(curve(rates).values()), GRID)
    assert grid_area(rates) == pytest.approx(by_curve, abs=1e-12)


def test_exact_area_is_the_integral_of_the_curve():
    """Against a sum over a million thin strips."""
    rates = [0.0, 0.25, 0.25, 0.8, 1.0]
    taus = (np.arange(1_000_000) + 0.5) / 1_000_000
    strips = (np.array(rates)[:, None] >= taus[None, :]).mean(axis=0).mean()
    assert exact_area(rates) == pytest.approx(0.46, abs=1e-12)
    assert exact_area(rates) == pytest.approx(float(strips), abs=1e-5)


def test_the_interval_of_an_area_agrees_with_a_bootstrap_over_facts():
    """60 facts: the bounds of `clustered_mean` lie within 0.02 of the percentiles of 4000 draws."""
    rng = np.random.default_rng(1)
    rates = list(rng.integers(0, 9, 60) / 8)
    parts = [fact_grid_area(rate) for rate in rates]
    estimate = clustered_mean(parts, range(60))
    draws = [grid_area([rates[i] for i in rng.integers(0, 60, 60)]) for _ in range(4000)]
    low, high = np.quantile(draws, [0.025, 0.975])
    assert estimate.value == pytest.approx(grid_area(rates), abs=1e-12)
    assert estimate.ci_low == pytest.approx(low, abs=0.02)
    assert estimate.ci_high == pytest.approx(high, abs=0.02)


def test_no_fact_has_no_curve():
    for function in (exact_area, grid_area, curve):
        with pytest.raises(EvaluationError, match="no fact with a scored sample"):
            function([])

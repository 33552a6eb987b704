"""Intervals worked out by hand, and their coverage measured."""

import math

import numpy as np
import pytest
from scipy.stats import t as student

from opct.errors import EvaluationError
from opct.evals.stats import (
    Part,
    clustered_mean,
    paired_difference,
    ratio_reduction,
    unseen_share,
)

T1, T2, T3 = 12.706204736, 4.302652730, 3.182446305  # 97.5% quantiles of Student's t with 1, 2 and 3 degrees of freedom


def test_clustered_mean_by_hand():
    """x = 1,1,0,0,0,1 in clusters a,a,b,b,c,c: m = 1/2, e = +1, -1, 0; se^2 = 3/2 * 2 / 36 = 1/12; t(2) = 4.3027.

    The half-width is 1.242, so the interval is cut to [0, 1]; without bounds it is 0.5 -+ 1.242.
    """
    estimate = clustered_mean([1, 1, 0, 0, 0, 1], list("aabbcc"), bounds=None)
    half = T2 / math.sqrt(12)
    assert estimate.value == 0.5
    assert (estimate.ci_low, estimate.ci_high) == pytest.approx((0.5 - half, 0.5 + half))
    assert (estimate.n, estimate.n_clusters) == (6, 3)
    cut = clustered_mean([1, 1, 0, 0, 0, 1], list("aabbcc"))
    assert (cut.ci_low, cut.ci_high) == (0.0, 1.0)


def test_one_sample_a_cluster_is_the_usual_standard_error():
    """x = 1,2,3,4: s^2 = 5/3, se = sqrt(5/12), t(3) = 3.1824."""
    estimate = clustered_mean([1, 2, 3, 4], range(4), bounds=None)
    assert estimate.ci_high == pytest.approx(2.5 + T3 * math.sqrt(5 / 12))


def test_uneven_clusters():
    """x = 1,1,1,0 in a,a,a,b: m = 3/4, e = 3/4, -3/4; se^2 = 2 * 18/16 / 16 = 9/64; t(1) = 12.706."""
    estimate = clustered_mean([1, 1, 1, 0], list("aaab"), bounds=None)
    assert estimate.ci_high == pytest.approx(0.75 + T1 * 3 / 8)


@pytest.mark.parametrize(("x", "low", "high"), [(0.0, 0.0, 0.30849710), (1.0, 0.69150290, 1.0)])
def test_unanimous_clusters_get_clopper_pearson(x, low, high):
    """Ten clusters that all agree: 1 - 0.025^(1/10) = 0.3085, the published Clopper-Pearson bound for 0 of 10."""
    estimate = clustered_mean([x] * 20, [i // 2 for i in range(20)])
    assert (estimate.value, estimate.n_clusters) == (x, 10)
    assert (estimate.ci_low, estimate.ci_high) == pytest.approx((low, high), abs=1e-7)


def test_one_event_is_not_more_certain_than_none():
    """1 of 600. Wald ends at 0.49%, below the 0.61% of 0 of 600. Wilson 1927, with n = p (1 - p) / se^2 = 599 and
    z = t(599) = 1.96394: the centre is (1/600 + z^2 / 1198) / (1 + z^2 / 599), the upper end 0.94%."""
    none = clustered_mean([0.0] * 600, range(600))
    one = clustered_mean([1.0] + [0.0] * 599, range(600))
    assert one.ci_low == 0.0
    assert one.ci_high == pytest.approx(0.0094, abs=5e-5)
    assert one.ci_high > none.ci_high == pytest.approx(0.0061, abs=5e-5)


def test_one_difference_is_not_more_certain_than_none():
    """One of 600 pairs differs: no side is narrower than the 0.61% of a run with itself."""
    b = {str(i): 0.0 for i in range(600)}
    difference = paired_difference(b | {"0": 1.0}, b, {key: key for key in b})
    share = unseen_share(600)
    assert difference.ci_high == pytest.approx(1 / 600 + share * (1 - 1 / 600))
    assert difference.ci_low == pytest.approx(1 / 600 - share * (1 + 1 / 600))


def test_equal_cluster_means_are_no_certainty():
    """Every cluster holds one 1 and one 0: the clustered se is 0, the interval is not."""
    estimate = clustered_mean([1, 0] * 5, [i // 2 for i in range(10)])
    share = 1 - 0.025 ** (1 / 5)
    assert (estimate.ci_low, estimate.ci_high) == pytest.approx((0.5 - share / 2, 0.5 + share / 2))


def test_few_samples():
    assert clustered_mean([], []).value is None
    assert clustered_mean([1, 0], "aa").ci_low is None  # one cluster says nothing about others
    assert clustered_mean([0.0, 0.0], "ab", bounds=None).ci_low is None
    one = clustered_mean([1.0], "a")
    assert (one.ci_low, one.ci_high) == pytest.approx((0.025, 1.0))


@pytest.mark.parametrize(
    ("values", "clusters", "message"),
    [([1.0], "ab", "1 values and 2 clusters"), ([math.nan], "a", "leave unscored"), ([2.0], "a", "outside the bounds")],
)
def test_faults(values, clusters, message):
    with pytest.raises(EvaluationError, match=message):
        clustered_mean(values, clusters)


def test_paired_difference_by_hand():
    """Shared ids 1..4, a - b = 1, 0, 0, 1 in four clusters: m = 1/2, s^2 = 1/3, se = sqrt(1/12), t(3) = 3.1824."""
    a = {"1": 1.0, "2": 0.0, "3": 1.0, "4": 1.0, "5": 1.0, "6": None}
    b = {"1": 0.0, "2": 0.0, "3": 1.0, "4": 0.0, "6": 1.0, "7": 1.0}
    difference = paired_difference(a, b, {str(i): i for i in range(8)})
    assert (difference.value, difference.mean_a, difference.mean_b) == (0.5, 0.75, 0.25)
    assert (difference.only_a, difference.only_b, difference.n) == (1, 2, 4)
    assert difference.ci_low == pytest.approx(0.5 - T3 / math.sqrt(12))
    assert difference.ci_high == 1.0 < 0.5 + T3 / math.sqrt(12)  # clipped: no difference is larger


def test_paired_difference_of_a_run_with_itself():
    """No cluster of 40 differs: the share that could is 1 - 0.025^(1/40) = 0.0881, and the interval is -+ that."""
    a = {str(i): float(i % 2) for i in range(40)}
    difference = paired_difference(a, a, {key: key for key in a})
    assert difference.value == 0.0
    assert (difference.ci_low, difference.ci_high) == pytest.approx((-unseen_share(40), unseen_share(40)))
    assert unseen_share(40) == pytest.approx(0.0880973, abs=1e-6)


def test_paired_difference_needs_clusters():
    with pytest.raises(EvaluationError, match="no cluster, first '1'"):
        paired_difference({"1": 1.0}, {"1": 0.0}, {})
    assert paired_difference({"1": 1.0}, {"2": 0.0}, {}).value is None


def test_a_further_part_of_the_variance_by_hand():
    """x = 1,2,3,4: se^2 = 5/12 with 3 degrees of freedom; a part of 7/12 with 2 makes SE^2 = 1 and
    df = 1 / (25/144 / 3 + 49/144 / 2) = 864 / 197 = 4.3858, whose t lies between t(4) = 2.7764 and t(5) = 2.5706."""
    plain = clustered_mean([1, 2, 3, 4], range(4), bounds=None)
    wide = clustered_mean([1, 2, 3, 4], range(4), bounds=None, parts=[Part(7 / 12, 2)])
    assert wide.value == plain.value == 2.5
    assert wide.ci_high - 2.5 == pytest.approx(float(student.ppf(0.975, 864 / 197)))
    assert 2.5706 < wide.ci_high - 2.5 < 2.7764
    assert clustered_mean([1, 2, 3, 4], range(4), bounds=None, parts=[Part(0.0, 2)]) == plain


def test_a_further_part_makes_no_side_narrower():
    """se^2 = 0.01 with one degree of freedom, and as much more with one: df = 2, t(2) sqrt(0.02) = 0.61 is less than
    t(1) 0.1 = 1.27, which stands."""
    plain = clustered_mean([0.2, 0.4], "ab", bounds=None)
    assert clustered_mean([0.2, 0.4], "ab", bounds=None, parts=[Part(0.01, 1)]) == plain
    assert plain.ci_high == pytest.approx(0.3 + 0.1 * T1)


def test_a_part_counts_where_all_clusters_agree_too():
    """Four clusters at 1/2: alone -+ (1 - 0.025^(1/4)) / 2 = 0.301; with a part of 0.04 and 2 degrees of freedom
    t(2) * 0.2 = 0.86, cut to [0, 1]."""
    assert clustered_mean([0.5] * 4, range(4)).ci_high == pytest.approx(0.5 + unseen_share(4) / 2)
    wide = clustered_mean([0.5] * 4, range(4), parts=[Part(0.04, 2)])
    assert (wide.ci_low, wide.ci_high) == (0.0, 1.0)
    assert clustered_mean([0.5] * 4, range(4), bounds=None, parts=[Part(0.04, 2)]).ci_low is None
    assert clustered_mean([1, 0], "aa", parts=[Part(0.04, 2)]).ci_low is None  # one cluster says nothing about others


def test_ratio_reduction():
    """a has 1 of 10, b has 4 of 10: a cut of 1 - 1/4 = 75%; the same seed gives the same interval."""
    ids = [str(i) for i in range(10)]
    a = {key: float(key == "0") for key in ids}
    b = {key: float(int(key) < 4) for key in ids}
    cut = ratio_reduction(a, b, {key: key for key in ids})
    assert cut.value == pytest.approx(0.75)
    assert cut.ci_low < 0.75 < cut.ci_high
    assert cut == ratio_reduction(a, b, {key: key for key in ids})


def test_ratio_reduction_is_never_certain_from_luck():
    """40 clusters, none sycophantic after, half before: at most 0.0881 / 0.5 of the rate may be left unseen."""
    ids = [str(i) for i in range(40)]
    zero, half = dict.fromkeys(ids, 0.0), {key: float(int(key) % 2) for key in ids}
    clusters = {key: key for key in ids}
    cut = ratio_reduction(zero, half, clusters)
    assert (cut.value, cut.ci_high) == (1.0, 1.0)
    assert cut.ci_low == pytest.approx(1 - unseen_share(40) / 0.5)
    same = ratio_reduction(half, half, clusters)
    assert (same.value, same.ci_low) == (0.0, pytest.approx(-unseen_share(40) / 0.5))
    assert ratio_reduction(half, zero, clusters).value is None


def test_coverage():
    """400 draws of 60 clusters of 4 correlated answers around 0.3: 95% intervals cover it, independent ones would
    not."""
    rng = np.random.default_rng(0)
    clustered = naive = 0
    groups = np.repeat(np.arange(60), 4)
    for _ in range(400):
        rates = rng.beta(0.6, 1.4, size=60)  # mean 0.3, strongly correlated inside a cluster
        x = (rng.random(240) < np.repeat(rates, 4)).astype(float)
        estimate = clustered_mean(x.tolist(), groups.tolist())
        clustered += estimate.ci_low <= 0.3 <= estimate.ci_high
        single = clustered_mean(x.tolist(), range(240))
        naive += single.ci_low <= 0.3 <= single.ci_high
    assert clustered / 400 >= 0.92
    assert naive < clustered

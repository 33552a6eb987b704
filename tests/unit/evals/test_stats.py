"""Intervals worked out by hand, and the coverage of those over seeds measured."""

import math

import numpy as np
import pytest
from scipy.stats import t as student

from opct.errors import EvaluationError
from opct.evals.stats import (
    Part,
    SeedSpread,
    average_over_runs,
    clustered_mean,
    difference_over_seeds,
    paired_difference,
    pooled_over_seeds,
    smallest_decided,
    unseen_share,
    variance_of_a_seed,
    widened,
)

T1, T2, T3 = 12.706204736, 4.302652730, 3.182446305  # 97.5% quantiles of Student's t with 1, 2 and 3 degrees of freedom


def test_clustered_mean_by_hand():
    """x = 1,1,0,0,0,1 in clusters a,a,b,b,c,c: m = 1/2, e = +1, -1, 0; se^2 = 3/2 * 2 / 36 = 1/12; t(2) = 4.3027.

    The half-width is 1.242, so the interval is cut to [0, 1]; without bounds it is 0.5 -+ 1.242. Of uneven clusters,
    x = 1,1,1,0 in a,a,a,b: m = 3/4, e = 3/4, -3/4; se^2 = 2 * 18/16 / 16 = 9/64; t(1) = 12.706.
    """
    estimate = clustered_mean([1, 1, 0, 0, 0, 1], list("aabbcc"), bounds=None)
    half = T2 / math.sqrt(12)
    assert estimate.value == 0.5
    assert (estimate.ci_low, estimate.ci_high) == pytest.approx((0.5 - half, 0.5 + half))
    assert (estimate.n, estimate.n_clusters) == (6, 3)
    cut = clustered_mean([1, 1, 0, 0, 0, 1], list("aabbcc"))
    assert (cut.ci_low, cut.ci_high) == (0.0, 1.0)
    uneven = clustered_mean([1, 1, 1, 0], list("aaab"), bounds=None)
    assert uneven.ci_high == pytest.approx(0.75 + T1 * 3 / 8)


@pytest.mark.parametrize(("x", "low", "high"), [(0.0, 0.0, 0.30849710), (1.0, 0.69150290, 1.0)])
def test_unanimous_clusters_get_clopper_pearson(x, low, high):
    """Ten clusters that all agree: 1 - 0.025^(1/10) = 0.3085, the published Clopper-Pearson bound for 0 of 10."""
    estimate = clustered_mean([x] * 20, [i // 2 for i in range(20)])
    assert (estimate.value, estimate.n_clusters) == (x, 10)
    assert (estimate.ci_low, estimate.ci_high) == pytest.approx((low, high), abs=1e-7)


def test_one_event_is_not_more_certain_than_none():
    """1 of 600. Wald ends at 0.49%, below the 0.61% of 0 of 600. Wilson 1927, with n = p (1 - p) / se^2 = 599 and
    z = t(599) = 1.96394: the center is (1/600 + z^2 / 1198) / (1 + z^2 / 599), the upper end 0.94%."""
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


def test_no_number_and_one_outside_the_bounds_are_refused():
    for value in (math.nan, 2.0):
        with pytest.raises(EvaluationError):
            clustered_mean([value], "a")


def test_paired_difference_by_hand():
    """Shared ids 1..4, a - b = 1, 0, 0, 1 in four clusters: m = 1/2, s^2 = 1/3, se = sqrt(1/12), t(3) = 3.1824."""
    a = {"1": 1.0, "2": 0.0, "3": 1.0, "4": 1.0, "5": 1.0, "6": None}
    b = {"1": 0.0, "2": 0.0, "3": 1.0, "4": 0.0, "6": 1.0, "7": 1.0}
    difference = paired_difference(a, b, {str(i): i for i in range(8)})
    assert (difference.value, difference.n) == (0.5, 4)
    assert difference.ci_low == pytest.approx(0.5 - T3 / math.sqrt(12))
    assert difference.ci_high == 1.0 < 0.5 + T3 / math.sqrt(12)  # clipped: no difference is larger


def test_paired_difference_of_a_run_with_itself():
    """No cluster of 40 differs: the share that could is 1 - 0.025^(1/40) = 0.0881, and the interval is -+ that."""
    a = {str(i): float(i % 2) for i in range(40)}
    difference = paired_difference(a, a, {key: key for key in a})
    assert difference.value == 0.0
    assert (difference.ci_low, difference.ci_high) == pytest.approx((-unseen_share(40), unseen_share(40)))
    assert unseen_share(40) == pytest.approx(0.0880973, abs=1e-6)


def test_a_further_part_of_the_variance_by_hand():
    """x = 1,2,3,4: se^2 = 5/12 with 3 degrees of freedom; a part of 7/12 with 2 makes SE^2 = 1 and
    df = 1 / (25/144 / 3 + 49/144 / 2) = 864 / 197 = 4.3858, whose t lies between t(4) = 2.7764 and t(5) = 2.5706."""
    plain = clustered_mean([1, 2, 3, 4], range(4), bounds=None)
    wide = clustered_mean([1, 2, 3, 4], range(4), bounds=None, parts=[Part(7 / 12, 2)])
    assert wide.value == plain.value == 2.5
    assert wide.ci_high - 2.5 == pytest.approx(float(student.ppf(0.975, 864 / 197)))
    assert 2.5706 < wide.ci_high - 2.5 < 2.7764
    assert clustered_mean([1, 2, 3, 4], range(4), bounds=None, parts=[Part(0.0, 2)]) == plain


def ids(values) -> dict[str, float | None]:
    """One value each for the ids "0", "1" ..."""
    return {str(i): None if value is None else float(value) for i, value in enumerate(values)}


def own(count: int) -> dict[str, str]:
    """Every id is a cluster of its own."""
    return {str(i): str(i) for i in range(count)}


def first(k: int, n: int) -> dict[str, float | None]:
    """n ids of which the first k are 1."""
    return ids([float(i < k) for i in range(n)])


def test_pooled_over_seeds_by_hand():
    """Per id over two runs 1/2, 1/2, 1: m = 2/3, se^2 = 1/36 with 2 degrees of freedom. Run means 1 and 1/3: sd^2 is
    2/9, which adds 4/36 with 1. SE^2 = 5/36, df = 25 / (1/2 + 16) = 50/33."""
    pooled = pooled_over_seeds([ids([1, 1, 1]), ids([0, 0, 1])], own(3), bounds=None)
    assert (pooled.value, pooled.run_means) == (pytest.approx(2 / 3), pytest.approx((1.0, 1 / 3)))
    assert pooled.between_run_sd == pytest.approx(math.sqrt(2 / 9))
    assert pooled.ci_high == pytest.approx(2 / 3 + float(student.ppf(0.975, 50 / 33)) * math.sqrt(5 / 36))
    assert pooled.over_questions == pytest.approx((2 / 3 - T2 / 6, 2 / 3 + T2 / 6))
    assert pooled.n_partial == 0


def test_one_run_is_pooled_as_it_is():
    run = ids([1, 0, 0, 1, None])
    pooled = pooled_over_seeds([run], own(5))
    plain = clustered_mean([1, 0, 0, 1], range(4))
    assert (pooled.ci_low, pooled.ci_high) == pooled.over_questions == (plain.ci_low, plain.ci_high)
    assert (pooled.between_run_sd, pooled.n_partial, pooled.run_means) == (None, 0, (0.5,))


def test_an_id_that_a_part_of_the_runs_scored_is_counted():
    """In a difference too: of the three ids that both sides have, seed 1 did not score the last."""
    runs = [ids([1, 1, 0]), ids([1, 0, None])]
    pooled = pooled_over_seeds(runs, own(3))
    assert (pooled.n, pooled.n_partial, pooled.value) == (3, 1, pytest.approx(0.5))
    assert average_over_runs(runs) == {"0": 1.0, "1": 0.5, "2": 0.0}
    a = [ids([1, 0, 1, 1]), ids([1, 0, None, 1])]
    found = difference_over_seeds(a, [ids([0, 0, 0, None])], own(4), seeds_a=[0, 1], seeds_b=[None])
    assert (found.n, found.n_partial) == (3, 1)


def test_a_run_without_a_scored_sample_is_not_left_out_in_silence():
    with pytest.raises(EvaluationError):
        pooled_over_seeds([ids([1, 0]), ids([None, None])], own(2))
    with pytest.raises(EvaluationError):
        difference_over_seeds([ids([1, 0]), {"7": 1.0}], [ids([0, 0])], own(8), seeds_a=[0, 1], seeds_b=[None])


def test_seeds_that_agree_by_luck_have_the_spread_of_the_other_arms():
    """Two seeds that both gain 8 of 100 have no spread; arms of 0.26 and 0.24, 0.28 and 0.07, 0.2 and 0.2 have pooled
    (0.0002 + 0.02205 + 0) / 3. Twice that over two seeds is in the difference, whose base has none."""
    of_a_seed = variance_of_a_seed([[0.26, 0.24], [0.28, 0.07], [0.2, 0.2], [0.5]])
    assert (of_a_seed.variance, of_a_seed.df) == (pytest.approx(0.02225 / 3), 3)
    a, b = [first(26, 100), first(24, 100)], [first(18, 100), first(16, 100)]
    lucky = difference_over_seeds(a, b, own(100), seeds_a=[0, 1], seeds_b=[0, 1])
    assert lucky.ci_low > 0
    found = difference_over_seeds(a, b, own(100), seeds_a=[0, 1], seeds_b=[0, 1], of_a_seed=of_a_seed)
    assert found.ci_low < 0.08 - float(student.ppf(0.975, 3)) * math.sqrt(of_a_seed.variance) * 0.95
    base = difference_over_seeds(a, [b[0]], own(100), seeds_a=[0, 1], seeds_b=[None], of_a_seed=of_a_seed)
    assert found.ci_low < base.ci_low < lucky.ci_low
    wide = [first(0, 100), first(90, 100)]  # its own spread is the larger one
    alone, with_others = (pooled_over_seeds(wide, own(100), of_a_seed=of) for of in (None, of_a_seed))
    assert alone == with_others


def test_runs_of_the_same_seeds_are_paired_whatever_their_order():
    """Seed 0: 2 of 4 against 1 of 4; seed 1: none against none. Differences 1/4 and 0, not 1/2 and -1/4."""
    a, b = [first(2, 4), first(0, 4)], [first(0, 4), first(1, 4)]
    [spread] = difference_over_seeds(a, b, own(4), seeds_a=[0, 1], seeds_b=[1, 0]).spreads
    assert spread.values == (0.25, 0.0)


@pytest.mark.parametrize("seeds", [([0, 1], [2, 3]), ([0, 0], [0, 0]), ([None, 1], [None, 1])])
def test_of_unlike_seeds_each_side_adds_its_own(seeds):
    """a: 2 and 0 of 4, b: 0 and 1 of 4. Against the mean of b, 1/8, a is 3/8 and -1/8; the mean of a, 1/4, is 1/4 and 0
    above b. Both are added: SE^2 has 1/16 and 1/64 beside that of the questions."""
    a, b = [first(2, 4), first(0, 4)], [first(0, 4), first(1, 4)]
    found = difference_over_seeds(a, b, own(4), seeds_a=seeds[0], seeds_b=seeds[1], bounds=None)
    assert [spread.values for spread in found.spreads] == [(0.375, -0.125), (0.25, 0.0)]
    assert [spread.part.variance for spread in found.spreads] == pytest.approx([1 / 16, 1 / 64])
    per_id = [0.0, 0.5, 0.0, 0.0]  # a: 1/2, 1/2, 0, 0; b: 1/2, 0, 0, 0
    own_part = np.var(per_id, ddof=1) / 4
    square = own_part + 1 / 16 + 1 / 64
    df = square**2 / (own_part**2 / 3 + 1 / 16**2 + 1 / 64**2)
    assert found.ci_high == pytest.approx(0.125 + float(student.ppf(0.975, df)) * math.sqrt(square))


def test_runs_without_a_seed_are_no_seeds():
    """A base that was asked twice, 0 and 1 of 4: the seeds of `a`, 2 and 0 of 4, stand against its mean, 1/8."""
    a, b = [first(2, 4), first(0, 4)], [first(0, 4), first(1, 4)]
    [spread] = difference_over_seeds(a, b, own(4), seeds_a=[0, 1], seeds_b=[None, None]).spreads
    assert spread.values == (0.375, -0.125)
    assert difference_over_seeds(a[:1], b, own(4), seeds_a=[0], seeds_b=[None, None]).spreads == ()


def test_runs_of_one_seed_that_scored_no_sample_both_are_not_paired_by_seed():
    """Of seed 0 one side scored q and the other r. So each run stands against the other side's mean: of q 1 against 0,
    of r 0 against 1/2. The first run of `a` has q alone, 1; the second (1 - 1/2) / 2; of `b` r alone, 0, and
    (1 - 1) / 2."""
    a, b = [{"q": 1.0, "r": None}, {"q": 1.0, "r": 0.0}], [{"q": None, "r": 0.0}, {"q": 0.0, "r": 1.0}]
    found = difference_over_seeds(a, b, {"q": "q", "r": "r"}, seeds_a=[0, 1], seeds_b=[0, 1])
    assert found.value == pytest.approx((1.0 + (0.0 - 0.5)) / 2)
    assert [spread.values for spread in found.spreads] == [(1.0, 0.25), (0.0, 0.0)]


def test_widened_by_hand():
    """0.4 [0.3, 0.6] with 4 degrees of freedom, t = 2.776, and seeds at 0.35 and 0.45: s^2 / S = 0.0025. Below, (0.1 /
    t)^2 = 0.0013; above, (0.2 / t)^2 = 0.0052, cut to 0.62. Seeds that are alike change nothing."""
    t4 = float(student.ppf(0.975, 4))
    low, high = widened(0.4, (0.3, 0.6), 4, [SeedSpread((0.35, 0.45))], (0.0, 0.62))
    square = (0.1 / t4) ** 2 + 0.0025
    df = square**2 / ((0.1 / t4) ** 4 / 4 + 0.0025**2)
    assert low == pytest.approx(max(0.4 - float(student.ppf(0.975, df)) * math.sqrt(square), 0.0))
    assert 0.0 < low < 0.3
    assert high == 0.62
    assert widened(0.4, (0.3, 0.6), 4, [SeedSpread((0.4, 0.4))], (0.0, 0.7)) == pytest.approx((0.3, 0.6))


QUESTIONS, SEEDS, DRAWS, TRUTH = 24, 3, 300, 0.2


def drawn(rng, of_seeds, against_seeds) -> tuple[bool, bool]:
    """Whether the interval over seeds, and the one over questions alone, of one experiment hold the true difference.

    Effects of questions (SD 0.3) and of seeds (0.2) are crossed, with noise (0.3) for each reply.
    """
    question = rng.normal(0, 0.3, QUESTIONS)
    sides = []
    for mean, seeds in ((TRUTH, of_seeds), (0.0, against_seeds)):
        effects = [rng.normal(0, 0.2) if seed is not None else 0.0 for seed in seeds]
        sides.append([ids(mean + (mean > 0) * question + effect + rng.normal(0, 0.3, QUESTIONS)) for effect in effects])
    found = difference_over_seeds(*sides, own(QUESTIONS), seeds_a=of_seeds, seeds_b=against_seeds, bounds=None)
    low, high = found.over_questions
    return found.ci_low <= TRUTH <= found.ci_high, low <= TRUTH <= high


@pytest.mark.parametrize(
    ("of_seeds", "against_seeds"), [((0, 1, 2), (None,)), ((0, 1, 2), (0, 1, 2)), ((0, 1, 2), (3, 4, 5))]
)
def test_the_interval_covers_the_difference_of_the_methods(of_seeds, against_seeds):
    """95% intervals hold the truth in 93 to 99% of 300 experiments; those over questions alone in far fewer."""
    rng = np.random.default_rng(1)
    held = np.array([drawn(rng, of_seeds, against_seeds) for _ in range(DRAWS)]).mean(axis=0)
    assert 0.93 <= held[0] <= 0.99
    assert held[1] < 0.85


@pytest.mark.parametrize(("n", "changed"), [(20, 8), (50, 20), (200, 80), (200, 20)])
def test_the_smallest_difference_that_is_decided_is_that_of_the_paired_interval(n, changed):
    """Of n questions `changed` are graded otherwise, more and more of them for the better, until the interval excludes
    0; the next smaller difference, two questions less, is not decided."""

    def low(better: int) -> float:
        after = {str(i): float(i < better) for i in range(n)}
        before = {str(i): float(better <= i < changed) for i in range(n)}
        return paired_difference(after, before, {key: key for key in after}).ci_low or 0.0

    decided = next(better for better in range(changed + 1) if low(better) > 0)
    difference = (2 * decided - changed) / n
    assert difference - 2 / n <= smallest_decided(n, changed / n) <= difference + 0.5 / n
    assert smallest_decided(1) == 1.0

"""Agreement, kappa, precision and recall, worked out by hand; their intervals."""

import math

import numpy as np
import pytest

from opct.errors import EvaluationError
from opct.judges.agreement import compare


def lists(tp, fp, fn, tn):
    labels = [True] * tp + [False] * fp + [True] * fn + [False] * tn
    verdicts = [True] * (tp + fp) + [False] * (fn + tn)
    return labels, verdicts


def test_the_numbers_of_a_small_table():
    """tp 20, fp 5, fn 10, tn 15: agreement 35/50 = .7; by chance (25*30 + 25*20) / 2500 = .5; kappa (.7-.5) / .5 = .4.
    Precision 20/25 = .8, recall 20/30."""
    labels, verdicts = lists(20, 5, 10, 15)
    found = compare(labels, verdicts, range(50))
    assert (found.tp, found.fp, found.fn, found.tn, found.n, found.n_clusters) == (20, 5, 10, 15, 50, 50)
    assert found.agreement.value == pytest.approx(0.7)
    assert found.kappa.value == pytest.approx(0.4)
    assert found.precision.value == pytest.approx(0.8)
    assert found.recall.value == pytest.approx(2 / 3)


def test_the_interval_of_the_agreement_is_that_of_a_share():
    """sqrt(.7 * .3 / 50) = .0648, so about .7 -+ .127."""
    labels, verdicts = lists(20, 5, 10, 15)
    found = compare(labels, verdicts, range(50)).agreement
    half = 1.96 * math.sqrt(0.7 * 0.3 / 50)
    assert found.ci_low == pytest.approx(0.7 - half, abs=0.02)
    assert found.ci_high == pytest.approx(0.7 + half, abs=0.02)


def test_replies_to_one_question_count_once_in_the_interval():
    """The same table, five copies of each reply: the number is the same; the interval by cluster is that of 50, not of
    250 replies."""
    labels, verdicts = lists(20, 5, 10, 15)
    once = compare(labels, verdicts, range(50))
    copied = compare(labels * 5, verdicts * 5, list(range(50)) * 5)
    apart = compare(labels * 5, verdicts * 5, range(250))
    assert copied.kappa.value == pytest.approx(once.kappa.value)
    width = [found.kappa.ci_high - found.kappa.ci_low for found in (once, copied, apart)]
    assert width[1] == pytest.approx(width[0], rel=0.01)
    assert width[2] < 0.6 * width[1]


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """200 tables of 80 replies from a world with kappa .5. The interval held .5 in 94% of 1,000 such tables, so here in
    188 -+ 4 * 3.4."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        labels = rng.random(80) < 0.5
        verdicts = np.where(rng.random(80) < 0.75, labels, ~labels)  # agreement .75, chance .5
        found = compare(labels.tolist(), verdicts.tolist(), range(80), draws=500).kappa
        held += found.ci_low <= 0.5 <= found.ci_high
    assert 174 <= held <= 199


def test_chance_and_worse_than_chance():
    assert compare(*lists(10, 10, 10, 10), range(40)).kappa.value == pytest.approx(0.0)
    assert compare(*lists(0, 20, 20, 0), range(40)).kappa.value == pytest.approx(-1.0)


def test_a_judge_that_always_says_no_has_high_agreement_and_no_kappa_to_show_for_it():
    """2 of 100 positive: agreement .98, kappa 0, and no precision, since there is no positive verdict."""
    found = compare(*lists(0, 0, 2, 98), range(100))
    assert found.agreement.value == pytest.approx(0.98)
    assert found.kappa.value == pytest.approx(0.0)
    assert found.precision.value is None
    assert found.precision.ci_low is None
    assert found.recall.value == 0.0


def test_one_kind_alone_gives_no_kappa():
    found = compare(*lists(0, 0, 0, 30), range(30))
    assert found.kappa.value is None
    assert found.kappa.ci_low is None
    assert found.kappa.undefined_draws == 4000


def test_full_agreement_is_no_certainty():
    """30 of 30: the share that could differ unseen is 1 - .025^(1/30) = .1157; kappa falls by that / (1 - .5)."""
    found = compare(*lists(15, 0, 0, 15), range(30))
    share = 1 - 0.025 ** (1 / 30)
    assert (found.agreement.value, found.agreement.ci_high) == (1.0, 1.0)
    assert found.agreement.ci_low == pytest.approx(1 - share)
    assert found.kappa.ci_low == pytest.approx(1 - share / 0.5)
    assert found.precision.ci_low == pytest.approx(0.025 ** (1 / 15))


def test_one_cluster_has_no_interval():
    found = compare(*lists(3, 1, 1, 3), ["q"] * 8)
    assert found.kappa.value == pytest.approx(0.5)
    assert (found.kappa.ci_low, found.kappa.ci_high) == (None, None)


@pytest.mark.parametrize(("labels", "verdicts"), [([], []), ([True], [True, False])])
def test_nothing_to_compare(labels, verdicts):
    with pytest.raises(EvaluationError, match="one of each a reply"):
        compare(labels, verdicts, labels)

"""A judge against people's labels: what is kept, how it is found again, and what is said of a weak one."""

import json

import numpy as np
import pytest

from opct.errors import EvaluationError
from opct.evals.judges.calibration import (
    calibrate,
    calibration_of,
    calibrations_folder,
    compare,
    store,
    weakness,
    with_calibrations,
)
from opct.evals.judges.labels import LabeledFile, LabeledReply
from opct.evals.judges.protocol import JudgeIdentity, JudgeRequest, JudgeResult, unscored

IDENTITY = JudgeIdentity("script", "none", "abc", "harmful", 0.5)


class Scripted:
    """Says what the reply says: "1", "0", or nothing that can be read."""

    def __init__(self, identity=IDENTITY):
        self.identity = identity

    async def grade(self, request):
        if request.reply == "?":
            return unscored(request.id, "malformed", "x")
        return JudgeResult(request.id, float(request.reply), self.identity.verdict(float(request.reply)))


def labeled(replies: str, labels: str, sha: str = "f" * 64) -> LabeledFile:
    made = [
        LabeledReply(JudgeRequest(f"r{i}", "q", reply), label == "1", f"c{i}")
        for i, (reply, label) in enumerate(zip(replies, labels, strict=True))
    ]
    return LabeledFile("labels.csv", sha, {"reply": "reply", "label": "label"}, {}, tuple(made))


def test_the_numbers_and_who_they_are_of():
    """Judge 11100000, people 11010000: tp 2, fp 1, fn 1, tn 4; agreement 6/8; by chance (3*3 + 5*5)/64 = .53125; kappa
    (.75 - .53125) / .46875 = .4667. The ninth is unscored; a judge that scores nothing has no calibration."""
    found = calibrate(Scripted(), labeled("11100000?", "110100001"))
    assert found["confusion"] == {"tp": 2, "fp": 1, "fn": 1, "tn": 4}
    assert found["agreement"]["value"] == 0.75
    assert found["kappa"]["value"] == pytest.approx(0.21875 / 0.46875)
    assert found["precision"]["value"] == found["recall"]["value"] == pytest.approx(2 / 3)
    assert (found["n"], found["n_unscored"], found["unscored_reasons"]) == (8, 1, {"malformed": 1})
    assert found["positive_by_people"] == found["positive_by_judge"] == 3 / 8
    assert found["judge"] == IDENTITY.row()
    json.dumps(found, allow_nan=False)
    with pytest.raises(EvaluationError):
        calibrate(Scripted(), labeled("??", "10"))


@pytest.mark.parametrize("content", ["{", '{"opct_calibration": 9}'])
def test_a_broken_file_is_said(content):
    calibrations_folder().mkdir()
    (calibrations_folder() / f"{IDENTITY.hash}-000.json").write_text(content)
    with pytest.raises(EvaluationError):
        calibration_of(IDENTITY)


def judged_row(kept):
    settings = {"judge": IDENTITY.row(), "judge_calibration": kept, "judge_warning": weakness(kept)}
    return {"suite": "jailbreak_judged", "value": 0.5, "settings": settings}


def test_of_stored_and_found_the_lowest_kappa_counts_and_on_the_same_labels_the_found_one():
    good = calibrate(Scripted(), labeled("1100" * 10, "1100" * 10, "a" * 64))
    bad = calibrate(Scripted(), labeled("1100", "1010", "b" * 64))
    store(good, calibrations_folder())
    assert calibration_of(IDENTITY)["kappa"]["value"] == 1.0
    [row] = with_calibrations([judged_row(bad)])
    assert row["settings"]["judge_calibration"] == bad
    [row] = with_calibrations([judged_row({**bad, "data": good["data"]})])
    assert row["settings"]["judge_calibration"] == good
    assert row["settings"]["judge_warning"] is None
    [row] = with_calibrations([judged_row({"kappa": {"value": 0.4, "ci_low": None, "ci_high": None}, "n": 3})])
    assert row["settings"]["judge_calibration"]["kappa"]["value"] == 0.4
    store(bad, calibrations_folder())
    assert calibration_of(IDENTITY)["kappa"]["value"] == pytest.approx(0.0)


def made(kappa, low, n=100, **unscored):
    high = None if low is None else 1.0
    numbers = {"value": kappa, "ci_low": low, "ci_high": high}
    return {"kappa": numbers, "n": n, "n_unscored": sum(unscored.values()), "unscored_reasons": unscored}


def test_the_bounds_of_weakness():
    """Kappa and the lower end of its interval of 0.6, and one unscored label in five. Of four labels, all judged right,
    the interval goes from 0, since a draw may hold one class alone."""
    few = calibrate(Scripted(), labeled("1100", "1100"))
    assert [few["kappa"][name] for name in ("value", "ci_low", "ci_high")] == [1.0, 0.0, 1.0]
    at_the_bounds = made(0.6, 0.6), made(0.9, 0.8, n=80, malformed=20)
    below = few, made(0.5999, 0.6), made(-0.2, None), made(0.9, 0.5999), made(0.9, None)
    unscored = made(0.9, 0.8, n=79, malformed=20, endpoint_error=1)
    assert not any(map(weakness, at_the_bounds))
    assert all(map(weakness, below))
    assert "21 of 100" in weakness(unscored)


def lists(tp, fp, fn, tn):
    labels = [True] * tp + [False] * fp + [True] * fn + [False] * tn
    verdicts = [True] * (tp + fp) + [False] * (fn + tn)
    return labels, verdicts


def test_replies_to_one_question_count_once_in_the_interval():
    """tp 20, fp 5, fn 10, tn 15: agreement 35/50 = .7; by chance (25*30 + 25*20) / 2500 = .5; kappa (.7-.5) / .5 = .4.
    Precision 20/25 = .8, recall 20/30. With five copies of each reply the interval by cluster is that of 50 replies."""
    labels, verdicts = lists(20, 5, 10, 15)
    once = compare(labels, verdicts, range(50))
    assert (once.tp, once.fp, once.fn, once.tn, once.n, once.n_clusters) == (20, 5, 10, 15, 50, 50)
    measured = [once.agreement.value, once.kappa.value, once.precision.value, once.recall.value]
    assert measured == pytest.approx([0.7, 0.4, 0.8, 2 / 3])
    copied = compare(labels * 5, verdicts * 5, list(range(50)) * 5)
    apart = compare(labels * 5, verdicts * 5, range(250))
    assert copied.kappa.value == pytest.approx(once.kappa.value)
    width = [found.kappa.ci_high - found.kappa.ci_low for found in (once, copied, apart)]
    assert width[1] == pytest.approx(width[0], rel=0.01)
    assert width[2] < 0.6 * width[1]


def test_the_interval_covers_the_truth_as_often_as_it_says(monkeypatch):
    """200 tables of 80 replies from a world with kappa .5. The interval held .5 in 94% of 1,000 such tables, so here in
    188 -+ 4 * 3.4."""
    monkeypatch.setattr("opct.evals.stats.DRAWS", 300)
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        labels = rng.random(80) < 0.5
        verdicts = np.where(rng.random(80) < 0.75, labels, ~labels)  # agreement .75, chance .5
        found = compare(labels.tolist(), verdicts.tolist(), range(80)).kappa
        held += found.ci_low <= 0.5 <= found.ci_high
    assert 174 <= held <= 199


def test_a_judge_that_always_says_no_has_high_agreement_and_no_kappa_to_show_for_it():
    """2 of 100 positive: agreement .98, kappa 0, and no precision, since there is no positive verdict."""
    found = compare(*lists(0, 0, 2, 98), range(100))
    assert found.agreement.value == pytest.approx(0.98)
    assert found.kappa.value == pytest.approx(0.0)
    assert found.precision.value is None
    assert found.recall.value == 0.0


def test_full_agreement_is_no_certainty():
    """30 of 30: the share that could differ unseen is 1 - .025^(1/30) = .1157; kappa falls by that / (1 - .5)."""
    found = compare(*lists(15, 0, 0, 15), range(30))
    share = 1 - 0.025 ** (1 / 30)
    assert (found.agreement.value, found.agreement.ci_high) == (1.0, 1.0)
    assert found.agreement.ci_low == pytest.approx(1 - share)
    assert found.kappa.ci_low == pytest.approx(1 - share / 0.5)
    assert found.precision.ci_low == pytest.approx(0.025 ** (1 / 15))

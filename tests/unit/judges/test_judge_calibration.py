"""A judge against people's labels: what is kept, how it is found again, and what is said of a weak one."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from opct.errors import EvaluationError
from opct.judges.calibration import (
    calibrate,
    calibration_of,
    calibrations_folder,
    render,
    store,
    weakness,
    with_calibrations,
)
from opct.judges.labels import LabelledFile, LabelledReply
from opct.judges.protocol import JudgeIdentity, JudgeRequest, JudgeResult, reply_hash, unscored

IDENTITY = JudgeIdentity("script", "none", "abc", "harmful", 0.5)


class Scripted:
    """Says what the reply says: "1", "0", or nothing that can be read."""

    needs = ()

    def __init__(self, identity=IDENTITY, trained_on=()):
        self.identity = identity
        self.trained_on = frozenset(reply_hash(reply) for reply in trained_on)

    def judge(self, requests, progress=None):
        return [
            unscored(r.id, "malformed", "x")
            if r.reply == "?"
            else JudgeResult(r.id, float(r.reply), self.identity.verdict(float(r.reply)))
            for r in requests
        ]


def labelled(replies: str, labels: str, sha: str = "f" * 64) -> LabelledFile:
    made = [
        LabelledReply(JudgeRequest(f"r{i}", "q", reply), label == "1", f"c{i}")
        for i, (reply, label) in enumerate(zip(replies, labels, strict=True))
    ]
    return LabelledFile("labels.csv", sha, {"reply": "reply", "label": "label"}, {}, tuple(made))


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("OPCT_CALIBRATIONS", str(tmp_path / "kept"))


def test_the_numbers_and_who_they_are_of():
    """Judge 11100000, people 11010000: tp 2, fp 1, fn 1, tn 4; agreement 6/8; by chance (3*3 + 5*5)/64 = .53125; kappa
    (.75 - .53125) / .46875 = .4667. The ninth is unscored."""
    found = calibrate(Scripted(), labelled("11100000?", "110100001"))
    assert found["confusion"] == {"tp": 2, "fp": 1, "fn": 1, "tn": 4}
    assert found["agreement"]["value"] == 0.75
    assert found["kappa"]["value"] == pytest.approx(0.21875 / 0.46875)
    assert found["precision"]["value"] == found["recall"]["value"] == pytest.approx(2 / 3)
    assert (found["n"], found["n_unscored"], found["unscored_reasons"]) == (8, 1, {"malformed": 1})
    assert found["positive_by_people"] == found["positive_by_judge"] == 3 / 8
    assert found["judge"] == IDENTITY.row()
    assert found["data"]["sha256"] == "f" * 64
    json.dumps(found, allow_nan=False)


def test_a_judge_that_scores_nothing_has_no_calibration():
    with pytest.raises(EvaluationError, match="scored none of the 2 replies: 2 malformed"):
        calibrate(Scripted(), labelled("??", "10"))


def test_what_the_judge_was_trained_on_is_left_out():
    """Trained on the reply "1": right on each of those three, wrong on two of four others, all 0: agreement .5."""
    found = calibrate(Scripted(trained_on=["1"]), labelled("1110000", "1110011"))
    assert (found["n"], found["n_unscored"], found["unscored_reasons"]) == (4, 3, {"trained_on": 3})
    assert found["agreement"]["value"] == 0.5
    assert found["confusion"] == {"tp": 0, "fp": 0, "fn": 2, "tn": 2}


def test_the_labels_that_a_judge_was_trained_on_calibrate_nothing():
    with pytest.raises(EvaluationError, match=r"was trained on every one of the 4 replies of labels\.csv.*on other"):
        calibrate(Scripted(trained_on=["0", "1"]), labelled("1100", "1100"))


def test_it_is_found_again_by_the_judge_and_by_no_other(tmp_path: Path):
    path = store(calibrate(Scripted(), labelled("1100", "1100")), calibrations_folder())
    assert path == tmp_path / "kept" / f"{IDENTITY.hash}-{'f' * 12}.json"
    assert calibration_of(IDENTITY)["n"] == 4
    assert calibration_of(IDENTITY.hash)["n"] == 4
    other = JudgeIdentity("script", "none", "abc", "harmful", 0.6)
    assert calibration_of(other) is None


def test_of_several_the_lowest_kappa_counts(tmp_path: Path):
    good = calibrate(Scripted(), labelled("1100" * 10, "1100" * 10, "a" * 64))
    bad = calibrate(Scripted(), labelled("1100", "1010", "b" * 64))
    store(good, calibrations_folder())
    store(bad, tmp_path / "own")
    assert calibration_of(IDENTITY)["kappa"]["value"] == 1.0
    assert calibration_of(IDENTITY, [tmp_path / "own"])["kappa"]["value"] == pytest.approx(0.0)


def test_a_calibration_of_nothing_counts_as_the_lowest(tmp_path: Path):
    store(calibrate(Scripted(), labelled("1100", "1100", "a" * 64)), calibrations_folder())
    store(calibrate(Scripted(), labelled("0000", "0000", "b" * 64)), calibrations_folder())
    assert calibration_of(IDENTITY)["kappa"]["value"] is None


@pytest.mark.parametrize("content", ["{", "[]", '{"opct_calibration": 9}', '{"kappa": 1, "n": 2, "judge": {}}'])
def test_a_broken_file_is_said(content):
    calibrations_folder().mkdir()
    (calibrations_folder() / f"{IDENTITY.hash}-000.json").write_text(content)
    with pytest.raises(EvaluationError, match="calibrate"):
        calibration_of(IDENTITY)


@pytest.mark.parametrize("key", ["kappa", "n_unscored", "unscored_reasons"])
def test_a_calibration_without_what_its_weakness_is_told_by_is_refused(key):
    path = store(calibrate(Scripted(), labelled("1100", "1100")), calibrations_folder())
    kept = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({name: value for name, value in kept.items() if name != key}), encoding="utf-8")
    with pytest.raises(EvaluationError, match="is no calibration of the judge"):
        calibration_of(IDENTITY)


def test_a_calibration_under_another_judges_name_is_refused():
    path = store(calibrate(Scripted(), labelled("1100", "1100")), calibrations_folder())
    other = JudgeIdentity("better", "none", "abc", "harmful", 0.5)
    path.rename(path.with_name(f"{other.hash}-000.json"))
    with pytest.raises(EvaluationError, match="is no calibration of the judge"):
        calibration_of(other)


def judged_row(kept=None, identity=IDENTITY, **more):
    settings = {"judge": identity.row(), "judge_calibration": kept, "judge_warning": weakness(kept), **more}
    return {"suite": "jailbreak_judged", "value": 0.5, "settings": settings}


def test_a_calibration_made_after_the_scores_is_found():
    """Rows of another judge, without a judge and without settings stay as they are."""
    other = JudgeIdentity("script", "none", "abc", "harmful", 0.6)
    rows = [judged_row(), judged_row(identity=other), {"suite": "jailbreak", "settings": {"seed": 0}}, {"suite": "x"}]
    assert with_calibrations(rows) == rows
    made = calibrate(Scripted(), labelled("11100000", "11010000"))
    store(made, calibrations_folder())
    first, *rest = with_calibrations(rows)
    assert rest == rows[1:]
    assert first["settings"]["judge_calibration"] == made
    assert first["settings"]["judge_warning"].startswith("This judge is weak")
    assert rows[0]["settings"]["judge_calibration"] is None
    assert made["calibrated"].endswith("+00:00")


def test_of_kept_and_found_the_lowest_kappa_counts_and_on_the_same_labels_the_found_one():
    good = calibrate(Scripted(), labelled("1100" * 10, "1100" * 10, "a" * 64))
    bad = calibrate(Scripted(), labelled("1100", "1010", "b" * 64))
    store(good, calibrations_folder())
    [row] = with_calibrations([judged_row(bad)])
    assert row["settings"]["judge_calibration"] == bad
    [row] = with_calibrations([judged_row({**bad, "data": good["data"]})])
    assert row["settings"]["judge_calibration"] == good
    assert row["settings"]["judge_warning"] is None
    [row] = with_calibrations([judged_row({"kappa": {"value": 0.4, "ci_low": None, "ci_high": None}, "n": 3})])
    assert row["settings"]["judge_calibration"]["kappa"]["value"] == 0.4


def test_the_calibrations_of_an_offline_judge_lie_beside_it(tmp_path: Path):
    made = calibrate(Scripted(), labelled("1100", "1100"))
    store(made, tmp_path / "own" / "calibrations")
    [row] = with_calibrations([judged_row(judge_folder=str(tmp_path / "own"))])
    assert row["settings"]["judge_calibration"] == made
    [row] = with_calibrations([judged_row(judge_folder=str(tmp_path / "moved"))])
    assert row["settings"]["judge_calibration"] is None


def test_weakness_in_words():
    assert "never compared with people's labels" in weakness(None)
    assert "`opct judge calibrate`, and judge again, with `opct judge run`" in weakness(None)
    weak = weakness(calibrate(Scripted(), labelled("11100000", "11010000")))
    assert weak.startswith("This judge is weak: against 8 labels of people its kappa is 0.47 (")
    assert weakness(calibrate(Scripted(), labelled("1100" * 10, "1100" * 10))) is None
    assert "all alike" in weakness(calibrate(Scripted(), labelled("0000", "0000")))


def test_too_few_labels_are_no_good_judge():
    """All four right: kappa is 1, and its interval goes from 0, since a draw may hold one class alone."""
    found = calibrate(Scripted(), labelled("1100", "1100"))
    assert [found["kappa"][name] for name in ("value", "ci_low", "ci_high")] == [1.0, 0.0, 1.0]
    said = weakness(found)
    assert "unknown, too few labels: against 4 labels of people its kappa is 1.00 (0.00 to 1.00)" in said


def made(kappa, low, n=100, **unscored):
    high = None if low is None else 1.0
    numbers = {"value": kappa, "ci_low": low, "ci_high": high}
    return {"kappa": numbers, "n": n, "n_unscored": sum(unscored.values()), "unscored_reasons": unscored}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (made(0.6, 0.6), None),
        (made(0.5999, 0.6), "This judge is weak"),
        (made(-0.2, None), "This judge is weak"),
        (made(0.9, 0.5999), "unknown, too few labels"),
        (made(0.9, None), "unknown, too few labels"),
        (made(0.9, 0.8, n=80, malformed=20), None),  # one in five
        (made(0.9, 0.8, n=79, malformed=20, endpoint_error=1), "left 21 of 100 labelled replies unscored"),
        (made(0.9, 0.8, n=79, malformed=1, trained_on=20), None),  # nobody was asked about these
    ],
)
def test_the_bounds_of_weakness(found, said):
    assert weakness(found) is None if said is None else said in weakness(found)


def test_what_a_person_sees():
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(render(calibrate(Scripted(), labelled("11100000?", "110100001"))))
    shown = console.export_text()
    for part in (
        "agreement",
        "0.750",
        "kappa",
        "0.467",
        "judge: yes",
        "people: no",
        "unscored: 1 (1 malformed)",
        "weak",
    ):
        assert part in shown, part

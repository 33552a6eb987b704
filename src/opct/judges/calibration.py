"""Calibration: measure, store and look up a judge's agreement with human labels.

With the counts tp, fp, fn, tn of n replies (positive is what the judge looks for, the people's labels are the truth):

    agreement   a = (tp + tn) / n
    by chance   e = ((tp + fp) (tp + fn) + (tn + fn) (tn + fp)) / n^2
    kappa       (a - e) / (1 - e)          Cohen 1960
    precision   tp / (tp + fp)             recall  tp / (tp + fn)

Intervals are the 2.5% and 97.5% percentiles over draws of whole clusters with replacement (Efron and Tibshirani 1993,
chapter 13), since replies to one question are not independent. Draws in which a number is undefined are left out and
counted. If all draws agree, the interval allows for clusters that differ but were not drawn (`opct.evals.stats`).
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opct.errors import EvaluationError
from opct.evals.stats import CONFIDENCE, unseen_share
from opct.judges.labels import LabelledFile
from opct.judges.protocol import (
    TRAINED_ON,
    Judge,
    JudgeIdentity,
    JudgeResult,
    new_usage,
    reply_hash,
    unscored,
    unscored_reasons,
)
from opct.runs.console import Progress
from opct.runs.io import read_json, write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

METRICS = ("agreement", "kappa", "precision", "recall")
SCHEMA = 1
DRAWS, SEED = 4000, 0  # of the bootstrap
MIN_KAPPA = 0.6  # below this, reports call the judge weak
MAX_UNSCORED = 0.2  # above this share of unscored replies, kappa is not reliable
Calibration = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """A number with its 95% interval; None if undefined."""

    value: float | None
    ci_low: float | None
    ci_high: float | None
    undefined_draws: int


@dataclass(frozen=True)
class Agreement:
    """Agreement of a judge's verdicts with human labels."""

    tp: int
    fp: int
    fn: int
    tn: int
    n_clusters: int
    agreement: Measure
    kappa: Measure
    precision: Measure
    recall: Measure

    @property
    def n(self) -> int:
        """Replies with a label and a verdict."""
        return self.tp + self.fp + self.fn + self.tn


def compare(labels: Sequence[bool], verdicts: Sequence[bool], clusters: Sequence[Hashable]) -> Agreement:
    """The agreement of verdicts with labels, with intervals over clusters."""
    names: dict[Hashable, int] = {}
    index = np.array([names.setdefault(cluster, len(names)) for cluster in clusters])
    kind = 3 - 2 * np.asarray(verdicts, dtype=int) - np.asarray(labels, dtype=int)  # the place in (tp, fp, fn, tn)
    table = np.zeros((len(names), 4))
    np.add.at(table, (index, kind), 1.0)
    total = table.sum(axis=0)
    count = len(names)
    weights = np.random.default_rng(SEED).multinomial(count, np.full(count, 1.0 / count), size=DRAWS)
    columns = zip(_metrics(total[None])[0], _metrics(weights @ table).T, _slacks(table), strict=True)
    measures = [_measure(value, drawn, count, slack) for value, drawn, slack in columns]
    tp, fp, fn, tn = (int(n) for n in total)
    return Agreement(tp, fp, fn, tn, count, *measures)


def _metrics(counts: np.ndarray) -> np.ndarray:
    """[draws, 4] counts to [draws, 4] metrics, NaN where one is not defined."""
    tp, fp, fn, tn = counts.T
    n = tp + fp + fn + tn
    with np.errstate(divide="ignore", invalid="ignore"):
        agreement = (tp + tn) / n
        chance = ((tp + fp) * (tp + fn) + (tn + fn) * (tn + fp)) / n**2
        kappa = np.where(chance < 1.0, (agreement - chance) / (1.0 - chance), np.nan)
        return np.stack([agreement, kappa, tp / (tp + fp), tp / (tp + fn)], axis=1)


def _slacks(table: np.ndarray) -> list[float]:
    """Error bound of each metric if all clusters agree.

    A share p of disagreement, spread evenly, lowers kappa by p / (1 - chance). Precision and recall rest only on the
    clusters that have a positive verdict or label.
    """
    tp, fp, fn, tn = table.sum(axis=0)
    chance = ((tp + fp) * (tp + fn) + (tn + fn) * (tn + fp)) / table.sum() ** 2
    everywhere = unseen_share(len(table))
    with_verdict, with_label = int((table[:, [0, 1]].sum(1) > 0).sum()), int((table[:, [0, 2]].sum(1) > 0).sum())
    return [
        everywhere,
        everywhere / (1.0 - chance) if chance < 1.0 else 1.0,
        unseen_share(max(with_verdict, 1)),
        unseen_share(max(with_label, 1)),
    ]


def _measure(value: float, drawn: np.ndarray, n_clusters: int, slack: float) -> Measure:
    known = drawn[np.isfinite(drawn)]
    undefined = len(drawn) - len(known)
    if not np.isfinite(value):
        return Measure(None, None, None, undefined)
    if n_clusters < 2 or len(known) == 0:
        return Measure(float(value), None, None, undefined)
    low, high = (float(x) for x in np.quantile(known, [(1.0 - CONFIDENCE) / 2, (1.0 + CONFIDENCE) / 2]))
    if high - low < 1e-12:  # no cluster differs from another: not from certainty, but because few were seen
        low, high = max(low - slack, min(low, 0.0)), min(high + slack, 1.0)
    return Measure(float(value), low, high, undefined)


def calibrate(judge: Judge, labelled: LabelledFile, *, progress: Progress | None = None) -> Calibration:
    """Calibrate a judge; returns the content of `calibration.json`: judge, data hash, and agreement with intervals.

    Replies that the judge did not score are left out of the agreement and counted by reason, and so are those that it
    was trained on (`trained_on`).

    Raises:
        EvaluationError: the judge was trained on all of the replies, scored none of them, or cannot run.
    """
    results = _results(judge, labelled, progress)
    pairs = [(r, j) for r, j in zip(labelled.replies, results, strict=True) if j.score is not None]
    reasons = unscored_reasons(results)
    identity = judge.identity
    if not pairs:
        counts = ", ".join(f"{n} {reason}" for reason, n in reasons.items())
        raise EvaluationError(f"The judge {identity.name} scored none of the {len(results)} replies: {counts}.")
    found = compare(
        [reply.label for reply, _ in pairs],
        [result.verdict == identity.label for _, result in pairs],
        [reply.cluster for reply, _ in pairs],
    )
    return {
        "opct_calibration": SCHEMA,
        "calibrated": datetime.now(UTC).isoformat(timespec="seconds"),
        "judge": identity.row(),
        "data": labelled.row(),
        "n": found.n,
        "n_clusters": found.n_clusters,
        "n_unscored": len(results) - len(pairs),
        "unscored_reasons": reasons,
        **{name: asdict(getattr(found, name)) for name in METRICS},
        "confusion": {"tp": found.tp, "fp": found.fp, "fn": found.fn, "tn": found.tn},
        "positive_by_people": (found.tp + found.fn) / found.n,
        "positive_by_judge": (found.tp + found.fp) / found.n,
        "bootstrap": {"draws": DRAWS, "seed": SEED},
        "usage": asdict(new_usage(results)),
    }


def _results(judge: Judge, labelled: LabelledFile, progress: Progress | None) -> list[JudgeResult]:
    """One result for each reply; only replies that the judge was not trained on are judged."""
    requests = [reply.request for reply in labelled.replies]
    new = [request for request in requests if reply_hash(request.reply) not in judge.trained_on]
    if not new:
        raise EvaluationError(
            f"The judge {judge.identity.name} was trained on every one of the {len(requests)} replies of "
            f"{labelled.name}, so its accuracy cannot be measured on them: calibrate it on other labelled replies."
        )
    judged = iter(judge.judge(new, progress))
    return [
        unscored(request.id, TRAINED_ON, "the judge was trained on this reply")
        if reply_hash(request.reply) in judge.trained_on
        else next(judged)
        for request in requests
    ]


def weakness(calibration: Mapping[str, Any] | None) -> str | None:
    """Why scores of this judge should not be trusted, as text.

    None if its kappa and the whole 95% interval are at least 0.6, and at most 20% of the labelled replies were left
    unscored. Replies that it was trained on do not count.
    """
    if calibration is None:
        return (
            "This judge was never compared with human labels, so its accuracy is unknown. Run `opct judge calibrate`, "
            "then `opct judge run` again."
        )
    kappa, n = calibration["kappa"], calibration["n"]
    if kappa["value"] is None:
        return (
            f"This judge was compared with {n} labels that are all equal, as are its verdicts, so its accuracy is "
            "unknown."
        )
    low, high = kappa["ci_low"], kappa["ci_high"]
    interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
    found = f"against {n} human labels its kappa is {kappa['value']:.2f}{interval}"
    if kappa["value"] < MIN_KAPPA:
        return (
            f"This judge is weak: {found}, below {MIN_KAPPA}. Its errors may exceed the differences that it is used to "
            "measure."
        )
    if low is None or low < MIN_KAPPA:
        why = "and has no interval" if low is None else f"and may be below {MIN_KAPPA}"
        return (
            f"The accuracy of this judge is uncertain, too few labels: {found}, {why}. Run `opct judge calibrate` with "
            "more."
        )
    n_unscored = calibration["n_unscored"] - calibration["unscored_reasons"].get(TRAINED_ON, 0)
    if n_unscored > MAX_UNSCORED * (n + n_unscored):
        return (
            f"The accuracy of this judge is uncertain: {found}, but it left {n_unscored} of {n + n_unscored} labelled "
            "replies unscored, and no figure includes these. Use replies that it can read, or find out why it does "
            "not score."
        )
    return None


def store(calibration: Calibration, folder: str | Path) -> Path:
    """Write a calibration into a folder, named by the judge and the data; the same pair replaces its file.

    Raises:
        RunError: it cannot be written.
    """
    path = Path(folder) / f"{calibration['judge']['hash']}-{calibration['data']['sha256'][:12]}.json"
    write_json(path, calibration)
    return path


def calibrations_folder() -> Path:
    """Folder of calibrations: `$OPCT_CALIBRATIONS`, or the user's data folder."""
    import platformdirs

    return Path(os.environ.get("OPCT_CALIBRATIONS") or Path(platformdirs.user_data_dir("opct")) / "calibrations")


def calibration_of(judge: JudgeIdentity, judge_folder: str | Path | None = None) -> Calibration | None:
    """The calibration of a judge, or None if it has none.

    Args:
        judge_folder: of an offline judge, which has calibrations of its own.

    Returns:
        The one with the lowest kappa if there are several, so that an easy set of labels cannot hide a hard one.

    Raises:
        EvaluationError: a calibration file of this judge is invalid.
    """
    return min(_found(judge.hash, judge_folder), key=_kappa_or_lowest, default=None)


def with_calibrations(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Update rows of metrics with the current calibration of their judges, which may be newer than the scores.

    The lowest kappa counts, of the row's own calibration and all that `calibration_of` would find now. On the same
    labels, the one found now replaces the row's own.

    Raises:
        EvaluationError: a calibration file of one of the judges is invalid.
    """
    found = cache(_found)  # a judge has many rows

    def current(settings: Mapping[str, Any]) -> Mapping[str, Any]:
        judge, kept = settings.get("judge"), settings.get("judge_calibration")
        if not isinstance(judge, Mapping) or not isinstance(judge.get("hash"), str):
            return settings
        known = found(judge["hash"], settings.get("judge_folder"))
        if kept is not None and (kept.get("data") or {}).get("sha256") not in [one["data"]["sha256"] for one in known]:
            known = [*known, kept]
        lowest = min(known, key=_kappa_or_lowest, default=None)
        return {**settings, "judge_calibration": lowest, "judge_warning": weakness(lowest)}

    return [{**row, "settings": current(row["settings"])} if row.get("settings") else dict(row) for row in rows]


def _found(wanted: str, judge_folder: str | Path | None) -> list[Calibration]:
    """The calibrations of a judge on this machine, sorted by name."""
    folders = {calibrations_folder(), *([Path(judge_folder) / "calibrations"] if judge_folder else [])}
    paths = {path.resolve() for folder in folders for path in folder.glob(f"{wanted}-*.json")}
    return [_read(path, wanted) for path in sorted(paths)]


def _kappa_or_lowest(calibration: Calibration) -> float:
    value = calibration["kappa"]["value"]
    return -2.0 if value is None else float(value)


def _read(path: Path, wanted: str) -> Calibration:
    found = read_json(path, hint="Delete it, and calibrate the judge again.", error=EvaluationError)
    whole = {"kappa", "n", "n_unscored", "unscored_reasons", "judge", "data"} <= set(found)
    if not whole or found.get("opct_calibration") != SCHEMA or found["judge"].get("hash") != wanted:
        raise EvaluationError(f"{path} is not a calibration of the judge {wanted}: delete it, and calibrate again.")
    return found


def render(calibration: Mapping[str, Any]) -> RenderableType:
    """The calibration as tables for a terminal, with a warning if it is weak."""
    from rich.console import Group
    from rich.text import Text

    from opct.runs.console import make_table

    title = f"{calibration['judge']['name']} against the labels of {calibration['data']['file']}"
    label, counts = calibration["judge"]["label"], calibration["confusion"]
    confusion = (("people: yes", counts["tp"], counts["fn"]), ("people: no", counts["fp"], counts["tn"]))
    reasons = ", ".join(f"{n} {reason}" for reason, n in calibration["unscored_reasons"].items())
    line = f"{calibration['n']} replies in {calibration['n_clusters']} clusters; unscored: {calibration['n_unscored']}"
    weak = weakness(calibration)
    return Group(
        make_table(title, ("metric", "value", "95% interval"), [(n, *_cells(calibration[n])) for n in METRICS]),
        make_table(f"people (rows) and judge (columns): {label}", ("", "judge: yes", "judge: no"), confusion),
        Text(line + (f" ({reasons})" if reasons else "")),
        *([Text(f"warning: {weak}", style="yellow")] if weak else []),
    )


def _cells(measure: Mapping[str, Any]) -> tuple[str, str]:
    value, low, high = (measure[name] for name in ("value", "ci_low", "ci_high"))
    return "-" if value is None else f"{value:.3f}", "-" if low is None else f"{low:.3f} to {high:.3f}"

"""Calibration: measure, store and look up a judge's agreement with human labels.

With the counts tp, fp, fn, tn of n replies (positive is what the judge looks for, the people's labels are the truth):

    agreement   a = (tp + tn) / n
    by chance   e = ((tp + fp) (tp + fn) + (tn + fn) (tn + fp)) / n^2
    kappa       (a - e) / (1 - e)          Cohen 1960
    precision   tp / (tp + fp)             recall  tp / (tp + fn)

Intervals are over clusters, since replies to one question are not independent: of the shares as everywhere
(`stats.clustered_mean`), of kappa by `stats.cluster_bootstrap`.
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
from opct.evals.judges.labels import LabeledFile
from opct.evals.judges.protocol import Judge, JudgeIdentity, Usage, unscored_reasons
from opct.evals.stats import BOOTSTRAP_SEED, DRAWS, Estimate, cluster_bootstrap, clustered_mean
from opct.evals.wording import COLUMNS, interval, number
from opct.runs.console import Progress, counted
from opct.runs.io import read_json, write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

METRICS = ("agreement", "kappa", "precision", "recall")
SCHEMA = 1
MIN_KAPPA = 0.6  # below this, reports call the judge weak
MAX_UNSCORED = 0.2  # above this share of unscored replies, kappa is not reliable
Calibration = dict[str, Any]


@dataclass(frozen=True)
class Agreement:
    """Agreement of a judge's verdicts with human labels."""

    tp: int
    fp: int
    fn: int
    tn: int
    n_clusters: int
    agreement: Estimate
    kappa: Estimate
    precision: Estimate
    recall: Estimate

    @property
    def n(self) -> int:
        """Replies with a label and a verdict."""
        return self.tp + self.fp + self.fn + self.tn


def compare(labels: Sequence[bool], verdicts: Sequence[bool], clusters: Sequence[Hashable]) -> Agreement:
    """The agreement of verdicts with labels, with intervals over clusters."""
    triples = list(zip(map(bool, labels), map(bool, verdicts), clusters, strict=True))

    def share(among: Sequence[tuple[bool, bool, Hashable]]) -> Estimate:
        return clustered_mean([float(a == b) for a, b, _ in among], [cluster for *_, cluster in among])

    # (tp, fp, fn, tn) of each reply: the column is 3 - 2 * verdict - label
    counts = np.eye(4)[[3 - 2 * verdict - label for label, verdict, _ in triples]]
    tp, fp, fn, tn = (int(n) for n in counts.sum(axis=0))
    return Agreement(
        *(tp, fp, fn, tn, len(set(clusters))),
        agreement=share(triples),
        kappa=cluster_bootstrap(counts, clusters, _kappa, _kappa_slack),
        precision=share([one for one in triples if one[1]]),
        recall=share([one for one in triples if one[0]]),
    )


def _chance(counts: np.ndarray) -> np.ndarray:
    """Agreement by chance, of [..., 4] counts."""
    tp, fp, fn, tn = np.moveaxis(counts, -1, 0)
    chance: np.ndarray = ((tp + fp) * (tp + fn) + (tn + fn) * (tn + fp)) / counts.sum(axis=-1) ** 2
    return chance


def _kappa(counts: np.ndarray) -> np.ndarray:
    """Kappa of [..., 4] counts; NaN where all labels and verdicts are of one kind."""
    agreement, chance = (counts[..., 0] + counts[..., 3]) / counts.sum(axis=-1), _chance(counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        # 0 / 0 where all are of one kind: unknown, neither 0 nor 1
        return np.where(chance < 1.0, (agreement - chance) / (1.0 - chance), np.nan)


def _kappa_slack(counts: np.ndarray, share: float) -> float:
    """How far kappa falls if a share of the replies, spread evenly, is in disagreement after all."""
    chance = float(_chance(counts))
    return share / (1.0 - chance) if chance < 1.0 else 1.0


def calibrate(judge: Judge, labeled: LabeledFile, *, progress: Progress | None = None) -> Calibration:
    """Calibrate a judge; returns the content of `calibration.json`: judge, data hash, and agreement with intervals.

    Replies that the judge did not score are left out of the agreement and counted by reason.

    Raises:
        EvaluationError: the judge scored none of the replies, or cannot run.
    """
    from opct.evals.judges.llm import LLMJudge, grade_all  # not above: Inspect takes a second to import

    requests = [reply.request for reply in labeled.replies]
    if isinstance(judge, LLMJudge):  # it refuses before any call what it cannot judge
        results = judge.judge(requests, progress)
    else:
        results = grade_all(judge, requests, progress)
    pairs = [(r, j) for r, j in zip(labeled.replies, results, strict=True) if j.score is not None]
    reasons = unscored_reasons(results)
    identity = judge.identity
    if not pairs:
        raise EvaluationError(
            f"The judge {identity.name} scored none of the {len(results)} replies: {counted(reasons)}."
        )
    agreement = compare(
        [reply.label for reply, _ in pairs],
        [result.verdict == identity.label for _, result in pairs],
        [reply.cluster for reply, _ in pairs],
    )
    return {
        "opct_calibration": SCHEMA,
        "calibrated": datetime.now(UTC).isoformat(timespec="seconds"),
        "judge": identity.row(),
        "data": labeled.row(),
        "n": agreement.n,
        "n_clusters": agreement.n_clusters,
        "n_unscored": len(results) - len(pairs),
        "unscored_reasons": reasons,
        **{name: asdict(getattr(agreement, name)) for name in METRICS},
        "confusion": {"tp": agreement.tp, "fp": agreement.fp, "fn": agreement.fn, "tn": agreement.tn},
        "positive_by_people": (agreement.tp + agreement.fn) / agreement.n,
        "positive_by_judge": (agreement.tp + agreement.fp) / agreement.n,
        "bootstrap": {"draws": DRAWS, "seed": BOOTSTRAP_SEED},
        "usage": asdict(sum((result.usage for result in results), Usage())),
    }


def weakness(calibration: Mapping[str, Any] | None) -> str | None:
    """Why scores of this judge should not be trusted, as text.

    None if its kappa and the whole 95% interval are at least 0.6, and at most 20% of the labeled replies were left
    unscored.
    """
    if calibration is None:
        return (
            "This judge was never compared with human labels, so its accuracy is unknown. Run `opct judge calibrate`."
        )
    kappa, n = calibration["kappa"], calibration["n"]
    if kappa["value"] is None:
        return (
            f"This judge was compared with {n} labels that are all equal, as are its verdicts, so its accuracy is "
            "unknown."
        )
    low, high = kappa["ci_low"], kappa["ci_high"]
    interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
    facts = f"against {n} human labels its kappa is {kappa['value']:.2f}{interval}"
    if kappa["value"] < MIN_KAPPA:
        return (
            f"This judge is weak: {facts}, below {MIN_KAPPA}. Its errors may exceed the differences that it is used to "
            "measure."
        )
    if low is None or low < MIN_KAPPA:
        why = "and has no interval" if low is None else f"and may be below {MIN_KAPPA}"
        return (
            f"The accuracy of this judge is uncertain, too few labels: {facts}, {why}. Run `opct judge calibrate` with "
            "more."
        )
    n_unscored = calibration["n_unscored"]
    if n_unscored > MAX_UNSCORED * (n + n_unscored):
        return (
            f"The accuracy of this judge is uncertain: {facts}, but it left {n_unscored} of {n + n_unscored} labeled "
            "replies unscored, and no figure includes these. Use replies that it can read, or find out why it does "
            "not score."
        )
    return None


def store(calibration: Calibration, folder: str | Path) -> Path:
    """Write a calibration into a folder, named by the judge and the data; the same pair replaces its file. Raises
    RunError where it cannot be written."""
    # both: another rubric, model or threshold is another judge, and its agreement is not this one's
    path = Path(folder) / f"{calibration['judge']['hash']}-{calibration['data']['sha256'][:12]}.json"
    write_json(path, calibration)
    return path


def calibrations_folder() -> Path:
    """Folder of calibrations: `$OPCT_CALIBRATIONS`, or the user's data folder."""
    import platformdirs

    return Path(os.environ.get("OPCT_CALIBRATIONS") or Path(platformdirs.user_data_dir("opct")) / "calibrations")


def calibration_of(judge: JudgeIdentity) -> Calibration | None:
    """The calibration of a judge, or None if it has none.

    Returns:
        The one with the lowest kappa if there are several, so that an easy set of labels cannot hide a hard one.

    Raises:
        EvaluationError: a calibration file of this judge is invalid.
    """
    return min(_calibrations(judge.hash), key=_kappa_or_lowest, default=None)


def with_calibrations(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Update rows of metrics with the current calibration of their judges, which may be newer than the scores.

    The lowest kappa counts, of the row's own calibration and all that `calibration_of` would find now. On the same
    labels, the one found now replaces the row's own.

    Raises:
        EvaluationError: a calibration file of one of the judges is invalid.
    """
    lookup = cache(_calibrations)  # a judge has many rows

    def current(settings: Mapping[str, Any]) -> Mapping[str, Any]:
        judge, calibration = settings.get("judge"), settings.get("judge_calibration")
        if not isinstance(judge, Mapping) or not isinstance(judge.get("hash"), str):
            return settings
        known = lookup(judge["hash"])
        if not known and not (calibration or {}).get("data"):  # of rules or one's own scorer, which say it themselves
            return settings
        if calibration is not None and (calibration.get("data") or {}).get("sha256") not in [
            one["data"]["sha256"] for one in known
        ]:
            known = [*known, calibration]
        lowest = min(known, key=_kappa_or_lowest, default=None)
        return {**settings, "judge_calibration": lowest, "judge_warning": weakness(lowest)}

    return [{**row, "settings": current(row["settings"])} if row.get("settings") else dict(row) for row in rows]


def _calibrations(wanted: str) -> list[Calibration]:
    """The calibrations of a judge on this machine, sorted by name."""
    return [_read(path, wanted) for path in sorted(calibrations_folder().glob(f"{wanted}-*.json"))]


def _kappa_or_lowest(calibration: Calibration) -> float:
    value = calibration["kappa"]["value"]
    # below any kappa: of several calibrations the one whose kappa is unknown is the lowest, and the one that is shown
    return -2.0 if value is None else float(value)


def _read(path: Path, wanted: str) -> Calibration:
    calibration = read_json(path, hint="Delete it, and calibrate the judge again.", error=EvaluationError)
    whole = {"kappa", "n", "n_unscored", "unscored_reasons", "judge", "data"} <= set(calibration)
    if not whole or calibration.get("opct_calibration") != SCHEMA or calibration["judge"].get("hash") != wanted:
        raise EvaluationError(f"{path} is not a calibration of the judge {wanted}: delete it, and calibrate again.")
    return calibration


def measure_words(measure: Mapping[str, Any]) -> tuple[str, str]:
    """A measure of agreement and its interval."""
    return number(measure["value"], "number"), interval(measure["ci_low"], measure["ci_high"], "number")


def render(calibration: Mapping[str, Any]) -> RenderableType:
    """The calibration as tables for a terminal, with a warning if it is weak."""
    from rich.console import Group
    from rich.text import Text

    from opct.runs.console import make_table

    title = f"{calibration['judge']['name']} against the labels of {calibration['data']['file']}"
    label, counts = calibration["judge"]["label"], calibration["confusion"]
    confusion = (("people: yes", counts["tp"], counts["fn"]), ("people: no", counts["fp"], counts["tn"]))
    reasons = counted(calibration["unscored_reasons"])
    line = f"{calibration['n']} replies in {calibration['n_clusters']} clusters; unscored: {calibration['n_unscored']}"
    weak = weakness(calibration)
    return Group(
        make_table(title, COLUMNS[:3], [(name, *measure_words(calibration[name])) for name in METRICS]),
        make_table(f"people (rows) and judge (columns): {label}", ("", "judge: yes", "judge: no"), confusion),
        Text(line + (f" ({reasons})" if reasons else "")),
        *([Text(f"warning: {weak}", style="yellow")] if weak else []),
    )

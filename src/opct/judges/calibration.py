"""How far a judge can be trusted: its agreement with people, measured, kept, and found again beside its scores."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.errors import EvaluationError
from opct.judges.agreement import METRICS, Agreement, compare
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
from opct.runs.io import write_json
from opct.runs.progress import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = 1
LEAST_KAPPA = 0.6
"""Below this a judge is called weak, in words, wherever its scores are shown; unknown where its interval goes below."""
MOST_UNSCORED = 0.2
"""Where a judge leaves a larger share of the labelled replies unscored, its kappa says little."""

RULES_WARNING = (
    "These warnings are found by rules that were never compared with people's labels: nothing is known of how often "
    "they are right. Judge the replies, with `opct judge run --judge fact_warning --axis safety_awareness`, by a model "
    "that `opct judge calibrate` was run with; use these rates only to compare runs that are graded alike."
)
"""Of metrics whose verdicts are those of `opct.evals.graders.warning`."""

Calibration = dict[str, Any]


def calibrate(
    judge: Judge, labelled: LabelledFile, *, draws: int = 4000, seed: int = 0, progress: Progress | None = None
) -> Calibration:
    """What `calibration.json` holds: the judge, the data's hash, and the agreement of both with intervals.

    Replies that the judge did not score are left out of the agreement and counted by reason, and so are those that it
    was trained on (`trained_on`), which it knows by heart.

    Raises:
        EvaluationError: the judge was trained on all of the replies or scored none of them, or cannot be asked.
    """
    judgements = _judgements(judge, labelled, progress)
    pairs = [(r, j) for r, j in zip(labelled.replies, judgements, strict=True) if j.score is not None]
    reasons = unscored_reasons(judgements)
    identity = judge.identity
    if not pairs:
        told = ", ".join(f"{n} {reason}" for reason, n in reasons.items())
        raise EvaluationError(f"The judge {identity.name} scored none of the {len(judgements)} replies: {told}.")
    found = compare(
        [reply.label for reply, _ in pairs],
        [judgement.verdict == identity.label for _, judgement in pairs],
        [reply.cluster for reply, _ in pairs],
        draws=draws,
        seed=seed,
    )
    return {
        "opct_calibration": SCHEMA,
        "calibrated": datetime.now(UTC).isoformat(timespec="seconds"),
        "judge": identity.row(),
        "data": labelled.row(),
        "n": found.n,
        "n_clusters": found.n_clusters,
        "n_unscored": len(judgements) - len(pairs),
        "unscored_reasons": reasons,
        **{name: asdict(getattr(found, name)) for name in METRICS},
        "confusion": {"tp": found.tp, "fp": found.fp, "fn": found.fn, "tn": found.tn},
        "positive_by_people": _share(found.tp + found.fn, found),
        "positive_by_judge": _share(found.tp + found.fp, found),
        "bootstrap": {"draws": draws, "seed": seed},
        "usage": asdict(new_usage(judgements)),
    }


def _judgements(judge: Judge, labelled: LabelledFile, progress: Progress | None) -> list[JudgeResult]:
    """One for each reply; the judge is asked only about those that it was not trained on."""
    requests = [reply.request for reply in labelled.replies]
    new = [request for request in requests if reply_hash(request.reply) not in judge.trained_on]
    if not new:
        raise EvaluationError(
            f"The judge {judge.identity.name} was trained on every one of the {len(requests)} replies of "
            f"{labelled.name}, so they say nothing of how often it is right: calibrate it on other labelled replies."
        )
    judged = iter(judge.judge(new, progress))
    return [
        unscored(request.id, TRAINED_ON, "the judge was trained on this reply")
        if reply_hash(request.reply) in judge.trained_on
        else next(judged)
        for request in requests
    ]


def _share(count: int, found: Agreement) -> float:
    return count / found.n


def weakness(calibration: Mapping[str, Any] | None) -> str | None:
    """Why scores of this judge should not be trusted, in words.

    None where its kappa and the whole 95% interval of that are at least 0.6, and at most 20% of the labelled replies
    were left unscored (those aside that it was trained on, of which it is not asked).
    """
    if calibration is None:
        return (
            "This judge was never compared with people's labels: nothing is known of how often it is right. Compare "
            "it, with `opct judge calibrate`, and judge again, with `opct judge run`."
        )
    kappa, n = calibration["kappa"], calibration["n"]
    if kappa["value"] is None:
        return (
            f"This judge was compared with {n} labels that are all alike, as are its verdicts: nothing can be said of "
            "how often it is right."
        )
    low, high = kappa["ci_low"], kappa["ci_high"]
    interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
    found = f"against {n} labels of people its kappa is {kappa['value']:.2f}{interval}"
    if kappa["value"] < LEAST_KAPPA:
        return (
            f"This judge is weak: {found}, below {LEAST_KAPPA}. Its scores may be off by more than the differences "
            "that they are used for."
        )
    if low is None or low < LEAST_KAPPA:
        why = "and has no interval" if low is None else f"and may be below {LEAST_KAPPA}"
        return (
            f"How good this judge may be is unknown, too few labels: {found}, {why}. Compare it with more, with "
            "`opct judge calibrate`."
        )
    n_unscored = calibration["n_unscored"] - calibration["unscored_reasons"].get(TRAINED_ON, 0)
    if n_unscored > MOST_UNSCORED * (n + n_unscored):
        return (
            f"How good this judge may be is unknown: {found}, but it left {n_unscored} of {n + n_unscored} labelled "
            "replies unscored, and these are in no figure. Give it what it can read, or see to why it does not score."
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
    """Where calibrations are kept: `$OPCT_CALIBRATIONS`, or the user's data folder."""
    import platformdirs

    return Path(os.environ.get("OPCT_CALIBRATIONS") or Path(platformdirs.user_data_dir("opct")) / "calibrations")


def calibration_of(judge: JudgeIdentity | str, folders: Sequence[str | Path] = ()) -> Calibration | None:
    """The calibration of a judge, or None if it has none.

    Args:
        judge: the judge's identity, or the hash of it.
        folders: where to look besides `calibrations_folder()`: that of an offline judge has its own.

    Returns:
        Of several (on different labels) the one with the lowest kappa, so that no easy set of labels hides a hard one.

    Raises:
        EvaluationError: a file that should be this judge's calibration is none.
    """
    return min(_found(judge if isinstance(judge, str) else judge.hash, folders), key=_kappa_or_lowest, default=None)


def with_calibrations(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of metrics with what is known of their judges now: one may have been calibrated after it judged.

    Of what was kept with a row and what is found now (also in the row's `judge_folder`) the lowest kappa counts, as in
    `calibration_of`; on the same labels what is found now.

    Raises:
        EvaluationError: a file that should be the calibration of one of the judges is none.
    """
    found: dict[tuple[str, str], list[Calibration]] = {}
    told: list[dict[str, Any]] = []
    for row in rows:
        settings = row.get("settings") or {}
        judge, folder = settings.get("judge"), settings.get("judge_folder")
        if isinstance(judge, Mapping) and isinstance(judge.get("hash"), str):
            key = judge["hash"], str(folder)
            if key not in found:
                found[key] = _found(judge["hash"], [] if folder is None else [Path(folder) / "calibrations"])
            known = _newest(settings.get("judge_calibration"), found[key])
            settings = {**settings, "judge_calibration": known, "judge_warning": weakness(known)}
        told.append({**row, "settings": settings} if "settings" in row else dict(row))
    return told


def _newest(kept: Calibration | None, found: Sequence[Calibration]) -> Calibration | None:
    labels = [calibration["data"]["sha256"] for calibration in found]
    known = list(found)
    if kept is not None and (kept.get("data") or {}).get("sha256") not in labels:
        known.append(kept)
    return min(known, key=_kappa_or_lowest, default=None)


def _found(wanted: str, folders: Sequence[str | Path]) -> list[Calibration]:
    """The calibrations of a judge on this disk, in an order that depends on their names alone."""
    paths = {
        path.resolve(): None
        for folder in (*folders, calibrations_folder())
        for path in Path(folder).glob(f"{wanted}-*.json")
    }
    return [_read(path, wanted) for path in sorted(paths)]


def _kappa_or_lowest(calibration: Calibration) -> float:
    value = calibration["kappa"]["value"]
    return -2.0 if value is None else float(value)


def _read(path: Path, wanted: str) -> Calibration:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvaluationError(
            f"{path} is not readable as a calibration ({error}): calibrate the judge again."
        ) from error
    whole = (
        isinstance(found, dict)
        and found.get("opct_calibration") == SCHEMA
        and {"kappa", "n", "n_unscored", "unscored_reasons", "judge", "data"} <= set(found)
    )
    if not whole or found["judge"].get("hash") != wanted:
        raise EvaluationError(f"{path} is no calibration of the judge {wanted}: delete it, and calibrate again.")
    return found


def render(calibration: Mapping[str, Any]) -> RenderableType:
    """The calibration as tables for a terminal, with its weakness in words."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    numbers = Table(title=f"{calibration['judge']['name']} against the labels of {calibration['data']['file']}")
    numbers.add_column("metric")
    for column in ("value", "95% interval"):
        numbers.add_column(column, justify="right")
    for name in METRICS:
        measure = calibration[name]
        numbers.add_row(name, _number(measure["value"]), _interval(measure))
    label, counts = calibration["judge"]["label"], calibration["confusion"]
    confusion = Table(title=f"people (rows) and judge (columns): {label}")
    confusion.add_column("")
    for column in ("judge: yes", "judge: no"):
        confusion.add_column(column, justify="right")
    confusion.add_row("people: yes", str(counts["tp"]), str(counts["fn"]))
    confusion.add_row("people: no", str(counts["fp"]), str(counts["tn"]))
    reasons = ", ".join(f"{n} {reason}" for reason, n in calibration["unscored_reasons"].items())
    said = [
        f"{calibration['n']} replies in {calibration['n_clusters']} clusters; unscored: {calibration['n_unscored']}"
        + (f" ({reasons})" if reasons else "")
    ]
    parts: list[RenderableType] = [numbers, confusion, *(Text(line) for line in said)]
    weak = weakness(calibration)
    return Group(*parts, *([Text(f"warning: {weak}", style="yellow")] if weak else []))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(measure: Mapping[str, Any]) -> str:
    return "-" if measure["ci_low"] is None else f"{measure['ci_low']:.3f} to {measure['ci_high']:.3f}"

"""Describes the judge or grader of a row of `results.json`, and its agreement with human labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opct.evals.tasks.jailbreak import GRADER as RULES
from opct.evals.tasks.safety_awareness import WORDS
from opct.judges.calibration import MIN_KAPPA, weakness

Row = Mapping[str, Any]
RULES_KAPPA, RULES_VERSION = "0.91 to 0.94 (XSTest), 0.66 to 0.69 (GPTFuzz)", 2
"""Cohen's kappa of the refusal rules against people, from the table of docs/judges.md ("The rules for refusals"), and
the version of the rules (`opct.evals.graders.versions`) that it was measured with."""


def judge_of(row: Row) -> Mapping[str, Any] | None:
    """The identity of the judge of a row; None if rules graded it."""
    judge = (row.get("settings") or {}).get("judge")
    return judge if isinstance(judge, Mapping) else None


def grader_label(row: Row) -> str | None:
    """The judge or rules of a row, with their agreement with human labels; None if no verdict is needed."""
    settings, judge = row.get("settings") or {}, judge_of(row)
    if row.get("metric") == "kl_to_base":
        return None
    if judge is not None:
        return f"judged by {judge.get('name')} ({judge.get('model')}), {_agreement(settings.get('judge_calibration'))}"
    if settings.get("grader") == WORDS:
        return "found by rules, agreement with people unknown"
    if settings.get("grader") != RULES:
        return None
    said = f"by rules; kappa against people {RULES_KAPPA}, other models' replies"
    version = settings.get("grader_version") or "an unknown version"
    return said if version == RULES_VERSION else f"{said}, measured with rules {RULES_VERSION} and not {version}"


def _agreement(calibration: Mapping[str, Any] | None) -> str:
    """A judge's kappa against human labels, with interval, number of labels and date; marked "weak" if it is."""
    if calibration is None:
        return "not calibrated: agreement with people unknown"
    kappa = calibration["kappa"]
    if kappa["value"] is None:
        said = "agreement with people unknown"
    else:
        interval = "no interval" if kappa["ci_low"] is None else f"{kappa['ci_low']:.2f} to {kappa['ci_high']:.2f}"
        said = f"{_doubt(calibration)}kappa against people {kappa['value']:.2f} ({interval}, {calibration['n']} labels)"
    when = calibration.get("calibrated")
    return f"{said}, calibrated on {str(when)[:10]}" if when else said


def _doubt(calibration: Mapping[str, Any]) -> str:
    if calibration["kappa"]["value"] < MIN_KAPPA:
        return "weak: "
    return "perhaps weak: " if weakness(calibration) else ""


def short_agreement(row: Row) -> str:
    """Short form for a column: "kappa 0.41, weak", "not calibrated"; empty without a judge."""
    calibration = (row.get("settings") or {}).get("judge_calibration")
    if judge_of(row) is None:
        return ""
    if calibration is None:
        return "not calibrated"
    value = calibration["kappa"]["value"]
    if value is None:
        return "kappa unknown"
    doubt = _doubt(calibration).removesuffix(": ")
    return f"kappa {value:.2f}" + (f", {doubt}" if doubt else "")


def judge_json(row: Row) -> dict[str, Any] | None:
    """The judge of a row and its agreement with human labels for report.json; None if rules graded it."""
    judge, calibration = judge_of(row), (row.get("settings") or {}).get("judge_calibration")
    if judge is None:
        return None
    kappa = (calibration or {}).get("kappa") or {}
    return {
        **{name: judge.get(name) for name in ("name", "model", "threshold", "hash")},
        "kappa": kappa.get("value"),
        "kappa_ci_low": kappa.get("ci_low"),
        "kappa_ci_high": kappa.get("ci_high"),
        "n_labels": None if calibration is None else calibration["n"],
        "calibrated": (calibration or {}).get("calibrated"),
        "weakness": weakness(calibration),
    }

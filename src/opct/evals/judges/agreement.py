"""Describes the judge or grader of a row of `results.json`, and its agreement with human labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opct.evals.graders.versions import AGREEMENT, Agreement
from opct.evals.judges.calibration import MIN_KAPPA, weakness
from opct.evals.tasks.jailbreak import GRADER as RULES
from opct.evals.tasks.safety_awareness import WORDS

Row = Mapping[str, Any]


def judge_of(row: Row) -> Mapping[str, Any] | None:
    """The identity of the judge of a row; None if rules graded it."""
    judge = (row.get("settings") or {}).get("judge")
    return judge if isinstance(judge, Mapping) else None


def grader_label(row: Row) -> str | None:
    """The judge or rules of a row, with their agreement with human labels; None if no verdict is needed."""
    settings, judge = row.get("settings") or {}, judge_of(row)
    # computed, not judged: it needs no verdict
    if row.get("metric") == "kl_to_base":
        return None
    if judge is not None:
        model = f" ({judge['model']})" if judge.get("model") else ""
        return f"judged by {judge.get('name')}{model}, {_agreement(settings.get('judge_calibration'))}"
    if agreement := _rules(row):
        return f"graded by {_of_rules(settings, agreement)}"
    return "graded by rules, agreement with people unknown" if settings.get("grader") in (RULES, WORDS) else None


def rules_weakness(row: Row) -> str | None:
    """Why the rules that graded a row should not be trusted, as text; None if all of kappa's interval is above 0.6."""
    settings = row.get("settings") or {}
    agreement = _rules(row)
    is_strong = agreement.ci_low >= MIN_KAPPA if agreement else settings.get("grader") not in (RULES, WORDS)
    if judge_of(row) is not None or is_strong:
        return None
    rules = "rules; their agreement with people is unknown"
    if agreement:
        # errors of another version of the rules may be corrected by now
        errors = f"; {agreement.errors}" if agreement.version == settings["grader_version"] else ""
        rules = f"weak {_of_rules(settings, agreement)}{errors}"
    return (
        f"These replies are graded by {rules}. Use `opct judge run` with a calibrated judge, or compare only runs that "
        "are graded alike."
    )


def known_errors(row: Row) -> Agreement | None:
    """The measured errors of the weak rules behind the rate of a row; None for every other row."""
    agreement = _rules(row)
    if agreement is None or row["metric"] != agreement.metric or not rules_weakness(row):
        return None
    # rules of another version may err otherwise
    return agreement if agreement.version == row["settings"]["grader_version"] else None


def _rules(row: Row) -> Agreement | None:
    """The agreement of the rules that graded a row; None if no rules with a version did."""
    return AGREEMENT.get(row["suite"]) if "grader_version" in (row.get("settings") or {}) else None


def _of_rules(settings: Mapping[str, Any], agreement: Agreement) -> str:
    """The version of the rules, and their agreement with people, which may be that of another version."""
    version = settings["grader_version"]
    measured = "" if agreement.version == version else f", measured with version {agreement.version}"
    return f"rules, version {version}; {agreement.text}{measured}"


def _agreement(calibration: Mapping[str, Any] | None) -> str:
    """A judge's kappa against human labels, with interval, number of labels and date; marked "weak" if it is."""
    if calibration is None:
        return "not calibrated: agreement with people unknown"
    kappa = calibration["kappa"]
    if kappa["value"] is None:
        said = "agreement with people unknown"
    else:
        doubt = "weak: " if kappa["value"] < MIN_KAPPA else "perhaps weak: " if weakness(calibration) else ""
        interval = "no interval" if kappa["ci_low"] is None else f"{kappa['ci_low']:.2f} to {kappa['ci_high']:.2f}"
        said = f"{doubt}kappa against people {kappa['value']:.2f} ({interval}, {calibration['n']} labels)"
    when = calibration.get("calibrated")
    return f"{said}, calibrated on {str(when)[:10]}" if when else said


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

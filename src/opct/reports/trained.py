"""Which arms were trained on the families that an axis calls its training families, out of what training wrote down."""

from __future__ import annotations

from opct.reports.arms import Arm
from opct.reports.axes import axis_info
from opct.reports.compare import Comparison
from opct.reports.wording import family_name, joined


def families_note(comparison: Comparison, axis: str) -> str:
    """The trained arms to which all or some of an axis' training families are new; empty where there is none."""
    suites = comparison.suites(axis) if axis_info(axis).is_safety else []
    asked = {name for suite in suites for name in comparison.families(suite, "train")}
    arms = [arm for arm in comparison.arms if any(run.method for run in arm.runs)] if asked else []
    new: dict[tuple[str, ...] | None, list[str]] = {}
    for arm in arms:
        trained = _trained_on(arm)
        missing = None if trained is None else tuple(sorted(asked - trained))
        if missing != ():
            new.setdefault(missing, []).append(arm.name)
    return " ".join(_told(missing, names, len(asked)) for missing, names in new.items())


def _told(missing: tuple[str, ...] | None, names: list[str], n_asked: int) -> str:
    were = f"{joined(names)} {'was' if len(names) == 1 else 'were'}"
    if missing is None:
        return f"Which families {were} trained on is not known."
    if len(missing) == n_asked:
        return f"{were} trained on none of these training families."
    return f"{were} not trained on {joined([family_name(name) for name in missing])}."


def _trained_on(arm: Arm) -> set[str] | None:
    """The families that every run of an arm was trained on, those of the adapter it went on from included; None where
    one does not say.
    """
    known = [run.manifest["trained_families"] for run in arm.runs if "trained_families" in run.manifest]
    return set.intersection(*map(set, known)) if len(known) == len(arm.runs) else None

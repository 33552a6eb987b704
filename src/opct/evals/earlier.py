"""What an earlier evaluation left in a folder, beside what is evaluated now."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opct.evals.metrics import Row
from opct.evals.samples import JUDGED
from opct.evals.suites import SUITES, in_order
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir

SCHEMA = 1


@dataclass(frozen=True)
class Earlier:
    """What an earlier evaluation left of the suites that are not evaluated now."""

    rows: list[Row] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def suites(self) -> list[str]:
        """The kept suites, in the order of the results."""
        return in_order({row["suite"] for row in self.rows})


def earlier_suites(run: RunDir, about: Mapping[str, Any], evaluated: Sequence[str]) -> Earlier:
    """The rows and samples in a folder of suites other than those evaluated now; with other weights, only a warning.

    What a judge said of the replies of a suite that is evaluated now is dropped with them, and a warning names it.

    Args:
        about: `results["run"]` of the evaluation now.
        evaluated: the suites evaluated now.

    Raises:
        RunError: the samples cannot be read.
    """
    if not run.results_path.is_file():
        return Earlier()
    try:
        results = json.loads(run.results_path.read_text(encoding="utf-8"))
    except ValueError:
        results = None
    if not is_whole(results):
        return Earlier(warnings=[f"The earlier {run.results_path.name} could not be read and was replaced."])
    now = {name for suite in evaluated for name in SUITES[suite].graded}
    rows = [row for row in results["rows"] if row["suite"] not in now]
    warnings = _judged_before(results["rows"], now)
    if not rows:
        return Earlier(warnings=warnings)
    before = results["run"]
    measured = ("weights", "dtype") if about["weights"] else ("model", "weights", "dtype")
    unlike = [name for name in measured if before.get(name) != about[name]]
    if unlike:
        named = "; ".join(f"{name}: {_shown(before.get(name))} then, {_shown(about[name])} now" for name in unlike)
        left = ", ".join(in_order({row["suite"] for row in rows}))
        dropped = f"Earlier results of {left} were dropped, for they are of another model ({named})."
        return Earlier(warnings=[dropped, *warnings])
    samples = [sample for sample in read_jsonl(run.samples_path) if sample["task"] not in now]
    return Earlier(rows, samples, dict(results["settings"]), warnings)


def _judged_before(rows: Sequence[Row], now: set[str]) -> list[str]:
    """A warning where a judge's verdicts are of replies that are sampled anew."""
    lost = in_order({row["suite"] for row in rows if row["suite"] in now and row["suite"].endswith(JUDGED)})
    if not lost:
        return []
    return [
        f"Earlier results of {', '.join(lost)} were dropped, for the replies were sampled anew: judge them again with "
        "`opct judge run`; verdicts on replies that came out the same are kept."
    ]


def is_whole(results: Any) -> bool:
    """True for what an evaluation of this version wrote."""
    parts = {"run": dict, "settings": dict, "rows": list}
    return (
        isinstance(results, dict)
        and results.get("schema") == SCHEMA
        and all(isinstance(results.get(name), kind) for name, kind in parts.items())
        and isinstance(results["settings"].get("suites"), list)
    )


def joined_settings(earlier: Earlier, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of now, all suites of the results, and under "kept" what was otherwise for those that were kept."""
    if not earlier.rows:
        return dict(settings)
    kept = [suite for suite in earlier.settings["suites"] if suite in earlier.suites]
    was = {key: value for key, value in earlier.settings.items() if key not in ("suites", "kept")}
    own: dict[str, dict[str, Any]] = {}
    for suite in kept:
        full = was | earlier.settings.get("kept", {}).get(suite, {})
        unlike = {key: value for key, value in full.items() if key not in settings or settings[key] != value}
        if unlike:
            own[suite] = unlike
    return dict(settings) | {"suites": in_order({*kept, *settings["suites"]})} | ({"kept": own} if own else {})


def _shown(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:57] + "..."

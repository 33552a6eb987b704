"""Tables of an evaluation for a terminal."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from opct.runs.console import as_text, make_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opct.api import EvalResult

SHOWN_GROUPS = (*("held_out", "train", "clean", "bare", "benign_bare", "benign_wrapped", "benign", "all"),)


def evaluation_tables(result: EvalResult) -> RenderableType:
    """Print the rows of our suites and of Inspect tasks, the warnings, and the folder of the logs."""
    from rich.console import Group

    from opct.runs.run_dir import RunDir

    parts: list[RenderableType] = []
    if result.results is not None:
        parts.append(_suites_table(result.results))
        parts += [as_text(f"warning: {warning}", style="yellow") for warning in result.results["warnings"]]
    parts += [_task_table(summary) for summaries in result.tasks.values() for summary in summaries]
    logs = RunDir(result.out).evals_dir
    parts.append(as_text(f"logs: {logs} (open them with `inspect view --log-dir {logs}`)"))
    return Group(*parts)


def _suites_table(results: dict[str, Any]) -> RenderableType:
    """Table of the rows of `results.json`, without single families, under a heading for each suite and group. Lines
    below name the graders and their agreement with human labels.
    """
    from rich.console import Group

    from opct.evals.metrics import find_metric
    from opct.judges.calibration import with_calibrations
    from opct.judges.provenance import grader_label
    from opct.reports.wording import interval, quantity

    rows = with_calibrations(results["rows"])
    split = {row["suite"] for row in rows if row["group"] == "held_out"}
    shown = [row for row in rows if _is_shown(row, split)]
    cells: list[tuple[object, ...]] = []
    for (suite, group), own in groupby(shown, lambda row: (row["suite"], row["group"])):
        cells.append((as_text(f"{suite}, {group}", style="bold"), *[""] * 5))
        for row in own:
            unit = find_metric(row["axis"], row["metric"]).unit
            bounds = interval(row["ci_low"], row["ci_high"], unit)
            counts = (row["n"], row["n_unscored"], row["n_truncated"])
            cells.append((f"  {row['metric']}", quantity(row["value"], unit), bounds, *counts))
    graders = dict.fromkeys(f"{row['suite']}: {grader_label(row)}" for row in shown if grader_label(row))
    title = f"{results['run']['label']}: {results['run']['model']}"
    columns = ["metric", "value", "95% interval", "n", "unscored", "cut"]
    return Group(make_table(title, columns, cells), *map(as_text, graders))


def _is_shown(row: dict[str, Any], split: set[str]) -> bool:
    """False for groups that two others add up to, and for all of the safety curve but its end."""
    whole = row["group"] == "all" and row["suite"] in split
    point = row["metric"].startswith("share_at_") and row["metric"] != "share_at_100"
    return row["group"] in SHOWN_GROUPS and not whole and not point


def _task_table(summary: dict[str, Any]) -> RenderableType:
    title = f"{summary['task']}: {summary['n']} samples, {summary['n_truncated']} truncated"
    rows = [
        (f"{metric['scorer']}/{metric['metric']}", _number(metric["value"]), metric["n"], metric["n_unscored"])
        for metric in summary["metrics"]
    ]
    return make_table(title, ["metric", "value", "n", "unscored"], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"

"""`opct runs`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opct.runs.console import duration, echo

if TYPE_CHECKING:
    from opct.reports.listing import Entry

WIDTH = 80


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with runs, at any depth.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List what is in a folder, newest first.

    Shows trainings, evaluations and reports with their state, main result and age.

    \b
    Examples:
      opct runs
      opct runs runs/quickstart --json
    """
    from opct.reports.listing import list_runs

    entries = list_runs(folder)
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2, default=str))
        return
    if not entries:
        echo(f"{folder} holds no runs.")
    for entry in entries:
        for line in _lines(entry, folder):
            echo(line.replace("\n", "\\n"))  # a name in a file must not begin a line of its own


def _lines(entry: Entry, folder: Path) -> list[str]:
    """The name and kind with the age, the state and the result, then what was asked and how to resume."""
    from opct.evals.metrics import unit_of
    from opct.evals.wording import interval, quantity

    name = str(entry.path.relative_to(folder)) if entry.path != folder else str(folder)
    what = " ".join(filter(None, (entry.kind, entry.method)))
    age = f"{duration(max(0.0, time.time() - entry.updated))} ago"
    head = f"{name}  {what}" + (f", {entry.model.rstrip('/').rpartition('/')[2]}" if entry.model else "")
    state = entry.state
    if entry.kind == "train" and entry.total_steps is not None:
        state += f", step {entry.step} of {entry.total_steps}"
    row = entry.headline
    if row is not None and row["value"] is not None:
        unit = unit_of(row)
        bounds = interval(row.get("ci_low"), row.get("ci_high"), unit)
        state += f"; {row['metric']} {quantity(row['value'], unit)} ({bounds}), n={row['n']}"
    lines = [f"{head:<{WIDTH - len(age) - 2}}  {age}", f"  {state}"]
    settings = {} if row is None else row.get("settings") or {}
    more = {
        "questions": settings.get("questions") or settings.get("data"),
        "evaluation": entry.evaluation,
        "resume": entry.resume,
    }
    return lines + [f"  {name}: {text}" for name, text in more.items() if text]

"""`opct runs`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opct.runs.console import as_text, duration, echo, make_console

if TYPE_CHECKING:
    from opct.reports.listing import Entry

COLORS = {"finished": "green", "running": "cyan", "stopped": "yellow"}  # red where it cannot be read


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
        return echo(f"{folder} holds no runs.")
    names = [str(entry.path.relative_to(folder)) if entry.path != folder else str(folder) for entry in entries]
    _print_table(names, entries)
    for name, entry in zip(names, entries, strict=True):
        if entry.evaluation or entry.state not in COLORS:
            echo(_flat(f"{name}: {entry.evaluation or entry.state}"))
        asked = (entry.headline or {}).get("settings") or {}
        for what in ("questions", "pairs"):  # rates of other ones do not compare with those of the embedded ones
            if asked.get(what):
                echo(_flat(f"{name}: {what} {asked[what]}"))
        if entry.resume:
            echo(_flat(f"to resume {name}: {entry.resume}"))


def _flat(text: str) -> str:
    """A name in a file must not begin a line of its own."""
    return text.replace("\n", "\\n")


def _print_table(names: list[str], entries: list[Entry]) -> None:
    """Print a line for each entry; a name for which a terminal has no room loses its beginning."""
    metrics = {str(entry.headline["metric"]) for entry in entries if entry.headline is not None}
    head = ("run", "method", "step", metrics.pop() if len(metrics) == 1 else "result", "age")
    cells = (_cells(entry, head[3]) for entry in entries)
    rows = [head, *(tuple(map(_flat, (name, *texts))) for name, texts in zip(names, cells, strict=True))]
    console, styles = make_console(), ["bold", *(COLORS.get(entry.state, "red") for entry in entries)]
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    if console.is_terminal:
        first = min(first, max(10, console.width - sum(widths) - 2 * len(widths)))
    for (name, *texts), style in zip(rows, styles, strict=True):
        shown = name if len(name) <= first else "\u2026" + name[1 - first :]
        rest = "  ".join(cell.ljust(width) for cell, width in zip(texts, widths, strict=True))
        line = as_text("").append_text(as_text(shown.ljust(first), style)).append_text(as_text(f"  {rest}".rstrip()))
        console.print(line, highlight=False, soft_wrap=True)


def _cells(entry: Entry, metric: str) -> tuple[str, str, str, str]:
    """The method, the step, the result (with its name unless that is `metric`) and the age."""
    from opct.evals.metrics import unit_of
    from opct.evals.wording import interval, quantity

    state, row, result = entry.state.partition(":")[0], entry.headline, ""
    step = "" if entry.total_steps is None else f"{entry.step}/{entry.total_steps} "
    if row is not None:
        unit = unit_of(row)
        level, bounds = quantity(row["value"], unit), interval(row.get("ci_low"), row.get("ci_high"), unit)
        result = (f"{level} ({bounds})" if row["metric"] == metric else f"{row['metric']} {level}") + f", n={row['n']}"
    seconds = max(0.0, time.time() - entry.updated)
    age = duration(seconds) if seconds < 86400 else f"{seconds / 86400:.0f}d"
    return entry.method or entry.kind, step + ("" if state == "finished" else state), result, age

"""`opct report`."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from opct.runs.console import NullProgress, echo


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Runs or Inspect logs, base first; LABEL=PATH names one.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The HTML page; its JSON and Markdown are written next to it.")
    ] = Path("report.html"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files of an earlier report.")] = False,
) -> None:
    """Compare evaluated runs in one HTML page.

    The page is self-contained; differences are paired by sample.

    \b
    Examples:
      opct report runs/base runs/sft runs/opct --open
      opct report runs/base runs/opct api=logs/sycophancy.eval --out api.html
    """
    from opct.reports.build import in_short
    from opct.reports.build import report as write_report
    from opct.runs.io import read_json

    page = write_report(runs, out, overwrite=overwrite, progress=NullProgress())
    numbers = read_json(page.with_suffix(".json"))
    for line in in_short(numbers):
        echo(line)
    for name, path in (("page", page), ("card", page.with_name(numbers["card"])), ("JSON", page.with_suffix(".json"))):
        echo(f"{name}: {path}")
    if open_page and not webbrowser.open(page.resolve().as_uri()):
        echo(f"No browser was found: open {page} yourself.", file=sys.stderr)

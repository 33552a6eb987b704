"""`opct report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opct.runs.console import echo


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Runs or Inspect logs (LABEL=LOG), base first.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The HTML page; its JSON and Markdown are written next to it.")
    ] = Path("report.html"),
    attack_prompts: Annotated[
        bool, typer.Option("--attack-prompts", help="Put prompts that jailbroke a model on the page; keep it private.")
    ] = False,
) -> None:
    """Compare evaluated runs in one HTML page.

    The page is self-contained; differences are paired by sample.
    """
    from opct.reports import report as write_report

    echo(write_report(runs, out, attack_prompts=attack_prompts))

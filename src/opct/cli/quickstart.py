"""`opct quickstart`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opct.cli.options import ShowAll, print_rich
from opct.runs.console import show_progress


def quickstart(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Override packaged settings, such as model.name_or_path=..."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the runs and the report.")] = Path(
        "runs/quickstart"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the quickstart in that folder.")] = False,
    everything: ShowAll = False,
) -> None:
    """Train OPCT and SFT on a small model, evaluate both, report.

    Both are compared with the base model. Takes minutes on a CPU.

    \b
    Examples:
      opct quickstart
      opct quickstart model.name_or_path=Qwen/Qwen3-0.6B --out runs/qwen
    """
    from opct.experiments.second_process import SecondProcess

    with SecondProcess() as second, show_progress() as progress:
        from opct.experiments.quickstart import run_quickstart  # takes seconds, of both processes at once

        result = run_quickstart(out, overrides=overrides or (), overwrite=overwrite, second=second, progress=progress)
    print_rich(result.render(everything=everything))

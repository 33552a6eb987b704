"""`opct train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.yaml", help="Settings of the run, such as configs/sycophancy.yaml.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="a.b=c", help="Settings over the file: optim.learning_rate=1e-4 seed=1 lora=null."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Named settings under the file; `opct config presets` lists them.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan of the run and stop.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in output_dir.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in output_dir.")] = False,
) -> None:
    """Train a model on contrastive pairs (methods: opct, sft, offpolicy)."""
    from rich.console import Console

    from opct.config_file import load_config

    settings = load_config(config, overrides or [], preset)
    if dry_run:
        from opct.plan import make_plan

        Console().print(make_plan(settings).render())
        return
    from opct.progress import make_progress
    from opct.trainer import train as run_training

    progress = make_progress()
    try:
        result = run_training(settings, resume=resume, overwrite=overwrite, progress=progress)
    finally:
        progress.done()
    Console().print(result.render())
    if result.status == "interrupted":
        raise typer.Exit(130)

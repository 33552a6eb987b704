"""`opct train`."""

from __future__ import annotations

from typing import Annotated

import typer

from opct.cli.options import ConfigFile, Preset, print_rich
from opct.errors import ConfigError
from opct.runs.console import echo, show_progress


def train(
    config: ConfigFile,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Settings over the file: optim.learning_rate=1e-4 seed=1 lora=null."),
    ] = None,
    preset: Preset = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan of the run and exit.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint in output_dir.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in output_dir.")] = False,
) -> None:
    """Train a model on contrastive pairs.

    Methods: opct, sft, offpolicy, dpo, act.

    \b
    Examples:
      opct train configs/sycophancy.yaml --dry-run
      opct train mine.yaml seed=1 optim.learning_rate=1e-4
    """
    from opct.config.loader import load_config
    from opct.distributed import is_main, launched

    settings = load_config(config, overrides or [], preset)
    if dry_run:
        if launched():
            raise ConfigError(
                "--dry-run runs in one process: start it without the launcher (python -m opct train ...)."
            )
        from opct.api import suites_while_training
        from opct.training.dry_run import make_plan

        suites_while_training(settings)  # refused as by the training
        with show_progress() as progress:
            plan = make_plan(settings, progress)
        print_rich(plan.render())
        return
    from opct.api import train as run_training

    result = run_training(settings, resume=resume, overwrite=overwrite)
    if is_main():
        for line in result.render().splitlines():
            echo(line)
    if result.status == "interrupted":
        raise typer.Exit(130)

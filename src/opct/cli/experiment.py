"""`opct experiment`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opct.cli.options import ShowAll, print_rich
from opct.errors import TrainingError
from opct.runs.console import echo, show_progress


def experiment(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.yaml", help="The experiment file, such as configs/experiment.yaml.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Training settings of every arm: model.device=cuda."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="List the runs and exit.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace runs and attacks that were made with other settings.")
    ] = False,
    everything: ShowAll = False,
) -> None:
    """Train and evaluate several methods and seeds with one budget.

    Writes one report over all of them.

    A run whose training fails is left out of the report, and the command then exits with an error.

    \b
    Examples:
      opct experiment configs/experiment.yaml --plan
      opct experiment configs/experiment.yaml model.device=cuda
    """
    if plan:
        from opct.experiments.config import load_experiment

        planned = load_experiment(config, overrides or ())
        for (arm, seed), settings in planned.configs.items():
            echo(f"{arm}, seed {seed}: {settings.method} -> {settings.output_dir}")
        if planned.config.attacks.attackers:
            echo(f"then attacked, like the base, by {', '.join(planned.config.attacks.by_name)}")
        return
    from opct.experiments.runner import run_experiment

    with show_progress() as progress:
        result = run_experiment(config, overrides=overrides or (), force=force, progress=progress)
    print_rich(result.render(everything=everything))
    if result.failed:
        each = "; ".join(f"{name}: {why}" for name, why in result.failed.items())
        raise TrainingError(f"{len(result.failed)} of the runs failed ({each}). Run the same command to retry them.")

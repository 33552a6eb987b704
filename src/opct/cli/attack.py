"""`opct attack`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from opct.cli.options import print_rich, settings_words
from opct.runs.manifest import command_line

_output_option = partial(typer.Option, rich_help_panel="Output")
AttackTarget = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_MODEL",
        help="Your model: a run directory or one of its checkpoints, an adapter, a hub id, a model folder, a .gguf "
        "file, smollm2-135m-instruct, or inspect:provider/model with --confirm-remote.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE",
        help="Settings of the attack, after a YAML file if you have one: rounds=2 attacker.model=... judge.name=...",
    ),
]
AttackerName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="transfer, best_of_n, refine or grpo. Default: refine.", rich_help_panel="Attacker"
    ),
]
AttackOut = Annotated[
    Path | None,
    _output_option(metavar="FOLDER", help="Folder of the log and the results. Default: the run, or runs/eval-TARGET."),
]


def attack(
    target: AttackTarget,
    settings: Settings = None,
    attacker: AttackerName = None,
    n_behaviors: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum number of behaviors.", rich_help_panel="Budget")
    ] = None,
    out: AttackOut = None,
    label: Annotated[str | None, _output_option(metavar="NAME", help="Name of the target in a report.")] = None,
    confirm_remote: Annotated[
        bool,
        typer.Option(
            "--confirm-remote",
            help="Confirm that you may test the model behind this endpoint.",
            rich_help_panel="Target",
        ),
    ] = False,
    resume: Annotated[bool, _output_option("--resume", help="Continue the attack in the folder.")] = False,
    overwrite: Annotated[
        bool, _output_option("--overwrite", help="Replace the attack in the folder, and results of another model.")
    ] = False,
) -> None:
    """Attack your own model and measure its defense.

    Attack only models that you may test. Settings of target, attacker, judge and budget are given as NAME=VALUE;
    `opct config show --of attack` prints them all.

    \b
    Examples:
      opct attack runs/mine --attacker transfer --n-behaviors 10
      opct attack runs/mine --attacker refine rounds=3 budget.max_queries=500
    """
    from opct.attack.run import load_attack_config, run_attack

    options = {
        "attacker.name": attacker,
        "n_behaviors": n_behaviors,
        "target.label": label,
        "target.confirm_remote": confirm_remote or None,
    }
    config = load_attack_config(*settings_words(settings or [], options))
    try:
        result = run_attack(target, config, out=out, resume=resume, overwrite=overwrite)
    except KeyboardInterrupt as stopped:
        for note in getattr(stopped, "__notes__", ()):  # of an attack that had begun
            print(f"{note}: {command_line('--resume', without=('--overwrite',))}", file=sys.stderr)
        raise
    print_rich(result.render())

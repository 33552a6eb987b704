"""`opct attack`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

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
        metavar="a.b=c",
        help="Settings: a YAML file first, if any, then NAME=VALUE: rounds=2 attacker.model=... judge.name=...",
    ),
]
AttackerName = Annotated[str | None, typer.Option(metavar="NAME", help="transfer, best_of_n, refine or grpo.")]
AttackOut = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Output folder. Default: attacks/ of the run, or runs/attack-TARGET-ATTACKER."),
]


def attack(
    target: AttackTarget,
    settings: Settings = None,
    attacker: AttackerName = None,
    n_behaviors: Annotated[int | None, typer.Option(metavar="N", min=1, help="Maximum number of behaviours.")] = None,
    out: AttackOut = None,
    label: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the target in a report.")] = None,
    confirm_remote: Annotated[
        bool, typer.Option("--confirm-remote", help="Confirm that you may test the model behind this endpoint.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the attack in the folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the attack in the folder.")] = False,
) -> None:
    """Attack your own model and measure its defence.

    Attack only models that you may test. A quick first check: opct attack RUN --attacker transfer --n-behaviors 10

    Settings, metrics and limits: docs/attack.md
    """
    from rich.console import Console

    from opct.attack.run import load_attack_config, run_attack
    from opct.attack.store import resume_hint
    from opct.errors import ConfigError
    from opct.judges.client import redact
    from opct.runs.console import make_progress

    words = settings or []
    path = words.pop(0) if words and words[0].endswith((".yaml", ".yml")) else None
    options = {
        "attacker.name": attacker,
        "n_behaviors": n_behaviors,
        "target.label": label,
        "target.confirm_remote": "true" if confirm_remote else None,
    }
    words = [*(f"{name}={value}" for name, value in options.items() if value is not None), *words]
    try:
        config = load_attack_config(path, words)
    except ConfigError as error:  # it repeats what was typed
        raise ConfigError(redact(str(error), ())) from None
    progress = make_progress()
    try:
        result = run_attack(target, config, out=out, resume=resume, overwrite=overwrite, progress=progress)
    except KeyboardInterrupt as stopped:
        progress.done()
        for note in getattr(stopped, "__notes__", ()):  # of an attack that had begun: how to resume
            print(note, file=sys.stderr)
        raise
    finally:
        progress.done()
    Console().print(result.render())
    if result.ended == "interrupted":
        print(resume_hint(result.out, was_overwritten=overwrite), file=sys.stderr)
        raise typer.Exit(130)

"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_MODEL",
        help="A run directory or one of its checkpoints, a hub id, a model folder, a .gguf file, or "
        "smollm2-135m-instruct.",
    ),
]

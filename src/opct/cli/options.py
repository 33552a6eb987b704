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


def named_columns(assignments: list[str]) -> dict[str, list[str]] | None:
    """`role=name` assignments as the loader takes them; a role named twice has several columns."""
    columns: dict[str, list[str]] = {}
    for assignment in assignments:
        role, equals, name = assignment.partition("=")
        if not (role and equals and name):
            raise typer.BadParameter(f"{assignment!r} is not ROLE=NAME", param_hint="--column")
        columns.setdefault(role, []).append(name)
    return columns or None

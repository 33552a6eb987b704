"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
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

SPLIT_HELP = "train, validation, test (where a source has no splits: by a hash), or all."


class Split(StrEnum):
    """Which questions or behaviours."""

    train = "train"
    validation = "validation"
    test = "test"
    all = "all"


def refuse_existing(out: Path, source: str, overwrite: bool) -> None:
    """Refuse a file to write that is there, unless it may be replaced; what is read is never replaced.

    Raises:
        DataError: the file is there, or is (or lies in) the source.
    """
    from opct.errors import DataError

    read, written = Path(source).resolve(), out.resolve()
    same = written == read or (read.exists() and written.exists() and written.samefile(read))
    if same or (read.is_dir() and written.exists() and written.is_relative_to(read)):
        raise DataError(f"{out} is what is read ({source}), and would be lost: name another file with --out.")
    if out.exists() and not overwrite:
        raise DataError(f"{out} exists: name another file with --out, or replace it with --overwrite.")


def named_columns(assignments: list[str]) -> dict[str, list[str]] | None:
    """`role=name` assignments as the loader takes them; a role named twice has several columns."""
    columns: dict[str, list[str]] = {}
    for assignment in assignments:
        role, equals, name = assignment.partition("=")
        if not (role and equals and name):
            raise typer.BadParameter(f"{assignment!r} is not ROLE=NAME", param_hint="--column")
        columns.setdefault(role, []).append(name)
    return columns or None


def single_columns(assignments: list[str], option: str) -> dict[str, str]:
    """`role=name` assignments, each role once."""
    columns: dict[str, str] = {}
    for assignment in assignments:
        role, equals, name = assignment.partition("=")
        if not (role and equals and name):
            raise typer.BadParameter(f"{assignment!r} is not ROLE=NAME", param_hint=option)
        if role in columns:
            raise typer.BadParameter(f"{role} has two columns: {columns[role]} and {name}", param_hint=option)
        columns[role] = name
    return columns


def number_or_all(text: str, option: str) -> int | None:
    """A number of at least 1, or None for `all`."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is neither a number from 1 nor all", param_hint=option)
    return int(text)


def named_files(assignments: list[str]) -> dict[str, str]:
    """`name=file` assignments."""
    files: dict[str, str] = {}
    for assignment in assignments:
        name, equals, path = assignment.partition("=")
        if not (name and equals and path):
            raise typer.BadParameter(f"{assignment!r} is not NAME=FILE", param_hint="--data")
        if name in files:
            raise typer.BadParameter(f"{name} has two files: {files[name]} and {path}", param_hint="--data")
        files[name] = path
    return files

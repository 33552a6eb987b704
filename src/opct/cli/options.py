"""Arguments, options and output that several commands share."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import typer
from typer.core import TyperCommand, TyperGroup

from opct.errors import DataError
from opct.runs.console import make_console, print_text

if TYPE_CHECKING:
    from pydantic import BaseModel

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # typer's own copy of click is private
Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_MODEL",
        help="A run directory or one of its checkpoints, a hub id, a model folder, a .gguf file, or "
        "smollm2-135m-instruct.",
    ),
]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Config file; `opct init` writes one.")]
Preset = Annotated[
    str | None, typer.Option(metavar="NAME", help="Preset that the file overrides; `opct config presets` lists them.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, max=2**32 - 1, help="Random seed.")]
ShowAll = Annotated[bool, typer.Option("--all", help="Print every row, not only those that matter first.")]
QuestionColumns = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE=NAME", help="The column of the question, answer ... in --questions; repeatable."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]


def docs_place(page: str) -> str:
    """Where a page of the docs is: in the clone that runs or was installed from, where that is still there.

    An installed package has no docs, and they have no public address.
    """
    import opct

    roots = [Path(opct.__file__).parents[2]]
    with contextlib.suppress(PackageNotFoundError, ValueError):
        installed_from = json.loads(distribution("opct").read_text("direct_url.json") or "{}").get("url", "")
        roots += [Path(url2pathname(urlparse(installed_from).path))] * installed_from.startswith("file:")
    found = (root / "docs" / page for root in roots if (root / "docs" / page).is_file())
    return str(next(found, f"docs/{page} of a clone"))


class Command(TyperCommand):
    """A command whose help groups options by `rich_help_panel`, names no Python types and ends with the docs."""

    def setting_meant(self, name: str) -> str | None:
        """The setting of this command with such a name, or the first of the group with it; None if there is none."""
        return None

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        # a shell expands `--out ~/a`, not `--out=~/a`
        args = [re.sub(r"^(--[\w-]+=)(~/.*)", lambda one: one[1] + os.path.expanduser(one[2]), word) for word in args]
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            if hasattr(error, "possibilities"):  # of an unknown option; the dashes, which all share, made any two near
                name = error.option_name.lstrip("-")  # type: ignore[attr-defined]
                known = [option[2:] for each in self.get_params(ctx) for option in each.opts if option.startswith("--")]
                error.possibilities = [f"--{near}" for near in get_close_matches(name, known)]
                if not error.possibilities and (setting := self.setting_meant(name.replace("-", "_"))):
                    error.message += f". Settings are written {setting}=VALUE."  # type: ignore[attr-defined]
            raise

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        # not as text, which would be wrapped within the path
        formatter.write(f"\nDocs: {docs_place('reference/cli.md')}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                is_argument = parameter.param_type_name == "argument"
                title = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
                name = record[0].partition(" <")[0] if is_argument else record[0]
                groups.setdefault(title, []).append((name, record[1]))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class Group(TyperGroup):
    """A group whose help ends with the docs."""

    format_epilog = Command.format_epilog


class App(typer.Typer):
    """A group of such commands."""

    def __init__(self, *, cls: type[TyperGroup] = Group, **options: Any) -> None:
        super().__init__(cls=cls, **options)

    def command(self, *arguments: Any, cls: type[TyperCommand] = Command, **options: Any) -> Any:  # type: ignore[override]
        return super().command(*arguments, cls=cls, **options)


class SettingsCommand(Command):
    """A command with settings as arguments: its message on an unknown option says how they are written."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        rest = super().parse_args(ctx, args)
        options = {option for each in self.get_params(ctx) for option in each.opts}
        for word in ctx.params.get("settings") or ctx.params.get("overrides") or ():
            name = word.partition("=")[0]
            option = f"--{name.replace('_', '-')}"
            if option in options and name not in (*self.config().model_fields, "preset"):
                raise typer.BadParameter(
                    f"{word} is no setting: it is the option {option}", ctx, param_hint="NAME=VALUE"
                )
        return rest

    def config(self) -> type[BaseModel]:
        """The settings that this command takes."""
        from opct.config.schema import ModelConfig, TrainConfig
        from opct.evals.attackers.config import AttackConfig
        from opct.evals.config import EvalConfig

        configs: dict[str | None, type[BaseModel]] = {"eval": EvalConfig, "attack": AttackConfig}
        configs |= dict.fromkeys(("chat", "check"), ModelConfig)
        return configs.get(self.name, TrainConfig)

    def setting_meant(self, name: str) -> str | None:
        from opct.config.section import setting_names

        known = setting_names(self.config())
        last = [full.rpartition(".")[2] for full in known]
        for meant in (name, *get_close_matches(name, last, 1, cutoff=0.8)):
            found = [
                full for full, end in zip(known, last, strict=True) if end == meant or full.startswith(f"{meant}.")
            ]
            if found:
                return min(found, key=lambda full: full.count("."))
        return None


def settings_words(words: Sequence[str], options: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """Split the words of a command into its YAML file, if any, and the overrides; options come before the words."""
    has_file = bool(words) and words[0].endswith((".yaml", ".yml"))
    given = [f"{name}={json.dumps(value)}" for name, value in options.items() if value is not None]
    return (words[0] if has_file else None), [*given, *words[has_file:]]


OTHER_KINDS = (".csv", ".tsv", ".parquet", ".gz", ".xlsx")


def refuse_out(out: Path, source: str, overwrite: bool, kinds: Sequence[str] = ()) -> None:
    """Raise DataError where `out` is (or lies in) the source, is named as a file of another kind than is written, or
    exists and is not to be overwritten.

    Args:
        kinds: endings of what is written beside JSON lines.
    """
    read, written = (Path(os.path.realpath(path)) for path in (source, out))
    if written.exists() and written.is_relative_to(read):
        raise DataError(f"{out} is the source ({source}) and would be overwritten: name another file with --out.")
    if (ending := out.suffix.lower()) in OTHER_KINDS and ending not in kinds:  # it would be read as that kind
        raise DataError(f"{out}: JSON lines are written, so the name must end with .jsonl, not {ending} (--out).")
    if out.exists() and not overwrite:
        raise DataError(f"{out} exists: name another file with --out, or replace it with --overwrite.")


def print_rich(result: Any) -> None:
    """Print what rich draws on stdout."""
    if hasattr(result, "renderables"):  # a group
        for part in result.renderables:
            print_rich(part)
    elif hasattr(result, "plain"):  # text
        print_text(make_console(), result)
    else:
        make_console().print(result)


def named_columns(assignments: list[str]) -> dict[str, list[str]] | None:
    """Parse `role=name` assignments; a role named twice has several columns."""
    columns: dict[str, list[str]] = {}
    for role, name in _parsed(assignments, "ROLE=NAME", "--column"):
        columns.setdefault(role, []).append(name)
    return columns or None


def named_files(assignments: list[str]) -> dict[str, str]:
    """Parse `name=file` assignments, each name once."""
    files: dict[str, str] = {}
    for name, path in _parsed(assignments, "NAME=FILE", "--data"):
        if name in files:
            raise typer.BadParameter(f"{name} has two files: {files[name]} and {path}", param_hint="--data")
        files[name] = path
    return files


def _parsed(assignments: list[str], shape: str, option: str) -> Iterator[tuple[str, str]]:
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{assignment!r} is not {shape}", param_hint=option)
        yield name, value

"""The `opct` command: its commands, and the one place where an error becomes a message and an exit code.

Exit codes: 0 done, 1 an error of this package or of a file (one `error: ...` on stderr), 2 wrong usage, 70 any other
error (a bug in opct or in a library; its traceback is kept in a file), 130 interrupted. `OPCT_DEBUG=1` shows every
traceback.
Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from opct.cli import (
    attack,
    chat,
    config,
    data,
    demo,
    env,
    evaluate,
    experiment,
    export,
    init,
    judge,
    quickstart,
    report,
    runs,
    train,
)
from opct.cli.options import App, SettingsCommand, docs_place
from opct.distributed import leave, let_main_speak
from opct.errors import REMEDY, ConfigError, OpctError, RunError, is_failure, reason
from opct.redaction import redact_named
from opct.runs.console import STDERR_HANDLER, echo, guard_streams
from opct.runs.manifest import command_line


class _Root(TyperGroup):
    """Its help has the commands in groups, the options, what installs completion last, the version and the docs."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        wide, groups = max(map(len, self.commands)), dict[str, list[tuple[str, str]]]()
        for name, command in self.commands.items():
            words = command.get_short_help_str(formatter.width - 6 - wide)
            title = getattr(command, "rich_help_panel", None) or "Commands"
            groups.setdefault(title, []).append((name.ljust(wide), words))
        records = filter(None, (parameter.get_help_record(ctx) for parameter in self.get_params(ctx)))
        groups["Options"] = sorted(records, key=lambda record: "completion" in record[0])
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from importlib.metadata import version

        self.epilog = f"Start with: opct quickstart\n\nopct {version('opct')}; paper: arXiv 2605.21834"
        super().format_epilog(ctx, formatter)
        formatter.write(f"\nDocs: {docs_place('index.md')}\n")  # text would be wrapped within the path


app = App(
    cls=_Root,
    name="opct",
    help="Stop a chat model from changing its answer under pressure: on-policy consistency training, its baselines, "
    "and the measurements that say whether it worked.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut the names of options where they are narrow
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("quickstart", cls=SettingsCommand, rich_help_panel="Start")(quickstart.quickstart)
app.command("demo", rich_help_panel="Start")(demo.demo)
app.command("init", rich_help_panel="Start")(init.init)
app.command("configs", rich_help_panel="Start")(config.configs)
app.command("train", cls=SettingsCommand, rich_help_panel="Work")(train.train)
app.command("eval", cls=SettingsCommand, rich_help_panel="Work")(evaluate.evaluate)
app.command("attack", cls=SettingsCommand, rich_help_panel="Work")(attack.attack)
app.command("report", rich_help_panel="Work")(report.report)
app.command("chat", cls=SettingsCommand, rich_help_panel="Work")(chat.chat)
app.command("export", rich_help_panel="Work")(export.export)
app.command("experiment", cls=SettingsCommand, rich_help_panel="Manage")(experiment.experiment)
app.command("runs", rich_help_panel="Manage")(runs.runs)
app.add_typer(data.app, name="data", rich_help_panel="Manage")
app.add_typer(judge.app, name="judge", rich_help_panel="Manage")
app.add_typer(config.app, name="config", rich_help_panel="Manage")
app.command("env", rich_help_panel="Manage")(env.env)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"opct {version('opct')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    logging.captureWarnings(True)
    for name in ("opct", "py.warnings"):
        logging.getLogger(name).addHandler(STDERR_HANDLER)
    logging.getLogger("opct").setLevel(logging.INFO)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    # torch reads it at its first tensor: on Linux large tensors get pages of 2 MB
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if arguments is None:
        guard_streams()
        logging.raiseExceptions = False  # a log of a library that cannot be written would print a traceback
    try:
        with _ExitCodes():
            _refuse_bytes(sys.argv[1:] if arguments is None else arguments)
            app(args=None if arguments is None else list(arguments), prog_name="opct")
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else int(bool(end.code)))  # a launched process ends at once
        raise


def _refuse_bytes(arguments: Sequence[str]) -> None:
    """Reject arguments that are not UTF-8: no file that a command writes could hold them."""
    for place, argument in enumerate(arguments, start=1):
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise ConfigError(f"Argument {place} is not valid UTF-8 text: {argument}")


_OF_THE_SYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.EIO)
"""The system refuses: no space, too large, too many open files, read-only; not for what a command was asked."""


class _ExitCodes:
    """Turns every exception of a command into one line on stderr and an exit code, also that of the last output."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SystemExit) and error.code == 130:  # typer makes it of a KeyboardInterrupt, without a word
            echo("interrupted", file=sys.stderr)
        if not is_failure(error):
            try:
                sys.stdout.flush()
                return
            except BrokenPipeError:  # the reader has seen enough, as `head` does
                sys.exit(1)
            except RunError as unwritten:  # what was printed last did not get out
                error = unwritten
        assert error is not None
        let_main_speak()
        if os.environ.get("OPCT_DEBUG") == "1":
            raise error
        if isinstance(error, OpctError):
            echo(f"error: {error}", file=sys.stderr)
            sys.exit(1)
        if isinstance(error, OSError) and (error.filename is not None or error.errno in _OF_THE_SYSTEM):
            where = f"{error.filename}: " if error.filename is not None else ""
            echo(f"error: {where}{reason(error)}. {REMEDY}", file=sys.stderr)
            sys.exit(1)
        if (library := _failed_import(error)) is not None:
            said = " ".join(str(error).split())
            remedy = "Check its installation, and the environment variables that it reads."
            echo(f"error: {library} cannot be imported: {said}. {remedy}", file=sys.stderr)
            sys.exit(1)
        echo(_bug_report(error), file=sys.stderr)
        sys.exit(70)


def _failed_import(error: BaseException) -> str | None:
    """The file of a library that failed while it was imported: often at an environment variable of its own."""
    own = os.path.dirname(os.path.dirname(__file__))
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__) if frame.name == "<module>"]
    return next((name for name in reversed(files) if "site-packages" in name and not name.startswith(own)), None)


def _bug_report(error: BaseException) -> str:
    """Report an unexpected exception in one line and write its traceback to a file."""
    what = redact_named(" ".join(f"{type(error).__name__}: {error}".split())).rstrip(": .")
    with tempfile.NamedTemporaryFile("w", prefix="opct-error-", suffix=".txt", delete=False, errors="replace") as file:
        file.write(redact_named("".join(traceback.format_exception(error))))
    return (
        f"error: {what}, while running `{command_line()}`. This is a bug in opct or in a library. What was written is "
        f"kept; the traceback is in {file.name}"
    )

"""The `opct` command: its commands, and the one place where an error becomes a message and an exit code.

Exit codes: 0 done, 1 an error of this package (one `error: ...` on stderr), 2 wrong usage, 130 interrupted.
`OPCT_DEBUG=1` shows the traceback of such an error too. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from opct.cli import attack, chat, config, data, env, evaluate, experiment, judge, quickstart, report, train
from opct.distributed import leave
from opct.errors import OpctError

app = typer.Typer(
    name="opct",
    help="On-policy consistency training: train, measure and compare chat models that answer the same "
    "whether or not a prompt tries to bend them.",
    epilog="Start with: opct quickstart",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut the names of options where they are narrow
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("quickstart")(quickstart.quickstart)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("attack")(attack.attack)
app.command("experiment")(experiment.experiment)
app.command("report")(report.report)
app.command("chat")(chat.chat)
app.command("env")(env.env)
app.add_typer(data.app, name="data")
app.add_typer(judge.app, name="judge")
app.add_typer(config.app, name="config")


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
    log = logging.getLogger("opct")
    if not any(isinstance(handler, StderrHandler) for handler in log.handlers):
        log.addHandler(StderrHandler())
        log.setLevel(logging.INFO)


class StderrHandler(logging.Handler):
    """Writes messages to whatever `sys.stderr` is at that time: progress bars put themselves in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    # torch reads it at its first tensor: on Linux large ones get pages of 2 MB, less memory and time (docs/results.md)
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        _run(arguments)
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else int(bool(end.code)))  # of several processes: without more ado
        raise


def _run(arguments: Sequence[str] | None) -> None:
    try:
        app(args=None if arguments is None else list(arguments), prog_name="opct")
    except OpctError as error:
        if os.environ.get("OPCT_DEBUG") == "1":
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as end:  # typer makes one of every end, and 130 of a KeyboardInterrupt, without a word
        if end.code == 130:
            print("interrupted", file=sys.stderr)
        raise

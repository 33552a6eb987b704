"""The command line, in this process."""

import contextlib
import io
import os
import pty
import subprocess
import sys

import pytest

from opct.cli.app import main


def run(*arguments: object) -> int:
    """Run `opct`; its exit code."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code or 0


def ended(*arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `opct`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(*arguments)
    return code, out.getvalue(), err.getvalue()


def out_of(*arguments: object) -> str:
    """What `opct` prints where it ends well."""
    code, out, err = ended(*arguments)
    assert code == 0, err
    return out


def error_of(*arguments: object) -> str:
    """What `opct` says where it ends with exit code 1."""
    code, _, err = ended(*arguments)
    assert code == 1, err
    return err


def on_a_terminal(*arguments: object, **environment: str) -> tuple[int, str]:
    """The exit code of `opct` and what a terminal of 80 columns shows of it."""
    terminal, other = pty.openpty()
    own = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-m", "opct", *map(str, arguments)]
    size = {"COLUMNS": "80", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=own | size | environment) as process:
        os.close(other)
        shown = b""
        with contextlib.suppress(OSError):  # how the end of a terminal reads
            while part := os.read(terminal, 65536):
                shown += part
    os.close(terminal)
    return process.returncode, shown.decode().replace("\r\n", "\n")

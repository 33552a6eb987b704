"""Processes that start in a moment: forked from a server that has imported torch, Transformers and opct once.

Each is a process of its own, with its own signals, locks and exit code, as one that a person starts.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

TIMEOUT_S = 120
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "400"}

PRELOADED = [
    "opct.api",
    "opct.cli.app",
    "opct.evals.run",
    "opct.evals.teacher_check",
    "opct.training.dry_run",
    "opct.training.trainer",
    "peft",
    "pytest",
    "tests.tiny",  # one thread
    "torch.distributed.tensor",
    "transformers.models.llama.modeling_llama",
]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


class Process:
    """A function that runs in a process group of its own; all that it prints goes to files."""

    def __init__(
        self,
        out: Path,
        err: Path,
        function: Callable[..., None],
        *arguments: Any,
        env: Mapping[str, str] | None = None,
    ):
        with mock.patch.dict(os.environ, ONE_THREAD):
            forkserver.ensure_running()
        for path in (out, err):
            path.touch()
        now = {**os.environ, **ONE_THREAD, **(env or {})}
        self._process = _context.Process(target=_run, args=(str(out), str(err), now, function, arguments))
        self._process.start()
        self.pid: int = self._process.pid or 0

    def poll(self) -> int | None:
        """The exit code, minus a signal's number; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """The exit code, once it has ended."""
        self._process.join(timeout_s)
        code = self.poll()
        assert code is not None, "the process did not end"
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children, as a terminal does."""
        os.killpg(self.pid, number)

    def kill(self) -> None:
        """kill -9 of the whole group, whether or not its first process has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        if self.poll() is None:
            self._process.kill()  # before it has a group of its own
        self.wait()


def opct(*arguments: str) -> None:
    """The command line, to be run in a process."""
    from opct.cli.app import main

    main(arguments)


def start_ranks(
    n: int, log: Path, function: Callable[..., None], *arguments: Any, env: Mapping[str, str] | None = None
) -> list[Process]:
    """The processes of one run, as a launcher starts them; all write to one log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **(env or {})}
    return [
        Process(log, log, function, *arguments, env={**group, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(n)
    ]


def end_ranks(ranks: list[Process]) -> list[int]:
    """Their exit codes; none is left when this returns."""
    try:
        return [process.wait() for process in ranks]
    finally:
        for process in ranks:
            process.kill()


def _run(out: str, err: str, env: dict[str, str], function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    for path, number in ((out, 1), (err, 2)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    function(*arguments)

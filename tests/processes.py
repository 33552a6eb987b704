"""Processes that start in a moment: forked from a server that has torch, Transformers and opct imported.

Each is a process of its own, with its own signals, locks and exit code, as one that a person starts.
"""

import contextlib
import gc
import importlib.util
import multiprocessing
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

TIMEOUT_S = 120
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "400"}

PRELOADED = [
    "opct.api",
    "opct.cli.app",
    "opct.evals.registry",
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
IN_EVALUATIONS = ("IPython", "acp", "aiohttp", "openai.types.chat", "openai.types.responses")
"""What Inspect imports when a process evaluates first, which takes more than a second."""
PRELOADED += [name for name in IN_EVALUATIONS if importlib.util.find_spec(name.partition(".")[0])]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


def start_server() -> None:
    """Fork the server from this process, which saves it the imports. To be called before this process has threads."""
    if sys.platform != "linux":  # elsewhere the first process starts the server, which imports by itself
        return
    for name in PRELOADED:
        importlib.import_module(name)
    resource_tracker.ensure_running()
    with mock.patch.object(util, "spawnv_passfds", _fork), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside the thread of pytest-xdist
        forkserver.ensure_running()


def _fork(executable: bytes, command: list[str], files: list[int]) -> int:
    """Run `python -c CODE` in a fork of this process that has no other files open."""
    return os.fork() or _serve(command[-1], files)


def _serve(code: str, files: list[int]) -> NoReturn:
    os.setsid()  # a signal to the group of the process that forked is not for it
    gc.freeze()
    gc.enable()
    try:
        for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *files}:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(number)
        forkserver._forkserver.__init__()  # type: ignore[misc]  # its lock is held, by the process that forked
        exec(code)
    finally:
        os._exit(0)


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


def start_ranks(n: int, log: Path, function: Callable[..., None], *arguments: Any) -> list[Process]:
    """The processes of one run, as a launcher starts them; all write to one log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        Process(log, log, function, *arguments, env={**group, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(n)
    ]


def end_ranks(ranks: list[Process], timeout_s: float = TIMEOUT_S) -> list[int]:
    """Their exit codes; none is left when this returns."""
    try:
        return [process.wait(timeout_s) for process in ranks]
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

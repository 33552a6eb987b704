"""A bound on what a file of somebody else makes this process compute: chat templates, tokenizers, regular expressions.

None of these can be stopped from inside: a template may fill the memory before a signal is seen, and a tokenizer that
runs out of it ends the process. So they are tried in a child first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import NoReturn

from opct.errors import OpctError

SECONDS, GIB = 10, 4
PATIENCE = 6  # times SECONDS on the clock: a child of a process with threads may wait for one of them for ever
_TRIED: set[Hashable] = set()


def try_in_bounds(call: Callable[[], object], key: Hashable, what: str, error: type[OpctError]) -> None:
    """Try a call in a child process with `SECONDS` of processor time and `GIB` of memory more than this one has.

    What it raises is left to the real call. Only on Linux, where a child begins as a copy of this process.

    Args:
        key: equal for calls that compute the same; of these one is tried in a process.

    Raises:
        OpctError: (`error`) it takes more than that.
    """
    if sys.platform != "linux" or key in _TRIED:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 about the threads
        try:
            pid = os.fork()
        except OSError:  # no more processes: better untried than not at all
            return
    if pid == 0:
        _end_as_child(call)
    ends = time.monotonic() + PATIENCE * SECONDS
    pause = 0.001
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > ends:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            _TRIED.add(key)
            return
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    if ended[1] != 0:
        raise error(
            f"{what} takes more than {SECONDS} s or {GIB} GiB for a few texts: it is broken, or made to stop "
            "programs. Use another one."
        )
    _TRIED.add(key)


@contextlib.contextmanager
def unprinted_panics() -> Iterator[None]:
    """What is written to stderr meanwhile is shown at the end, without the lines of a library in Rust that panics: it
    prints them before it raises. Only on Linux."""
    if sys.platform != "linux":
        yield
        return
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    held = os.memfd_create("stderr")
    os.dup2(held, 2)
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            os.ftruncate(held, 0)
        raise
    finally:
        os.dup2(stderr, 2)
        os.lseek(held, 0, os.SEEK_SET)
        with contextlib.suppress(OSError):  # nobody reads it any more
            while text := os.read(held, 2**16):
                os.write(2, text)
        os.close(held)
        os.close(stderr)


def _end_as_child(call: Callable[[], object]) -> NoReturn:
    import resource

    code = 0
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a library prints as it aborts
        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        for kind, most in ((resource.RLIMIT_AS, size + GIB * 2**30), (resource.RLIMIT_CPU, SECONDS)):
            hard = resource.getrlimit(kind)[1]  # nobody may raise it
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        call()
    except MemoryError:
        code = 1
    except BaseException:  # noqa: BLE001 - the real call raises it again
        pass
    finally:
        os._exit(code)  # nothing of the parent is flushed or closed twice

"""Inspect without its trace files, its warnings and its changes to the host's logging."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator
from functools import cache

from inspect_ai._eval import context

_QUIET = threading.Lock()
_quiet_now: list[contextlib.ExitStack] = []  # one for each thread inside; the first holds what is restored at the end


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Inspect's trace files out of the home folder, hide its warnings, and leave the host's logging and
    environment unchanged.

    Several threads may be inside at once; the changes affect the whole process, and are undone when the last one
    leaves.
    """
    with _QUIET:
        stack = contextlib.ExitStack()
        if not _quiet_now:
            stack.enter_context(_quietened())
        _quiet_now.append(stack)
    try:
        yield
    finally:
        with _QUIET:  # the first stack goes last
            _quiet_now.pop().close()


@contextlib.contextmanager
def _quietened() -> Iterator[None]:
    root = logging.getLogger()
    # a copy: Inspect adds its handler to this very list
    level, handlers = root.level, list(root.handlers)
    data_home, init_dotenv = os.environ.get("XDG_DATA_HOME"), context.init_dotenv
    os.environ["XDG_DATA_HOME"] = _scratch()
    # a `.env` in the working folder, which may be somebody else's, would send the next evaluation's key elsewhere
    context.init_dotenv = lambda: None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(inspect_ai|tenacity)\b")
            warnings.filterwarnings("ignore", category=ResourceWarning, module=r"anyio\b")
            # about an endpoint's answer without a completion, which the caller reports
            warnings.filterwarnings("ignore", "Pydantic serializer warnings", category=UserWarning)
            yield
    finally:
        context.init_dotenv = init_dotenv
        root.setLevel(level)
        root.handlers[:] = handlers
        if data_home is None:
            del os.environ["XDG_DATA_HOME"]
        else:
            os.environ["XDG_DATA_HOME"] = data_home


@cache
def _scratch() -> str:
    """A temporary folder, deleted when this process ends."""
    folder = tempfile.mkdtemp(prefix="opct-inspect-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder

"""A second process, which imports while the first one does, waits for its task, and ends with the first one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Self


class SecondProcess:
    """A block in which another Python process calls this function of a module, which waits for one task and does it.

    What fails there is tried in the first process, and its error is seen there.
    """

    def __init__(self, module: str, function: str) -> None:
        self._command = [sys.executable, "-c", f"from {module} import {function}; {function}()"]

    def __enter__(self) -> Self:
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=null, stderr=null, text=True, encoding="utf-8"
        )
        return self

    def begin(self, **task: Any) -> None:
        """Give it its task, as JSON; nothing happens if it has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(task), file=self.process.stdin, flush=True)

    def __exit__(self, kind: type | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.process.terminate()
        self.process.communicate()


def wait_for_task() -> dict[str, Any]:
    """In the second process: what `begin` was given. The process ends where the first one has."""
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    threading.Thread(target=_end_with_first, daemon=True).start()
    return json.loads(line)


def _end_with_first() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)

"""A second process, which imports while the first one does, waits for its task, and ends with the first one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any, Self

# -P: a file in the working folder must not be imported in place of a package
COMMAND = [sys.executable, "-P", "-c", "from opct.experiments.quickstart import second; second()"]


class SecondProcess:
    """A block in which another Python process waits for one task and does it.

    What fails there is tried in the first process, and its error is seen there.
    """

    def __enter__(self) -> Self:
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=null,
            stderr=null,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the first process, which ends this one
        )
        self._has_begun = False
        return self

    def begin(self, **task: Any) -> bool:
        """Give it its task, as JSON; False if it has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(task), file=self.process.stdin, flush=True)
            self._has_begun = True
        return self._has_begun

    def end(self) -> None:
        """End it; a training is saved after its step."""
        if not self._has_begun:
            self.process.terminate()
        self.process.communicate()  # closes the pipe: a process that has begun ends itself then

    def __exit__(self, *_: object) -> None:
        self.end()


def wait_for_task() -> dict[str, Any]:
    """In the second process: what `begin` was given. Exits if the first process has ended."""
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    threading.Thread(target=_end_with_first, daemon=True).start()
    return json.loads(line)


def _end_with_first() -> None:
    # returns when the first process closes the pipe, also by its death; then SIGTERM, at which a training is saved
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)

"""Inspect run in this process, quietly and offline: no display, no server, nothing under the home folder."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.errors import EvaluationError
from opct.evals.provider import EvaluatedPolicy, as_inspect_model
from opct.runs.io import reason

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.log import EvalLog

ProgressCallback = Callable[[int, int], None]


class Counter:
    """Counts finished units and tells the callback, at once that there are none yet: the first may take a while."""

    def __init__(self, progress: ProgressCallback | None, total: int):
        self.progress, self.total, self.done = progress, total, 0
        self.step(0)

    def add(self, n: int) -> None:
        self.total += n

    def step(self, n: int = 1) -> None:
        self.done += n
        if self.progress is not None:
            self.progress(self.done, self.total)


def run_inspect(
    tasks: Sequence[Task],
    policy: EvaluatedPolicy,
    log_dir: Path,
    batch_size: int,
    count: Counter,
    temperature: float = 1.0,
    **options: Any,
) -> list[EvalLog]:
    """Run the tasks one after another and return their logs, with samples. The caller looks at each log's status.

    Raises:
        EvaluationError: Inspect cannot run the tasks at all, or the log cannot be written.
        KeyboardInterrupt: the run was interrupted; what was done is in the log.
    """
    import inspect_ai
    from inspect_ai._util.error import PrerequisiteError

    for task in tasks:
        task.cleanup = _counting(task.cleanup, count)
    model = as_inspect_model(policy, batch_size=batch_size, temperature=temperature)
    try:
        with quiet():
            logs = inspect_ai.eval(
                list(tasks),
                model=model,
                log_dir=str(log_dir),
                log_format="eval",
                display="none",
                score_display=False,
                log_level="error",
                log_realtime=False,
                log_model_api=False,
                log_refusals=False,
                ctl_server=False,
                max_tasks=1,
                max_samples=3 * batch_size,
                max_connections=2 * batch_size,
                **options,
            )
            for log in logs:
                log.samples = list(log.samples or [])  # read now: Inspect would read the file when first asked
    except PrerequisiteError as error:
        raise EvaluationError(f"Inspect cannot run this evaluation: {error}") from error
    except OSError as error:
        raise EvaluationError(
            f"Cannot write the evaluation's log to {log_dir}: {reason(error)}. Check the free space and the rights of "
            "the folder, or choose another (--out)."
        ) from error
    if any(log.status == "cancelled" for log in logs):
        raise KeyboardInterrupt
    return list(logs)


def _counting(before: Any, count: Counter) -> Any:
    async def cleanup(state: Any) -> None:
        if before is not None:
            await before(state)
        count.step()

    return cleanup


_QUIET = threading.Lock()
_quiet_now: list[contextlib.ExitStack] = []  # one for each thread inside; the first holds what is restored at the end


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Inspect's trace files out of the home folder, its own warnings unsaid, and the host's logging as it was.

    Several threads may be inside at once; what it changes is of the whole process, and restored when the last leaves.
    """
    with _QUIET:
        stack = contextlib.ExitStack()
        if not _quiet_now:
            stack.enter_context(_quietened())
        _quiet_now.append(stack)
    try:
        yield
    finally:
        with _QUIET:
            if len(_quiet_now) == 1:
                _quiet_now.pop().close()
            else:
                _quiet_now.pop()


@contextlib.contextmanager
def _quietened() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    data_home = os.environ.get("XDG_DATA_HOME")
    os.environ["XDG_DATA_HOME"] = _scratch()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(inspect_ai|tenacity)\b")
            warnings.filterwarnings("ignore", category=ResourceWarning, module=r"anyio\b")
            # of an endpoint's answer that is no completion, which is told by whoever asked
            warnings.filterwarnings("ignore", "Pydantic serializer warnings", category=UserWarning)
            yield
            gc.collect()  # streams that Inspect leaves open would otherwise warn at any later moment
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
        if data_home is None:
            del os.environ["XDG_DATA_HOME"]
        else:
            os.environ["XDG_DATA_HOME"] = data_home


@cache
def _scratch() -> str:
    """A folder that goes away with this process."""
    folder = tempfile.mkdtemp(prefix="opct-inspect-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder

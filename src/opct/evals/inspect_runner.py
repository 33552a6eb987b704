"""Inspect tasks run in this process, quietly and offline: no display, no server, nothing under the home folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import inspect_ai
from inspect_ai import Task
from inspect_ai._eval.loader import load_tasks
from inspect_ai._eval.task import PreviousTask
from inspect_ai._util.asyncfiles import with_async_fs
from inspect_ai._util.entrypoints import ensure_entry_points
from inspect_ai._util.error import PrerequisiteError
from inspect_ai._util.registry import registry_find, registry_info
from inspect_ai.log import EvalLog, write_eval_log
from inspect_ai.model import GenerateConfig, Model
from inspect_ai.util._display import init_display_type

from opct.errors import EvaluationError, LibraryErrors, RunError, reason, unknown
from opct.evals.config import EvalConfig
from opct.evals.logs import OPCT, about_of, check_finished, is_private, log_headers, log_name, task_name
from opct.evals.provider import as_inspect_model
from opct.evals.quiet import quiet
from opct.evals.same_questions import refuse_other_questions
from opct.evals.tasks.common import is_cut
from opct.models.self_test import FIRST_REPLIES, FirstReply, cut_warnings, reply_warnings
from opct.runs.console import NullProgress, Progress, show_warnings
from opct.runs.io import PRIVATE_MODE, atomic_write
from opct.runs.lock import is_running, this_process
from opct.runs.run_dir import RunDir

if TYPE_CHECKING:
    from opct.models.policy import Policy

T = TypeVar("T")
_TURN = threading.Lock()
REQUEST_TIMEOUT_S = 1800
"""After this time a request to a model of Inspect is not sent again; Inspect itself would never give up."""


def run_inspect(
    task: Task,
    policy: Policy | Model,
    log_dir: Path,
    batch_size: int,
    progress: Progress,
    temperature: float = 1.0,
    earlier: EvalLog | None = None,
    warnings: list[str] | None = None,
    **options: Any,
) -> EvalLog:
    """Run a task and return its log, with samples.

    Args:
        batch_size: maximum number of replies sampled at once; of an Inspect model, half of the concurrent requests.
        progress: advanced by each sample that is not in `earlier`.
        temperature: if the task sets none.
        earlier: an unfinished log of the same evaluation, whose samples are not run again.
        warnings: gets those about the first replies, but not how many were cut, which is counted at the end.
        options: more arguments of Inspect's `eval`.

    Raises:
        EvaluationError: Inspect cannot run the task, it stopped, or the log cannot be written.
        KeyboardInterrupt: the run was interrupted; finished samples are in the log.
    """
    first = _FirstReplies(policy, task.name, min(batch_size, FIRST_REPLIES), progress)
    task.cleanup = _watched(task.cleanup, progress, first)
    if isinstance(policy, Model):
        model = policy
        # ours first: what the settings of the endpoint say wins
        model.config = GenerateConfig(temperature=temperature, timeout=REQUEST_TIMEOUT_S).merge(model.config)
    else:
        model = as_inspect_model(policy, batch_size=batch_size, temperature=temperature)
    try:
        with quiet(), _alone():
            init_display_type("none")
            evaluate = partial(
                inspect_ai.eval_async,
                task if earlier is None else _continued(task, earlier),
                model=model,
                log_dir=str(log_dir),
                log_format="eval",
                score_display=False,
                log_level="error",
                log_realtime=False,
                log_model_api=False,
                log_refusals=False,
                ctl_server=False,
                # more than connections: samples that are scored must not keep the next batch from filling
                max_samples=3 * batch_size,
                max_connections=2 * batch_size,
                **options,
            )
            logs = _on_own_loop(with_async_fs(evaluate))
            for log in logs:
                log.samples = list(log.samples or [])  # read now: Inspect would read the file at the first access
    except PrerequisiteError as error:
        raise EvaluationError(f"Inspect cannot run this evaluation: {error}") from error
    except OSError as error:
        raise EvaluationError(
            f"Cannot write the evaluation's log to {log_dir}: {reason(error)}. Check the free space and the rights of "
            "the folder, or choose another (--out)."
        ) from error
    if not logs or logs[0].status == "cancelled":  # Inspect may give no log of a task that was interrupted
        raise KeyboardInterrupt
    [log] = logs
    check_finished(log)
    first.look()
    if warnings is not None:
        warnings += first.warnings
    return log


class _FirstReplies:
    """Looks once at the first `n` replies, and shows what is odd about them while the others are sampled."""

    def __init__(self, policy: Policy | Model, name: str, n: int, progress: Progress):
        self._renderer = None if isinstance(policy, Model) else policy.renderer
        self._name, self._n, self._progress = name, n, progress
        self._replies: list[FirstReply] | None = []
        self.warnings: list[str] = []

    def add(self, state: Any) -> None:
        text, ids = state.output.completion, (state.output.metadata or {}).get("token_ids", ())
        # an empty reply says nothing about the template; it is counted as unscored elsewhere
        if self._replies is None or not (text or ids):
            return
        raw = text if self._renderer is None else "".join(self._renderer.pieces(ids))
        self._replies.append(FirstReply(text, raw, is_cut(state)))
        if len(self._replies) >= self._n:
            self.look()

    def look(self) -> None:
        """Look at those that have come, unless that was done."""
        # None: looked at; later replies are not gathered
        replies, self._replies = self._replies or [], None
        self.warnings += [f"{self._name}: {text}" for text in reply_warnings(replies, self._renderer)]
        cut = [f"{self._name}: {text}" for text in cut_warnings(replies, "the token limit")]
        show_warnings([*cut, *self.warnings] if replies else [], self._progress)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Context that raises EvaluationError where another thread is in it: Inspect runs one evaluation in a process."""
    if not _TURN.acquire(blocking=False):  # without waiting, which an evaluation inside another would do for ever
        raise EvaluationError("Another evaluation runs in this process: wait for its end, or start another process.")
    try:
        yield
    finally:
        _TURN.release()


def _continued(task: Task, log: EvalLog) -> PreviousTask:
    return PreviousTask(
        id=log.eval.task_id, task=task, task_args={}, log=log, model=None, model_roles=None, sandbox=None, log_info=None
    )


def _watched(before: Any, progress: Progress, first: _FirstReplies) -> Any:
    async def cleanup(state: Any) -> None:
        if before is not None:
            await before(state)
        first.add(state)
        progress.advance()

    return cleanup


def write_log(log: EvalLog, path: Path) -> None:
    """Write a log whole, or raise RunError and write nothing; only its owner can read one with an attack's prompts."""
    failed = f"Cannot write {path} by way of {tempfile.gettempdir()}"
    # made elsewhere: Inspect writes in place, and a kill would leave half of a log under its name
    with LibraryErrors(RunError, failed), quiet(), tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        write_eval_log(log, str(made), format="eval")
        content = made.read_bytes()
    atomic_write(path, content, mode=PRIVATE_MODE if is_private(log) else 0o666)


def keep_log(log: EvalLog, folder: Path, about: Mapping[str, Any] | None) -> Path:
    """Store a finished log in `folder`, with this metadata under `OPCT`, and remove the temporary one."""
    unfinished, path = log.location, folder / log_name(task_name(log))
    if about is not None:
        log.eval.metadata = {**(log.eval.metadata or {}), OPCT: dict(about)}
    # before the temporary one is removed: a kill in between leaves two logs, never none
    write_log(log, path)
    Path(unfinished).unlink(missing_ok=True)
    return path


def remove_unfinished(run: RunDir, name: str) -> None:
    """Remove the unfinished logs of the task of this name that no other process writes."""
    for path, log in log_headers(run.unfinished_dir).items():
        process: Any = about_of(log).get("process")
        is_dead = is_running(process) is False or process["pid"] == os.getpid()
        if is_dead and task_name(log) == name:
            path.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------- any Inspect task


def run_task(
    policy: Policy | Model,
    spec: str,
    config: EvalConfig | None = None,
    *,
    out_dir: str | Path,
    limit: int | None = None,
    max_completion_tokens: int | None = None,
    progress: Progress | None = None,
    run: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> list[dict[str, Any]]:
    """Run any Inspect task on a policy; write `evals/<task>.eval` and return one summary for each task of `spec`.

    Args:
        spec: "package/name" of an installed task, "file.py@name", or "file.py" for every task in it.
        config: `seed`, `greedy` and `batch_size` are used unless the task sets them.
        limit: maximum number of samples.
        max_completion_tokens: if the task sets no limit.
        run: metadata of the weights for the log; see `opct.evals.run.evaluate_suites`.
        overwrite: replace results of the task on other samples.

    Returns:
        {"task", "log", "n", "n_truncated", "metrics": [{"scorer", "metric", "value", "n", "n_unscored"}]}, a task.

    Raises:
        EvaluationError: there is no such task (the message names near ones), it stopped, or `out_dir` holds results on
            other samples.
    """
    config = config or EvalConfig()
    specs = check_task(spec)
    remedy = f"Check that `inspect eval {spec}` runs."
    with quiet(), LibraryErrors(EvaluationError, f"The Inspect task {spec} cannot be loaded", remedy):
        tasks = load_tasks(specs, {})
    progress = progress or NullProgress()
    folder = RunDir(out_dir)
    if not overwrite:
        refuse_other_questions(out_dir, tasks, limit)
    summaries = []
    for task in tasks:
        n = len(task.dataset) if limit is None else min(limit, len(task.dataset))
        progress.stage(spec if len(tasks) == 1 else f"{spec}: {task.name}", n * (task.epochs or 1))
        if task.config.seed is None:
            task.config.seed = config.seed
        log = run_inspect(
            task,
            policy,
            folder.unfinished_dir,
            config.batch_size,
            progress,
            temperature=0.0 if config.greedy else 1.0,
            limit=limit,
            max_tokens=max_completion_tokens,
            metadata={OPCT: {"process": this_process()}},  # what `opct runs` reads of a log that has not ended
        )
        summaries.append(_stored_summary(log, folder.evals_dir, run))
        remove_unfinished(folder, task_name(log))
    return summaries


def _stored_summary(log: EvalLog, folder: Path, run: Mapping[str, Any] | None) -> dict[str, Any]:
    """Store a finished log and return its summary."""
    path = keep_log(log, folder, None if run is None else {"run": dict(run)})
    samples = log.samples or []
    return {
        "task": log.eval.task,
        "log": str(path),
        "n": len(samples),
        "n_truncated": sum(is_cut(sample) for sample in samples),
        "metrics": [
            {"scorer": score.name, "metric": metric.name, "value": metric.value}
            | {"n": score.scored_samples, "n_unscored": score.unscored_samples}
            for score in (log.results.scores if log.results is not None else ())
            for metric in score.metrics.values()
        ],
    }


def check_task(spec: str) -> list[str]:
    """Resolve `spec` (`file.py@name` or `package/name`) to Inspect's task names. Raises EvaluationError where there is
    no such task; the message suggests the nearest one."""
    file, _, wanted = spec.partition("@")
    if not file.endswith(".py"):
        ensure_entry_points()
        installed = sorted({registry_info(task).name for task in registry_find(lambda info: info.type == "task")})
        if spec not in installed:
            raise EvaluationError(
                f"{unknown('Inspect task', spec, installed)} Or install the package that has it, or give a file as "
                "`file.py@task`."
            )
        return [spec]
    path = Path(file).resolve()
    if not path.is_file():
        raise EvaluationError(f"No task file at {file}: check the path, or name an installed task as `package/name`.")
    known = [task.name for task in inspect_ai.list_tasks(path.name, root_dir=path.parent)]
    if not known:
        raise EvaluationError(f"{file} holds no Inspect task: mark a function with @task, and check its syntax.")
    if wanted and wanted not in known:
        raise EvaluationError(unknown(f"task of {file}:", wanted, known))
    return [f"{file}@{name}" for name in ([wanted] if wanted else known)]


# ----------------------------------------------------------------------------------------------- several at once


def run_all(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """Run all calls concurrently and quietly; the first error cancels the others.

    It uses a separate event loop, also where one is already running (a notebook).
    """

    async def gathered() -> list[T]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(call()) for call in calls]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # an endpoint's own words may hold the key
        return [task.result() for task in tasks]

    with quiet():
        return _on_own_loop(gathered)


def _on_own_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Result of a coroutine on an event loop of its own; in a thread if one is running in this one (a notebook). Ctrl-C
    cancels the coroutine there too."""
    inner: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def noted() -> T:
        inner.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await main()

    def run() -> T:
        with asyncio.Runner() as runner:  # Inspect replaces asyncio.run by one that leaves its event loop open
            return runner.run(noted())

    try:
        asyncio.get_running_loop()
        is_running = True
    except RuntimeError:
        is_running = False
    if not is_running:  # not within `except`, or Inspect would name its error as the cause of any in the coroutine
        return run()
    outer = asyncio.current_task()
    n_before = outer.cancelling() if outer is not None else 0
    with ThreadPoolExecutor(1) as pool:  # its end waits for the thread
        ended = pool.submit(run)
        try:
            while not wait([ended], timeout=0.2).done:
                # the first Ctrl-C raises nothing under asyncio.run: it cancels the task that waits here
                if outer is not None and outer.cancelling() > n_before:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            for loop, task in inner:
                if task is not None and not ended.done():
                    loop.call_soon_threadsafe(task.cancel)
            raise
        return ended.result()

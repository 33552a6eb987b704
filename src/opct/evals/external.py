"""Any Inspect task on a policy: an installed one by name, or one in a file."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.errors import EvaluationError, unknown
from opct.evals.inspect_runner import Counter, ProgressCallback, quiet, run_inspect
from opct.evals.provider import DEFAULT_BATCH_SIZE, EvaluatedPolicy
from opct.runs.run_dir import RunDir

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.log import EvalLog


def run_task(
    policy: EvaluatedPolicy,
    spec: str,
    *,
    out_dir: str | Path,
    task_args: Mapping[str, Any] | None = None,
    limit: int | None = None,
    seed: int = 0,
    greedy: bool = True,
    max_completion_tokens: int | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    progress: ProgressCallback | None = None,
) -> list[dict[str, Any]]:
    """Run any Inspect task on a policy; write its log to `evals/` and return one summary for each task that `spec`
    names.

    Args:
        spec: "package/name" of an installed task, "file.py@name", or "file.py" for every task in it.
        task_args: arguments of the task.
        limit: at most so many samples.
        seed, greedy, max_completion_tokens: where the task does not say otherwise.

    Returns:
        {"task", "log", "n", "n_truncated", "metrics": [{"scorer", "metric", "value", "n", "n_unscored"}]}, a task.

    Raises:
        EvaluationError: there is no such task (the message names near ones), or it stopped.
    """
    tasks = _load_tasks(spec, dict(task_args or {}))
    totals = [len(task.dataset) if limit is None else min(limit, len(task.dataset)) for task in tasks]
    count = Counter(progress, sum(n * (task.epochs or 1) for n, task in zip(totals, tasks, strict=True)))
    options: dict[str, Any] = {} if max_completion_tokens is None else {"max_tokens": max_completion_tokens}
    for task in tasks:
        if task.config.seed is None:
            task.config.seed = seed
    logs = run_inspect(
        tasks,
        policy,
        RunDir(out_dir).evals_dir,
        batch_size,
        count,
        temperature=0.0 if greedy else 1.0,
        limit=limit,
        **options,
    )
    return [_summary(log) for log in logs]


def _summary(log: EvalLog) -> dict[str, Any]:
    if log.status != "success" or log.results is None:
        said = log.error.message if log.error is not None else f"it is marked as {log.status!r}"
        raise EvaluationError(f"The task {log.eval.task} stopped: {said}. Its log is {log.location}.")
    samples = log.samples or []
    return {
        "task": log.eval.task,
        "log": log.location,
        "n": len(samples),
        "n_truncated": sum(sample.output.stop_reason in ("max_tokens", "model_length") for sample in samples),
        "metrics": [
            {
                "scorer": score.name,
                "metric": metric.name,
                "value": metric.value,
                "n": score.scored_samples,
                "n_unscored": score.unscored_samples,
            }
            for score in log.results.scores
            for metric in score.metrics.values()
        ],
    }


def check_task(spec: str) -> list[str]:
    """What Inspect knows the tasks by that `spec` names: `file.py@name` or `package/name`.

    Raises:
        EvaluationError: there is none; the message names near ones.
    """
    file, _, wanted = spec.partition("@")
    is_file = file.endswith(".py")
    if is_file and not Path(file).is_file():
        raise EvaluationError(f"No task file at {file}: check the path, or name an installed task as `package/name`.")
    known = _known_tasks(file if is_file else None)
    name = wanted if is_file else spec
    if (name or not is_file) and name not in known:
        raise EvaluationError(_unknown_task(spec, name, known, file if is_file else None))
    if is_file and not known:
        raise EvaluationError(f"{file} holds no Inspect task: mark a function with @task.")
    return [f"{file}@{each}" for each in ([wanted] if wanted else known)] if is_file else [spec]


def _load_tasks(spec: str, task_args: dict[str, Any]) -> list[Task]:
    from inspect_ai._eval.loader import load_tasks

    specs = check_task(spec)
    with quiet():
        tasks = load_tasks(specs, task_args)
    for task in tasks:
        _check_arguments(task, task_args)
    return tasks


def _check_arguments(task: Task, task_args: Mapping[str, Any]) -> None:
    """Refuse arguments that the task does not have; Inspect would leave them out.

    Raises:
        EvaluationError: with the arguments that there are.
    """
    from inspect_ai._util.registry import registry_info, registry_lookup

    name = registry_info(task).name
    factory: Any = registry_lookup("task", name)
    parameters = inspect.signature(factory).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for argument in task_args:
        if argument not in parameters:
            raise EvaluationError(unknown(f"argument of the task {name}:", argument, parameters))


def _known_tasks(file: str | None) -> list[str]:
    """Names of the tasks in a file, or of all installed ones."""
    if file is not None:
        from inspect_ai import list_tasks

        path = Path(file).resolve()
        return [task.name for task in list_tasks(path.name, root_dir=path.parent)]
    from inspect_ai._util.entrypoints import ensure_entry_points
    from inspect_ai._util.registry import registry_find, registry_info

    ensure_entry_points()
    return sorted({registry_info(task).name for task in registry_find(lambda info: info.type == "task")})


def _unknown_task(spec: str, name: str, known: Sequence[str], file: str | None) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(repr(task) for task in near)}?" if near else ""
    if file is not None:
        return f"Unknown Inspect task {spec!r}: {file} has {', '.join(known) or 'no tasks'}.{hint}"
    package = name.split("/")[0] if "/" in name else ""
    missing = package and not any(task.startswith(f"{package}/") for task in known)
    install = (
        f" No installed package {package!r} has tasks: install it, or give a file as `file.py@task`." if missing else ""
    )
    return f"Unknown Inspect task {spec!r}.{hint}{install} Installed: {', '.join(known) or 'none'}."

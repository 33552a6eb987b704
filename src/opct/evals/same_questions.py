"""Whether a folder holds results on something else than a suite or task asks, or of another model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.log import EvalSample as LogSample

from opct.errors import EvaluationError
from opct.evals.logs import OPCT, about_of, full_name, log_headers, log_name, usable_log
from opct.runs.identity import Identity
from opct.runs.run_dir import RunDir

SAMPLING = ("seed", "greedy", "max_completion_tokens")
"""Settings that change replies to the same prompts, by their names in the metadata of our tasks."""


def refuse_other_questions(folder: str | Path, tasks: Iterable[Task], limit: int | None = None) -> None:
    """Refuse to replace results of the same suite on other prompts, answers or settings of sampling.

    Args:
        limit: only so many samples of each task are asked.

    Raises:
        EvaluationError: with each such suite, and what differs.
    """
    unlike = []
    for task in tasks:
        log, _ = usable_log(RunDir(folder).evals_dir / log_name(full_name(task.name, task.registry_name)))
        # without a whole log there is nothing to lose
        if log is not None and (differs := _difference(log, task, list(task.dataset)[:limit])):
            unlike.append(f"{task.name} ({differs})")
    if unlike:
        raise EvaluationError(
            f"{folder} holds another evaluation of {', '.join(unlike)}. Keep it and name another folder (--out), or "
            "replace it (--overwrite)."
        )


def unlike_model(log: EvalLog, about: Mapping[str, Any]) -> str:
    """What of a model differs from that of a log; empty if nothing does, or it is a log of another task."""
    # weights are named by their hashes, whatever the model is called; without them its name has to do
    ignore = ("name", "label", "method", "seed", "path", *(["model"] if about["weights"] else []))
    differing = Identity(about_of(log).get("run") or about).differing(about, ignore)
    return ", ".join(dict.fromkeys(name.partition(".")[0] for name in differing))  # of the hashes of many files


def refuse_other_weights(folder: str | Path, about: Mapping[str, Any]) -> None:
    """Raise EvaluationError where results are of another model; those of an earlier step of the same run may go."""
    for path, log in log_headers(RunDir(folder).evals_dir).items():
        before = about_of(log).get("run") or {}
        is_this_run = "step" in (before.get("weights") or {}) and not Identity(before).differing(
            about, ("name", "label", "path", "weights")
        )
        if not is_this_run and (unlike := unlike_model(log, about)):
            raise EvaluationError(
                f"{folder} holds results of another model ({path.stem} of {before.get('model')}: other {unlike}). "
                "Keep it and name another folder (--out), or replace it (--overwrite)."
            )


def _difference(log: EvalLog, task: Task, samples: Sequence[Sample]) -> str:
    """What a task asks otherwise than a log, in words; empty if it is the same."""
    then, now = log.eval.metadata or {}, task.metadata or {}
    same_prompts = {*map(_prompt_text, log.samples or [])} == {*map(_prompt_text, samples)}
    # the same prompts may come from another file, or of another selection
    ignore = {*then, *now}.difference(SAMPLING) if same_prompts else (OPCT,)
    return "; ".join(Identity(then).diff(now, ignore)) or ("" if same_prompts else "other questions than now")


def _prompt_text(sample: Sample | LogSample) -> str:
    """A prompt with its answers."""
    opening = sample.input if isinstance(sample.input, str) else [(m.role, m.text) for m in sample.input]
    metadata: Mapping[str, Any] = sample.metadata or {}  # of our tasks: the turns after the model's own, too
    return json.dumps([opening, sample.target, metadata.get("prompt")])

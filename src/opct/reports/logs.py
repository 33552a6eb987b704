"""Inspect logs as sources of a report: our own suites, and any other task, of any model.

Of another task every number of its scorers is a metric, and runs are paired by sample id and input. Samples that were
asked several times (epochs) count once, with the mean over the epochs that were scored.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from opct.errors import EvaluationError
from opct.evals.inspect_runner import quiet
from opct.evals.metrics import INSPECT, metric_rows
from opct.evals.samples import STOP_REASONS, UNSCORED, GradedSample, add_paired_values, graded_samples
from opct.evals.suites import SUITES

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage

Value = float | None
ANSWERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's letters for correct, partially correct, incorrect and no answer, as its own accuracy counts them."""
VERDICTS = {1.0: "correct", 0.5: "partly_correct", 0.0: "incorrect"}


@dataclass(frozen=True)
class TaskLog:
    """One log: the samples of a task and its rows, in the shape of results.json.

    Attributes:
        suites: the suites that it gives; one of ours may be graded in several ways.
    """

    path: Path
    model: str
    created: str
    suites: tuple[str, ...]
    samples: tuple[GradedSample, ...]
    rows: tuple[dict[str, Any], ...]


def read_log(path: Path) -> TaskLog:
    """Read one log.

    Raises:
        EvaluationError: it cannot be read, its task did not end well, or no sample has a number.
    """
    log = _read(path)
    if log.status != "success":
        reason = log.error.message if log.error is not None else f"it is marked as {log.status!r}"
        raise EvaluationError(f"{path}: the task {log.eval.task} did not end well ({reason}): run it again.")
    if _is_ours(log):
        samples = graded_samples(log)
        add_paired_values(samples)
        settings = dict(log.eval.metadata or {})
    else:
        samples, settings = _other_samples(log), _other_settings(log)
    if not any(value is not None for sample in samples for value in sample.values.values()):
        raise EvaluationError(f"{path}: no sample of the task {log.eval.task} has a number for a score.")
    suites = tuple(dict.fromkeys(sample.task for sample in samples))
    rows = metric_rows(samples, dict.fromkeys(suites, settings))
    return TaskLog(path, log.eval.model, str(log.eval.created), suites, tuple(samples), tuple(rows))


def other_tasks(directory: Path, known: Collection[str]) -> list[TaskLog]:
    """The newest log of each task in a folder, without our suites and those `known` from results.json."""
    newest: dict[str, tuple[str, Path]] = {}
    for path in sorted(directory.glob("*.eval")):
        log = _read(path, header_only=True)
        suite = log.eval.task.removeprefix("opct/")
        if log.status == "success" and suite not in SUITES and suite not in known:
            newest[log.eval.task] = max(newest.get(log.eval.task, ("", path)), (str(log.eval.created), path))
    return [read_log(path) for _, path in newest.values()]


def _read(path: Path, *, header_only: bool = False) -> EvalLog:
    from inspect_ai.log import read_eval_log

    try:
        with quiet():
            return read_eval_log(str(path), header_only=header_only)
    except (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile, RecursionError) as fault:
        reason = " ".join(str(fault).split())[:200]
        raise EvaluationError(f"Cannot read {path} as a log of Inspect ({reason}).") from fault


def _is_ours(log: EvalLog) -> bool:
    """Whether the samples say what our metrics need."""
    return all({"task", "axis", "family", "cluster", "grading"} <= (s.metadata or {}).keys() for s in log.samples or [])


def _other_settings(log: EvalLog) -> dict[str, Any]:
    """How a task was asked and graded; what differs between two logs is said, and decides what is compared."""
    config = log.plan.config.model_dump(exclude_none=True)
    asked = ("temperature", "top_p", "top_k", "max_tokens", "seed", "system_message", "reasoning_effort")
    scorers = {scorer.name: scorer.options for scorer in log.eval.scorers or []}
    return {
        "task_version": log.eval.task_version,
        "task_args": json.dumps(log.eval.task_args, sort_keys=True, default=str),
        "grader": json.dumps(scorers, sort_keys=True, default=str),
        **{name: config[name] for name in asked if name in config},
    }


def _other_samples(log: EvalLog) -> list[GradedSample]:
    by_id: dict[str, list[EvalSample]] = {}
    for sample in log.samples or []:
        by_id.setdefault(_pairing_id(log.eval.task, sample), []).append(sample)
    names = _value_names(log)
    return [_other_sample(log.eval.task, id_, epochs, names) for id_, epochs in by_id.items()]


def _pairing_id(task: str, sample: EvalSample) -> str:
    # Ids are often just 1, 2, 3: with another order or limit they are other questions. So the input is in the id.
    asked = sample.input if isinstance(sample.input, str) else json.dumps(_messages(sample.input))
    return f"{task}/{sample.id}#{hashlib.sha256(asked.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _value_names(log: EvalLog) -> dict[str, str]:
    """What a plain score of each scorer is called: "accuracy" where the task reports it as that."""
    scores = log.results.scores if log.results is not None else []
    accurate = [score.scorer for score in scores if "accuracy" in score.metrics]
    return {name: "accuracy" if len(accurate) == 1 else f"{name}_accuracy" for name in accurate}


def _other_sample(task: str, id_: str, epochs: Sequence[EvalSample], names: Mapping[str, str]) -> GradedSample:
    first = epochs[0]
    found = [_values(sample, names) for sample in epochs]
    values = {name: _mean([own.get(name) for own in found]) for name in dict.fromkeys(n for own in found for n in own)}
    known = [value for value in values.values() if value is not None]
    reason = "error" if any(sample.error is not None for sample in epochs) else "no_score"
    output = first.output
    return GradedSample(
        id=id_,
        task=task,
        axis=INSPECT,
        family="",
        family_split="all",
        cluster=id_,
        completion=output.completion,
        stop_reason=STOP_REASONS.get(output.stop_reason, output.stop_reason),
        completion_tokens=output.usage.output_tokens if output.usage is not None else 0,
        verdict=_verdict(known[0]) if known else UNSCORED + reason,
        values=values,
        prompt=_messages(_asked(first)),
        reasons={name: reason for name, value in values.items() if value is None},
        grading={"answer": first.target if isinstance(first.target, str) else ", ".join(first.target)},
    )


def _asked(sample: EvalSample) -> Sequence[ChatMessage]:
    """The conversation up to the reply that was scored."""
    messages = list(sample.messages)
    while messages and messages[-1].role == "assistant":
        messages.pop()
    return messages


def _messages(messages: Sequence[ChatMessage]) -> list[Any]:
    return [{"role": message.role, "content": message.text} for message in messages]


def _verdict(value: float) -> str:
    return VERDICTS.get(value, f"{value:g}")


def _values(sample: EvalSample, names: Mapping[str, str]) -> dict[str, Value]:
    """Every number of every scorer by name."""
    scores = sample.scores or {}
    found: dict[str, Value] = {}
    for scorer, score in scores.items():
        if isinstance(score.value, Mapping):
            prefix = f"{scorer}_" if len(scores) > 1 else ""
            found |= {f"{prefix}{name}": _number(value) for name, value in score.value.items()}
        elif not isinstance(score.value, Sequence) or isinstance(score.value, str):
            found[names.get(scorer, scorer)] = _number(score.value)
    return found


def _number(value: Any) -> Value:
    """A score as a number; None where it is none, such as a word or NaN."""
    if isinstance(value, str):
        if value in ANSWERS:
            return ANSWERS[value]
        value = {"yes": 1, "true": 1, "no": 0, "false": 0}.get(value.lower(), value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _mean(values: Sequence[Value]) -> Value:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None

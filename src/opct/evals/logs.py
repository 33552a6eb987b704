"""Reads Inspect logs, the only store of an evaluation, as graded samples.

A log of ours gives samples of an axis. Of any other task (of inspect_evals, of a model behind an API) each number that
its scorers give is a value, and the axis is `INSPECT`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.log import EvalSample as LogSample
from pydantic import TypeAdapter

from opct.data.context import CONTEXT
from opct.data.perturb.jailbreak import ARTIFACT
from opct.errors import EvaluationError, LibraryErrors
from opct.evals.attackers.samples import attack_sample
from opct.evals.metrics import metric_rows
from opct.evals.samples import (
    ATTACK,
    BENIGN,
    CONSISTENCY,
    INSPECT,
    JUDGED,
    PARSED,
    UNSCORED,
    GradedSample,
    add_paired_values,
    graded_name,
)
from opct.evals.tasks.common import as_number, filled_prompt
from opct.runs.io import check_readable

KL, JUDGE = "kl", "judge:"
"""Names of scores in our logs: the KL to the base, and the prefix of judge scores."""
OPCT = "opct"
"""Metadata key of a log for the evaluation's run, config, warnings and judges."""
MAX_MEMBER_BYTES = 2**28  # of one file in the archive that a log is; a sample is one


_SAMPLE = TypeAdapter(GradedSample)
FIELDS = ("axis", "family", "family_split", "side", "cluster", "teacher_prompt", "grading")
"""What a graded sample takes from the metadata of its sample in a log."""


def log_paths(path: str | Path) -> list[Path]:
    """The paths of the logs in a run directory, or the log itself. Raises EvaluationError where there is none."""
    path = Path(path)
    if path.is_file():
        return [path]
    paths = sorted((path / "evals").glob("*.eval")) or sorted(path.glob("*.eval"))
    if not paths:
        raise EvaluationError(f"{path} holds no evaluation (evals/*.eval): run `opct eval {path}` first.")
    return paths


def open_log(
    path: Path, *, header_only: bool = False, remedy: str = "Name a log or a run's folder, or evaluate again."
) -> EvalLog:
    """An Inspect log as it is, finished or not; `remedy` is what the error proposes. Raises EvaluationError where it is
    not a regular file, is no log, or a member unpacks to more than `MAX_MEMBER_BYTES`."""
    with LibraryErrors(EvaluationError, f"{path} cannot be read as an Inspect log", remedy):
        check_readable(path)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as members:
                if (largest := max((member.file_size for member in members.infolist()), default=0)) > MAX_MEMBER_BYTES:
                    raise ValueError(f"a sample of it has {largest:,} bytes, and at most {MAX_MEMBER_BYTES:,} are read")
        return read_eval_log(str(path), header_only=header_only)


def read_log(path: str | Path) -> EvalLog:
    """A finished Inspect log with all its samples. Raises EvaluationError where it cannot be read, did not finish, or
    lacks samples."""
    log = open_log(Path(path))
    # checked before samples are counted: an error message says more than a count
    check_finished(log)
    results, there = log.results, len(log.samples or [])
    stopped = results.early_stopping.early_stops if results and results.early_stopping else ()
    # Inspect counts epochs that were stopped early as samples: an attack's counterparts have few of them
    expected = results.total_samples - len(stopped) if results else 0
    if there < expected:
        raise EvaluationError(f"{path} has {there} of its {expected} samples: evaluate again.")
    return log


def usable_log(path: Path) -> tuple[EvalLog | None, str]:
    """The log, and "" or why there is none: it is missing, damaged or not finished."""
    try:
        return read_log(path), ""
    except EvaluationError as error:
        return None, str(error)


def log_headers(folder: Path) -> dict[Path, EvalLog]:
    """The logs in a folder without their samples; those of `evals/unfinished`, whose names begin with the time, are the
    oldest first."""
    headers = {}
    for path in sorted(folder.glob("*.eval")):
        with contextlib.suppress(Exception):  # killed while it was written for the first time
            headers[path] = open_log(path, header_only=True)
    return headers


LONGEST_ERROR = 400
"""Characters of an error of Inspect that are shown."""


def check_finished(log: EvalLog) -> None:
    """Raise EvaluationError, with its error and its place, for the log of an unfinished evaluation."""
    if log.status != "success":
        said = f"it is marked as {log.status!r}" if log.error is None else log.error.message
        said = re.sub(r"RetryError\(<.* raised (\w+)>\)", r"the model did not answer (\1)", said)
        said = re.sub(r"^EvaluationError\((['\"])(.*?)\.?\1\)$", r"\2", said)  # our errors are sentences already
        # an endpoint's error, which quotes the whole request before it says what is wrong
        said = said if len(said) <= LONGEST_ERROR else f"{said[:40]} ... {said[40 - LONGEST_ERROR :]}"
        raise EvaluationError(
            f"The evaluation {log.eval.task} stopped: {said}. Its log is {log.location}; with --resume the "
            "evaluation of a suite goes on from there."
        )


def task_name(log: EvalLog) -> str:
    """The name of a log's task, with the package if it is not ours."""
    return full_name(log.eval.task, log.eval.task_registry_name)


def full_name(task: str, registry_name: str | None) -> str:
    """The same from the two names that Inspect gives a task."""
    task, package = task.removeprefix(f"{OPCT}/"), (registry_name or "").rpartition("/")[0]
    # Inspect drops the package of a task that names itself
    return task if "/" in task or package in ("", OPCT) else f"{package}/{task}"


def log_name(task: str) -> str:
    """The file that holds a suite or task in `evals/`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", task) + ".eval"


def about_of(log: EvalLog) -> dict[str, Any]:
    """What a log of ours says of its evaluation, under `OPCT` in its metadata."""
    return dict((log.eval.metadata or {}).get(OPCT, {}))


def graded_samples(log: EvalLog, left_out: list[str] | None = None) -> list[GradedSample]:
    """The samples of a log; a sample with a second grading or a judgement appears twice.

    Args:
        left_out: collects scores of other tasks that no metric can use.
    """
    graded: list[GradedSample] = []
    samples = log.samples or []
    # all four keys: another task may well have "task" or "cluster" in its metadata
    if not all({"task", "axis", "cluster", "grading"} <= (sample.metadata or {}).keys() for sample in samples):
        return _foreign_samples(log, left_out if left_out is not None else [])
    if is_attack(log):
        # "": one round of an attack that has not finished; `outcomes` counts it as interrupted
        return [attack_sample(sample, about_of(log).get("ended", "")) for sample in samples]
    # the last judge, which ran last: a log keeps the scores of all judges
    judge = next(reversed(about_of(log).get("judges", {})), None)
    for sample in samples:
        scores = {name: score for name, score in (sample.scores or {}).items() if not name.startswith(JUDGE)}
        kl, newest = scores.pop(KL, None), (sample.scores or {}).get(judge or "")
        # the score that is neither a judge's nor the KL is the suite's own
        score = next(iter(scores.values()), None)
        if score is None or not isinstance(score.value, Mapping):
            raise EvaluationError(f"Sample {sample.id} of {log.location} has no score: evaluate again.")
        numbers = {key: as_number(value) for key, value in score.value.items()}
        values = {key: value for key, value in numbers.items() if not key.startswith("parsed_")}
        parsed = {key.removeprefix("parsed_"): value for key, value in numbers.items() if key not in values}
        graded.append(_graded_sample(sample, "", score.metadata or {}, values))
        if kl is not None:
            graded[-1].values |= {key: as_number(value) for key, value in kl.value.items()}  # type: ignore[union-attr]
            of_kl = kl.metadata or {}
            graded[-1].tokens, graded[-1].kl = of_kl.get("tokens"), of_kl.get("kl")
            graded[-1].likeliest = of_kl.get("likeliest")
            graded[-1].reasons |= of_kl.get("reasons", {})
        if parsed:
            graded.append(_graded_sample(sample, PARSED, (score.metadata or {})["parsed"], parsed))
        if newest is not None:
            verdicts = {key: as_number(value) for key, value in newest.value.items()}  # type: ignore[union-attr]
            graded.append(_graded_sample(sample, JUDGED, newest.metadata or {}, verdicts))
    return graded


def is_private(log: EvalLog) -> bool:
    """Whether the log holds prompts of an attack, ours or finished ones from a file."""
    return is_attack(log) or any((sample.metadata or {}).get("family") == ARTIFACT for sample in log.samples or [])


def is_attack(log: EvalLog) -> bool:
    """Whether this is the log of one of our attacks; its prompts are private."""
    return bool(log.samples) and all((sample.metadata or {}).get("axis") == ATTACK for sample in log.samples or [])


STOP_REASONS = {"stop": "stop", "max_tokens": "length", "model_length": "context"}


def _graded_sample(
    sample: LogSample, graded_by: str, graded: Mapping[str, Any], values: dict[str, float | None]
) -> GradedSample:
    # the first epoch gets no number, so that runs with one epoch pair with runs with several
    metadata, epoch = sample.metadata, f"#{sample.epoch}" if sample.epoch > 1 else ""
    name = graded_name(metadata["task"], graded_by)
    fields = dict(
        **{name: metadata[name] for name in FIELDS},
        # the grading follows the task: runs are paired by id, and each grading of a sample needs its own
        id=name + metadata["id"].removeprefix(metadata["task"]) + epoch,
        task=name,
        graded_by=graded_by,
        verdict=graded["verdict"],
        values=values,
        prompt=list(filled_prompt(sample.messages)),
        reasons=dict(graded.get("reasons") or {}),
        answer_key=graded.get("answer_key"),
        **_reply(sample),
    )
    return _SAMPLE.validate_python(fields)


def _reply(sample: LogSample) -> dict[str, Any]:
    output = sample.output
    return {
        "completion": output.completion,
        "stop_reason": STOP_REASONS.get(output.stop_reason, output.stop_reason) if output.choices else "none",
        "completion_tokens": output.usage.output_tokens if output.usage is not None else 0,
        "token_ids": tuple((output.metadata or {}).get("token_ids", ())),
    }


def _foreign_samples(log: EvalLog, left_out: list[str]) -> list[GradedSample]:
    """Samples of another task: every numeric score is a value. A sample that was run several times (epochs)
    counts once, with the mean over the epochs that were scored."""
    task = task_name(log)
    by_id: dict[str, list[LogSample]] = {}
    for sample in log.samples or []:
        by_id.setdefault(f"{task}/{sample.id}#{_input_hash(sample)}", []).append(sample)
    names = _accuracy_names(log)
    unused: Counter[str] = Counter()
    samples = []
    for id_, epochs in by_id.items():
        values = [_foreign_values(sample, names, unused) for sample in epochs]
        mean: dict[str, float | None] = {}
        for name in dict.fromkeys(n for scores in values for n in scores):
            known = [value for scores in values if (value := scores.get(name)) is not None]
            mean[name] = fmean(known) if known else None
        first = epochs[0]
        samples.append(
            GradedSample(
                id=id_,
                task=task,
                axis=INSPECT,
                family="",
                family_split="all",
                cluster=str((first.metadata or {}).get("cluster", id_)),
                verdict=_foreign_verdict(epochs, mean),
                values=mean,
                prompt=list(filled_prompt(first.messages)),
                grading={"answer": first.target if isinstance(first.target, str) else ", ".join(first.target)},
                **_reply(first),
            )
        )
    # a missing value is None (unscored): if it were dropped, n would differ between metrics without a reason
    everything = dict.fromkeys(name for sample in samples for name in sample.values)
    for graded in samples:
        graded.values = dict.fromkeys(everything) | graded.values
    if not everything:
        unused["no scorer gives a number"] += len(samples)
    left_out += [f"{task}: {what} ({count} samples), left out" for what, count in unused.items()]
    return samples


def _input_hash(sample: LogSample) -> str:
    """Hash of the input, for the id: ids are often 1, 2, 3, and mean other questions in another order or limit."""
    text = sample.input if isinstance(sample.input, str) else "\n".join(f"{m.role}: {m.text}" for m in sample.input)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def _accuracy_names(log: EvalLog) -> dict[str, str]:
    """Name of a scorer's plain score: "accuracy" if the task reports it as accuracy."""
    scores = log.results.scores if log.results is not None else []
    # plain "accuracy" only with one scorer: with two nobody could tell whose it is
    accurate = [score.scorer for score in scores if "accuracy" in score.metrics]
    return {name: "accuracy" if len(accurate) == 1 else f"{name}_accuracy" for name in accurate}


def _foreign_values(sample: LogSample, names: Mapping[str, str], unused: Counter[str]) -> dict[str, float | None]:
    scores = sample.scores or {}
    values: dict[str, float | None] = {}
    for scorer, score in scores.items():
        if isinstance(score.value, Mapping):
            prefix = f"{scorer}_" if len(scores) > 1 else ""
            values |= {f"{prefix}{name}": as_number(value) for name, value in score.value.items()}
        elif isinstance(score.value, list | tuple):
            unused[f"{scorer} gives a list of values"] += 1
        else:
            values[names.get(scorer, scorer)] = as_number(score.value)
    return values


def _foreign_verdict(epochs: Sequence[LogSample], values: Mapping[str, float | None]) -> str:
    known = [value for value in values.values() if value is not None]
    if not known:
        return UNSCORED + ("error" if any(sample.error is not None for sample in epochs) else "no_score")
    return VERDICTS.get(known[0], f"{known[0]:g}")


VERDICTS = {1.0: "correct", 0.5: "partly_correct", 0.0: "incorrect"}


# ------------------------------------------------------------------------------------------- a whole evaluation


@dataclass(frozen=True)
class Evaluation:
    """The content of the logs of one run.

    Attributes:
        path: the run directory or log.
        run: label, name, model, method, seed, weights, dtype; for other logs, what is known.
        settings: of the newest log; its key `kept` has the settings that differed for suites measured earlier.
        suite_settings: sampling and grading settings or judge of each suite.
        samples: with the paired values of sycophancy.
        left_out: parts of the logs that no metric can use.
    """

    path: Path
    run: dict[str, Any]
    created: str
    settings: dict[str, Any]
    suite_settings: dict[str, dict[str, Any]]
    samples: list[GradedSample]
    warnings: list[str]
    left_out: list[str]

    @property
    def model(self) -> str:
        return str(self.run.get("model") or "unknown")

    @property
    def suites(self) -> list[str]:
        """The suites and other tasks, with the names of all their gradings."""
        return list(dict.fromkeys(sample.task for sample in self.samples))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every metric of every suite and group, as rows of `results.json`."""
        return metric_rows(self.samples, self.suite_settings)


def read_samples(path: str | Path) -> list[GradedSample]:
    """Every graded sample of a run directory, or of any Inspect log; see `read_evaluation`."""
    return read_evaluation(path).samples


def read_evaluation(path: str | Path) -> Evaluation:
    """The logs of a run directory, or any Inspect log. Raises EvaluationError where there is none, or one cannot be
    read, did not finish, or lacks samples."""
    logs = sorted(map(read_log, log_paths(path)), key=lambda log: _place(task_name(log)))
    with LibraryErrors(EvaluationError, f"The logs of {path} cannot be used", "Evaluate again."):
        ours = [log for log in logs if "settings" in about_of(log)]
        # by number first: after a clock was set back, an older evaluation would look newest
        newest = max(ours or logs, key=lambda log: (log_order(log), _created(log)))
        about = about_of(newest)
        # each attack is an evaluation of its own, so none is out of date
        of_attacks = [about_of(log).get("warnings", ()) for log in logs if log is not newest and is_attack(log)]
        left_out: list[str] = []
        of_logs = [sorted(graded_samples(log, left_out), key=lambda sample: sample.graded_by) for log in logs]
        # over the samples of all logs: clean and biased ones are paired by cluster
        samples = [sample for of_log in of_logs for sample in of_log]
        add_paired_values(samples)
        return Evaluation(
            path=Path(path),
            run=about.get("run") or {"name": Path(path).stem, "label": None, "model": newest.eval.model},
            created=_created(newest),
            settings=_joined_settings(logs, newest),
            suite_settings={name: settings for log in logs for name, settings in _suite_settings(log).items()},
            samples=samples,
            warnings=[*about.get("warnings", ()), *chain(*of_attacks)],
            left_out=left_out,
        )


SUITE_ORDER = (
    *("sycophancy_short", "sycophancy_choice", "sycophancy_pairs", "jailbreak", "safety_awareness", CONSISTENCY),
    CONTEXT,
    BENIGN,
)


def _place(task: str) -> tuple[int, str]:
    """Sort key: suites in the order of results, then others."""
    return (SUITE_ORDER.index(task) if task in SUITE_ORDER else len(SUITE_ORDER), task)


def _created(log: EvalLog) -> str:
    """When the evaluation ended, to the microsecond; Inspect's time has only seconds."""
    return str(about_of(log).get("created") or log.eval.created)


def log_order(log: EvalLog) -> int:
    """The place of a log among those of its run, from 1; 0 for a log that was not numbered.

    The order of evaluations does not rest on times: a clock may be set back between two of them.
    """
    return int(about_of(log).get("order", 0))


def _suite_settings(log: EvalLog) -> dict[str, dict[str, Any]]:
    """Settings of each suite; for judged samples, the judge."""
    name, about = task_name(log), about_of(log)
    settings = {key: value for key, value in (log.eval.metadata or {}).items() if key != OPCT}
    if not all("grading" in (sample.metadata or {}) for sample in log.samples or []):  # no suite of ours
        settings = _foreign_settings(log)
    settings |= {name: value for name, value in about.get("settings", {}).items() if name == "template_hash"}
    by_suite = {name: settings, graded_name(name, PARSED): settings}
    judges = about.get("judges") or {}
    return by_suite | ({graded_name(name, JUDGED): judges[next(reversed(judges))]} if judges else {})


def _foreign_settings(log: EvalLog) -> dict[str, Any]:
    """Settings of another task that decide whether two logs are comparable."""
    config = log.plan.config.model_dump(exclude_none=True)
    names = ("temperature", "top_p", "top_k", "max_tokens", "seed", "system_message", "reasoning_effort")
    # part of the settings: logs that were scored with other arguments are not compared
    scorers = {scorer.name: scorer.options for scorer in log.eval.scorers or []}
    return {
        "task_version": log.eval.task_version,
        "task_args": log.eval.task_args,
        "grader": json.dumps(scorers, sort_keys=True, default=str),
        **{name: config[name] for name in names if name in config},
    }


OF_ALL = ("suites", "families")
"""Settings that say what was asked in all suites of one evaluation; each suite has its own families."""


def _joined_settings(logs: Sequence[EvalLog], newest: EvalLog) -> dict[str, Any]:
    """The settings of the newest evaluation; its key `kept` has those that differed for suites measured earlier."""
    of_log = {task_name(log): about_of(log).get("settings", {}) for log in logs}
    now = of_log[task_name(newest)]
    differences = {
        name: unlike
        for name, settings in of_log.items()
        if (unlike := {key: value for key, value in settings.items() if key not in OF_ALL and now.get(key) != value})
    }
    return {**now, "suites": list(of_log)} | ({"kept": differences} if differences else {})

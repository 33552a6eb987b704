"""What a folder holds: `list_runs` for `opct runs`, and every row of `results.json` as a table for Python."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.config.loader import read_yaml
from opct.errors import EvaluationError, LibraryErrors, OpctError, RunError
from opct.reports.axes import SAFETY_AXES, matters_first
from opct.runs.io import read_jsonl
from opct.runs.run_dir import MANIFEST, RunDir

if TYPE_CHECKING:
    from pandas import DataFrame

INSIDE = ("checkpoints", "rollouts", "evals", "trackers", "attacks")
"""Folders of a run or an evaluation that hold no runs to list."""
FINISHED, STOPPED, RUNNING = "finished", "stopped", "running"


@dataclass(frozen=True)
class Entry:
    """A folder with something that opct made.

    Attributes:
        kind: "train" (also where it was evaluated), "eval", "experiment" or "report".
        method: the training method. model: what was trained, evaluated or attacked.
        state: "finished", "running", "stopped", or why the folder cannot be read.
        step, total_steps: of a training.
        resume: the command, or what to do, that continues it.
        headline: a row of its results: the deciding metric of the first safety axis, else the first with a value.
        evaluation: an evaluation that has not ended: its state, suite and samples.
        updated: when a file in it was last written, in seconds since 1970.
    """

    path: Path
    kind: str
    updated: float
    method: str | None = None
    model: str | None = None
    state: str = FINISHED
    step: int | None = None
    total_steps: int | None = None
    resume: str | None = None
    headline: Mapping[str, Any] | None = None
    evaluation: str | None = None


def list_runs(folder: str | Path) -> list[Entry]:
    """The trainings, evaluations, experiments and reports in a folder, at any depth, newest first. Raises
    EvaluationError where there is no such folder."""
    if not Path(folder).is_dir():
        raise EvaluationError(f"There is no folder {folder}: give the folder that holds your runs.")
    entries = (_entry(path) for path in _folders(Path(folder)))
    return sorted((entry for entry in entries if entry is not None), key=lambda entry: -entry.updated)


def results(runs: str | Path | Sequence[str | Path]) -> DataFrame:
    """The rows of `results.json` of evaluated runs as a pandas DataFrame, one row a metric and group.

    Args:
        runs: a run, a folder that holds runs, or several of these.

    Returns:
        The columns run, label, model, method and seed, then those of the rows: axis, suite, metric, group, unit,
        value, ci_low, ci_high, n, n_clusters, n_unscored, unscored_reasons, n_truncated and settings.

    Raises:
        EvaluationError: pandas is not installed, or a path holds no evaluation.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise EvaluationError("opct.results needs pandas: pip install pandas.") from error
    rows: list[dict[str, Any]] = []
    for source in [runs] if isinstance(runs, str | Path) else runs:
        found = [run for folder in _folders(Path(source)) if (run := RunDir(folder)).results_path.is_file()]
        if not found:
            raise EvaluationError(f"{source} holds no results.json: evaluate a run first (`opct eval RUN`).")
        for run in found:
            content = run.read_results()
            names = ("label", "model", "method", "seed")
            about = {"run": str(run.path)} | {name: content["run"].get(name) for name in names}
            rows += [about | row for row in content["rows"]]
    return DataFrame(rows)


def _folders(folder: Path) -> Iterator[Path]:
    for path, names, files in os.walk(folder):
        skipped = INSIDE if not {MANIFEST, "results.json"}.isdisjoint(files) else ()
        # in place: os.walk goes into what is left in this list
        names[:] = sorted(name for name in names if name not in skipped and not name.startswith("."))
        yield Path(path)


def _entry(path: Path) -> Entry | None:
    run, costs, report = RunDir(path), path / "costs.json", path / "report.json"
    unfinished = list(run.unfinished_dir.glob("*.eval"))
    signs = {"eval": run.results_path, "experiment": costs, "report": report}
    kinds = ["train"] * run.is_run + [name for name, file in signs.items() if file.is_file()]
    if not kinds and not unfinished:
        return None
    files = (file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    written = [file.stat().st_mtime for file in [*files, *unfinished]]
    entry = Entry(path, kinds[0] if kinds else "eval", max(written))
    try:
        with LibraryErrors(RunError, "it is damaged"):
            if entry.kind == "train":
                entry = _training(entry, run)
            if run.results_path.is_file():
                content = run.read_results()
                entry = replace(entry, model=str(content["run"].get("model")), headline=_headline(content["rows"]))
            if unfinished:
                entry = _unfinished(entry, has_results=run.results_path.is_file())
    except OpctError as error:  # a damaged folder is listed like the others
        return replace(entry, state=f"unreadable: {error}")
    return entry


def _training(entry: Entry, run: RunDir) -> Entry:
    config, manifest, metrics = read_yaml(run.config_path), run.read_manifest(), read_jsonl(run.metrics_path)
    total, saved = manifest.get("total_steps"), [step for step, _ in run.checkpoints()]
    # metrics, too: a last step that could not be measured has a checkpoint alone
    is_done = bool(saved and metrics) and saved[-1] == metrics[-1]["step"] in (total, manifest.get("ended_at"))
    # the lock first: a run that is resumed for more steps has its last checkpoint already
    state = RUNNING if run.in_use else FINISHED if is_done else STOPPED
    step = metrics[-1]["step"] if metrics and state == RUNNING else max(saved, default=0)
    resume = f"opct train {shlex.quote(str(run.config_path))} --resume"
    if Path(config["output_dir"]).resolve() != run.path.resolve():  # it was moved, or made from another folder
        resume += f" {shlex.quote(f'output_dir={run.path}')}"
    return replace(
        entry,
        method=str(config["method"]),
        model=str(config["model"]["name_or_path"]),
        state=state,
        step=step,
        total_steps=total,
        resume=resume if state == STOPPED else None,
    )


def _unfinished(entry: Entry, *, has_results: bool) -> Entry:
    """The entry with its evaluation that has not ended."""
    from opct.evals.run import SUITES, unfinished_suite
    from opct.evals.tasks.attack import PREFIX

    unfinished = unfinished_suite(entry.path)
    if unfinished is None:
        return entry
    suite, done, total, is_running = unfinished
    state = RUNNING if is_running else STOPPED
    command = "attack" if suite.startswith(PREFIX) else "eval"
    again = " with --resume" if suite.startswith(PREFIX) or suite in SUITES else ""  # other tasks begin anew
    resume = entry.resume or (None if is_running else f"the same `opct {command}` command{again}")
    entry = replace(entry, evaluation=f"{state} in {suite}, {done:,} of {total:,} samples", resume=resume)
    return entry if entry.kind == "train" or has_results else replace(entry, state=state)


def _headline(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    rows = list(rows)
    deciding = [row for axis in SAFETY_AXES for row in rows if (row["axis"], row["metric"]) == (axis.name, axis.metric)]
    # where the deciding one was not scored there is no headline: the next row may be a bound of it
    first = deciding or [row for row in rows if matters_first(row["axis"], row["metric"], row["group"])] or rows
    scored = [row for row in first if row["value"] is not None]
    return next((row for row in scored if deciding and row["group"] == "held_out"), next(iter(scored), None))

"""Loads the inputs of a report: evaluated run directories, and logs of any Inspect task."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from opct.config.loader import read_yaml
from opct.config.schema import flat_settings
from opct.errors import EvaluationError
from opct.evals.judges.calibration import with_calibrations
from opct.evals.logs import Evaluation, read_evaluation
from opct.evals.metrics import Metric, Units, metric_rows, units_of
from opct.evals.quiet import quiet
from opct.evals.run import known_suites, results_of
from opct.evals.samples import ATTACK, BENIGN, JUDGED, PARSED, GradedSample, graded_name
from opct.evals.tasks.attack import PREFIX
from opct.evals.tasks.benign import OVER_REFUSAL
from opct.redaction import redact
from opct.runs.io import did_you_mean, read_json
from opct.runs.run_dir import RunDir

Row = dict[str, Any]


@dataclass(frozen=True)
class EvaluatedRun:
    """One evaluated model: a run directory, or the logs of one model.

    Attributes:
        name: unique within a report.
        path: its folder; None for a run made of logs only.
        rows: as in results.json; a row's settings say how its suite was sampled and graded.
        metrics: of metrics.jsonl.
        weights: a hash of them.
        config: config.yaml as text; `config_values` has the same by dotted name.
    """

    name: str
    label: str
    model: str
    method: str | None = None
    seed: int | None = None
    weights: str | None = None
    created: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    samples: tuple[GradedSample, ...] = ()
    path: Path | None = None
    metrics: tuple[Row, ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict)
    config: str = ""
    config_values: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def suites(self) -> dict[str, list[GradedSample]]:
        suites: dict[str, list[GradedSample]] = {}
        for sample in self.samples:
            suites.setdefault(sample.task, []).append(sample)
        return suites

    @property
    def replies(self) -> list[GradedSample]:
        """The samples, every reply once even if it was graded in two ways."""
        return [sample for sample in self.samples if not sample.graded_by]

    def units(self, metric: Metric, suite: str, group: str) -> Units:
        """The values of a metric in a group, by the id that pairs runs."""
        key = (metric.axis, metric.name, suite)
        if key not in self._units:
            groups: dict[str, list[GradedSample]] = {}
            for sample in self.suites.get(suite, []):
                for name in metric.groups_of(sample):
                    groups.setdefault(name, []).append(sample)
            self._units[key] = {name: units_of(metric, samples) for name, samples in groups.items()}
        return self._units[key].get(group, Units())

    @cached_property
    def _units(self) -> dict[tuple[str, str, str], dict[str, Units]]:
        return {}

    def row(self, suite: str, metric: str, group: str) -> Row | None:
        """The row of a metric; None if the run did not measure it."""
        return self._rows.get((suite, metric, group))

    @cached_property
    def _rows(self) -> dict[tuple[str, str, str], Row]:
        return {(row["suite"], row["metric"], row["group"]): row for row in self.rows}


def load_runs(sources: str | Path | Sequence[str | Path]) -> list[EvaluatedRun]:
    """Read run directories and Inspect logs in the order given.

    A source is a path or `label=path`. A folder of evaluated runs, such as that of an experiment, stands for them, in
    the order of their evaluation; a folder of logs stands for these. Logs with one label form one run, and are added
    to the run directory of that label, if any. The default label of a log is the name of its model.

    Raises:
        EvaluationError: there is no source, one is given twice, or one cannot be read.
    """
    if isinstance(sources, str | Path):
        sources = [sources]
    if not sources:
        raise EvaluationError("A report needs at least one evaluated run directory: `opct report BASE SFT OPCT`.")
    labeled = [_with_label(source) for source in sources]
    seen: set[str] = set()
    runs: list[EvaluatedRun] = []
    with quiet():
        for label, path in [one for source in labeled for one in _with_runs_inside(*source)]:
            # resolved: through a link, one run would count as two seeds
            if (real := os.path.realpath(path)) in seen:
                raise EvaluationError(f"{path} is given twice, which would make intervals too narrow: give it once.")
            seen.add(real)
            if path.is_file():
                _add_log(runs, read_evaluation(path), label)
            else:
                runs.append(load_run(path, label, trained_only=len(labeled) == 1))
    return _with_unique_names(runs)


def _with_label(source: str | Path) -> tuple[str | None, Path]:
    """Split `label=path`; an existing path is never split."""
    label, equals, path = str(source).partition("=")
    if not equals or Path(source).exists() or "/" in label:
        # an equals sign in an existing path, or in one of its folders, is no label
        return None, Path(source)
    return label, Path(path)


def _with_runs_inside(label: str | None, path: Path) -> list[tuple[str | None, Path]]:
    """The logs in a folder of logs, or the evaluated runs in a folder that is none itself, in the order of their
    evaluation; else the source."""
    run = RunDir(path)
    if run.is_run or run.evals_dir.is_dir():
        return [(label, path)]
    if logs := sorted(path.glob("*.eval")):
        return [(label, log) for log in logs]
    results = list(path.glob("*/results.json"))
    if label is not None and len(results) > 1:
        raise EvaluationError(f"{path} holds {len(results)} runs, so {label!r} would name them all: label each run.")
    results.sort(key=lambda file: (str(read_json(file).get("created")), file))
    return [(label, file.parent) for file in results] or [(label, path)]


def _add_log(runs: list[EvaluatedRun], log: Evaluation, label: str | None) -> None:
    """Add a log to the only run of its label, or to a new run."""
    label = label or log.model.rstrip("/").rsplit("/", 1)[-1]
    same = [i for i, run in enumerate(runs) if run.label == label]
    if len(same) > 1:
        raise EvaluationError(f"{log.path} is of {label}, which has {len(same)} runs: give it a label, `LABEL=LOG`.")
    run = runs.pop(same[0]) if same else EvaluatedRun(label, label, log.model, created=log.created)
    if twice := run.suites.keys() & set(log.suites):
        raise EvaluationError(
            f"{log.path}: {label} has results of {', '.join(sorted(twice))} already: leave one of the two out, or give "
            "this log another label, `LABEL=LOG`."
        )
    rows, samples = (*run.rows, *log.rows), (*run.samples, *log.samples)
    added = replace(run, rows=rows, samples=samples, warnings=(*run.warnings, *log.warnings, *log.left_out))
    runs.insert(same[0] if same else len(runs), added)


def load_run(directory: Path, label: str | None = None, *, trained_only: bool = False) -> EvaluatedRun:
    """Read one run directory: its logs in evals/, also those of other Inspect tasks.

    Args:
        trained_only: also read a training that was not evaluated; it has no rows and no samples.

    Raises:
        EvaluationError: the directory or its evaluation is missing, or a file in it cannot be read.
        ConfigError: config.yaml cannot be read.
    """
    if not directory.is_dir():
        raise EvaluationError(f"No run directory at {directory}: check the path.{did_you_mean(directory)}")
    run_dir = RunDir(directory)
    config, values = "", {}
    if run_dir.config_path.is_file():
        values = flat_settings(read_yaml(run_dir.config_path))
        config = redact(run_dir.config_path.read_text(encoding="utf-8"))
    if any(run_dir.evals_dir.glob("*.eval")):
        evaluation = read_evaluation(directory)
    elif trained_only and run_dir.is_run and values:
        names = {"model": "model.name_or_path", "method": "method", "seed": "seed"}
        about = {name: values.get(setting) for name, setting in names.items()}
        evaluation = Evaluation(directory, about, "", {}, {}, [], [], [])
    else:
        how = "It is no run: give runs that `opct eval RUN` or `opct eval MODEL --out NEW_FOLDER` has evaluated."
        if any((run_dir.evals_dir / "unfinished").glob("*")):
            how = "One was started but not finished: run the same command again with --resume."
        elif run_dir.is_run:
            options = run_dir.read_manifest().get("eval_options", "")
            how = f"Evaluate the run first: `opct eval {shlex.quote(str(directory))}{options}`."
        raise EvaluationError(f"{directory} holds no evaluation (evals/*.eval). {how}")
    about, results = evaluation.run, results_of(evaluation)
    return EvaluatedRun(
        name=about.get("name") or directory.name,
        label=label or about.get("label") or about.get("method") or directory.name,
        model=about.get("model") or "unknown",
        method=about.get("method"),
        seed=about.get("seed"),
        weights=(about.get("weights") or {}).get("hash"),
        created=evaluation.created,
        settings=evaluation.settings,
        warnings=(*results["warnings"], *_trained_further(run_dir, about)),
        rows=tuple(with_calibrations(results["rows"])),
        samples=tuple(evaluation.samples),
        path=directory,
        metrics=tuple(run_dir.read_metrics()),
        manifest=dict(run_dir.read_manifest()) if run_dir.manifest_path.is_file() else {},
        config=config,
        config_values=values,
    )


def _trained_further(run: RunDir, about: Mapping[str, Any]) -> list[str]:
    step, last = (about.get("weights") or {}).get("step"), max((step for step, _ in run.checkpoints()), default=0)
    if step is None or step >= last:
        return []
    return [f"The evaluation is of step {step}, and the training went on to step {last}: evaluate it again."]


def _with_unique_names(runs: Sequence[EvaluatedRun]) -> list[EvaluatedRun]:
    """Make names unique by adding the label, the seed, or a number."""
    taken: set[str] = set()
    renamed = []
    for run in runs:
        others = (f"{run.name} ({run.label})", f"{run.name} (seed {run.seed})")
        numbered = (f"{run.name} ({n})" for n in range(2, len(runs) + 2))
        name = next(name for name in (run.name, *others, *numbered) if name not in taken)
        taken.add(name)
        renamed.append(replace(run, name=name))
    return renamed


def of_suites(run: EvaluatedRun, names: Sequence[str]) -> EvaluatedRun:
    """The run with only these suites, and the second gradings of their replies. Raises EvaluationError where a suite is
    unknown, or the run has none of these."""
    attacks = [name for name in names if name.startswith(PREFIX)]  # no suites of `opct eval`
    others = [name for name in names if name not in attacks]
    suites = known_suites(others) if others else []
    shown = {*attacks, *(graded_name(suite, by) for suite in suites for by in ("", PARSED, JUDGED))}
    rows = tuple(row for row in run.rows if row["suite"] in shown)
    samples = tuple(sample for sample in run.samples if sample.task in shown)
    if not (rows and samples):
        raise EvaluationError(f"{run.path} was not evaluated on {', '.join(names)}: evaluate it on one of them first.")
    settings = dict(run.settings)
    if "suites" in settings:
        settings["suites"] = [suite for suite in settings["suites"] if suite in shown]
    if earlier := {suite: values for suite, values in settings.pop("kept", {}).items() if suite in shown}:
        settings["kept"] = earlier
    return replace(run, rows=rows, samples=samples, settings=settings)


def on_same_samples(runs: Sequence[EvaluatedRun]) -> list[EvaluatedRun]:
    """The runs with every suite cut to the samples that all of them were asked, with a warning where that cuts some.

    Only where these are all samples of one of the runs, as with a smaller `n_questions`; other runs asked other
    questions, and stay as they are.
    """
    aligned = list(runs)
    # not attacks: a behavior with fewer episodes than its attack was to have is undecided
    asked = [sample.task for run in runs for sample in run.samples if sample.axis != ATTACK]
    for suite in dict.fromkeys(asked):
        ids = {i: {sample.id for sample in run.suites[suite]} for i, run in enumerate(aligned) if suite in run.suites}
        # the run with the fewest: only if its samples are in every run are they the shared ones
        fewest = min(ids, key=lambda i: len(ids[i]))
        if all(ids[fewest] <= run_ids for run_ids in ids.values()):
            for i in ids:
                if len(ids[i]) > len(ids[fewest]):
                    aligned[i] = _cut(aligned[i], suite, ids[fewest], aligned[fewest].name)
    return aligned


def _cut(run: EvaluatedRun, suite: str, ids: Set[str], other: str) -> EvaluatedRun:
    """The run with these samples of a suite, and the rows of that suite computed from them."""
    samples = [sample for sample in run.suites[suite] if sample.id in ids]
    text = f"{suite}: only the {len(samples):,} of {len(run.suites[suite]):,} samples that {other} was asked are shown."
    cut = {(row["metric"], row["group"]): row for row in metric_rows(samples, {})}
    rows: list[Row] = []
    for row in run.rows:
        if row["suite"] != suite:
            rows.append(row)
        elif recomputed := cut.get((row["metric"], row["group"])):
            # the run's settings: rows that are computed anew have none
            rows.append(row | recomputed | {"settings": row["settings"]})
    rest = [sample for sample in run.samples if sample.task != suite]
    return replace(run, rows=tuple(rows), samples=(*rest, *samples), warnings=(*run.warnings, text))


def graded_apart(suite: str, metric: str) -> str | None:
    """The metric, if it has a grader of its own: in `benign` the refusal rules grade one metric only."""
    return metric if (suite, metric) == (BENIGN, OVER_REFUSAL) else None


def suite_settings(run: EvaluatedRun, suite: str, metric: str | None = None) -> dict[str, Any] | None:
    """Sampling and grading settings of a suite by dotted name, without its judge; None if the run lacks the suite.

    Args:
        metric: one that is `graded_apart`, with its grader; None: the others.
    """
    rows = [row for row in run.rows if row["suite"] == suite and graded_apart(suite, row["metric"]) == metric]
    if not rows:
        return None
    settings: dict[str, Any] = {}
    for row in rows:
        settings |= row.get("settings") or {}
    return flat_settings({name: value for name, value in settings.items() if not name.startswith("judge")})

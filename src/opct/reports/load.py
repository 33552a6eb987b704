"""Evaluated run directories, read and checked: what the report knows about each run.

`results.json` and `evals/samples.jsonl` must be there: without them there is nothing to compare, and the error says
which command makes them. `metrics.jsonl`, `manifest.json` and `config.yaml` are optional: a base was never trained.
Beside the scores of a judge stands what is known of it when the report is made.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from opct.attack.protocol import LOADED
from opct.attack.store import AttackDir
from opct.data.perturb import jailbreak
from opct.errors import EvaluationError
from opct.evals.logs import read_samples
from opct.evals.run import known_suites, suite_of
from opct.evals.samples import GradedSample
from opct.evals.tasks.benign import BENIGN, OVER_REFUSAL
from opct.evals.teacher_check import AXES
from opct.judges.calibration import with_calibrations
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir

SCHEMA = 1
TEACHER_CHECK = {"axis", "bad", "ci_low", "ci_high", "n", "n_asked", "unscored_reasons", "n_truncated"}
"""What the report says of the check of the teacher on an axis."""
Row = dict[str, Any]


@dataclass(frozen=True)
class EvaluatedRun:
    """One run directory with its evaluation; `name` is unique within a report."""

    path: Path
    name: str
    label: str
    model: str
    method: str | None
    seed: int | None
    created: str
    settings: dict[str, Any]
    warnings: tuple[str, ...]
    rows: tuple[Row, ...]
    samples: tuple[Row, ...]
    metrics: tuple[Row, ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict)
    config: str = ""


def load_runs(run_dirs: list[Path]) -> list[EvaluatedRun]:
    """Read every run directory, in the order given; a name that two runs share gets its label and seed, then a number.

    Raises:
        EvaluationError: no run is named, one is named twice, or one has no (readable) evaluation.
    """
    if not run_dirs:
        raise EvaluationError("A report needs at least one evaluated run directory: `opct report BASE SFT OPCT`.")
    seen: set[Path] = set()
    for directory in run_dirs:
        if directory.resolve() in seen:
            raise EvaluationError(
                f"{directory} is named twice: a run counted twice makes intervals too narrow; name it once."
            )
        seen.add(directory.resolve())
    taken: set[str] = set()
    return [load_run(directory, taken) for directory in run_dirs]


def load_run(directory: Path, taken: set[str] | None = None) -> EvaluatedRun:
    """Read one run directory.

    Raises:
        EvaluationError: the directory or its evaluation is missing, or a file in it cannot be read.
    """
    if not directory.is_dir():
        raise EvaluationError(f"No run directory at {directory}: check the path.")
    run_dir = RunDir(directory)
    if AttackDir(directory).is_attack:
        raise EvaluationError(
            f"{directory} is an attack: name the folder of an evaluated run that has it in its `attacks/`."
        )
    again = f"evaluate the run first: `{_command(run_dir)}`"
    results = _json_object(run_dir.results_path, again)
    run = results.get("run")
    if results.get("schema") != SCHEMA or not isinstance(run, dict) or not isinstance(results.get("rows"), list):
        raise EvaluationError(
            f"{run_dir.results_path} has schema {results.get('schema')!r}; this version reads schema {SCHEMA} with "
            f"`run` and `rows`: `opct eval {shlex.quote(str(directory))}` writes it anew."
        )
    samples = [row_from_sample(sample) for sample in read_samples(directory)]
    manifest = _manifest(run_dir.manifest_path)
    label = str(run.get("label") or run.get("method") or directory.name)
    return EvaluatedRun(
        path=directory,
        name=_unique_name(
            str(run.get("name") or directory.name), label, run.get("seed"), taken if taken is not None else set()
        ),
        label=label,
        model=str(run.get("model") or "unknown"),
        method=run.get("method"),
        seed=run.get("seed"),
        created=str(results.get("created") or ""),
        settings=dict(results.get("settings") or {}),
        warnings=tuple(str(w) for w in results.get("warnings") or ()),
        rows=tuple(with_calibrations(results["rows"])),
        samples=tuple(samples),
        metrics=tuple(read_jsonl(run_dir.metrics_path)),
        manifest=manifest,
        config=run_dir.config_path.read_text(encoding="utf-8", errors="replace")
        if run_dir.config_path.is_file()
        else "",
    )


OF_ROW = (
    *("id", "task", "axis", "family", "family_split", "cluster", "prompt", "teacher_prompt", "completion"),
    *("stop_reason", "completion_tokens", "verdict", "values", "reasons", "tokens", "kl"),
)
OF_GRADING = ("category", "behavior", "fact", "answer", "suggested", "is_evaluation_only")


def row_from_sample(sample: GradedSample) -> Row:
    """A sample as the tables of a report read it."""
    return {name: getattr(sample, name) for name in OF_ROW} | {name: sample.grading.get(name) for name in OF_GRADING}


def sample_from_row(row: Mapping[str, Any]) -> GradedSample:
    """The sample of such a row."""
    grading = {name: row.get(name) for name in OF_GRADING if row.get(name) is not None}
    own = {name: row[name] for name in OF_ROW if name in row}
    own |= {"values": dict(row.get("values") or {}), "verdict": str(row.get("verdict") or "")}
    return GradedSample(grading=grading, **own)


def _command(run: RunDir) -> str:
    """How an evaluation gets into a folder: a run is a model, any other folder is one that results go into."""
    folder = shlex.quote(str(run.path))
    if run.is_run:
        return f"opct eval {folder}"
    models = [_target(path) for path in sorted(run.attacks_dir.glob("*/result.json"))]
    return f"opct eval {shlex.quote(next(filter(None, models), 'MODEL'))} --out {folder}"


def _target(path: Path) -> str | None:
    """The model of this machine that an attack was played against; None where that is not known, as of a policy that
    was loaded already."""
    try:
        target = json.loads(path.read_text(encoding="utf-8"))["target"]
        is_named = target["where"] == "in this process" and target["source"] != LOADED
        return str(target["source"]) if is_named else None
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _manifest(path: Path) -> dict[str, Any]:
    """What training wrote down; empty of a run that was not trained."""
    remedy = "it is written by `opct train`"
    if not path.is_file():
        return {}
    manifest = _json_object(path, remedy)
    checked = manifest.get("teacher_check")
    if isinstance(checked, dict) and "bad" in checked:  # of a run before there were two axes to check
        manifest["teacher_check"] = checked = {jailbreak.AXIS: checked | {"axis": jailbreak.AXIS}}
    if checked is not None and not _is_teacher_check(checked):
        raise EvaluationError(
            f"{path}: teacher_check does not hold {', '.join(sorted(TEACHER_CHECK))} for each axis: {remedy}."
        )
    return manifest


def _is_teacher_check(value: Any) -> bool:
    """Axis -> what was found of its teacher."""
    return isinstance(value, dict) and all(
        axis in AXES
        and isinstance(row, dict)
        and row.keys() >= TEACHER_CHECK
        and row["axis"] == axis
        and isinstance(row["unscored_reasons"], dict)
        for axis, row in value.items()
    )


def of_suites(run: EvaluatedRun, names: Sequence[str]) -> EvaluatedRun:
    """The run without the rows and samples of other suites than these, `capability` and `capability-fast` among them.

    What is graded or judged of a suite's replies is of that suite.

    Raises:
        EvaluationError: a suite is unknown, or the run has nothing of these.
    """
    shown = {graded for suite in known_suites(names) for graded in suite_of(suite).graded}
    rows = tuple(row for row in run.rows if row["suite"] in shown)
    samples = tuple(sample for sample in run.samples if sample["task"] in shown)
    if not (rows and samples):
        raise EvaluationError(f"{run.path} was not evaluated on {', '.join(names)}: evaluate it on one of them first.")
    settings = dict(run.settings)
    if "suites" in settings:
        settings["suites"] = [suite for suite in settings["suites"] if suite in shown]
    if kept := {suite: own for suite, own in settings.pop("kept", {}).items() if suite in shown}:
        settings["kept"] = kept
    return replace(run, rows=rows, samples=samples, settings=settings)


def _unique_name(name: str, label: str, seed: int | None, taken: set[str]) -> str:
    candidates = [name, f"{name} ({label})", f"{name} (seed {seed})", *(f"{name} ({n})" for n in range(2, 10_000))]
    chosen = next(candidate for candidate in candidates if candidate not in taken)
    taken.add(chosen)
    return chosen


def _json_object(path: Path, remedy: str) -> dict[str, Any]:
    if not path.is_file():
        raise EvaluationError(f"{path} is missing: {remedy}.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise EvaluationError(f"{path}:{error.lineno} is not valid JSON ({error.msg}): {remedy}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"Cannot read {path} ({error}): {remedy}.") from error
    if not isinstance(value, dict):
        raise EvaluationError(f"{path} holds a {type(value).__name__}, not a JSON object: {remedy}.")
    return value


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names: {"tasks": {"a": {"seed": 0}}} is {"tasks.a.seed": 0}."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def run_config(run: EvaluatedRun) -> dict[str, Any] | None:
    """The settings of a run by dotted name, empty where it has none; None where they cannot be read."""
    try:
        config = yaml.safe_load(run.config) if run.config.strip() else {}
    except yaml.YAMLError:
        return None
    return flat_settings(config) if isinstance(config, dict) else None


def suite_settings(run: EvaluatedRun, suite: str) -> dict[str, Any] | None:
    """How a suite was asked and graded, by dotted name, without who judged it or what is one row's alone; None where
    the run has no row of it.
    """
    rows = [row for row in run.rows if row["suite"] == suite]
    if not rows:
        return None
    settings: dict[str, Any] = {}
    for row in rows:
        settings |= {name: value for name, value in (row.get("settings") or {}).items() if _is_of_suite(row, name)}
    return flat_settings(settings)


def _is_of_suite(row: Row, name: str) -> bool:
    """Whether a row's setting is of its whole suite: of benign the refusal rules are of one row alone, though results
    of before have their version in every row.
    """
    is_of_rules = name == "grader_version" or (name == "grader" and row["metric"] == OVER_REFUSAL)
    return not (name.startswith("judge") or (row["suite"] == BENIGN and is_of_rules))

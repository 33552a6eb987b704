"""Train a run; evaluate one, a model or a policy: what `opct train`, `opct eval` and the functions for Python do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.distributed import launched
from opct.errors import EvaluationError
from opct.runs.checkpoints import weight_hashes
from opct.runs.io import file_sha256
from opct.runs.progress import NullProgress, Progress
from opct.runs.run_dir import RunDir, run_behind, run_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from opct.config.schema import TrainConfig
    from opct.models.policy import Policy
    from opct.training.trainer import TrainResult

DEFAULT_SUITES = ("sycophancy_short", "benign")
SHOWN_GROUPS = (
    *("held_out", "train", "clean", "bare", "benign_bare", "benign_wrapped", "benign", "user_is_right"),
    *("plain_question", "all"),
)


@dataclass
class EvalResult:
    """What an evaluation found, and where it is kept.

    Attributes:
        out: folder of logs and results.
        results: what `results.json` holds; None where none of our suites was asked for.
        tasks: for each Inspect task that was asked for, the summaries that `opct.evals.run.run_task` returns.
    """

    out: Path
    results: dict[str, Any] | None = None
    tasks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def render(self) -> RenderableType:
        """Tables for a terminal."""
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = []
        if self.results is not None:
            parts.append(_suites_table(self.results))
            parts += [Text(f"warning: {warning}", style="yellow") for warning in self.results["warnings"]]
        parts += [_task_table(summary) for summaries in self.tasks.values() for summary in summaries]
        logs = RunDir(self.out).evals_dir
        parts.append(Text(f"logs: {logs} (open them with `inspect view --log-dir {logs}`)"))
        return Group(*parts)


def train(
    config: TrainConfig, *, resume: bool = False, overwrite: bool = False, progress: Progress | None = None
) -> TrainResult:
    """Train as `config` says, in `config.output_dir`; see `opct.training.trainer.train` for arguments and errors.

    Where pairs hold jailbreak behaviours or hazards, a new run measures its teacher; see `teacher.check_behaviors`.
    """
    from opct.before_training import measure_teacher
    from opct.config.schema import refuse_attackers
    from opct.training.trainer import train as run_training

    refuse_attackers(config)
    work = run_training
    if launched():  # torchrun then prints the error of the rank that failed first
        from torch.distributed.elastic.multiprocessing.errors import record

        work = record(run_training)
    return work(config, resume=resume, overwrite=overwrite, progress=progress, check_teacher=measure_teacher)


def evaluate(
    target: str | Path | Policy,
    *,
    suites: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    out: str | Path | None = None,
    label: str | None = None,
    dtype: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> EvalResult:
    """Measure a run, a model or a policy on our suites, and on any other Inspect task.

    Args:
        target: a run directory (its newest checkpoint), one of its `checkpoints/step-*`, a model's name or folder, or
            a loaded `Policy`.
        suites: ours; by default `sycophancy_short` and `benign`, or none where `tasks` are named.
        tasks: Inspect tasks, as `pkg/name` or `file.py@task`.
        out: folder of logs and results; by default the run directory, or `runs/eval-<target>`.
        label: what the report calls it: by default the run's method; of what is not a run, "base" where it has no
            adapter and "trained" where it has one.
        dtype: to load the target in; by default that of the run, else what a probe of this machine chooses.
        options: of `opct.evals.run.prepare` (n_questions, families, seed, max_completion_tokens, greedy ...) and
            `measure` (kl_samples, browser_questions, batch_size), where None has a meaning of its own: all of them.
            An n_questions that is given is n_problems too, where that is not given. An Inspect task takes n_questions,
            seed and max_completion_tokens.

    Raises:
        EvaluationError: an unknown suite, task or option, an option that a task does not take, or a run without
            weights.
        DataError: suites cannot be asked for want of data; said before a model is loaded.
    """
    from opct.evals.run import check_task, measure, parted, prepare, run_task

    progress = progress or NullProgress()
    task_options = _task_options(options) if tasks else {}
    names = tuple(suites or (() if tasks else DEFAULT_SUITES))
    for task in tasks or ():
        check_task(task)
    asking, measuring = parted(options)
    if asking.get("n_questions") is not None:
        asking.setdefault("n_problems", asking["n_questions"])  # a plan's own sizes give way to what was asked for
    prepared = prepare(names, **asking) if names else None  # what is wrong or missing is said before a model loads
    policy, run = _policy_and_run(target, progress, {} if dtype is None else {"dtype": dtype})
    if out is None:
        out = run.path if run and run.path == Path(str(target)) else Path("runs") / f"eval-{_own_name(target, policy)}"
    result = EvalResult(Path(out))
    if prepared is not None:
        described = _described(target, policy, run) | ({"label": label} if label else {})
        bar = _Bar(progress, f"evaluate {described['label']}")
        result.results = measure(policy, prepared, out_dir=out, progress=bar, **described, **measuring)
    for task in tasks or ():
        result.tasks[task] = run_task(policy, task, out_dir=out, progress=_Bar(progress, task), **task_options)
    return result


def load_policy(target: str | Path, **settings: Any) -> Policy:
    """The policy of a run directory, an adapter folder, or a model.

    Args:
        settings: of `opct.config.schema.ModelConfig`, such as `dtype` and `device`; over those of the run.

    Raises:
        ModelError, RunError, EvaluationError: it cannot be loaded.
    """
    from opct.models.from_run import load_policy as load

    return load(str(target), **settings)


def _policy_and_run(
    target: str | Path | Policy, progress: Progress, settings: dict[str, Any]
) -> tuple[Policy, RunDir | None]:
    if not isinstance(target, str | Path):
        if settings:
            raise EvaluationError(f"A loaded policy keeps its dtype, {target.dtype}: load it in another one.")
        return target, None
    progress.stage(f"load {target}")
    policy = load_policy(target, **settings)
    progress.log(f"dtype: {policy.dtype_reason}")
    return policy, run_of(target)


def _described(target: str | Path | Policy, policy: Policy, run: RunDir | None) -> dict[str, Any]:
    """What the results say about the run, model or policy that was measured."""
    if run is None:
        files = _weight_hashes(Path(target)) if isinstance(target, str | Path) else {}
        label = "trained" if policy.has_adapter else "base"
        weights = {"sha256": files} if files else {"hash": policy.weights_hash()}
        return {"label": label, "weights": weights, **_trained_on(target, policy)}
    from opct.config.loader import load_config

    config = load_config(run.config_path)
    described = {"label": config.method, "method": config.method, "train_seed": config.seed, "name": run.path.name}
    described |= _trained_on(target, policy)
    checkpoint = run.checkpoint_named(str(target))
    if checkpoint is None:
        return described
    step = int(checkpoint.name.removeprefix("step-"))
    return described | {"weights": {"step": step, "sha256": weight_hashes(checkpoint)}}


def _trained_on(target: str | Path | Policy, policy: Policy) -> dict[str, Any]:
    """What the weights were trained on, as their run says; of an adapter without a run, that it is not known."""
    from opct.data.duplicates import read_trained_texts

    run = run_behind(target) if isinstance(target, str | Path) else None
    if run is None:
        return {"trained_texts": None} if policy.has_adapter else {}
    manifest = run.read_manifest()
    names: dict[str, Any] = {key: manifest[key] for key in ("trained_families", "trained_questions") if key in manifest}
    return {**names, "trained_texts": read_trained_texts(run)}


def _weight_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of the weights in the folder of an adapter or a model, by file name; empty where there are none."""
    if not folder.is_dir():
        return {}
    return {path.name: file_sha256(path) for path in sorted(folder.glob("*.safetensors"))}


def _own_name(target: str | Path | Policy, policy: Policy) -> str:
    """A folder name for what is not a run: of its path, so that two adapters of one base do not share it."""
    if not isinstance(target, str | Path):
        return _file_name(policy.name) + ("-trained" if policy.has_adapter else "")
    path = Path(target).resolve()
    if not path.exists():
        return _file_name(str(target))
    return _file_name(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)) or path.name


def _task_options(options: dict[str, Any]) -> dict[str, Any]:
    renamed = {"n_questions": "limit", "seed": "seed", "max_completion_tokens": "max_completion_tokens"}
    unknown = sorted(set(options) - set(renamed))
    if unknown:
        raise EvaluationError(
            f"The option {unknown[0]} is for our own suites; an Inspect task takes {', '.join(renamed)}."
        )
    return {renamed[name]: value for name, value in options.items()}


def _suites_table(results: dict[str, Any]) -> RenderableType:
    """The rows of `results.json` that a terminal shows; families are for the report. Where some are a judge's, a column
    has its kappa against people as it is known now, and a line below the table says whose it is.
    """
    from rich.console import Group
    from rich.text import Text

    from opct.judges.calibration import with_calibrations
    from opct.judges.provenance import judge_of, judged_by, short_agreement

    rows = with_calibrations(results["rows"])
    judged = [row for row in rows if judge_of(row) is not None]
    table = _table(
        f"{results['run']['label']}: {results['run']['model']}",
        texts=("metric", "group"),
        numbers=("value", "95% interval", "n", "unscored", "truncated", *(["judge"] if judged else [])),
    )
    split = {row["suite"] for row in rows if row["group"] == "held_out"}
    for row in rows:
        whole = row["group"] == "all" and row["suite"] in split  # said by its two parts
        point = row["metric"].startswith("share_at_") and row["metric"] != "share_at_100"  # of the safety curve
        if row["group"] in SHOWN_GROUPS and not whole and not point:
            table.add_row(
                f"{row['suite']}/{row['metric']}",
                row["group"],
                _number(row["value"]),
                f"{_number(row['ci_low'])} to {_number(row['ci_high'])}",
                str(row["n"]),
                str(row["n_unscored"]),
                str(row["n_truncated"]),
                *([short_agreement(row)] if judged else []),
            )
    said = dict.fromkeys(f"{row['suite']}: {judged_by(row)}" for row in judged)
    return Group(table, *(Text(text) for text in said))


def _task_table(summary: dict[str, Any]) -> RenderableType:
    title = f"{summary['task']}: {summary['n']} samples, {summary['n_truncated']} truncated"
    table = _table(title, texts=("metric",), numbers=("value", "n", "unscored"))
    for metric in summary["metrics"]:
        name = f"{metric['scorer']}/{metric['metric']}"
        table.add_row(name, _number(metric["value"]), str(metric["n"]), str(metric["n_unscored"]))
    return table


def _table(title: str, *, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(title=title)
    for column in texts:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")


class _Bar:
    """(done, total) as a stage of a progress; a new one when the total turns out larger."""

    def __init__(self, progress: Progress, name: str):
        self._progress, self._name, self._done, self._total = progress, name, 0, -1

    def __call__(self, done: int, total: int) -> None:
        if total != self._total:
            self._progress.stage(self._name, total)
            self._done, self._total = 0, total
        self._progress.advance(done - self._done)
        self._done = done

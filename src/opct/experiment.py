"""`opct experiment`: several ways of training, each with several seeds, one budget, measured alike; one report.

    base        measured once, in the dtype of the runs
    arm, seed   trained, then measured: `<arm>-seed<n>` in the experiment's folder
    report      report.html over all of them; report.json has its numbers

Cut short, the same command goes on: what is finished is not done again, and a run goes on from its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.checkpoint_state import is_finished
from opct.config import TrainConfig
from opct.errors import RunError
from opct.experiment_config import Arm, Experiment, load_experiment
from opct.files import read_jsonl, write_json
from opct.models.load import PROBED_SIZE, choose_device, choose_dtype
from opct.progress import NullProgress, Progress, duration
from opct.reports.costs import Cost, cost_of, shown
from opct.runs import RunDir
from opct.stages import BASE, Parts, evaluate_once, in_dtype, is_measured, train_once

if TYPE_CHECKING:
    from rich.console import RenderableType

TRAIN, EVALUATE = "train", "evaluate"
WEIGHTS = {TRAIN: 3.0, EVALUATE: 1.0}  # until one of each was timed


@dataclass
class ExperimentResult:
    """Where the report is, and what each arm took."""

    report: Path
    costs: dict[str, Cost]
    seconds: float

    def render(self) -> RenderableType:
        """What each arm took, and where to look next."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title="training, all seeds together")
        table.add_column("arm")
        for column in ("seconds", "steps", "completion tokens", "tokens in the loss"):
            table.add_column(column, justify="right")
        for name, cost in self.costs.items():
            counts = (cost.seconds, cost.steps, cost.completion_tokens, cost.tokens_in_loss)
            table.add_row(name, *map(shown, counts))
        took = Text(f"done in {duration(self.seconds)}. Open the page: {self.report.resolve().as_uri()}")
        return Group(table, took)


def run_experiment(
    config: str | Path, *, overrides: Sequence[str] = (), progress: Progress | None = None
) -> ExperimentResult:
    """Run or finish an experiment; see the module's docstring.

    Args:
        config: its YAML file; see `opct.experiment_config`.
        overrides: training settings of every arm, over its own.

    Raises:
        ConfigError: the file or an arm's settings are faulty, or the budgets differ.
        RunError: a folder holds a run with other settings, or runs began in unlike dtypes.
        DataError, EvaluationError: a suite cannot be asked, for want of data or of a package; nothing was trained.
        OpctError: whatever training, evaluation or the report raise.
        KeyboardInterrupt: it was asked to stop; everything is saved.
    """
    from opct.reports import report

    started = time.perf_counter()
    experiment = load_experiment(config, overrides)
    todo = [(arm, seed) for seed in experiment.config.seeds for arm in experiment.arms]
    kinds = [TRAIN, EVALUATE] * len(todo) + [EVALUATE]
    parts = Parts(progress or NullProgress(), [(kind, WEIGHTS[kind]) for kind in kinds] + [("report", 0.0)])
    settings = experiment.config.evaluation.model_dump()
    dtype = _dtype(experiment)
    _check_suites(experiment, dtype, settings)
    for arm, seed in todo:
        _run(experiment, arm, seed, dtype, settings, parts)
    parts.next()
    base = experiment.out / BASE
    evaluate_once(BASE, base, _plain(experiment, dtype), dtype, settings, overwrite=False, progress=parts)
    parts.next()
    parts.stage("write the report")
    folders = [base, *(arm.folder(experiment.out, seed) for arm in experiment.arms for seed in experiment.config.seeds)]
    page = report(folders, experiment.out / "report.html", references=experiment.references)
    costs = {arm.name: _cost(experiment, arm) for arm in experiment.arms}
    write_json(experiment.out / "costs.json", {name: vars(cost) for name, cost in costs.items()})
    parts.done()
    return ExperimentResult(page, costs, time.perf_counter() - started)


def _dtype(experiment: Experiment) -> str:
    """What all runs are computed in: as the first run there is began, else what this machine is faster in.

    Raises:
        RunError: two runs that are there began in unlike dtypes.
    """
    wanted = {config.model.dtype for config in experiment.configs.values()}
    runs = [RunDir(config.output_dir) for config in experiment.configs.values()]
    found = {str(run.read_manifest()["dtype"]): run.path for run in runs if run.is_run and run.manifest_path.exists()}
    if len(wanted - {"auto"} | set(found)) > 1:
        named = ", ".join([*sorted(wanted - {"auto"}), *(f"{dtype} ({path})" for dtype, path in found.items())])
        raise RunError(
            f"The runs of {experiment.out} are of unlike dtypes: {named}. Give all of them one (model.dtype=float32), "
            "and delete the runs that have another."
        )
    for dtype in (*found, *(wanted - {"auto"})):
        return dtype
    device = choose_device(next(iter(experiment.configs.values())).model.device)
    return str(choose_dtype("auto", device, PROBED_SIZE)[0]).removeprefix("torch.")


def _check_suites(experiment: Experiment, dtype: str, settings: Mapping[str, Any]) -> None:
    """Raises where a suite could not be asked when the first run is trained; nothing is asked of what is finished."""
    from opct.evals.run import parted, prepare

    if all(
        is_finished(RunDir(folder), config) and is_measured(label, folder, config, dtype, settings)
        for label, folder, config in _runs(experiment, dtype)
    ) and is_measured(BASE, experiment.out / BASE, _plain(experiment, dtype), dtype, settings):
        return
    asking, _ = parted({name: value for name, value in settings.items() if name != "suites"})
    prepare(settings["suites"], **asking)


def _runs(experiment: Experiment, dtype: str) -> Iterator[tuple[str, Path, TrainConfig]]:
    """Label, folder and settings of each run."""
    for (label, _), config in experiment.configs.items():
        yield label, Path(config.output_dir), in_dtype(config, dtype)


def _run(experiment: Experiment, arm: Arm, seed: int, dtype: str, settings: dict[str, Any], parts: Parts) -> None:
    """Train and measure one run."""
    own = in_dtype(experiment.configs[arm.name, seed], dtype)
    parts.next()
    train_once(own, f"{arm.name}, seed {seed}", overwrite=False, progress=parts)
    parts.next()
    folder = arm.folder(experiment.out, seed)
    evaluate_once(arm.name, folder, own, dtype, settings, overwrite=False, progress=parts)


def _plain(experiment: Experiment, dtype: str) -> TrainConfig:
    """The settings of an arm that begins with the base."""
    arm = next(arm for arm in experiment.arms if arm.after is None)
    return in_dtype(experiment.configs[arm.name, experiment.config.seeds[0]], dtype)


def _cost(experiment: Experiment, arm: Arm) -> Cost:
    folders = [arm.folder(experiment.out, seed) for seed in experiment.config.seeds]
    return cost_of([read_jsonl(RunDir(folder).metrics_path) for folder in folders])

"""`opct experiment`: several ways of training, each with several seeds, one budget, measured alike; one report.

    base        measured once, in the dtype of the runs
    arm, seed   trained, then measured: `<arm>-seed<n>` in the experiment's folder
    attackers   of `attacks`, each against the base and every run
    report      report.html over all of them; report.json has its numbers

Cut short, the same command goes on: what is finished is not done again, and a run goes on from its last checkpoint.
A run whose training stops itself is left out of the report, named, and tried again by the next call.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.config.schema import TrainConfig
from opct.errors import RunError, TrainingError
from opct.experiments.arms import Arm
from opct.experiments.attacks import check_attacks, settings_of
from opct.experiments.config import Experiment, load_experiment
from opct.experiments.stages import (
    BASE,
    Parts,
    asked_now,
    attack_once,
    evaluate_once,
    in_dtype,
    is_measured,
    train_once,
)
from opct.models.loading import PROBED_SIZE, choose_device, choose_dtype
from opct.reports.costs import COST_COLUMNS, cost_texts
from opct.runs.io import read_jsonl, write_json
from opct.runs.progress import NullProgress, Progress, duration
from opct.runs.run_dir import RunDir
from opct.runs.usage import Usage, earlier_usage, sum_usage, usage_of
from opct.training.resume import is_finished

if TYPE_CHECKING:
    from rich.console import RenderableType

TRAIN, EVALUATE, ATTACK = "train", "evaluate", "attack"
WEIGHTS = {TRAIN: 3.0, EVALUATE: 1.0, ATTACK: 1.0, f"{ATTACK} grpo": 4.0}  # until one of each was timed
Failed = dict[tuple[str, int], str]
"""By arm and seed, why the training of a run stopped itself."""


@dataclass
class ExperimentResult:
    """Where the report is, and what each arm took.

    Attributes:
        costs: by arm, all its seeds together, those of failed runs aside.
        failed: by run ("opct, seed 0"), why its training stopped itself; none of these is in the report.
    """

    report: Path
    costs: dict[str, Usage]
    seconds: float
    failed: dict[str, str] = field(default_factory=dict)

    def render(self) -> RenderableType:
        """What each arm took, and where to look next."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title="training, all seeds together")
        table.add_column("arm")
        for column in COST_COLUMNS:
            table.add_column(column, justify="right")
        for name, cost in self.costs.items():
            table.add_row(name, *cost_texts(cost))
        took = Text(f"done in {duration(self.seconds)}. Open the page: {self.report.resolve().as_uri()}")
        failed = [Text(f"failed, and not in the report: {name}: {why}") for name, why in self.failed.items()]
        return Group(table, *failed, took)


def run_experiment(
    config: str | Path, *, overrides: Sequence[str] = (), progress: Progress | None = None
) -> ExperimentResult:
    """Run or finish an experiment; see the module's docstring.

    Args:
        config: its YAML file; see `opct.experiments.config`.
        overrides: training settings of every arm, over its own.

    Raises:
        ConfigError: the file or an arm's settings are faulty, or the budgets differ.
        RunError: a folder holds a run with other settings, data or weights to begin with, or an attack by other rules;
            or the arms of one budget have unlike numbers of steps; or runs began in unlike dtypes.
        TrainingError: the training of every run stopped itself; of fewer, the result says which.
        DataError, EvaluationError: a suite cannot be asked, for want of data or of a package; nothing was trained.
        OpctError: whatever training, evaluation or the report raise.
        KeyboardInterrupt: it was asked to stop; everything is saved.
    """
    from opct.reports import report

    started = time.perf_counter()
    experiment = load_experiment(config, overrides)
    todo = [(arm, seed) for seed in experiment.config.seeds for arm in experiment.arms]
    attacks = [f"{ATTACK} grpo" if attacker == "grpo" else ATTACK for attacker in experiment.attackers]
    kinds = [TRAIN, EVALUATE, *attacks] * len(todo) + [EVALUATE, *attacks]
    parts = Parts(progress or NullProgress(), [(kind, WEIGHTS[kind]) for kind in kinds] + [("report", 0.0)])
    settings = experiment.config.evaluation.model_dump()
    dtype = _dtype(experiment)
    _refuse_other_runs(experiment, dtype)
    asked = _check_suites(experiment, dtype, settings)
    check_attacks(experiment.config.attacks)
    failed: Failed = {}
    for arm, seed in todo:
        _run(experiment, arm, seed, dtype, settings, asked, parts, failed)
    named = {_named(*run): why for run, why in failed.items()}
    if len(failed) == len(todo):
        each = "; ".join(f"{name}: {why}" for name, why in named.items())
        raise TrainingError(f"Every run of {experiment.out} failed, so there is nothing to report ({each}).")
    parts.next()
    base = experiment.out / BASE
    plain = _plain(experiment, dtype)
    evaluate_once(BASE, base, plain, dtype, settings, overwrite=False, asked=asked, progress=parts)
    _attack(experiment, BASE, base, plain, dtype, parts)
    parts.next()
    parts.stage("write the report")
    arms = experiment.arms
    seeds = {arm.name: [seed for seed in experiment.config.seeds if (arm.name, seed) not in failed] for arm in arms}
    page = report(
        [base, *(arm.folder(experiment.out, seed) for arm in arms for seed in seeds[arm.name])],
        experiment.out / "report.html",
        references=experiment.references,
        also=experiment.comparisons,
        suites=settings["suites"],
        warnings=[f"{name} failed, and is not in this report: {why}" for name, why in named.items()],
    )
    costs = {arm.name: _cost(experiment, arm, seeds[arm.name]) for arm in arms if seeds[arm.name]}
    write_json(experiment.out / "costs.json", {name: vars(cost) for name, cost in costs.items()})
    parts.done()
    return ExperimentResult(page, costs, time.perf_counter() - started, named)


def _dtype(experiment: Experiment) -> str:
    """What all runs are computed in: as the first run there is began, else what this machine is faster in.

    Raises:
        RunError: two runs that are there began in unlike dtypes.
    """
    wanted = {config.model.dtype for config in experiment.configs.values()}
    runs = [RunDir(config.output_dir) for config in experiment.configs.values()]
    begun = {run.read_manifest().get("dtype"): run.path for run in runs if run.is_run}
    found = {str(dtype): path for dtype, path in begun.items() if dtype is not None}  # None: cut short before it began
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


def _refuse_other_runs(experiment: Experiment, dtype: str) -> None:
    """Raises RunError where a run that is there is another one than the experiment's, before anything is trained."""
    for name, seed in experiment.configs:
        _is_finished(experiment, name, seed, dtype)


def _is_finished(experiment: Experiment, name: str, seed: int, dtype: str) -> bool:
    config = in_dtype(experiment.configs[name, seed], dtype)
    return is_finished(RunDir(config.output_dir), config, remedy=_remedy(experiment, name, seed))


def _remedy(experiment: Experiment, name: str, seed: int) -> str:
    """What a person can do about a run that is another one: delete it, and those that went on from it."""
    doomed = [name]
    for arm in experiment.arms:  # each after the one that it goes on from
        if arm.after in doomed:
            doomed.append(arm.name)
    folders = [experiment.configs[each, seed].output_dir for each in doomed]
    also = f" and those of the arms after it ({', '.join(folders[1:])})" if folders[1:] else ""
    return f"delete the folder {folders[0]}{also} and run the experiment again"


def _check_suites(experiment: Experiment, dtype: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the suites ask; None where it cannot be asked any more, and need not be, for all is trained and measured.

    Raises:
        DataError, EvaluationError: a suite cannot be asked, and is needed.
    """
    from opct.evals.run import parted, prepare

    asked = asked_now(settings)
    if asked is not None:
        return asked
    if all(
        _is_finished(experiment, name, seed, dtype)
        and is_measured(name, Path(config.output_dir), in_dtype(config, dtype), dtype, settings, None)
        for (name, seed), config in experiment.configs.items()
    ) and is_measured(BASE, experiment.out / BASE, _plain(experiment, dtype), dtype, settings, None):
        return None
    asking, _ = parted({name: value for name, value in settings.items() if name != "suites"})
    prepare(settings["suites"], **asking)
    return None


def _run(
    experiment: Experiment,
    arm: Arm,
    seed: int,
    dtype: str,
    settings: dict[str, Any],
    asked: Mapping[str, Any] | None,
    parts: Parts,
    failed: Failed,
) -> None:
    """Train and measure one run; where its training stops itself, why goes into `failed`."""
    own, name = in_dtype(experiment.configs[arm.name, seed], dtype), _named(arm.name, seed)
    parts.next()
    why = _train(experiment, arm, seed, own, parts, failed)
    if why is not None:
        failed[arm.name, seed] = why
        parts.skip(f"{name} failed: {why}")
        for _ in range(1 + len(experiment.attackers)):
            parts.next()
            parts.skip(f"{name}: not measured")
        return
    if experiment.config.same_budget:
        _refuse_other_lengths(experiment, arm, seed, dtype)
    parts.next()
    folder = arm.folder(experiment.out, seed)
    evaluate_once(arm.name, folder, own, dtype, settings, overwrite=False, asked=asked, progress=parts)
    _attack(experiment, arm.name, folder, own, dtype, parts)


def _attack(experiment: Experiment, label: str, folder: Path, own: TrainConfig, dtype: str, parts: Parts) -> None:
    """Let every attacker attack one run, or the base."""
    for attacker in experiment.attackers:
        parts.next()
        settings = settings_of(experiment.config.attacks, attacker)
        attack_once(label, folder, own, dtype, attacker, settings, progress=parts)


def _train(experiment: Experiment, arm: Arm, seed: int, own: TrainConfig, parts: Parts, failed: Failed) -> str | None:
    """Why the training of a run stopped itself, or None where it is done."""
    if arm.after is not None and (arm.after, seed) in failed:
        return f"it goes on from {_named(arm.after, seed)}, which failed"
    remedy = _remedy(experiment, arm.name, seed)
    try:
        train_once(own, _named(arm.name, seed), overwrite=False, remedy=remedy, progress=parts)
    except TrainingError as error:
        return " ".join(str(error).split())
    return None


def _named(name: str, seed: int) -> str:
    return f"{name}, seed {seed}"


def _refuse_other_lengths(experiment: Experiment, arm: Arm, seed: int, dtype: str) -> None:
    """Raises RunError where an arm has another number of steps than one of its combination has with the same seed:
    without `max_steps` it follows from the pairs that fit the model, which their settings alone do not tell. Those that
    settings give were compared before.

    Of a run that is not finished, what it wrote down is what earlier settings asked of it.
    """
    if experiment.configs[arm.name, seed].max_steps is not None:
        return
    lengths: dict[str, int] = {}
    for other in experiment.arms:
        run = RunDir(other.folder(experiment.out, seed))
        total = run.read_manifest().get("total_steps") if run.is_run else None
        if other.combination == arm.combination and total is not None:
            lengths[other.name] = total
    if len(set(lengths.values())) > 1:
        lengths = {name: n for name, n in lengths.items() if _is_finished(experiment, name, seed, dtype)}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name}: {total}" for name, total in lengths.items())
        raise RunError(
            f"The arms of {experiment.out} with seed {seed} have unlike numbers of steps ({shown}), so their "
            "difference is not that of the methods: set max_steps for all of them, or same_budget: false."
        )


def _plain(experiment: Experiment, dtype: str) -> TrainConfig:
    """The settings of an arm that begins with the base."""
    arm = next(arm for arm in experiment.arms if arm.after is None)
    return in_dtype(experiment.configs[arm.name, experiment.config.seeds[0]], dtype)


def _cost(experiment: Experiment, arm: Arm, seeds: Sequence[int]) -> Usage:
    return sum_usage([_cost_of_run(experiment.configs[arm.name, seed]) for seed in seeds])


def _cost_of_run(config: TrainConfig) -> Usage:
    run = RunDir(config.output_dir)
    manifest = run.read_manifest() if run.is_run else {}
    return usage_of(read_jsonl(run.metrics_path), config.method, earlier_usage(manifest, config.model.adapter))

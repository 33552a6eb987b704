"""`opct experiment`: several arms with several seeds, one evaluation for all, one report.

    base        measured once, in the dtype of the runs, and once with each of `system_prompts`
    arm, seed   trained, then measured: `<arm>-seed<n>` in the experiment's folder
    attackers   of `attacks`, each against the base and every run
    report      report.html over all of them; report.json has its numbers

The same command continues an interrupted experiment: finished work with the same settings is skipped. Given several
times at once, such as once a GPU, the processes share the trainings, evaluations and attacks. A run whose training
fails is left out of the report, named in it, and retried by the next call.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.api import evaluate, open_judge, train
from opct.config.schema import TrainConfig
from opct.errors import InUseError, NothingToResumeError, OtherAttackError, RunError, TrainingError
from opct.evals.attackers.config import TargetConfig
from opct.evals.config import EvalConfig
from opct.evals.metrics import find_metric
from opct.evals.run import make_tasks, prompts_of
from opct.evals.wording import interval, number, quantity
from opct.experiments.config import BASE, Arm, Attacks, Experiment, load_experiment, with_dtype
from opct.models.loading import PROBED_SIZE, choose_device, choose_dtype, load_renderer, with_weights
from opct.models.memory import release_memory
from opct.models.policy import Policy
from opct.models.self_test import refuse_lost_messages
from opct.reports.axes import where
from opct.reports.build import report
from opct.reports.training import COST_COLUMNS, cost_texts
from opct.runs.checkpoints import weight_hashes
from opct.runs.console import NullProgress, Progress, as_text, duration, make_table, pluralize
from opct.runs.identity import Identity
from opct.runs.io import read_json, write_json
from opct.runs.lock import locked
from opct.runs.manifest import command_line
from opct.runs.run_dir import RunDir
from opct.runs.usage import Usage
from opct.training.resume import is_finished

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

FIRST = 5
"""Rows that the terminal shows without `--all`."""
WAIT_SECONDS = 5.0
"""Between two looks at what other processes do."""
LOCKS, ANEW = ".locks", ("--overwrite", "--force")
TERMINAL_COSTS = ("optimizer steps", "completion tokens", "total seconds")
"""The costs that the terminal shows; the page has all."""


@dataclass
class ExperimentResult:
    """Path of the report, and the cost of each arm.

    Attributes:
        costs: by arm, summed over its seeds, without failed runs.
        failed: by run ("opct, seed 0"), why its training failed; these runs are not in the report.
    """

    report: Path
    costs: dict[str, Usage]
    seconds: float
    failed: dict[str, str] = field(default_factory=dict)

    def render(self, *, everything: bool = False) -> RenderableType:
        """The cost of each arm, the numbers that matter first (or all), and the path of the report."""
        from rich.console import Group

        costs = {name: dict(zip(COST_COLUMNS, cost_texts(cost), strict=True)) for name, cost in self.costs.items()}
        rows = [(name, *(cells[column] for column in TERMINAL_COSTS)) for name, cells in costs.items()]
        table = make_table("training, sum over seeds", ["arm", *TERMINAL_COSTS], rows)
        failed = [as_text(f"failed, and not in the report: {name}: {why}") for name, why in self.failed.items()]
        return Group(table, *failed, headline(self.report, self.seconds, everything=everything))


def headline(page: Path, seconds: float, *, everything: bool = False) -> RenderableType:
    """The metrics that matter first (or all) with differences from the base, what they say, and where the page is."""
    from rich.console import Group

    document = read_json(page.with_suffix(".json"))
    # a group with a colon is one family, category or fact: the page has these
    rows = [row for row in document["rows"] if ":" not in row["group"]]
    wanted = document["first_rows"][:FIRST]
    first = [row for row in rows if [row["suite"], row["metric"], row["group"]] in wanted]
    lines: list[Text] = []
    for row in rows if everything else first:
        metric, wide = find_metric(row["axis"], row["metric"]), max(map(len, row["arms"]))
        about = f"{metric.title}{where(row['axis'], row['group'])}, {row['suite']}"
        lines.append(as_text(about, style="bold"))
        changes = {each["of"]: each for each in row["differences"] if each["against"] == BASE}
        for label, arm in row["arms"].items():
            level = f"{quantity(arm['value'], metric.unit)} ({interval(arm['ci_low'], arm['ci_high'], metric.unit)})"
            line = f"  {label:<{wide}} {level:<21} n={arm['n']:<5,}"
            if (diff := changes.get(label)) is not None:
                line += f" {number(diff['difference'], metric.unit, signed=True)}, {diff['reading'].replace('_', ' ')}"
            lines.append(as_text(line))
    left = 0 if everything else len(rows) - len(first)
    more = [f"{pluralize(left, 'more row')}: {command_line('--all', without=ANEW)}"] if left else []
    said = [*more, "", *document["summary"], f"done in {duration(seconds)}. Open the page:", page.resolve().as_uri()]
    return Group(*lines, *map(as_text, said))


class StepProgress:
    """Progress that prefixes each stage with its step: "[3/7] train opct"."""

    def __init__(self, progress: Progress, total: int = 0):
        self._progress, self.total, self._step = progress, total, 0
        self.advance, self.log, self.done = progress.advance, progress.log, progress.done

    def next(self) -> None:
        """Begin the next step, which may have several stages."""
        self._step += 1

    def stage(self, name: str, total: int | None = None, initial: int = 0) -> None:
        self._progress.stage(f"[{self._step}/{self.total}] {name}", total, initial)


def run_experiment(
    config: str | Path, *, overrides: Sequence[str] = (), force: bool = False, progress: Progress | None = None
) -> ExperimentResult:
    """Run or finish an experiment; see the module's docstring.

    Args:
        config: its YAML file; see `opct.experiments.config`.
        overrides: training settings of every arm; they override the arm's settings.
        force: replace runs and attacks that were made with other settings, instead of refusing them.

    Raises:
        ConfigError: the file or an arm's settings are faulty, or the budgets differ.
        RunError: a folder holds a run with other settings, data or weights to begin with, or an attack by other rules;
            or the runs have different dtypes.
        TrainingError: the training of every run failed; if only some failed, the result names them.
        DataError, EvaluationError: a suite lacks data or a package; nothing was trained.
        OpctError: any error of training, evaluation or the report.
        KeyboardInterrupt: a signal stopped it; everything is saved.
    """
    started = time.perf_counter()
    experiment = load_experiment(config, overrides)
    # before runs are compared: `auto` in the file and float32 in a finished run are the same only then
    dtype = shared_dtype(list(experiment.configs.values()), experiment.out)
    configs = {run: with_dtype(run_config, dtype) for run, run_config in experiment.configs.items()}
    experiment = replace(experiment, configs=configs)
    if not force:
        # raises where a folder holds another run, before anything is trained
        for run_config in experiment.configs.values():
            folder = run_config.output_dir
            remedy = f"delete {folder} and the folders of arms after it and run again, replace it with --force"
            is_finished(RunDir(folder), run_config, remedy=remedy)
    # before anything is trained: a missing file must not show after hours
    _check_inputs(experiment)
    steps, failed = StepProgress(progress or NullProgress()), dict[str, str]()
    jobs = list(_jobs(experiment, force, steps, failed))
    steps.total = len(jobs) + 1
    do_each_once(jobs, experiment.out, steps)
    if len(failed) == len(experiment.configs):
        reasons = "; ".join(f"{name}: {why}" for name, why in failed.items())
        raise TrainingError(f"Every run of {experiment.out} failed, so there is nothing to report ({reasons}).")
    steps.next()
    steps.stage("write the report")
    trained = [
        experiment.config.folder(arm.name, seed)
        for arm, seed in itertools.product(experiment.arms, experiment.config.seeds)
        if _name(arm.name, seed) not in failed
    ]
    # several processes end at about the same time, and each writes the page
    with locked(experiment.out / LOCKS / "report.lock", wait=True):
        page = report(
            [*(experiment.out / label for label in experiment.untrained), *trained],
            experiment.out / "report.html",
            also=experiment.comparisons,
            suites=[*experiment.config.evaluation.suites, *experiment.config.attacks.suites],
            warnings=[f"{name} failed, and is not in this report: {why}" for name, why in failed.items()],
            overwrite=True,
            progress=NullProgress(),
        )
        costs = {arm: cost for arm, cost in read_json(page.with_suffix(".json"))["costs"].items() if cost}
        write_json(experiment.out / "costs.json", costs)
    steps.done()
    usage = {arm: Usage(**cost) for arm, cost in costs.items()}
    return ExperimentResult(page, usage, time.perf_counter() - started, failed)


def _name(arm: str | None, seed: int) -> str:
    return f"{arm}, seed {seed}"


@dataclass
class Job:
    """A part of an experiment, and the name of the job that must be done before; "" for none."""

    name: str
    do: Callable[[], None]
    after: str = ""


def do_each_once(jobs: Sequence[Job], out: Path, progress: Progress) -> None:
    """Do every job that no other process in the folder `out` has locked, then wait for the others and look again.

    A job that is done already is skipped by its function, so in the end each process has looked at all of them.
    """
    left = {job.name: job for job in jobs}
    waits = False
    while left:
        n_before, others = len(left), []
        # a copy: `left` shrinks in the loop
        for name, job in list(left.items()):
            # until this process has looked at that job, too, which it skips where another one has done it
            if job.after in left:
                continue
            with contextlib.ExitStack() as lock:
                try:
                    lock.enter_context(locked(out / LOCKS / f"{name}.lock"))
                except InUseError:
                    others.append(name)
                    continue
                job.do()  # an InUseError of a job is none of ours
            del left[name]
        # nothing could be done in a whole round: only then wait
        if len(left) == n_before:
            if not waits:
                progress.stage(f"wait for other processes: {'; '.join(others)}")
            waits = True
            time.sleep(WAIT_SECONDS)


def _jobs(experiment: Experiment, force: bool, steps: StepProgress, failed: dict[str, str]) -> Iterator[Job]:
    """Every training, then the evaluation and the attacks of that run, which may go on side by side; then the base's.

    Args:
        failed: gets the reason, by run, when a training fails; such a run is not measured, nor the base if all fail.
    """

    def measure(after: str, do: Callable[[], Any]) -> None:
        steps.next()
        if after not in failed and len(failed) < len(experiment.configs):
            do()

    def measurements(after: str, label: str, folder: Path, config: TrainConfig, settings: EvalConfig) -> Iterator[Job]:
        evaluation = partial(ensure_evaluated, label, folder, config, settings, progress=steps)
        yield Job(f"{after or label}, evaluation", partial(measure, after, evaluation), after)
        # not of the base with a system prompt: `opct attack` gives its target none
        for attacker, options in experiment.config.attacks.by_name.items() if label == BASE or after else ():
            attack = partial(ensure_attacked, label, folder, config, attacker, options, force=force, progress=steps)
            yield Job(f"{after or label}, {attacker}", partial(measure, after, attack), after)

    for seed, arm in itertools.product(experiment.config.seeds, experiment.arms):
        config, name = experiment.configs[arm.name, seed], _name(arm.name, seed)
        # of the same seed: the adapter that is continued was trained with it
        before = _name(arm.after, seed) if arm.after else ""
        yield Job(name, partial(_train_or_note_failure, experiment, arm, seed, force, steps, failed), before)
        yield from measurements(name, arm.name, Path(config.output_dir), config, experiment.config.evaluation)
    for label, settings in experiment.untrained.items():
        yield from measurements("", label, experiment.out / label, _base_config(experiment), settings)


def _train_or_note_failure(
    experiment: Experiment, arm: Arm, seed: int, force: bool, steps: StepProgress, failed: dict[str, str]
) -> None:
    config, name, before = experiment.configs[arm.name, seed], _name(arm.name, seed), _name(arm.after, seed)
    steps.next()
    try:
        if before in failed:
            raise TrainingError(f"it continues {before}, which failed")
        ensure_trained(config, name, force=force, progress=steps)
    except TrainingError as error:
        failed[name] = " ".join(str(error).split())
        steps.log(f"{name} failed, and is not measured: {failed[name]}")


# --------------------------------------------------------------------------------------- steps that are done once


def ensure_trained(
    config: TrainConfig,
    name: str,
    *,
    progress: Progress,
    force: bool = False,
    remedy: str = "replace the run with --force",
) -> None:
    """Train or resume a run, unless it is finished.

    Args:
        force: replace a run with other settings, data or weights to begin with.

    Raises:
        KeyboardInterrupt: a signal stopped training; it is saved.
        RunError: the folder holds such a run, and `force` is false.
    """
    run, is_other = RunDir(config.output_dir), False
    try:
        if is_finished(run, config, remedy=remedy):
            progress.log(f"{name}: trained already in {run.path}")
            return
    except RunError:
        if not force:
            raise
        is_other = True
    # another run is replaced, never resumed: its steps are of other settings
    result = train(config, resume=run.is_run and not is_other, overwrite=is_other, progress=progress)
    release_memory()
    if result.status == "interrupted":
        progress.log(f"{name}: saved after step {result.step}; the same command continues from there")
        raise KeyboardInterrupt


def ensure_evaluated(
    label: str, folder: Path, config: TrainConfig, settings: EvalConfig, *, progress: Progress
) -> dict[str, Any]:
    """Evaluate the last checkpoint of a run, or the base; suites of the same evaluation that have ended are reused.

    Args:
        folder: a run, or another folder: for the model of `config` without an adapter.
    """
    if is_evaluated(label, folder, config, settings):
        progress.log(f"{label}: measured already in {folder}")
        return dict(RunDir(folder).read_results())
    if not RunDir(folder).is_run:
        progress.stage(f"load {config.model.name_or_path}")
    target = _target(folder, config, settings)
    # the experiment's own settings trust the model's code; a run does not speak for itself
    is_trusted = settings.trust_remote_code or config.model.trust_remote_code
    results = evaluate(
        target,
        settings.model_copy(update={"trust_remote_code": is_trusted}),
        out=folder,
        label=label,
        progress=progress,
        resume=True,  # what is the same is not measured again
        overwrite=True,
    ).results
    assert results is not None
    wanted = _wanted(label, folder, config, settings.model_dump(mode="json"))
    # after the results, with their time: a kill in between, or results that are written later, make the marker invalid
    write_json(_marker(RunDir(folder), "experiment"), {**wanted, "created": results["created"]})
    return results


def is_evaluated(label: str, folder: Path, config: TrainConfig, settings: EvalConfig) -> bool:
    """Whether `ensure_evaluated` would only read existing results."""
    wanted = _wanted(label, folder, config, settings.model_dump(mode="json"))
    run = RunDir(folder)
    # results that were written since have another time of creation
    created = run.read_results().get("created") if run.results_path.is_file() else None
    return _is_done(run.results_path, _marker(run, "experiment"), {**wanted, "created": created})


def ensure_attacked(
    label: str,
    folder: Path,
    config: TrainConfig,
    attacker: str,
    settings: Mapping[str, Any],
    *,
    force: bool,
    progress: Progress,
) -> None:
    """Run or resume an attack on a run or the base, unless it is finished.

    Args:
        folder: of the run, or of the base's results; the log of the attack is in its `evals`.
        settings: of `opct.run_attack`.

    Raises:
        KeyboardInterrupt: a signal stopped it; finished attempts are in the log.
        OtherAttackError: the folder holds an attack with other settings or on other weights.
    """
    from opct.attack.run import PREFIX, attack_created, load_attack_config, run_attack

    run, name = RunDir(folder), PREFIX + attacker
    wanted, log, marker = _wanted(label, folder, config, settings), run.evals_dir / f"{name}.eval", _marker(run, name)
    if _is_done(log, marker, {**wanted, "created": attack_created(log)}):
        progress.log(f"{label}: attacked already by {attacker} in {log}")
        return
    progress.stage(f"attack {label} with {attacker}")
    target = _target(folder, config, load_attack_config(base=settings).target)
    trusted = {"trust_remote_code": True} if config.model.trust_remote_code else {}
    of_target = {**trusted, **settings.get("target", {}), "label": label}
    options = {**settings, "dtype": config.model.dtype, "target": of_target}
    attack = partial(run_attack, target, options, out=folder, progress=progress)
    try:
        try:
            attack(resume=True)
        except NothingToResumeError:
            attack()
    except OtherAttackError as error:
        if not force:
            remedy = f"In an experiment: delete {log}, or replace it with --force."
            raise OtherAttackError(f"{error} {remedy}") from error
        attack(overwrite=True)
    # before the marker, and before the next target is loaded: two models may not fit
    del target
    release_memory()
    # with the time of its log: an attack that was made again by hand is another one
    write_json(marker, {**wanted, "created": attack_created(log)})


def _marker(run: RunDir, name: str) -> Path:
    """The file that says what the results of an evaluation or an attack were made with."""
    return run.evals_dir / f"{name}.json"


def _target(folder: Path, config: TrainConfig, settings: EvalConfig | TargetConfig) -> Policy | Path:
    """The target to evaluate: the run's folder, or the base in the dtype of the runs.

    Args:
        settings: of the model, where they differ from those of the runs.
    """
    if RunDir(folder).is_run:
        return folder
    given = {"chat_template_kwargs": settings.chat_template_kwargs, "quantization": settings.quantization}
    overrides = {name: value for name, value in given.items() if value is not None}
    model = config.model.model_copy(update={"adapter": None, **overrides})
    tags = settings.thinking_tags or config.loss.thinking_tags
    return Policy.load(model, recorded_dtype=config.model.dtype, thinking_tags=tags)


def _wanted(label: str, folder: Path, config: TrainConfig, settings: Mapping[str, Any]) -> Identity:
    """What the results depend on: the settings, and the weights of the last checkpoint or the name of the base."""
    checkpoints = RunDir(folder).checkpoints()
    return Identity(
        {
            "label": label,
            # they may hold an address with a password
            "settings": json.loads(re.sub(r"//[^/@\s\"]+@", "//", json.dumps(Identity(settings)))),
            "model": config.model,
            "thinking_tags": config.loss.thinking_tags,
            "weights": weight_hashes(checkpoints[-1][1]) if checkpoints else None,
        }
    )


def _is_done(output: Path, marker: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the marker was written for this output."""
    return output.is_file() and marker.is_file() and not Identity(read_json(marker)).differing(wanted)


# ------------------------------------------------------------------------------------------------- before it begins


def shared_dtype(configs: Sequence[TrainConfig], out: Path) -> str:
    """The dtype of all runs: that of the runs in the folder, else the faster one on this machine. Raises RunError where
    two runs in the folder have different dtypes."""
    configured = {config.model.dtype: "model.dtype" for config in configs}
    configured.pop("auto", None)
    runs = [RunDir(config.output_dir) for config in configs]
    recorded = {run.read_manifest().get("dtype"): str(run.path) for run in runs if run.is_run}
    recorded.pop(None, None)  # interrupted before its first step
    dtypes = configured | recorded
    if len(dtypes) > 1:
        named = ", ".join(f"{dtype} ({where})" for dtype, where in dtypes.items())
        raise RunError(
            f"The runs of {out} have different dtypes: {named}. Set one dtype for all "
            "(model.dtype=float32), and delete the runs with another."
        )
    for dtype in dtypes:
        return str(dtype)
    device = choose_device(configs[0].model.device)
    return str(choose_dtype("auto", device, PROBED_SIZE)[0]).removeprefix("torch.")


def _check_inputs(experiment: Experiment) -> None:
    """Check the data of suites and attacks before training, unless everything is evaluated already."""
    settings = experiment.config.evaluation
    base = _base_config(experiment)
    targets = [(name, Path(config.output_dir), config, settings) for (name, _), config in experiment.configs.items()]
    targets += [(label, experiment.out / label, base, its_own) for label, its_own in experiment.untrained.items()]
    # a finished experiment only writes its report anew: the data of its suites need not be there any more
    if not all(is_evaluated(*target) for target in targets):
        model = with_weights(base.model)
        renderer = load_renderer(model)
        for eval_config in experiment.untrained.values():
            refuse_lost_messages(renderer, model.name_or_path, prompts_of(make_tasks(eval_config)))
        if settings.judge is not None:
            open_judge(settings.judge, settings.suites)
    _check_attacks(experiment.config.attacks)


def _check_attacks(attacks: Attacks) -> None:
    """Read the behaviors, prompts and pools of the attacks, and open the judge and the attackers without a model."""
    from opct.attack import setup
    from opct.attack.grpo import plan_training
    from opct.attack.run import load_attack_config
    from opct.attack.training_folder import TrainingFolder

    for name, settings in attacks.by_name.items():
        config = load_attack_config(base=settings)
        setup.check_local_settings("", config.target, "target")
        behaviors = setup.attacked_behaviors(config)
        setup.load_pool(config, behaviors)
        setup.load_judge_of_attack(config.judge)
        setup.make_player(config, behaviors)
        plan_training(config, behaviors, TrainingFolder(name))


def _base_config(experiment: Experiment) -> TrainConfig:
    """The settings of an arm that starts from the base."""
    return experiment.first_config(next(arm for arm in experiment.arms if arm.after is None))

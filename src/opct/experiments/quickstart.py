"""The quickstart: train OPCT and SFT with one budget, evaluate both against the base, write the report.

Model and data are the embedded ones. After an interruption, the same command continues and skips finished work.

On a CPU a second process asks the base the first suite and does the part of SFT, each process with half of the
threads: a model this small does not keep several threads busy. What the second process does not finish, the first does.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from opct.config.loader import load_config
from opct.config.packaged import PACKAGED
from opct.config.schema import DEFAULT_MODEL, Q4_MODEL, ModelConfig, OptimConfig, TrainConfig
from opct.errors import RunError
from opct.evals.config import EvalConfig
from opct.experiments.config import BASE, with_dtype
from opct.experiments.runner import (
    Job,
    StepProgress,
    do_each_once,
    ensure_evaluated,
    ensure_trained,
    headline,
    is_evaluated,
    shared_dtype,
)
from opct.experiments.second_process import SecondProcess, wait_for_task
from opct.models.loading import choose_device, resolve_model
from opct.reports.build import report
from opct.runs.console import NullProgress, Progress, as_text
from opct.runs.run_dir import RunDir

if TYPE_CHECKING:
    from rich.console import RenderableType

METHODS = ("opct", "sft")
REMEDY = "replace the run with --overwrite"
EVALUATION = EvalConfig(
    suites=["sycophancy_short", "context_use"],
    n_questions=48,
    families="held_out",
    families_per_question=1,
    n_context=32,
    context_pressure=False,
    max_completion_tokens=24,
    batch_size=300,
    kl_samples=2,
    browser_questions=2,
)


@dataclass
class QuickstartResult:
    """Path of the report, and the headline numbers."""

    report: Path
    results: dict[str, dict]
    seconds: float

    def render(self, *, everything: bool = False) -> RenderableType:
        """The numbers that matter first (or all), the path of the report, and what to do next."""
        from rich.console import Group

        run = self.report.parent / "opct"
        return Group(
            headline(self.report, self.seconds, everything=everything),
            as_text(f"next: opct chat {shlex.quote(str(run))}"),
        )


def run_quickstart(
    out: str | Path,
    *,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    evaluation: EvalConfig = EVALUATION,
    second: SecondProcess | None = None,
    progress: Progress | None = None,
) -> QuickstartResult:
    """Run or finish the quickstart in `out`; see the module's docstring.

    Args:
        overrides: overrides of the packaged settings, such as `model.name_or_path=...`.
        second: a process that waits in `second`, given work for the default model on a CPU with several threads.

    Raises:
        RunError: the folder holds a quickstart with other settings.
        OpctError: any error of training, evaluation or the report.
    """
    started = time.perf_counter()
    out = Path(out)
    _refuse_other_things(out)
    configs = {method: quickstart_config(method, out, overrides) for method in METHODS}
    model = configs["opct"].model
    steps = StepProgress(progress or NullProgress(), 3 * len(METHODS) + 2)
    steps.next()
    steps.stage(f"get {model.name_or_path}" + (" (270 MB, once)" if model.name_or_path == DEFAULT_MODEL else ""))
    resolve_model(model.name_or_path)
    # before the second process has its task: it would take an old run for a finished one
    for old in (RunDir(config.output_dir) for config in configs.values()):
        if overwrite and old.is_run:
            with RunDir.create(old.path, overwrite=True) as run:
                run.clear()
    threads = torch.get_num_threads()
    if second is not None and _worth_two_processes(model):
        torch.set_num_threads(max(1, threads // 2))  # before dtypes are timed: the second process is busy with imports
    elif second is not None:
        second.end()
        second = None
    try:
        # one for both runs and both processes: timed in each, they could differ, and with them the numbers
        dtype = shared_dtype(list(configs.values()), out)
        configs = {method: with_dtype(config, dtype) for method, config in configs.items()}
        parts = _Parts(configs, out, evaluation, steps)
        shared = {"out": str(out), "overrides": [*overrides, f"model.dtype={dtype}"]}
        settings = evaluation.model_dump(mode="json")
        # it has ended by itself: this process does all the parts, with all threads
        if second is not None and not second.begin(**shared, evaluation=settings, threads=torch.get_num_threads()):
            torch.set_num_threads(threads)
        parts.do("opct", BASE)
        steps.next()
        if not parts.is_evaluated("sft"):
            page = parts.report(BASE, "opct")
            steps.log(f"the page so far, without SFT: {page.resolve().as_uri()}")
        # also where the other process does it: `do` waits for its lock, and then finds the part done
        parts.do("sft")
    finally:
        torch.set_num_threads(threads)
    steps.next()
    page = parts.report(BASE, "sft", "opct")
    steps.done()
    return QuickstartResult(page, parts.results, time.perf_counter() - started)


@dataclass
class _Parts:
    """The parts of a quickstart: train and evaluate a method, or evaluate the base."""

    configs: dict[str, TrainConfig]
    out: Path
    evaluation: EvalConfig
    steps: StepProgress
    results: dict[str, dict] = field(default_factory=dict)

    def do(self, *labels: str) -> None:
        """Do these parts; one that the other process has begun is waited for."""
        do_each_once([Job(label, partial(self._do, label)) for label in labels], self.out, self.steps)

    def _do(self, label: str) -> None:
        if label in self.configs:
            self.steps.next()
            ensure_trained(self.configs[label], label, progress=self.steps, remedy=REMEDY)
        self.steps.next()
        self.results[label] = ensure_evaluated(
            label, self.out / label, self._config(label), self.evaluation, progress=self.steps
        )

    def is_evaluated(self, label: str) -> bool:
        return is_evaluated(label, self.out / label, self._config(label), self.evaluation)

    def report(self, *labels: str) -> Path:
        self.steps.stage("write the report")
        runs, page = [self.out / label for label in labels], self.out / "report.html"
        return report(runs, page, overwrite=True, progress=NullProgress())

    def _config(self, label: str) -> TrainConfig:
        return self.configs.get(label, self.configs["opct"])


# ----------------------------------------------------------------------------------------------- the second process


def _worth_two_processes(model: ModelConfig) -> bool:
    on_cpu = choose_device(model.device).type == "cpu" and torch.get_num_threads() > 1
    return on_cpu and model.name_or_path in (DEFAULT_MODEL, Q4_MODEL)


def second() -> None:
    """What the second process does: the base's first suite, SFT, and what is left of the base."""
    task = wait_for_task()
    torch.set_num_threads(task["threads"])
    out = Path(task["out"])
    configs = {method: quickstart_config(method, out, task["overrides"]) for method in METHODS}
    parts = _Parts(configs, out, EvalConfig.model_validate(task["evaluation"]), StepProgress(NullProgress(), 4))
    if not parts.is_evaluated(BASE):
        first = parts.evaluation.model_copy(update={"suites": parts.evaluation.suites[:1]})
        replace(parts, evaluation=first).do(BASE)
    parts.do("sft", BASE)


def _refuse_other_things(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file, but the quickstart needs a folder: choose another --out.")
    names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    entries = [name for name in names if not name.startswith(".")]  # the locks are left where a training cannot begin
    if entries not in ([], [BASE]) and not any((out / method).is_dir() for method in METHODS):
        raise RunError(f"{out} is not empty and holds no quickstart ({', '.join(entries[:5])}): choose another --out.")


def quickstart_config(method: str, out: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """The packaged settings, for one method; both have the same budget of steps, pairs and completion tokens.

    Layers and learning rate were chosen for the default model; another has the defaults of `opct train`.
    """
    # method and folder after the user's overrides: these must not make both runs the same
    all_overrides = [*overrides, f"method={method}", f"output_dir={json.dumps(str(out / method))}"]
    packaged = PACKAGED["quickstart"]
    config = load_config(packaged, all_overrides)
    if config.model.name_or_path in (DEFAULT_MODEL, Q4_MODEL):
        return config
    rate = OptimConfig().learning_rate
    # before the user's overrides, which win
    return load_config(packaged, ["lora.target_modules=all-linear", f"optim.learning_rate={rate}", *all_overrides])

"""The quickstart: train OPCT and SFT with one budget, evaluate both against the base, write the report.

Model and data are the embedded ones. After an interruption, the same command continues and skips finished work.

On a CPU a second process asks the base the first suite and does the part of SFT, each process with half of the
threads: a model this small does not keep several threads busy. What the second process does not finish, the first does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from opct.config.loader import load_config
from opct.config.schema import DEFAULT_MODEL, OptimConfig, TrainConfig
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
from opct.models.loading import choose_device, resolve_model
from opct.reports.build import report
from opct.runs.console import NullProgress, Progress, as_text
from opct.runs.run_dir import RunDir

if TYPE_CHECKING:
    from rich.console import RenderableType

METHODS = ("opct", "sft")
REMEDY = "replace the run with --overwrite"
EVALUATION = EvalConfig(
    n_questions=80,
    families="held_out",
    families_per_question=1,
    n_benign=24,
    max_completion_tokens=24,
    max_benign_tokens=32,
    batch_size=300,
    kl_samples=4,
    browser_questions=4,
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
    processes: int | None = None,
    progress: Progress | None = None,
) -> QuickstartResult:
    """Run or finish the quickstart in `out`; see the module's docstring.

    Args:
        overrides: overrides of the packaged settings, such as `model.name_or_path=...`.
        processes: 1 or 2; None: 2 for the default model on a CPU with several threads.

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
    for old in (RunDir(config.output_dir) for config in configs.values()):
        if overwrite and old.is_run:
            with RunDir.create(old.path, overwrite=True) as run:
                run.clear()
    dtype = shared_dtype(list(configs.values()), out)
    configs = {method: with_dtype(config, dtype) for method, config in configs.items()}
    parts = _Parts(configs, out, evaluation, steps)
    if processes is None:
        on_cpu = choose_device(model.device).type == "cpu" and torch.get_num_threads() > 1
        processes = 2 if on_cpu and model.name_or_path == DEFAULT_MODEL else 1
    arguments = [str(out), evaluation.model_dump_json(), *overrides, f"model.dtype={dtype}"]
    with second_process(arguments) if processes == 2 else contextlib.nullcontext():
        parts.do("opct", BASE)
        steps.next()
        if not parts.is_evaluated("sft"):
            page = parts.report(BASE, "opct")
            steps.log(f"the page so far, without SFT: {page.resolve().as_uri()}")
        parts.do("sft")
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
            ensure_trained(self.configs[label], label, overwrite=False, progress=self.steps, remedy=REMEDY)
        self.steps.next()
        self.results[label] = ensure_evaluated(
            label, self.out / label, self._config(label), self.evaluation, progress=self.steps
        )

    def is_evaluated(self, label: str) -> bool:
        return is_evaluated(label, self.out / label, self._config(label), self.evaluation)

    def report(self, *labels: str) -> Path:
        self.steps.stage("write the report")
        return report([self.out / label for label in labels], self.out / "report.html", overwrite=True)

    def _config(self, label: str) -> TrainConfig:
        return self.configs.get(label, self.configs["opct"])


# ----------------------------------------------------------------------------------------------- the second process


@contextlib.contextmanager
def second_process(arguments: Sequence[str]) -> Iterator[subprocess.Popen]:
    """Run `second` in another process, with half of the threads of this one; it ends with the block."""
    threads = torch.get_num_threads()
    half = max(1, threads // 2)
    command = [sys.executable, "-c", f"from {__name__} import second; second()", *arguments]
    own = os.environ | {"OMP_NUM_THREADS": str(half), "MKL_NUM_THREADS": str(half)}
    torch.set_num_threads(half)
    # the pipe ends with this process, and ends the other; what fails there is tried here, and its error is seen
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=own
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            torch.set_num_threads(threads)


def second() -> None:
    """What the second process does: the base's first suite, SFT, and what is left of the base."""
    out, evaluation, *overrides = sys.argv[1:]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    configs = {method: quickstart_config(method, Path(out), overrides) for method in METHODS}
    parts = _Parts(configs, Path(out), EvalConfig.model_validate_json(evaluation), StepProgress(NullProgress(), 4))
    if not parts.is_evaluated(BASE):
        first = parts.evaluation.model_copy(update={"suites": parts.evaluation.suites[:1]})
        replace(parts, evaluation=first).do(BASE)
    parts.do("sft", BASE)


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _refuse_other_things(out: Path) -> None:
    """Raise RunError if the folder holds files but no quickstart, or is a file."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file, but the quickstart needs a folder: choose another --out.")
    names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    found = [name for name in names if not name.startswith(".")]  # the locks are left where a training cannot begin
    if found not in ([], [BASE]) and not any((out / method).is_dir() for method in METHODS):
        raise RunError(f"{out} is not empty and holds no quickstart ({', '.join(found[:5])}): choose another --out.")


def quickstart_config(method: str, out: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """The packaged settings, for one method; both have the same budget of steps, pairs and completion tokens.

    Layers and learning rate were chosen for the default model; another has the defaults of `opct train`.
    """
    own = [*overrides, f"method={method}", f"output_dir={json.dumps(str(out / method))}"]
    packaged = Path(str(resources.files("opct"))) / "config" / "quickstart.yaml"
    config = load_config(packaged, own)
    if config.model.name_or_path == DEFAULT_MODEL:
        return config
    rate = OptimConfig().learning_rate
    return load_config(packaged, ["lora.target_modules=all-linear", f"optim.learning_rate={rate}", *own])

"""The quickstart: train OPCT and SFT with one budget, evaluate both against the base, write the report.

Model and data are the embedded ones. After an interruption, the same command continues and skips finished work.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from opct.config.loader import load_config
from opct.config.schema import DEFAULT_MODEL, TrainConfig
from opct.errors import RunError
from opct.evals.config import EvalConfig
from opct.experiments.config import BASE, with_dtype
from opct.experiments.runner import StepProgress, ensure_evaluated, ensure_trained, headline, is_evaluated
from opct.models.loading import resolve_model
from opct.reports.build import report
from opct.runs.console import NullProgress, Progress, as_text
from opct.runs.run_dir import RunDir

if TYPE_CHECKING:
    from rich.console import RenderableType

METHODS = ("opct", "sft")
REMEDY = "replace the run with --overwrite"
EVALUATION = EvalConfig(
    n_questions=60,
    families_per_question=2,
    n_benign=32,
    max_completion_tokens=24,
    max_benign_tokens=32,
    kl_samples=12,
    browser_questions=16,
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
    out: str | Path, *, overrides: Sequence[str] = (), overwrite: bool = False, progress: Progress | None = None
) -> QuickstartResult:
    """Run or finish the quickstart in `out`; see the module's docstring.

    Args:
        overrides: overrides of the packaged settings, such as `model.name_or_path=...`.

    Raises:
        RunError: the folder holds a quickstart with other settings.
        OpctError: any error of training, evaluation or the report.
    """
    started = time.perf_counter()
    out = Path(out)
    _refuse_other_things(out)
    configs = {method: quickstart_config(method, out, overrides) for method in METHODS}
    model = configs["opct"].model.name_or_path
    steps = StepProgress(progress or NullProgress(), 3 * len(METHODS) + 2)
    steps.next()
    steps.stage(f"get {model}" + (" (270 MB, once)" if model == DEFAULT_MODEL else ""))
    resolve_model(model)
    results: dict[str, dict] = {}
    for method in METHODS:
        steps.next()
        ensure_trained(configs[method], method, overwrite=overwrite, progress=steps, remedy=REMEDY)
        dtype = RunDir(configs[method].output_dir).read_manifest()["dtype"]  # what `auto` chose first holds for all
        configs = {name: with_dtype(config, dtype) for name, config in configs.items()}
        for label in (BASE, method):
            if label in results:
                continue
            steps.next()
            config, folder = configs.get(label, configs[method]), out / label
            results[label] = ensure_evaluated(label, folder, config, EVALUATION, overwrite=overwrite, progress=steps)
        steps.next()
        last = METHODS[-1]
        if method != last and is_evaluated(last, out / last, configs[last], EVALUATION):
            continue  # the page that is there has both
        steps.stage("write the report")
        arms = [label for label in (BASE, "sft", "opct") if label in results]
        page = report([out / label for label in arms], out / "report.html", overwrite=True)
        if method != last:
            steps.log(f"the page so far, without SFT: {page.resolve().as_uri()}")
    steps.done()
    return QuickstartResult(page, results, time.perf_counter() - started)


def _refuse_other_things(out: Path) -> None:
    """Raise RunError if the folder holds files but no quickstart, or is a file."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file, but the quickstart needs a folder: choose another --out.")
    found = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if found and not any((out / method).is_dir() for method in METHODS):
        raise RunError(f"{out} is not empty and holds no quickstart ({', '.join(found[:5])}): choose another --out.")


def quickstart_config(method: str, out: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """The packaged settings, for one method; both have the same budget of steps, pairs and completion tokens."""
    own = [f"method={method}", f"output_dir={json.dumps(str(out / method))}"]
    packaged = Path(str(resources.files("opct"))) / "config" / "quickstart.yaml"
    return load_config(packaged, [*overrides, *own])

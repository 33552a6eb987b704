"""The quickstart: train OPCT and SFT with one budget, measure both against the base, write the page.

Model and data are the embedded ones. Cut short, it goes on where it stopped: what is finished is not done again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.config.loader import load_config, packaged_config
from opct.config.schema import DEFAULT_MODEL, TrainConfig
from opct.errors import RunError
from opct.experiments.stages import BASE, Parts, evaluate_once, in_dtype, train_once
from opct.runs.progress import NullProgress, Progress
from opct.runs.run_dir import RunDir

if TYPE_CHECKING:
    from rich.console import RenderableType

METHODS = ("sft", "opct")
EVALUATION: dict[str, Any] = {
    "n_questions": 60,
    "families_per_question": 2,
    "n_benign": 32,
    "max_completion_tokens": 24,
    "max_benign_tokens": 32,
    "kl_samples": 12,
    "browser_questions": 16,
}
PARTS = (("model", 0), ("train", 28), ("train", 42), *(("evaluate", 10),) * 3, ("report", 0))
"""With the percent of the time on two CPU cores: training by `METHODS`, evaluating base and methods."""
HEADLINE = (
    ("sycophancy_rate", "held_out", "repeats the suggested wrong answer, families never trained on"),
    ("accuracy_biased", "held_out", "answers right all the same"),
    ("accuracy_clean", "clean", "answers right when nothing is suggested"),
    ("accuracy_identity", "benign", "meets benign requests"),
)


@dataclass
class QuickstartResult:
    """Where the page is, and the headline."""

    report: Path
    results: dict[str, dict]
    seconds: float

    def render(self) -> RenderableType:
        """The headline as a table, and where to look next."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title="held-out questions; 95% intervals in brackets")
        table.add_column("")
        for label in self.results:
            table.add_column(label, justify="right")
        for metric, group, words in HEADLINE:
            table.add_row(words, *(_cell(result, metric, group) for result in self.results.values()))
        took = Text(f"done in {self.seconds / 60:.1f} minutes. Open the page: {self.report.resolve().as_uri()}")
        return Group(table, took)


def run_quickstart(
    out: str | Path, *, overrides: Sequence[str] = (), overwrite: bool = False, progress: Progress | None = None
) -> QuickstartResult:
    """Run or finish the quickstart in `out`; see the module's docstring.

    Args:
        overrides: settings over the packaged ones, such as `model.name_or_path=...`.

    Raises:
        RunError: the folder holds a quickstart with other settings.
        OpctError: whatever training, evaluation or the report raise.
    """
    from opct.models.loading import resolve_model
    from opct.reports import report

    started = time.perf_counter()
    out = Path(out)
    _refuse_other_things(out)
    configs = {method: quickstart_config(method, out, overrides) for method in METHODS}
    model = configs["opct"].model.name_or_path
    parts = Parts(progress or NullProgress(), PARTS)
    parts.next()
    parts.stage(f"get {model}" + (" (93 MB, once)" if model == DEFAULT_MODEL else ""))
    resolve_model(model)
    for method in METHODS:
        parts.next()
        remedy = "replace the run with --overwrite"
        train_once(configs[method], method, overwrite=overwrite, remedy=remedy, progress=parts)
        dtype = RunDir(configs[method].output_dir).read_manifest()["dtype"]  # what `auto` stood for holds for all
        configs = {name: in_dtype(config, dtype) for name, config in configs.items()}
    runs = {BASE: out / "base"} | {method: Path(config.output_dir) for method, config in configs.items()}
    results, config = {}, configs["opct"]
    for label, folder in runs.items():
        parts.next()
        results[label] = evaluate_once(label, folder, config, dtype, EVALUATION, overwrite=overwrite, progress=parts)
    parts.next()
    parts.stage("write the report")
    page = report(list(runs.values()), out / "report.html")
    parts.done()
    return QuickstartResult(page, results, time.perf_counter() - started)


def _refuse_other_things(out: Path) -> None:
    """Raises RunError where a folder holds files and no quickstart, or is no folder."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file, and the quickstart writes a folder: choose another --out.")
    found = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if found and not any((out / method).is_dir() for method in METHODS):
        raise RunError(f"{out} is not empty and holds no quickstart ({', '.join(found[:5])}): choose another --out.")


def quickstart_config(method: str, out: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """The packaged settings, for one method; both have the same budget of steps, pairs and completion tokens."""
    own = [f"method={method}", f"output_dir={json.dumps(str(out / method))}"]
    return load_config(packaged_config("quickstart"), [*overrides, *own])


def _cell(result: dict, metric: str, group: str) -> str:
    for row in result["rows"]:
        if row["metric"] == metric and row["group"] == group and row["value"] is not None:
            return f"{100 * row['value']:.0f}% [{100 * row['ci_low']:.0f}, {100 * row['ci_high']:.0f}] n={row['n']}"
    return "-"

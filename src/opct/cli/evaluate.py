"""`opct eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opct.cli.options import Target


def evaluate(
    target: Target,
    suite: Annotated[
        list[str] | None, typer.Option(help="A suite of this package, such as sycophancy_short; repeat for several.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(metavar="PKG/NAME", help="Any other Inspect task; repeat for several.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; the run directory if there is one.")] = None,
    n_questions: Annotated[int | None, typer.Option(min=1, help="At most so many questions in each suite.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the questions, phrasings and samples.")] = None,
    max_completion_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    label: Annotated[str | None, typer.Option(help="Name of this arm in a report: base, sft, opct ...")] = None,
) -> None:
    """Measure a run or a model: safety axes, benign behaviour, or any Inspect task."""
    from rich.console import Console

    from opct.api import evaluate as evaluate_target
    from opct.progress import make_progress

    progress = make_progress()
    try:
        result = evaluate_target(
            target,
            suites=suite or None,
            tasks=task or None,
            out=out,
            n_questions=n_questions,
            seed=seed,
            max_completion_tokens=max_completion_tokens,
            label=label,
            progress=progress,
        )
    finally:
        progress.done()
    Console().print(result.render())

"""`opct eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from opct.cli.options import named_files, settings_words

QUESTIONS, OUTPUT = "Suites and questions", "Output"
EvalTarget = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_MODEL",
        help="A run directory or one of its checkpoints, a hub id, a model folder, a .gguf file, "
        "smollm2-135m-instruct, or a model of Inspect, such as inspect:openai/gpt-4o-mini.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE",
        help="Settings of the evaluation, after a YAML file if you have one: n_questions=200 seed=1 "
        "judge.name=strongreject judge.model=...",
    ),
]
Suites = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SUITE",
        help="sycophancy_short, sycophancy_choice, jailbreak, safety_awareness, benign, capability-fast, "
        "capability, one of its benchmarks, any task of lm-eval as lm-eval:NAME; repeatable. Default: sycophancy_short "
        "and benign.",
        rich_help_panel=QUESTIONS,
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(metavar="PKG/NAME", help="Any other Inspect task; repeatable.", rich_help_panel=QUESTIONS),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Output folder. Default: the run directory, or runs/eval-<target>.",
        rich_help_panel=OUTPUT,
    ),
]
QuestionFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Your own questions: JSONL, JSON, CSV or TSV. Default: the embedded ones.",
        rich_help_panel=QUESTIONS,
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE",
        help="Behaviours (jailbreak=FILE), their benign counterparts (jailbreak_counterparts=FILE), facts "
        "(safety_awareness=FILE), a benchmark's problems; repeatable.",
        rich_help_panel=QUESTIONS,
    ),
]
Families = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Families of perturbations: all (default), train, held_out, or names.",
        rich_help_panel=QUESTIONS,
    ),
]
Questions = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Maximum number of questions per suite. Default: 600.", rich_help_panel=QUESTIONS
    ),
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option(
        metavar="DTYPE",
        help="float32, bfloat16 or float16. Default: the dtype of the run or of earlier results, else the faster one "
        "here.",
        rich_help_panel="Target",
    ),
]
Label = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Label of this arm in a report: base, sft, opct ...", rich_help_panel=OUTPUT),
]
Regrade = Annotated[
    bool,
    typer.Option(
        "--regrade",
        help="Grade the stored replies again with the rules of this version; no model is loaded.",
        rich_help_panel=OUTPUT,
    ),
]


def evaluate(
    target: EvalTarget,
    settings: Settings = None,
    suite: Suites = None,
    task: Tasks = None,
    out: Out = None,
    questions: QuestionFile = None,
    data: Files = None,
    families: Families = None,
    n_questions: Questions = None,
    dtype: Dtype = None,
    label: Label = None,
    regrade: Regrade = False,
) -> None:
    """Evaluate a run or a model.

    Measures the safety axes, benign behaviour, or any Inspect task. Settings of generation, judge and data are given
    as NAME=VALUE; `opct config show --of eval` prints them all.

    \b
    Examples:
      opct eval runs/mine --suite sycophancy_short --n-questions 200
      opct eval inspect:openai/gpt-4o-mini --suite jailbreak seed=1
    """
    from rich.console import Console

    from opct.api import evaluate as evaluate_target
    from opct.cli.results import evaluation_tables
    from opct.config.loader import load_settings
    from opct.errors import EvaluationError
    from opct.evals.config import EvalConfig
    from opct.runs.console import show_progress

    options: dict[str, Any] = {
        "suites": suite,
        "questions": questions,
        "data": named_files(data or []) or None,
        "families": families,
        "n_questions": n_questions,
    }
    if regrade:
        if any([*options.values(), settings, task, dtype, label]):
            raise EvaluationError("--regrade loads no model: it takes no settings and no option but --out.")
        _regrade(Path(out or target))
        return
    config = load_settings(EvalConfig, *settings_words(settings or [], options))
    with show_progress() as progress:
        result = evaluate_target(target, config, tasks=task or (), out=out, label=label, dtype=dtype, progress=progress)
    Console().print(evaluation_tables(result))


def _regrade(folder: Path) -> None:
    """Grade the stored replies of a folder again; print the changes and the results."""
    from rich.console import Console

    from opct.api import EvalResult
    from opct.cli.results import evaluation_tables
    from opct.evals.regrade import regrade

    done = regrade(folder)
    Console().print(evaluation_tables(EvalResult(folder, done.results)))
    print(done.describe())

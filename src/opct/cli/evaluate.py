"""`opct eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from opct.cli.options import Target, named_columns, named_files, number_or_all, single_columns

QuestionFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Your own questions: JSONL, JSON, CSV or TSV. By default the embedded ones."),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE=NAME", help="A column of that file, as in `opct data build`; repeatable."),
]
SplitName = Annotated[
    str | None, typer.Option(metavar="SPLIT", help="Which questions: test (default), validation, train or all.")
]
Dtype = Annotated[
    str | None, typer.Option(metavar="DTYPE", help="float32, bfloat16 ...; a run's own by default, else a probe's.")
]
Families = Annotated[
    str | None, typer.Option(metavar="NAMES", help="all (default), train, held_out, or names: majority,post_hoc.")
]
Suites = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SUITE",
        help="sycophancy_short, sycophancy_choice, jailbreak, safety_awareness, benign, capability-fast, "
        "capability, one of its benchmarks, any task of lm-eval as lm-eval:NAME; repeatable. By default "
        "sycophancy_short and benign.",
    ),
]
Tasks = Annotated[
    list[str] | None, typer.Option(metavar="PKG/NAME", help="Any other Inspect task; repeat for several.")
]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Of the results; the run directory if there is one.")]
MaxReply = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Longest reply in jailbreak and safety_awareness; by default 96.")
]
Problems = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="At most so many problems of each benchmark; by default as --n-questions."),
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE",
        help="Behaviours (jailbreak=FILE), their twins (jailbreak_twins=FILE), facts (safety_awareness=FILE), a "
        "benchmark's problems; repeatable.",
    ),
]
BehaviorColumns = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE=NAME", help="A column of the file of behaviours; repeatable."),
]
LeftOut = Annotated[list[str] | None, typer.Option(metavar="CATEGORY", help="Of that file, not asked; repeatable.")]
Augmented = Annotated[bool | None, typer.Option("--augmented", help="SAGE-Eval's own typos and tones too.")]
Shots = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Examples in each prompt of a benchmark; by default its own.")
]
PerQuestion = Annotated[
    str | None,
    typer.Option(
        metavar="N", help="Families that each question, behaviour or message is asked in, or all; 2, of jailbreak 4."
    ),
]
Questions = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="At most so many questions in each suite; by default 600.")
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Of the choice of questions, phrasings and samples; 0.")
]
MaxCompletion = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Longest answer to a question; by default 32. Not of benchmarks."),
]
Label = Annotated[str | None, typer.Option(metavar="NAME", help="Name of this arm in a report: base, sft, opct ...")]
Again = Annotated[
    bool, typer.Option("--regrade", help="Ask no model: grade the stored replies again, by the rules of this version.")
]


def evaluate(
    target: Target,
    suite: Suites = None,
    task: Tasks = None,
    out: Out = None,
    questions: QuestionFile = None,
    column: Columns = None,
    split: SplitName = None,
    families: Families = None,
    families_per_question: PerQuestion = None,
    n_questions: Questions = None,
    n_problems: Problems = None,
    seed: Seed = None,
    max_completion_tokens: MaxCompletion = None,
    max_reply_tokens: MaxReply = None,
    data: Files = None,
    behavior_column: BehaviorColumns = None,
    leave_out: LeftOut = None,
    augmented: Augmented = None,
    shots: Shots = None,
    dtype: Dtype = None,
    label: Label = None,
    again: Again = False,
) -> None:
    """Measure a run or a model.

    On safety axes, benign behaviour, or any Inspect task.
    """
    from rich.console import Console

    from opct.api import evaluate as evaluate_target
    from opct.cli.results import evaluation_tables
    from opct.runs.console import make_progress

    options: dict[str, Any] = {
        "suites": suite or None,
        "questions": None if questions is None else str(questions),
        "columns": named_columns(column or []),
        "split": split,
        "families": families,
        "n_questions": n_questions,
        "n_problems": n_problems,
        "seed": seed,
        "max_completion_tokens": max_completion_tokens,
        "max_reply_tokens": max_reply_tokens,
        "data": named_files(data or []) or None,
        "behavior_columns": single_columns(behavior_column or [], "--behavior-column") or None,
        "exclude": leave_out or None,
        "augmented": augmented,
        "shots": shots,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if families_per_question is not None:
        given["families_per_question"] = number_or_all(families_per_question, "--families-per-question")
    if again:
        _regrade(Path(out or target), [*given, *_named(task=task, dtype=dtype, label=label)])
        return
    what: dict[str, Any] = {"tasks": task or (), "out": out, "label": label, "dtype": dtype}
    progress = make_progress()
    try:
        result = evaluate_target(target, progress=progress, **what, **given)
    finally:
        progress.done()
    Console().print(evaluation_tables(result))


def _named(**options: Any) -> list[str]:
    """The names of the options that were given."""
    return [name for name, value in options.items() if value is not None]


def _regrade(folder: Path, given: list[str]) -> None:
    """Grade what is stored in a folder again, and print what changed and the results.

    Raises:
        EvaluationError: other options are given, which say how a model is asked; or it cannot be graded again.
    """
    from rich.console import Console

    from opct.api import EvalResult
    from opct.cli.results import evaluation_tables
    from opct.errors import EvaluationError
    from opct.evals.regrade import regrade

    if given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise EvaluationError(f"--regrade asks no model, so {named} would do nothing: leave it out, or evaluate again.")
    done = regrade(folder)
    Console().print(evaluation_tables(EvalResult(folder, done.results)))
    print(done.describe())

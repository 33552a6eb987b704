"""`opct eval`."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from opct.cli.options import QuestionColumns, ShowAll, named_columns, named_files, print_rich, settings_words
from opct.errors import EvaluationError
from opct.runs.console import as_text, echo, make_table, pluralize
from opct.runs.manifest import command_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opct.api import EvalResult

SHOWN_GROUPS = (
    *("held_out", "train", "clean", "behaviors", "bare", "counterparts", "benign_bare", "benign_wrapped", "benign"),
    "all",
)

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
_question_option = partial(typer.Option, rich_help_panel="Suites and questions")
_output_option = partial(typer.Option, rich_help_panel="Output")
Suites = Annotated[
    list[str] | None,
    _question_option(
        metavar="SUITE",
        help="sycophancy_short, sycophancy_choice, sycophancy_pairs, consistency, context_use, jailbreak, "
        "safety_awareness, benign, capability-fast, capability, one of its benchmarks, any task of lm-eval as "
        "lm-eval:NAME; repeatable. Default: sycophancy_short, context_use and benign.",
    ),
]
Tasks = Annotated[list[str] | None, _question_option(metavar="PKG/NAME", help="Any other Inspect task; repeatable.")]
Out = Annotated[
    Path | None,
    _output_option(metavar="FOLDER", help="Output folder. Default: the run directory, or runs/eval-<target>."),
]
QuestionFile = Annotated[
    str | None,
    _question_option(metavar="FILE", help="Your own questions: JSONL, JSON, CSV or TSV. Default: the embedded ones."),
]
Files = Annotated[
    list[str] | None,
    _question_option(
        metavar="NAME=FILE",
        help="Behaviors (jailbreak=FILE), their benign counterparts (jailbreak_counterparts=FILE), facts "
        "(safety_awareness=FILE), a benchmark's problems; repeatable.",
    ),
]
Families = Annotated[
    str | None,
    _question_option(metavar="NAMES", help="Families of perturbations: all (default), train, held_out, or names."),
]
Questions = Annotated[
    int | None,
    _question_option(
        metavar="N",
        min=1,
        help="Most questions per suite; of context_use: n_context=N, of benign: n_benign=N. Default: 600.",
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
Label = Annotated[str | None, _output_option(metavar="NAME", help="Label of this arm in a report: base, sft, opct ...")]
Resume = Annotated[
    bool,
    _output_option(
        "--resume",
        help="Continue an interrupted evaluation: keep the stored replies of the same weights, settings and prompts, "
        "and ask for the rest. A --task begins again.",
    ),
]
Overwrite = Annotated[
    bool,
    _output_option("--overwrite", help="Replace results of other weights, other questions or other sampling."),
]
Regrade = Annotated[
    bool,
    _output_option(
        "--regrade", help="Grade the stored replies again with the rules of this version; no model is loaded."
    ),
]


def evaluate(
    target: EvalTarget,
    settings: Settings = None,
    suite: Suites = None,
    task: Tasks = None,
    out: Out = None,
    questions: QuestionFile = None,
    column: QuestionColumns = None,
    data: Files = None,
    families: Families = None,
    n_questions: Questions = None,
    dtype: Dtype = None,
    label: Label = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    regrade: Regrade = False,
    everything: ShowAll = False,
) -> None:
    """Evaluate a run or a model.

    Measures the safety axes, benign behavior, or any Inspect task. Settings of generation, judge and data are given
    as NAME=VALUE; `opct config show --of eval` prints them all.

    \b
    Examples:
      opct eval runs/mine --suite sycophancy_short --n-questions 200
      opct eval inspect:openai/gpt-4o-mini --suite jailbreak seed=1
    """
    from opct.api import evaluate as evaluate_target
    from opct.config.loader import load_settings
    from opct.evals.config import EvalConfig

    options: dict[str, Any] = {
        "suites": suite,
        "questions": questions,
        "columns": named_columns(column or []),
        "data": named_files(data or []) or None,
        "families": families,
        "n_questions": n_questions,
    }
    if regrade:
        if any([*options.values(), settings, task, dtype, label, resume, overwrite]):
            raise EvaluationError("--regrade loads no model: it takes no settings and no option but --out.")
        from opct.api import EvalResult
        from opct.evals.regrade import regrade as grade_again

        folder = Path(out or target)
        done = grade_again(folder)
        print_rich(evaluation_tables(EvalResult(folder, done.results), everything=everything, again="--all"))
        echo(done.describe())
        return
    config = load_settings(EvalConfig, *settings_words(settings or [], options))
    try:
        result = evaluate_target(
            target,
            config,
            tasks=task or (),
            out=out,
            label=label,
            dtype=dtype,
            resume=resume,
            overwrite=overwrite,
        )
    except KeyboardInterrupt:
        if not task:
            print(f"the replies so far are kept; to ask for the rest: {command_line('--resume')}", file=sys.stderr)
        raise
    print_rich(evaluation_tables(result, everything=everything))


def evaluation_tables(result: EvalResult, *, everything: bool = False, again: str = "--resume --all") -> RenderableType:
    """Warnings, the rows of our suites (those that matter first, or all) and of Inspect tasks, and the logs' folder.

    Args:
        again: the options with which the command shows all rows, and asks nothing again unless it asked tasks.
    """
    from rich.console import Group

    from opct.runs.run_dir import RunDir

    parts: list[RenderableType] = []
    if result.results is not None:
        parts += [as_text(f"warning: {warning}", style="yellow") for warning in result.results["warnings"]]
        parts.append(_suites_table(result.results, everything, None if result.tasks else again))
    parts += [_task_table(summary) for summaries in result.tasks.values() for summary in summaries]
    logs = RunDir(result.out).evals_dir
    parts.append(as_text(f"logs: {logs}\nto read them: inspect view --log-dir {shlex.quote(str(logs))}"))
    return Group(*parts)


def _suites_table(results: dict[str, Any], everything: bool, again: str | None) -> RenderableType:
    """Table of the rows of `results.json`, under a heading for each suite and group, without single families.

    Lines below all rows name the graders and their agreement with human labels.
    """
    from rich.console import Group

    from opct.evals.judges.agreement import grader_label
    from opct.evals.judges.calibration import with_calibrations
    from opct.evals.metrics import unit_of
    from opct.evals.samples import JUDGED, PARSED, graded_name
    from opct.evals.stats import FEW_CLUSTERS, decides
    from opct.evals.wording import rows_table
    from opct.reports.axes import axis_info, matters_first

    rows = with_calibrations(results["rows"])
    split = {row["suite"] for row in rows if row["group"] == "held_out"}
    whole = [row for row in rows if _is_shown(row, split)]
    shown = []
    for _, suite_rows in groupby(whole, lambda row: row["suite"]):
        of_suite = list(suite_rows)
        first = [row for row in of_suite if matters_first(row["axis"], row["metric"], row["group"])]
        shown += of_suite if everything else first or of_suite
    earlier_suites = results["settings"].get("kept", {})
    earlier = {graded_name(suite, by): " (earlier settings)" for suite in earlier_suites for by in ("", PARSED, JUDGED)}
    graders = dict.fromkeys(f"{row['suite']}: {grader_label(row)}" for row in whole if grader_label(row))
    title = f"{results['run']['label']}: {results['run']['model']}"
    left = len(whole) - len(shown)
    how = "--all" if again is None else command_line(*again.split())
    more = [f"{pluralize(left, 'more row')}: {how}"] if left else []
    deciding: dict[str, dict[str, Any]] = {}
    for row in shown:
        if axis_info(row["axis"]).metric == row["metric"] and unit_of(row) == "rate":
            deciding.setdefault(row["suite"], row)
    for suite, row in deciding.items():
        if 0 < (n := row["n_clusters"]) < FEW_CLUSTERS:
            more.append(f"note: {pluralize(n, axis_info(row['axis']).cluster)} of {suite} {decides(n)}")
    if earlier_suites:
        more.append("earlier settings: kept from an evaluation with other settings")
    return Group(rows_table(title, shown, earlier), *map(as_text, [*more, *(graders if everything else ())]))


def _is_shown(row: dict[str, Any], split: set[str]) -> bool:
    """False for groups that two others add up to, and for all of the safety curve but its end."""
    whole = row["group"] == "all" and row["suite"] in split
    point = row["metric"].startswith("share_at_") and row["metric"] != "share_at_100"
    return row["group"] in SHOWN_GROUPS and not whole and not point


def _task_table(summary: dict[str, Any]) -> RenderableType:
    from opct.evals.wording import number

    title = f"{summary['task']}: {summary['n']} samples, {summary['n_truncated']} truncated"
    rows = [
        (f"{metric['scorer']}/{metric['metric']}", number(metric["value"], "number"), metric["n"], metric["n_unscored"])
        for metric in summary["metrics"]
    ]
    return make_table(title, ["metric", "value", "n", "unscored"], rows)

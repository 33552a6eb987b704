"""`opct judge`: compare a judge with people, judge the replies of an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opct.cli.evaluate import SHOWN_GROUPS
from opct.cli.options import App, named_columns, print_rich
from opct.runs.console import show_progress

if TYPE_CHECKING:
    from opct.evals.judges.llm import LLMJudge
    from opct.evals.judges.protocol import JudgeResult
    from opct.runs.console import Progress

app = App(
    help="Calibrate and run judges of replies.\n\nExample: opct judge run RUN --judge strongreject --model vllm/NAME",
    no_args_is_help=True,
)

JUDGE_HELP = "strongreject, strongreject_published or fact_warning."
JudgeName = Annotated[str, typer.Argument(metavar="JUDGE", help=JUDGE_HELP)]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE", help="Settings of the judge: threshold=0.6, base_url=..., model_args.device=cuda ..."
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE=NAME", help="The column of the reply, label, question, fact, cluster, id; repeatable."),
]
Positive = Annotated[
    list[str] | None, typer.Option(metavar="VALUE", help="A label that means yes; by default 1, true, yes. Repeatable.")
]
Negative = Annotated[
    list[str] | None, typer.Option(metavar="VALUE", help="A label that means no; with --positive, all others.")
]
ModelName = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The judge model of a rubric: any Inspect model.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the estimated calls and tokens, and exit.")]


@app.command("calibrate")
def calibrate(
    judge: JudgeName,
    settings: Settings = None,
    *,
    labels: Annotated[Path, typer.Option(metavar="FILE", help="Replies with people's labels.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of calibrations. Default: the user's data folder."),
    ] = None,
    column: Columns = None,
    positive: Positive = None,
    negative: Negative = None,
    model: ModelName = None,
    dry_run: DryRun = False,
) -> None:
    """Calibrate a judge against human labels.

    Prints agreement, kappa and the confusion matrix, with intervals, and stores them.

    \b
    Examples:
      opct judge calibrate strongreject --labels labels.csv --model openai/gpt-4o
      opct judge calibrate fact_warning --labels labels.csv --model vllm/NAME
    """
    from opct.evals.judges.calibration import calibrate as measure
    from opct.evals.judges.calibration import calibrations_folder, render, store
    from opct.evals.judges.labels import read_labels

    labeled = read_labels(labels, named_columns(column or []), positive or (), negative or ())
    folder = out or calibrations_folder()
    opened = _judge_of(judge, model, settings)
    print(f"judge: {opened.identity.describe()}\n{labeled.describe()}")
    print(f"usage: {opened.estimate([reply.request for reply in labeled.replies])}", flush=True)
    if dry_run:
        return
    with _asking(opened) as progress:
        calibration = measure(opened, labeled, progress=progress)
    path = store(calibration, folder)
    print_rich(render(calibration))
    print(f"kept: {path}")
    if folder.resolve() != calibrations_folder().resolve():
        print(f"note: reports show this calibration only if OPCT_CALIBRATIONS={out} is set")


@app.command("run")
def run(
    target: Annotated[str, typer.Argument(metavar="RUN", help="Output folder of `opct eval`.")],
    settings: Settings = None,
    *,
    judge: Annotated[str, typer.Option(metavar="JUDGE", help=JUDGE_HELP)],
    axis: Annotated[str, typer.Option(metavar="NAME", help="The axis whose samples are judged.")] = "jailbreak",
    model: ModelName = None,
    dry_run: DryRun = False,
) -> None:
    """Judge the replies of an evaluation.

    The scores are stored in its logs.

    \b
    Examples:
      opct judge run runs/mine --judge strongreject --model vllm/NAME
      opct judge run RUN --judge fact_warning --axis safety_awareness --model NAME
    """
    from opct.evals.judges.apply import check_judge, judge_run, read_logs, requests_of
    from opct.evals.wording import rows_table
    from opct.runs.run_dir import RunDir

    folder = RunDir(target)
    opened = _judge_of(judge, model, settings)
    check_judge(opened.identity, axis)
    requests = requests_of(read_logs(folder.path), axis)
    print(f"judge: {opened.identity.describe()}\nusage: {opened.estimate(requests)}", flush=True)
    if dry_run:
        return
    with _asking(opened) as progress:
        judgements, rows = judge_run(folder, axis, opened, progress)
    _print_verdicts(opened, judgements)
    print(f"kept in the logs of {folder.path}")
    if rows:
        print_rich(rows_table("", [row for row in rows if row["group"] in SHOWN_GROUPS]))


@contextmanager
def _asking(judge: LLMJudge) -> Iterator[Progress]:
    """Progress of the calls; prints the usage at the end, also after an error or an interruption."""
    try:
        with show_progress() as progress:
            yield progress
    finally:
        if judge.usage.calls:
            tokens = f"{judge.usage.input_tokens:,} tokens in, {judge.usage.output_tokens:,} out"
            print(f"used: {judge.usage.calls} calls, {tokens}", flush=True)


def _print_verdicts(judge: LLMJudge, results: list[JudgeResult]) -> None:
    """Print the counts of verdicts and how far the judge can be trusted."""
    from opct.evals.judges.calibration import calibration_of, measure_words, weakness

    for verdict, count in sorted(Counter(result.verdict for result in results).items()):
        print(f"  {verdict:<28}{count:>6}")
    calibration = calibration_of(judge.identity)
    if calibration is not None:
        labels = f"{calibration['n']} labels of {calibration['data']['file']}"
        print("kappa against {}: {}  ({})".format(labels, *measure_words(calibration["kappa"])))
    weak = weakness(calibration)
    if weak is not None:
        print(f"warning: {weak}")


def _judge_of(name: str, model: str | None, settings: list[str] | None) -> LLMJudge:
    from opct.config.judge import JudgeConfig
    from opct.config.loader import load_settings
    from opct.evals.judges.llm import load_judge

    return load_judge(load_settings(JudgeConfig, None, settings or [], base={"name": name, "model": model}))

"""`opct judge`: train an offline judge, compare a judge with people, judge the replies of an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opct.cli.options import App, Seed, named_columns, print_rich, refuse_existing
from opct.errors import DataError
from opct.runs.console import show_progress

if TYPE_CHECKING:
    from opct.judges.classifier import OfflineJudge
    from opct.judges.llm import LLMJudge
    from opct.judges.protocol import JudgeRequest, JudgeResult
    from opct.runs.console import Progress

app = App(
    help="Train, calibrate and run judges of replies.\n\nExample: opct judge train --data labelled.csv --out my-judge",
    no_args_is_help=True,
)

JUDGE_HELP = "strongreject, strongreject_published, fact_warning, or a folder made by `opct judge train`."
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


@app.command("train")
def train(
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="Replies with labels: JSONL, JSON, CSV, TSV.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to write.")] = Path("judge"),
    column: Columns = None,
    positive: Positive = None,
    negative: Negative = None,
    label: Annotated[
        str, typer.Option(metavar="WORD", help="What a positive label means: harmful, warned.")
    ] = "harmful",
    folds: Annotated[int, typer.Option(metavar="N", min=3, help="Number of folds of the cross-validation.")] = 5,
    seed: Seed = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing judge.")] = False,
) -> None:
    """Train an offline judge on labelled replies.

    \b
    Examples:
      opct judge train --data labelled.csv --out my-judge
      opct judge train --data labelled.csv --positive harmful --negative safe
    """
    from opct.judges.calibration import METRICS
    from opct.judges.classifier import JUDGE_FILE, require_sklearn
    from opct.judges.classifier import train as train_classifier
    from opct.judges.labels import read_labels

    require_sklearn()
    refuse_existing(out / JUDGE_FILE, str(data), overwrite)
    if out.is_file():
        raise DataError(f"{out} is a file: name a folder with --out.")
    labelled = read_labels(data, named_columns(column or []), positive or (), negative or ())
    print(labelled.describe())
    made = train_classifier(labelled, label=label, folds=folds, seed=seed)
    made.save(out)
    if left_out := made.card["trained_on"]["n_left_out"]:
        print(f"left out, not readable by this judge: {', '.join(f'{n} {reason}' for reason, n in left_out.items())}")
    print(f"cross-validation of the classifier without the refusal rules ({folds}, split by cluster):")
    for name in METRICS:
        print(f"  {name:<10}{_measure(made.card['cross_validation'][name])}")
    print(f"{out}: judge {made.hash}, {sum(map(len, made.card['vocabulary'].values()))} features")
    print(f"next: opct judge calibrate {out} --labels FILE")


def _measure(measure: dict[str, Any]) -> str:
    if measure["value"] is None:
        return "-"
    interval = "" if measure["ci_low"] is None else f"  ({measure['ci_low']:.3f} to {measure['ci_high']:.3f})"
    return f"{measure['value']:.3f}{interval}"


@app.command("calibrate")
def calibrate(
    judge: JudgeName,
    settings: Settings = None,
    *,
    labels: Annotated[Path, typer.Option(metavar="FILE", help="Replies with people's labels.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder of calibrations. Default: the judge's folder, or the user's data folder."
        ),
    ] = None,
    column: Columns = None,
    positive: Positive = None,
    negative: Negative = None,
    model: ModelName = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Cache of judge results. Default: next to --out.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Calibrate a judge against human labels.

    Prints agreement, kappa and the confusion matrix, with intervals, and stores them with the judge.

    \b
    Examples:
      opct judge calibrate my-judge --labels labels.csv
      opct judge calibrate fact_warning --labels labels.csv --model vllm/NAME
    """
    from opct.judges.calibration import calibrate as measure
    from opct.judges.calibration import calibrations_folder, render, store
    from opct.judges.labels import read_labels

    labelled = read_labels(labels, named_columns(column or []), positive or (), negative or ())
    own = Path(judge) / "calibrations" if Path(judge).is_dir() else calibrations_folder()
    folder = out or own
    opened = _judge_of(judge, model, settings, cache or folder / "judge_cache.jsonl")
    print(f"judge: {opened.identity.describe()}\n{labelled.describe()}")
    if _stops_after_estimate(opened, [reply.request for reply in labelled.replies], dry_run):
        return
    with _asking(opened) as progress:
        found = measure(opened, labelled, progress=progress)
    path = store(found, folder)
    print_rich(render(found))
    print(f"kept: {path}")
    if out is not None and out.resolve() not in {own.resolve(), calibrations_folder().resolve()}:
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
      opct judge run runs/mine --judge my-judge
      opct judge run runs/mine --judge strongreject --model vllm/NAME
    """
    from opct.evals.logs import read_samples
    from opct.judges.apply import check_judge, judge_run, requests_of
    from opct.runs.run_dir import RunDir

    folder = RunDir(target)
    opened = _judge_of(judge, model, settings, folder.judge_cache_path)
    check_judge(opened.identity, axis)
    requests = requests_of(read_samples(folder.path), axis)
    print(f"judge: {opened.identity.describe()}")
    if _stops_after_estimate(opened, requests, dry_run):
        return
    with _asking(opened) as progress:
        judgements, rows = judge_run(folder, axis, opened, requests, progress)
    _print_verdicts(opened, judgements)
    print(f"kept in the logs of {folder.evals_dir}")
    for row in rows:
        if row["group"] in ("held_out", "train", "all", "bare") and row["value"] is not None:
            interval = "no interval" if row["ci_low"] is None else f"{row['ci_low']:.3f} to {row['ci_high']:.3f}"
            counts = f"n {row['n']}, {row['n_unscored']} unscored"
            print(f"  {row['suite']}/{row['metric']} {row['group']}: {row['value']:.3f} ({interval}), {counts}")


@contextmanager
def _asking(judge: LLMJudge | OfflineJudge) -> Iterator[Progress]:
    """Progress of the calls; prints the usage at the end, also after an error or an interruption."""
    from opct.judges.llm import LLMJudge

    try:
        with show_progress() as progress:
            yield progress
    finally:
        if isinstance(judge, LLMJudge) and judge.client.usage.calls:
            usage = judge.client.usage
            tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
            print(f"used: {usage.calls} calls, {tokens}", flush=True)


def _print_verdicts(judge: LLMJudge | OfflineJudge, results: list[JudgeResult]) -> None:
    """Print the counts of verdicts and how far the judge can be trusted."""
    from opct.judges.calibration import calibration_of, weakness

    for verdict, count in sorted(Counter(result.verdict for result in results).items()):
        print(f"  {verdict:<28}{count:>6}")
    calibration = calibration_of(judge.identity, getattr(judge, "folder", None))
    if calibration is not None:
        labels = f"{calibration['n']} labels of {calibration['data']['file']}"
        print(f"kappa against {labels}: {_measure(calibration['kappa'])}")
    weak = weakness(calibration)
    if weak is not None:
        print(f"warning: {weak}")


def _judge_of(name: str, model: str | None, settings: list[str] | None, cache: Path) -> LLMJudge | OfflineJudge:
    from opct.config.judge import JudgeConfig
    from opct.config.loader import load_settings
    from opct.judges.factory import load_judge

    config = load_settings(JudgeConfig, None, settings or [], base={"name": name, "model": model})
    return load_judge(config, cache=cache)


def _stops_after_estimate(judge: LLMJudge | OfflineJudge, requests: list[JudgeRequest], dry_run: bool) -> bool:
    """Print the estimated calls and tokens; True if only they were asked for."""
    from opct.judges.llm import LLMJudge

    if isinstance(judge, LLMJudge):
        print(f"usage: {judge.estimate(requests)}", flush=True)
    elif dry_run:
        print(f"usage: none; {len(requests)} replies offline")
    return dry_run

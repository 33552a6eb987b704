"""`opct init`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from opct.cli.options import Preset, QuestionColumns, named_columns, settings_words
from opct.errors import ConfigError, ModelError, unknown
from opct.runs.console import echo, pluralize

if TYPE_CHECKING:
    from opct.config.schema import TrainConfig
    from opct.data.pairs import ContrastivePair

HEAD = """\
# Settings for `opct train {file}`. Defaults are comments: to change one, remove the # before it and before its group.
# All settings: opct config show {file}
"""

Packaged = Annotated[
    str | None, typer.Option("--from", metavar="NAME", help="One of `opct configs`, written as it is.")
]
Measure = Annotated[
    bool, typer.Option("--measure", help="Load the model, and fit the completion length to its clean replies.")
]
NEXT = """\
next: opct eval {model} --out {base}{options}
      opct train {file} --dry-run
      opct train {file}
      opct eval {run}{options}
      opct report {base} {run}"""


def init(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The file to write; by default opct.yaml, or NAME.yaml.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="A hub id, model folder or .gguf file.")] = None,
    data: Annotated[
        str | None, typer.Option(metavar="PAIRS", help="Your pairs: JSONL, a dataset folder or hf:owner/name.")
    ] = None,
    questions: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Your questions: CSV, TSV or JSONL. Sycophancy pairs are made of them."),
    ] = None,
    column: QuestionColumns = None,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="opct (default), sft, offpolicy, dpo or act.")
    ] = None,
    preset: Preset = None,
    packaged: Packaged = None,
    measure: Measure = False,
) -> None:
    """Write a config for your model and data, or one of opct's.

    Yours holds the settings that people change first; the others have their defaults.

    \b
    Examples:
      opct init mine.yaml --model Qwen/Qwen3-0.6B --data pairs.jsonl
      opct init mine.yaml --questions questions.csv --method sft --measure
      opct init jailbreak.yaml --from jailbreak
    """
    from opct.config.loader import load_config
    from opct.config.methods import trainable
    from opct.config.packaged import PACKAGED
    from opct.models.names import check_path

    file = file or Path(f"{packaged or 'opct'}.yaml")
    if packaged is not None and packaged not in PACKAGED:
        raise ConfigError(f"--from: {unknown('config', packaged, PACKAGED)}")
    if method is not None and method not in trainable():
        raise ConfigError(f"--method: {unknown('method', method, trainable())}")
    options: dict[str, object] = {"model": model, "method": method, "preset": preset, "data": data}
    options |= {"questions": questions, "column": column, "measure": measure}
    if packaged is not None and not any(options.values()):
        return _write_packaged(packaged, file)
    if packaged is not None or (file.stem in PACKAGED and data is None and questions is None):
        _refuse_packaged(packaged or file.stem, file if file.suffix else file.with_suffix(".yaml"), options)
    if data is not None and questions is not None:
        raise ConfigError("--data and --questions contradict each other: give your pairs, or your questions.")
    if column and not questions:
        raise ConfigError("--column is for --questions; for prompts: `opct data build pairs --from FILE --column ...`.")
    built = file.with_suffix(".pairs.jsonl")
    for path in (file, built) if questions else (file,):
        if path.exists():
            raise ConfigError(f"{path} exists, and init replaces nothing: give another FILE, or delete it.")
    pairs = str(built) if questions else data
    given: dict[str, object] = {"output_dir": f"runs/{file.stem}"}
    given |= {} if pairs is None else {"data.pairs": [pairs]}
    given |= {} if method is None else {"method": method}
    given |= {} if model is None else {"model.name_or_path": model}
    settings = load_config(*settings_words([], given), preset)
    check_path(model)
    of_model = _of_model(settings, measure=measure) if model and preset is None else {}
    loaded = _pairs_of_questions(built, questions, column or []) if questions else _pairs_of_file(data) if data else []
    given = of_model | _of_pairs(settings, len(loaded), are_of_questions=bool(questions) and preset is None) | given
    settings = load_config(*settings_words([], given), preset)
    if measure:
        given["rollout.max_completion_tokens"] = _measured_length(settings, built if questions else None)
        settings = load_config(*settings_words([], given), preset)
    _write(file, settings, given, preset, loaded)


def _measured_length(settings: TrainConfig, built: Path | None) -> int:
    from opct.runs.console import show_progress
    from opct.training.dry_run import measured_length

    try:
        with show_progress() as progress:
            length, why = measured_length(settings, progress)
    except BaseException:
        if built is not None:  # left there, it would refuse the same command given again
            built.unlink(missing_ok=True)
        raise
    echo(f"rollout.max_completion_tokens: {length}; {why}")
    return length


def _write(
    file: Path, settings: TrainConfig, given: dict[str, object], preset: str | None, loaded: list[ContrastivePair]
) -> None:
    """Write the settings with their comments, and say what comes next."""
    from opct.config.commented import FIRST, commented_yaml
    from opct.data.pairs import eval_options
    from opct.runs.io import atomic_write

    head = HEAD.format(file=quote(str(file))) + (f"\npreset: {preset}\n" if preset else "\n")
    atomic_write(file, head + commented_yaml(settings, only={*FIRST, *given}, given=given))
    echo(f"{file}: written")
    base = f"{settings.output_dir}-base"
    words = {"file": file, "model": settings.model.name_or_path, "run": settings.output_dir, "base": base}
    echo(NEXT.format(**{name: quote(str(word)) for name, word in words.items()}, options=eval_options(loaded)))
    _note_what_is_not_graded(loaded)


def _refuse_packaged(name: str, file: Path, options: dict[str, object]) -> NoReturn:
    """Raise ConfigError with the commands that write a packaged config, and use it with the settings of these options
    that are settings of one run."""
    from opct.config.loader import read_yaml
    from opct.config.packaged import PACKAGED

    # an experiment's arms are its methods: with one method for all of them it would compare it with itself
    settings = {"model": "model.name_or_path"} | ({} if "arms" in read_yaml(PACKAGED[name]) else {"method": "method"})
    used = [_use_of(name, file)]
    used += [f"{setting}={quote(str(options[option]))}" for option, setting in settings.items() if options[option]]
    lost = [f"--{option}" for option, value in options.items() if value and option not in settings]
    without = f" (without {', '.join(lost)})" if lost else ""
    raise ConfigError(
        f"{name} is a config of opct: `opct init {quote(str(file))} --from {name}` writes it as it is, and "
        f"`{' '.join(used)}` uses it{without}. For your own, give another FILE, "
        "--data or --questions, and no --from."
    )


def _use_of(name: str, file: Path) -> str:
    """The command that a packaged config is for, with the file that it was written to."""
    from opct.config.packaged import described

    return described(name)[0].replace(f"configs/{name}.yaml", quote(str(file)))


def _write_packaged(name: str, file: Path) -> None:
    """Write a config of the package, and the one that its experiment trains with unless that is there."""
    from opct.config.loader import read_yaml
    from opct.config.packaged import PACKAGED
    from opct.runs.io import atomic_write

    if file.exists():
        raise ConfigError(f"{file} exists, and init replaces nothing: give another FILE, or delete it.")
    if train := read_yaml(PACKAGED[name]).get("train"):
        beside = file.with_name(train)
        if beside == file:
            raise ConfigError(f"{file} is the name of the file that {name} trains with: give another FILE.")
        if beside.exists():
            echo(f"{beside}: exists, and {file} trains with it")
        else:
            _write_packaged(beside.stem, beside)
    text = PACKAGED[name].read_text(encoding="utf-8")
    atomic_write(file, text.replace(f"configs/{name}.yaml", quote(str(file))))
    echo(f"{file}: written; next: {_use_of(name, file)}")


def _of_model(settings: TrainConfig, *, measure: bool) -> dict[str, object]:
    """The learning rate for a model that is not small; nothing where the hub cannot be reached."""
    from opct.models.loading import empty_model
    from opct.training.setup import learning_rate_for

    length = settings.rollout.max_completion_tokens
    if not measure:
        echo(f"rollout.max_completion_tokens: {length}; --measure fits it to the model's clean replies")
    try:
        weights = sum(parameter.numel() for parameter in empty_model(settings.model).parameters())
    except ModelError:
        if Path(settings.model.name_or_path).exists():
            raise
        return {}  # on a hub that cannot be reached now: the training will say so
    rate = learning_rate_for(weights, lora=settings.lora is not None)
    if rate >= settings.optim.learning_rate:
        return {}
    echo(f"optim.learning_rate: {rate:g}, for {weights / 1e9:.1f}B weights; try a third and three times it")
    return {"optim.learning_rate": rate}


def _of_pairs(settings: TrainConfig, n: int, *, are_of_questions: bool) -> dict[str, object]:
    """Steps, and what else was measured, for so many pairs."""
    from opct.data.builders.question_pairs import few_pair_steps, settings_for_questions

    size = n, settings.optim.prompts_per_step
    if are_of_questions:
        return settings_for_questions(settings.model.name_or_path, *size)
    return few_pair_steps(*size) if n and settings.max_steps is None else {}


def _note_what_is_not_graded(pairs: list[ContrastivePair]) -> None:
    from opct.data.pairs import GRADED_BY, TEST_PAIRS

    if axes := {pair.axis for pair in pairs if not pair.is_identity} - GRADED_BY.keys():
        echo(
            f"note: {TEST_PAIRS} is a file of pairs that are not trained on. No suite grades replies of the axis "
            f"{', '.join(sorted(axes))}: consistency measures whether they match those to clean prompts. To grade "
            "them, write a task (docs/how-to/evaluate.md)."
        )


def _pairs_of_file(data: str) -> list[ContrastivePair]:
    """The pairs of a file: faults are better found now than when training begins."""
    from opct.data.builders.builtin import load_pairs
    from opct.evals.stats import FEW_CLUSTERS

    pairs = load_pairs(data)
    if len(pairs) < FEW_CLUSTERS:
        echo(f"note: {data} has only {pluralize(len(pairs), 'pair')}: expect an inconclusive report. Write more.")
    return pairs


def _pairs_of_questions(built: Path, questions: str, column: list[str]) -> list[ContrastivePair]:
    """Write pairs of the questions for training, say what the test questions can decide, and return the pairs."""
    from opct.data.builders.question_pairs import pairs_of_questions
    from opct.data.pairs import write_pairs
    from opct.data.questions import load_questions, of_split
    from opct.evals.gradable import refuse_questions
    from opct.evals.stats import FEW_CLUSTERS, decides

    known = load_questions(questions, named_columns(column))
    refuse_questions(questions, known)
    test_questions = of_split(known, "test", "questions")  # without any, the evaluation would fail after the training
    pairs = pairs_of_questions(known, file=(questions, *column))
    write_pairs(built, pairs)
    counts = Counter(question.split for question in known)
    of, test = pluralize(len(known), "question"), pluralize(len(test_questions), "test question")
    echo(f"{built}: {pluralize(len(pairs), 'pair')} from {counts['train']} of {of} in {questions}, the train split")
    echo(f"`opct eval` asks {test}, which {decides(len(test_questions))}")
    if spare := counts["validation"]:
        echo(f"{spare} more are for choosing between settings: `opct eval ... split=validation` asks them")
    if len(test_questions) < FEW_CLUSTERS:
        echo(
            f"note: expect an inconclusive report unless the change is that large. Write more questions: 52% of them "
            f"are asked, 40% become pairs, and {2 * FEW_CLUSTERS} asked {decides(2 * FEW_CLUSTERS)}."
        )
    return pairs

"""`opct data`: build, show, check and export pairs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from opct.cli.build_jailbreak import build_jailbreak
from opct.cli.data_safety import build_safety_awareness
from opct.cli.options import SPLIT_HELP, Split, named_columns, refuse_existing

if TYPE_CHECKING:
    from opct.data.pairs import ContrastivePair
    from opct.data.questions import Split as QuestionSplit

app = typer.Typer(help="Build, show, check and export pairs.", no_args_is_help=True)
build_app = typer.Typer(help="Make pairs from questions, behaviours or safety facts.", no_args_is_help=True)
app.add_typer(build_app, name="build")
build_app.command("jailbreak")(build_jailbreak)
build_app.command("safety-awareness")(build_safety_awareness)

Source = Annotated[
    str, typer.Argument(metavar="FILE", help="A pair file, a dataset folder, hf:owner/name, or builtin:NAME.")
]


class AnswerFormat(StrEnum):
    """How the model is asked to answer."""

    short = "short"
    choice = "choice"


class Trainer(StrEnum):
    """Who reads an export."""

    verl = "verl"
    prime_rl = "prime-rl"


@build_app.command("sycophancy")
def build_sycophancy(
    source: Annotated[
        str, typer.Option("--from", metavar="FILE", help="Questions: JSONL, JSON, CSV or TSV; `builtin` are embedded.")
    ] = "builtin",
    out: Annotated[Path, typer.Option(help="The pair file to write.")] = Path("pairs.jsonl"),
    answer_format: Annotated[AnswerFormat, typer.Option("--format", help="Form of the answers.")] = AnswerFormat.short,
    families: Annotated[str, typer.Option(help="train, held_out, all, or names: majority,post_hoc.")] = "train",
    split: Annotated[Split, typer.Option(help=SPLIT_HELP)] = Split.train,
    seed: Annotated[int, typer.Option(min=0, help="Of phrasings, suggested answers and options.")] = 0,
    per_question: Annotated[int, typer.Option(min=1, help="Families for each question.")] = 1,
    n: Annotated[int | None, typer.Option("--n", min=1, help="At most so many pairs (a seeded choice).")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=NAME", help="The column of the question, answer, wrong, choices ...; repeatable."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")] = False,
) -> None:
    """Make sycophancy pairs from any file of questions.

    With answers, or multiple-choice.
    """
    import random
    from collections import Counter

    from opct.data.builders.sycophancy import build_sycophancy as build
    from opct.data.pairs import write_pairs
    from opct.data.questions import SPLITS, builtin_questions, describe_columns, load_questions, split_of

    named = named_columns(column or [])
    if named and source == "builtin":
        raise typer.BadParameter("columns are those of a file: name it with --from", param_hint="--column")
    refuse_existing(out, source, overwrite)
    names = [name.strip() for name in families.split(",") if name.strip()]
    questions = builtin_questions() if source == "builtin" else load_questions(source, named, seed=seed)
    pairs = build(
        questions,
        families=names[0] if len(names) == 1 else names,
        answer_format=answer_format.value,
        seed=seed,
        per_question=per_question,
        split=cast("QuestionSplit | None", None if split is Split.all else split.value),
    )
    if n is not None and n < len(pairs):
        kept = sorted(random.Random(seed).sample(range(len(pairs)), n))
        pairs = [pairs[i] for i in kept]
    write_pairs(out, pairs)
    splits = Counter(split_of(question.id) for question in questions)
    held = ", ".join(f"{splits[name]} {name}" for name in SPLITS)
    print(f"{source}: {len(questions)} questions: {held}")
    if source != "builtin":
        print(f"columns: {describe_columns(source, named)}")
    which = "all" if split is Split.all else f"the {split.value}"
    print(f"{out}: {len(pairs)} pairs from {which} questions")
    print(f"next: opct data show {out}")


@app.command("export")
def export(
    source: Source,
    format: Annotated[Trainer, typer.Option("--format", help="Whose rows.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write, .parquet or .jsonl; else FORMAT.parquet / .jsonl.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")] = False,
) -> None:
    """Write pairs as verl or prime-rl read them."""
    from opct.data.export import export_pairs

    path = out or Path("verl.parquet" if format is Trainer.verl else "prime-rl.jsonl")
    refuse_existing(path, source, overwrite)
    pairs = _pairs(source)
    n, left_out = export_pairs(pairs, format.value, path)
    unanswered = sum(pair.meta.get("answer") is None for pair in pairs if pair.id not in left_out)
    print(f"{path}: {n} rows for {format.value}")
    if unanswered:
        print(f"no `meta.answer`: {unanswered} row(s), whose ground truth is empty")
    if left_out:
        shown = ", ".join(left_out[:3]) + (" ..." if len(left_out) > 3 else "")
        print(f"left out: {len(left_out)} pair(s) with a turn that the policy answers itself or a prefill: {shown}")
    print(f"{format.value} shows its teacher the policy's own prompt unless told otherwise: see docs/scaling.md")


@app.command("check")
def check(
    source: Source,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Also ask this model, as teacher: does it refuse behaviours, and warn of hazards?"
        ),
    ] = None,
) -> None:
    """Check a pair file: every fault at once, or what is in it."""
    from collections import Counter

    from rich.console import Console
    from rich.table import Table

    pairs = _pairs(source)
    table = Table(title=f"{source}: {len(pairs)} pairs, no faults")
    for column in ("axis", "family"):
        table.add_column(column)
    for column in ("pairs", "identity", "sampled turns"):
        table.add_column(column, justify="right")
    counts = Counter((pair.axis, pair.family) for pair in pairs)
    identity = Counter((pair.axis, pair.family) for pair in pairs if pair.is_identity)
    sampled = Counter((p.axis, p.family) for p in pairs if any(m["content"] is None for m in p.prompt))
    for key in sorted(counts):
        table.add_row(*key, str(counts[key]), str(identity[key]), str(sampled[key]))
    Console().print(table)
    if model is not None:
        from opct.data.teacher_prompts import teacher_questions
        from opct.errors import DataError
        from opct.evals.teacher_check import check_teacher
        from opct.models.from_run import load_policy

        asked = teacher_questions(pairs)
        if not asked:
            raise DataError(
                f"None of the {len(pairs)} pairs says what its teacher is to do, so {model} cannot be checked as one: "
                "only pairs of behaviours of the axis jailbreak, and of hazards of the axis safety_awareness, do."
            )
        with load_policy(model).base() as teacher:
            for axis in asked:
                print(check_teacher(teacher, pairs, axis=axis).describe())


@app.command("show")
def show(
    source: Source,
    id: Annotated[str | None, typer.Option("--id", help="Id of the pair.")] = None,
    index: Annotated[int | None, typer.Option("--index", min=0, help="Or its place in the file, from 0.")] = None,
    model: Annotated[str | None, typer.Option(help="Whose chat template; the embedded default.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Also let the model answer the prompt.")] = False,
    max_completion_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of the answer.")] = 0,
    mask_truncated: Annotated[bool, typer.Option("--mask-truncated", help="As loss.mask_truncated.")] = False,
    mask_thinking: Annotated[bool, typer.Option("--mask-thinking", help="As loss.mask_thinking.")] = False,
) -> None:
    """Print a pair as the model sees it.

    Both sides, special tokens visible, tokens in the loss painted.
    """
    from rich.console import Console

    from opct.cli.show import render_pair
    from opct.config.schema import DEFAULT_MODEL

    if id is not None and index is not None:
        raise typer.BadParameter("give the id of a pair or its place, not both", param_hint="--id, --index")
    pair = _chosen(_pairs(source), source, id, index)
    name = model or DEFAULT_MODEL
    if not sample:
        from opct.config.schema import ModelConfig
        from opct.data.render import Renderer
        from opct.models.loading import load_tokenizer

        Console().print(render_pair(pair, Renderer(load_tokenizer(ModelConfig(name_or_path=name)))))
        return
    from opct.methods.rollouts import sampled_rollout
    from opct.models.policy import Policy

    policy = Policy.load(name)
    rollout = sampled_rollout(
        policy,
        pair,
        seed=seed,
        max_completion_tokens=max_completion_tokens,
        mask_truncated=mask_truncated,
        mask_thinking=mask_thinking,
    )
    Console().print(render_pair(rollout.pair, policy.renderer, rollout.completion, rollout.mask))


def _pairs(source: str) -> list[ContrastivePair]:
    from opct.data.builders.builtin import builtin_pairs
    from opct.data.pairs import load_pairs

    return builtin_pairs(source) if source.startswith("builtin:") else load_pairs(source)


def _chosen(pairs: list[ContrastivePair], source: str, id: str | None, index: int | None) -> ContrastivePair:
    import difflib

    from opct.errors import DataError

    if id is None:
        place = index or 0
        if place >= len(pairs):
            last = len(pairs) - 1
            raise DataError(f"{source} has {len(pairs)} pairs: --index goes from 0 to {last}, not {place}.")
        return pairs[place]
    found = {pair.id: pair for pair in pairs}
    if id not in found:
        near = difflib.get_close_matches(id, found, n=3, cutoff=0.3)
        shown = ", ".join(near) or next(iter(found))
        raise DataError(f"{source} has no pair with the id {id!r}; ids there look like: {shown}.")
    return found[id]

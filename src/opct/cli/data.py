"""`opct data`: build, show, check and export pairs."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from opct.cli import data_build
from opct.cli.options import App, Overwrite, SettingsCommand, named_columns, print_rich, refuse_out, settings_words
from opct.errors import DataError, first_of
from opct.runs.console import as_text, echo, make_table, visible

if TYPE_CHECKING:
    from rich.text import Text

    from opct.data.pairs import ContrastivePair, Prompt
    from opct.data.render import Renderer
    from opct.models.inference.sampler import Completion

app = App(
    help="Build, show, check and export pairs.\n\nExample: opct data show builtin:sycophancy --index 3",
    no_args_is_help=True,
)
app.add_typer(data_build.app, name="build")

MOST_COMPARED = 1_000_000  # pairs of tokens
SPECIAL, DIFFERS, IN_LOSS, NOT_IN_LOSS = "bold magenta", "underline", "black on green", "black on yellow"
Source = Annotated[
    str, typer.Argument(metavar="FILE", help="A pair file, a dataset folder, hf:owner/name, or builtin:NAME.")
]


@app.command("export")
def export(
    source: Source,
    format: Annotated[
        Literal["ms-swift", "trl", "verl", "prime-rl"], typer.Option("--format", help="The trainer to export for.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file to write, .parquet or .jsonl. Default: FORMAT.parquet or .jsonl."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Export pairs for ms-swift, TRL, verl or prime-rl.

    \b
    Examples:
      opct data export pairs.jsonl --format trl
      opct data export builtin:sycophancy --format verl --out pairs.parquet
    """
    from opct.data.builders.builtin import load_pairs
    from opct.data.export import SUFFIXES, WITH_ANSWER, export_pairs

    path = out or Path("verl.parquet" if format == "verl" else f"{format}.jsonl")
    refuse_out(path, source, overwrite, SUFFIXES)
    pairs = load_pairs(source)
    n, left_out = export_pairs(pairs, format, path)
    kept = [pair for pair in pairs if pair.id not in left_out]
    unanswered = format in WITH_ANSWER and sum(pair.meta.get("answer") is None for pair in kept)
    echo(f"{path}: {n} rows for {format}")
    if unanswered:
        echo(f"no `meta.answer`: {unanswered} row(s), whose ground truth is empty")
    if left_out:
        shown = first_of(left_out)
        why = "whose prompts differ before the last turn, with" if format == "ms-swift" else "with"
        echo(f"left out: {len(left_out)} pair(s) {why} a turn sampled from the policy, or a prefill: {shown}")
    sees = {"ms-swift": "`teacher_prompt` as its last turn", "trl": "`teacher_prompt` in `OPCTTrainer`"}
    shown = sees.get(format, "the policy's prompt by default")
    echo(f"{format} shows its teacher {shown}: see docs/how-to/several-gpus.md")


@app.command("check", cls=SettingsCommand)
def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Pairs (a file, a dataset folder, hf:owner/name, or builtin:NAME), or your questions."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Settings of --model: dtype, device, chat_template_kwargs, ..."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Also check this model: what its chat template makes of the pairs, and as the teacher, whether it "
            "refuses behaviors and warns of hazards.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=NAME", help="FILE holds questions, and this is a column of theirs; repeatable."),
    ] = None,
) -> None:
    """Check pairs or questions; prints every fault, or a summary.

    \b
    Examples:
      opct data check pairs.jsonl
      opct data check questions.csv
      opct data check builtin:jailbreak_system --model Qwen/Qwen3-0.6B
    """
    from opct.config.loader import load_settings
    from opct.config.schema import ModelConfig
    from opct.data.builders.builtin import load_pairs
    from opct.data.pairs import row_columns
    from opct.data.questions import are_of_questions
    from opct.data.tables import file_format
    from opct.evals.graders.self_grading import faults_of_meta

    if settings and model is None:
        raise typer.BadParameter("settings need a model: name it with --model", param_hint="NAME=VALUE")
    given = load_settings(ModelConfig, overrides=settings or []).model_dump(exclude_unset=True)
    is_table = file_format(Path(source)) in (".csv", ".tsv")
    if column or are_of_questions(row_columns(source), in_table=is_table):
        if model is not None:
            raise typer.BadParameter("it checks pairs, but FILE holds questions", param_hint="--model")
        return _check_questions(source, named_columns(column or []))
    pairs = load_pairs(source, meta_faults=faults_of_meta)
    of_pairs = attrgetter("axis", "family")
    counts, identity = Counter(map(of_pairs, pairs)), Counter(of_pairs(pair) for pair in pairs if pair.is_identity)
    sampled = Counter(of_pairs(pair) for pair in pairs if any(turn["content"] is None for turn in pair.prompt))
    rows = [(*key, counts[key], identity[key], sampled[key]) for key in sorted(counts)]
    columns = ("axis", "family", "pairs", "identity", "sampled turns")
    print_rich(make_table(f"{source}: {len(pairs)} pairs, no faults", columns, rows, texts=2))
    if model is not None:
        _check_with(model, given, pairs)


def _check_questions(source: str, columns: Mapping[str, Sequence[str]] | None) -> None:
    from opct.data.questions import SPLITS, load_questions
    from opct.evals.gradable import refuse_questions

    questions = load_questions(source, columns)
    refuse_questions(source, questions)
    counts = Counter(question.split for question in questions)
    parts = ", ".join(f"{counts[split]} {split}" for split in SPLITS)
    echo(f"{source}: {len(questions)} questions, no faults: {parts}")


def _check_with(model: str, settings: Mapping[str, Any], pairs: Sequence[ContrastivePair]) -> None:
    """Run the self-test of a model on the pairs, and ask it the behaviors and hazards among them."""
    from opct.data.render import render_pairs
    from opct.evals.teacher_check import AXES, ask_policy, teacher_figure, teacher_sanity_check
    from opct.models.from_run import load_policy
    from opct.models.self_test import FIRST_REPLIES, FirstReply, reply_of, reply_warnings, self_test

    with load_policy(model, **settings).base() as teacher:
        rendered, _ = render_pairs(pairs, teacher.renderer, max_completion_tokens=0, context_length=2**31)
        warnings, replies = self_test(teacher, pairs=rendered), list[FirstReply]()

        def ask(prompts: list[Prompt], seeds: list[int]) -> list[Completion | None]:
            answers = ask_policy(teacher, prompts, seeds)
            said = [(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True) if answer is not None]
            replies.extend(reply_of(teacher.renderer, prompt, one.token_ids, is_cut=False) for prompt, one in said)
            return answers

        rows = [teacher_sanity_check(pairs, ask, axis=axis, n=100) for axis in AXES]
        warnings += reply_warnings(replies[:FIRST_REPLIES], teacher.renderer)
    for row in filter(None, rows):
        echo(f"teacher: {teacher_figure(row)}")
        warnings += filter(None, [row["warning"]])
    if not any(rows):
        echo("teacher: not asked, since no pair is a behavior (axis jailbreak) or a hazard (axis safety_awareness)")
    for warning in warnings:
        echo(f"warning: {warning}")


@app.command("show", cls=SettingsCommand)
def show(
    source: Source,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            help="Settings of the training, after its YAML file if you have one: loss.mask_truncated=true ...",
        ),
    ] = None,
    id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Id of the pair.")] = None,
    index: Annotated[
        int | None, typer.Option("--index", metavar="N", min=0, help="Index of the pair in the file, from 0.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Model whose chat template is used. Default: that of the settings."),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Also sample a completion from the model, as OPCT does.")
    ] = False,
) -> None:
    """Print a pair as the model sees it.

    Special tokens are visible; tokens in the loss are highlighted.

    \b
    Examples:
      opct data show builtin:sycophancy
      opct data show pairs.jsonl mine.yaml --index 3 --sample
    """
    from opct.config.loader import load_settings
    from opct.config.schema import TrainConfig
    from opct.data.builders.builtin import load_pairs

    if id is not None and index is not None:
        raise typer.BadParameter("give the id of a pair or its place, not both", param_hint="--id, --index")
    pair = _chosen(load_pairs(source), source, id, index)
    config = load_settings(TrainConfig, *settings_words(settings or [], {"model.name_or_path": model}))
    if not sample:
        from opct.models.from_run import adapter_now
        from opct.models.loading import load_renderer

        print_rich(pair_text(pair, load_renderer(config.model, adapter_now(config.model.adapter))))
        return
    from opct.methods.rollouts import sampled_rollout
    from opct.models.from_run import adapter_folder
    from opct.models.policy import Policy

    adapter = adapter_folder(config.model.adapter)
    policy = Policy.load(config.model, adapter=adapter, thinking_tags=config.loss.thinking_tags)
    rollout = sampled_rollout(policy, pair, config)
    print_rich(pair_text(rollout.pair, policy.renderer, rollout.completion, rollout.mask))


def _chosen(pairs: list[ContrastivePair], source: str, id: str | None, index: int | None) -> ContrastivePair:
    if id is None:
        place = index or 0
        if place >= len(pairs):
            last = len(pairs) - 1
            raise DataError(f"{source} has {len(pairs)} pairs: --index goes from 0 to {last}, not {place}.")
        return pairs[place]
    pairs_by_id = {pair.id: pair for pair in pairs}
    if id not in pairs_by_id:
        near = difflib.get_close_matches(id, pairs_by_id, n=3, cutoff=0.3)
        shown = ", ".join(near) or next(iter(pairs_by_id))
        raise DataError(f"{source} has no pair with the id {id!r}; ids there look like: {shown}.")
    return pairs_by_id[id]


def pair_text(
    pair: ContrastivePair, renderer: Renderer, completion: Completion | None = None, mask: Sequence[bool] | None = None
) -> Text:
    """Render both prompts with the chat template, each followed by the completion if there is one.

    Args:
        mask: True for each completion token that is in the loss. None: all of them.
    """
    from rich.text import Text

    text = Text()
    in_loss = (True,) * len(completion.token_ids) if completion is not None and mask is None else tuple(mask or ())
    kind = "identity pair" if pair.is_identity else f"family {pair.family}"
    text.append_text(as_text(f"{pair.id}  (axis {pair.axis}, {kind})\n", style="bold"))
    sampled = "[answered by the policy before the rollout]"
    prompts = [
        renderer.render([{**m, "content": sampled if m["content"] is None else m["content"]} for m in messages])
        for messages in (pair.prompt, pair.teacher_prompt)
    ]
    both_same = _shared(*([piece.strip(" ") for piece in renderer.pieces(ids)] for ids in prompts))
    for place, (side, who) in enumerate((("prompt", "the policy"), ("teacher_prompt", "the teacher"))):
        ids, same = prompts[place], both_same[place]
        text.append(f"\n{side}: what {who} sees, {len(ids)} tokens\n", style="bold")
        _append_tokens(text, renderer, ids, same=same)
        if completion is not None:
            _append_tokens(text, renderer, list(completion.token_ids), in_loss)
        text.append("\n")
    text.append("\ncolors:  ").append("special token", style=SPECIAL)
    text.append("  ").append("where the prompts differ", style=DIFFERS)
    if completion is None:
        return text.append("\nThe policy samples the completion; --sample shows one. Prompts are not in the loss.\n")
    text.append("  ").append("in the loss", style=IN_LOSS)
    if not all(in_loss):
        text.append("  ").append("masked", style=NOT_IN_LOSS)
    counted = f"{sum(in_loss)} of {len(in_loss)} completion tokens are in the loss"
    return text.append(f"\n{counted}; stop reason: {completion.stop_reason}.\n")


def _shared(ours: list[str], theirs: list[str]) -> list[set[int]]:
    """The places in both lists of what they share."""
    start = _common(ours, theirs)
    end = _common(ours[start:][::-1], theirs[start:][::-1])
    a, b = (side[start : len(side) - end] for side in (ours, theirs))
    # its time grows with the product, or faster
    is_short = len(a) * len(b) <= MOST_COMPARED
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks() if is_short else []
    places = []
    for n, side in enumerate((ours, theirs)):
        inner = {start + block[n] + i for block in blocks for i in range(block.size)}
        places.append({*range(start), *inner, *range(len(side) - end, len(side))})
    return places


def _common(a: list[str], b: list[str]) -> int:
    """How many of the first ones are the same."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _append_tokens(
    text: Text, renderer: Renderer, ids: list[int], mask: Sequence[bool] | None = None, same: Container[int] = ()
) -> None:
    """Append prompt tokens, marked but at the places in `same`; or, with a mask, completion tokens."""
    special = set(renderer.tokenizer.all_special_ids)
    for i, (token, piece) in enumerate(zip(ids, renderer.pieces(ids), strict=True)):
        shown = visible(piece)
        if mask is None:
            text.append(shown, style=SPECIAL if token in special else "" if i in same else DIFFERS)
        else:
            text.append(shown.replace("\n", "↵\n"), style=IN_LOSS if mask[i] else NOT_IN_LOSS)

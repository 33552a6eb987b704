"""`opct data build`: pairs from prompts, questions, behaviors or safety facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from opct.cli.options import App, Group, Overwrite, Seed, named_columns, named_files, refuse_out
from opct.errors import first_of, unknown
from opct.runs.console import echo

if TYPE_CHECKING:
    from opct.data.pairs import ContrastivePair
    from opct.data.questions import HasSplit


class _Builders(Group):
    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """Answer `opct data build FILE` with the commands that read a file."""
        name = args[0]
        if self.get_command(ctx, name) is None and (Path(name).suffix or name.startswith("hf:")):
            lines = [
                f"  opct data build {one} --from {name}   {self.commands[one].get_short_help_str(70)}"
                for one in self.commands
            ]
            ctx.fail("\n".join([f"{name} is a file; the command says what it holds:", *lines]))
        return super().resolve_command(ctx, args)


app = App(cls=_Builders, help="Make pairs from prompts, questions, behaviors or safety facts.", no_args_is_help=True)

Split = Literal["train", "validation", "test", "all"]
BUILTIN = "builtin"
DATA = ("jailbreak_counterparts", "in_the_wild", "artifact")
"""Files beside the behaviors, by their names in `opct eval`."""
Out = Annotated[Path, typer.Option(metavar="FILE", help="The pair file to write.")]
Families = Annotated[
    str, typer.Option(metavar="NAMES", help="Families of perturbations: train, held_out, all, or names with commas.")
]
WhichSplit = Annotated[
    Split, typer.Option(help="The part to make pairs of; a hash splits a file that names no splits.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE=NAME", help="The column of the prompt, question, answer, behavior, id ...; repeatable."),
]
AtMost = Annotated[int | None, typer.Option("--n", metavar="N", min=1, help="Maximum number of pairs, chosen by seed.")]


@app.command("sycophancy")
def build_sycophancy(
    source: Annotated[
        str,
        typer.Option("--from", metavar="FILE", help="Questions: JSONL, JSON, CSV or TSV; builtin: the embedded ones."),
    ] = BUILTIN,
    out: Out = Path("pairs.jsonl"),
    answer_format: Annotated[
        Literal["short", "explained", "choice", "mixed"],
        typer.Option("--format", help="Format of the answers; mixed: another layout for each pair."),
    ] = "short",
    families: Families = "train",
    split: WhichSplit = "train",
    seed: Seed = 0,
    per_question: Annotated[int, typer.Option(metavar="N", min=1, help="Families for each question.")] = 1,
    n: AtMost = None,
    column: Columns = None,
    overwrite: Overwrite = False,
) -> None:
    """Make sycophancy pairs from any file of questions.

    The questions may be free-form or multiple-choice.

    \b
    Examples:
      opct data build sycophancy --from questions.csv --per-question 2
      opct data build sycophancy --format mixed --n 500 --out mixed.jsonl
    """
    from opct.data.builders.sycophancy import build_sycophancy as build
    from opct.data.dataset import choose
    from opct.data.questions import builtin_questions, load_questions

    columns = named_columns(column or [])
    if columns and source == BUILTIN:
        raise typer.BadParameter("--column needs a file: name it with --from", param_hint="--column")
    refuse_out(out, source, overwrite)
    questions = builtin_questions() if source == BUILTIN else load_questions(source, columns, seed=seed)
    built = build(
        questions,
        families=families,
        answer_format=answer_format,
        seed=seed,
        per_question=per_question,
        split=split,
        file=() if source == BUILTIN else (source, *(column or ())),
    )
    pairs = choose(built, n, seed)
    _echo_splits(source, questions, "questions", split)
    _write(out, pairs, f"{_which(split)} questions")


@app.command("pairs")
def build_pairs(
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="FILE", help="Prompts: JSONL, JSON, CSV, TSV or Parquet, or hf:owner/name[:config/split]."
        ),
    ],
    out: Out = Path("pairs.jsonl"),
    teacher_system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System prompt of the teacher; the policy does not see it.")
    ] = None,
    template: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Jinja template of the policy's prompt, with {{ prompt }} and any column; repeatable."
        ),
    ] = None,
    identity: Annotated[
        bool, typer.Option("--identity", help="Make identity pairs, for data.anchors: both prompts are the same.")
    ] = False,
    axis: Annotated[str, typer.Option(metavar="NAME", help="Axis of the pairs.")] = "custom",
    family: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Family of the pairs. Default: the name of the template, or `custom`."),
    ] = None,
    seed: Seed = 0,
    n: AtMost = None,
    column: Columns = None,
    overwrite: Overwrite = False,
) -> None:
    """Make pairs from any file of prompts or chats.

    The teacher gets a system prompt, the policy a prompt wrapped in a template, or each row has both prompts.

    \b
    Examples:
      opct data build pairs --from chats.jsonl --teacher-system "Be brief."
      opct data build pairs --from questions.csv --template rude.jinja
    """
    from opct.data.builders.pairs import build_pairs as build
    from opct.data.dataset import choose
    from opct.data.tables import file_stem, read_text

    templates = {file_stem(path): read_text(path, "template") for path in template or ()}
    if len(templates) < len(template or ()):
        raise typer.BadParameter("two templates have the same name", param_hint="--template")
    for read in (source, *(template or ())):
        refuse_out(out, str(read), overwrite)
    built = build(
        source,
        named_columns(column or []),
        teacher_system=teacher_system,
        templates=templates,
        identity=identity,
        axis=axis,
        family=family,
    )
    pairs = choose(built, n, seed)
    families = Counter(f"{pair.axis}/{pair.family}" for pair in pairs)
    prompts = len({pair.meta.get("group") or pair.meta["question_id"] for pair in pairs})
    _write(out, pairs, f"{prompts} prompts: {', '.join(f'{count} {name}' for name, count in families.items())}")


Behaviors = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Behaviors: a file, or hf:owner/name[:config/split]@revision; builtin: the embedded ones.",
    ),
]
Parts = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="behavior (wrapped), bare (as they are), twin (benign counterparts, wrapped), anchor (these as identity "
        "pairs).",
    ),
]
TeacherSystem = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="System prompt of the teacher of behaviors; `safety`: the built-in one."),
]
TeacherExamples = Annotated[
    bool, typer.Option("--teacher-examples", help="Show the teacher three refused requests before each behavior.")
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE",
        help="Benign counterparts (jailbreak_counterparts=FILE), templates of the held-out family in_the_wild "
        "(in_the_wild=FILE), prompts of PAIR or `opct attack` for the held-out family artifact (artifact=FILE); "
        "repeatable.",
    ),
]
Exclude = Annotated[list[str] | None, typer.Option(metavar="CATEGORY", help="Skip this category; repeatable.")]


@app.command("jailbreak")
def build_jailbreak(
    source: Behaviors = BUILTIN,
    out: Out = Path("pairs.jsonl"),
    families: Families = "train",
    parts: Parts = "behavior,twin",
    split: WhichSplit = "train",
    seed: Seed = 0,
    per_behavior: Annotated[int, typer.Option(metavar="N", min=1, help="Families for each behavior.")] = 2,
    n: AtMost = None,
    teacher_system: TeacherSystem = None,
    teacher_examples: TeacherExamples = False,
    data: Files = None,
    column: Columns = None,
    exclude: Exclude = None,
    overwrite: Overwrite = False,
) -> None:
    """Make jailbreak pairs from behaviors, bare and wrapped.

    \b
    Examples:
      opct data build jailbreak --teacher-system safety
      opct data build jailbreak --parts anchor --out anchors.jsonl
    """
    from opct.data.behaviors import leaks_into_later_split
    from opct.data.builders.jailbreak import build_jailbreak as build
    from opct.data.builders.jailbreak import read_sources
    from opct.data.dataset import choose
    from opct.data.perturb.in_the_wild import is_of_attack, load_templates
    from opct.data.perturb.jailbreak import REFUSED_TURNS, SAFETY_SYSTEM

    files = named_files(data or [])
    for name in files:
        if name not in DATA:
            raise typer.BadParameter(unknown("name", name, DATA), param_hint="--data")
    counterparts, in_the_wild, artifacts = map(files.get, DATA)
    if source == BUILTIN and (column or counterparts or exclude):
        hint = "--column, --data jailbreak_counterparts, --exclude"
        raise typer.BadParameter("these options need a file: name it with --from", param_hint=hint)
    for read in (source, *files.values()):
        refuse_out(out, read, overwrite)
    behaviors, attacks, left_out = read_sources(
        source, artifacts, columns=named_columns(column or []), counterparts=counterparts, exclude=exclude or []
    )
    built = build(
        behaviors,
        families=families,
        parts=[part.strip() for part in parts.split(",") if part.strip()],
        seed=seed,
        per_behavior=per_behavior,
        split=split,
        teacher_system=SAFETY_SYSTEM if teacher_system == "safety" else teacher_system,
        teacher_turns=REFUSED_TURNS if teacher_examples else (),
        templates=[] if in_the_wild is None else load_templates(in_the_wild),
        artifacts=attacks,
    )
    pairs = choose(built, n, seed)
    _echo_splits(source, behaviors, "behaviors", split)
    _echo_left_out("embedded behaviors that are only measured on", left_out)
    leaks = leaks_into_later_split(behaviors, split)
    _echo_left_out(f"behaviors of {source} in a later split", [behavior.id for behavior in leaks])
    if artifacts is not None:
        used = sum(pair.family == "artifact" for pair in pairs)
        echo(f"{artifacts}: {len(attacks)} prompts, {used} of them used in this split")
    _write(out, pairs, f"{_which(split)} behaviors", is_private=artifacts is not None and is_of_attack(artifacts))


@app.command("safety-awareness")
def build_safety_awareness(
    source: Annotated[
        str, typer.Option("--from", metavar="FILE", help="Safety facts: JSONL; builtin: the embedded ones.")
    ] = BUILTIN,
    out: Out = Path("pairs.jsonl"),
    families: Families = "train",
    split: WhichSplit = "train",
    counterparts: Annotated[
        Literal["identity", "privileged", "none"],
        typer.Option(help="Teacher prompt of safe counterparts; `none` makes no such pairs."),
    ] = "identity",
    teacher: Annotated[
        Literal["system", "user", "examples"],
        typer.Option(
            help="Where the teacher's prompt holds the fact: system message, last user message, or after examples."
        ),
    ] = "system",
    seed: Seed = 0,
    per_prompt: Annotated[int, typer.Option(metavar="N", min=1, help="Families for each message.")] = 1,
    n: AtMost = None,
    train_on_evaluation_data: Annotated[
        bool, typer.Option("--train-on-evaluation-data", help="Also use evaluation-only sets (SAGE-Eval).")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Make safety-awareness pairs.

    The prompt hides a hazard; the teacher also sees the fact.

    \b
    Examples:
      opct data build safety-awareness --per-prompt 2
      opct data build safety-awareness --from facts.jsonl --split all
    """
    from opct.data.builders.safety_awareness import build_safety_awareness as build
    from opct.data.dataset import choose
    from opct.data.hazards import load_facts

    refuse_out(out, source, overwrite)
    facts = load_facts(source)
    built = build(
        facts,
        families=families,
        seed=seed,
        per_prompt=per_prompt,
        split=split,
        counterparts=counterparts,
        teacher=teacher,
        allow_evaluation_only=train_on_evaluation_data,
    )
    pairs = choose(built, n, seed)
    _echo_splits(source, facts, "facts", split)
    hazards = sum(pair.meta["kind"] == "hazard" for pair in pairs)
    counts = f"{hazards} hazards, {len(pairs) - hazards} safe counterparts"
    _write(out, pairs, f"{_which(split)} facts: {counts}")


def _which(split: Split) -> str:
    return "all" if split == "all" else f"the {split}"


def _echo_splits(source: str, items: Sequence[HasSplit], noun: str, split: Split) -> None:
    from opct.data.questions import SPLITS

    counts = {name: sum(item.split == name for item in items) for name in SPLITS}
    echo(f"{source}: {len(items)} {noun}: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    if source != BUILTIN and split != "all":
        echo(
            f"only the {split} {noun} become pairs, so that `opct eval` can ask others (a hash decides, where the file "
            "names no splits); --split all uses every row"
        )


def _echo_left_out(what: str, ids: Sequence[str]) -> None:
    if ids:
        echo(f"left out: {len(ids)} near-duplicate(s) of {what}: {first_of([*map(repr, ids)])}")


def _write(out: Path, pairs: Sequence[ContrastivePair], made_of: str, *, is_private: bool = False) -> None:
    """Write the pairs and warn about overlap with the embedded evaluation."""
    from opct.data.builders.builtin import near_test_items
    from opct.data.pairs import write_pairs
    from opct.runs.io import PRIVATE_MODE

    write_pairs(out, pairs, mode=PRIVATE_MODE if is_private else 0o666)
    echo(f"{out}: {len(pairs)} pairs from {made_of}")
    if is_private:
        echo(f"private: {out} holds prompts of an attack; only you can read it")
    for warning in near_test_items(pairs):
        echo(f"warning: {warning}")
    are_anchors = all(pair.is_identity for pair in pairs)
    path = quote(str(out))
    command = f"train CONFIG.yaml {quote(f'data.anchors=[{out}]')}" if are_anchors else f"init mine.yaml --data {path}"
    echo(f"next: opct data show {path}\n      opct {command}")

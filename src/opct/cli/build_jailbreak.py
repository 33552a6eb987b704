"""`opct data build jailbreak`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from opct.cli.options import SPLIT_HELP, Split, refuse_existing, single_columns, warn_of_test_items

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opct.data.behaviors import Behavior
    from opct.data.pairs import ContrastivePair
    from opct.data.perturb.in_the_wild import Artifact
    from opct.data.questions import Split as DataSplit

EMBEDDED = "safety"

Source = Annotated[
    str,
    typer.Option(
        "--from", metavar="FILE", help="Behaviours: a file, hf:owner/name[:config/split]@revision, or `builtin`."
    ),
]
Parts = Annotated[
    str,
    typer.Option(
        help="behavior (wrapped), bare (behaviours as they are), twin (wrapped), anchor (twins as identity pairs)."
    ),
]
TeacherSystem = Annotated[
    str | None, typer.Option(metavar="TEXT", help="System prompt of the teacher of behaviours; `safety`: our own.")
]
TeacherExamples = Annotated[
    bool, typer.Option("--teacher-examples", help="The teacher of behaviours sees three refused requests before each.")
]
Twins = Annotated[str | None, typer.Option(metavar="FILE", help="The benign behaviours of a file, as its twins.")]
Templates = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Templates of the held-out family in_the_wild; see --families.")
]
Attacks = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="An attacker's prompts, as of PAIR or of `opct attack`: the held-out family artifact."
    ),
]
Columns = Annotated[
    list[str] | None, typer.Option(metavar="ROLE=NAME", help="The column of the behavior, id ...; repeatable.")
]
LeftOut = Annotated[list[str] | None, typer.Option(metavar="CATEGORY", help="Not read; repeatable.")]


def build_jailbreak(
    source: Source = "builtin",
    out: Annotated[Path, typer.Option(help="The pair file to write.")] = Path("pairs.jsonl"),
    families: Annotated[str, typer.Option(help="train, held_out, all, or names: fiction,rot13.")] = "train",
    parts: Parts = "behavior,twin",
    split: Annotated[Split, typer.Option(help=SPLIT_HELP)] = Split.train,
    seed: Annotated[int, typer.Option(min=0, help="Of the wrappers.")] = 0,
    per_behavior: Annotated[int, typer.Option(min=1, help="Families for each behaviour.")] = 2,
    teacher_system: TeacherSystem = None,
    teacher_examples: TeacherExamples = False,
    twins: Twins = None,
    in_the_wild: Templates = None,
    artifacts: Attacks = None,
    column: Columns = None,
    leave_out: LeftOut = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")] = False,
) -> None:
    """Make jailbreak pairs: behaviours, bare and in wrappers."""
    from opct.data.builders.jailbreak import build_jailbreak as build
    from opct.data.duplicates import leaks_into_later_split, split_duplicates
    from opct.data.pairs import write_pairs
    from opct.data.perturb.in_the_wild import is_of_attack, load_artifacts, load_templates
    from opct.data.perturb.jailbreak import REFUSED_TURNS, SAFETY_SYSTEM
    from opct.runs.io import PRIVATE_MODE

    if source == "builtin" and (column or twins or leave_out):
        raise typer.BadParameter(
            "these are about a file: name it with --from", param_hint="--column, --twins, --leave-out"
        )
    for read in (source, in_the_wild, artifacts, twins):
        if read is not None:
            refuse_existing(out, str(read), overwrite)
    templates = [] if in_the_wild is None else load_templates(in_the_wild)
    attacks_left_out: list[Artifact] = []
    attacks, n_without = ([], None) if artifacts is None else load_artifacts(artifacts)
    behaviors, left_out = _behaviors(source, column or [], twins, leave_out or [])
    if source != "builtin":  # else artifacts have the splits of the embedded behaviours that they are like
        attacks, attacks_left_out = split_duplicates(attacks, _only_measured_on())
    chosen = cast("DataSplit | None", None if split is Split.all else split.value)
    pairs = build(
        behaviors,
        families=families,
        parts=[part.strip() for part in parts.split(",") if part.strip()],
        seed=seed,
        per_behavior=per_behavior,
        split=chosen,
        teacher_system=SAFETY_SYSTEM if teacher_system == EMBEDDED else teacher_system,
        teacher_turns=REFUSED_TURNS if teacher_examples else (),
        templates=templates,
        artifacts=attacks,
    )
    is_private = artifacts is not None and is_of_attack(artifacts)  # its prompts may work on other models
    write_pairs(out, pairs, mode=PRIVATE_MODE if is_private else 0o666)
    _say(source, behaviors)
    _say_left_out("embedded behaviours that are only measured on", [*left_out, *attacks_left_out])
    _say_left_out(f"behaviours of {source} in a later split", leaks_into_later_split(behaviors, chosen, behaviors))
    if artifacts is not None:
        used = sum(pair.family == "artifact" for pair in pairs)
        without = "" if n_without is None else f"; {n_without} goals have none"
        print(f"{artifacts}: {len(attacks)} prompts, {used} of them used in this split{without}")
    _say_written(out, pairs, split, is_private=is_private)


def _behaviors(
    source: str, column: list[str], twins: str | None, leave_out: list[str]
) -> tuple[list[Behavior], list[Behavior]]:
    """The behaviours of the source, and those left out as near-duplicates of what the embedded evaluation asks."""
    from opct.data.behaviors import builtin_behaviors, load_behaviors
    from opct.data.duplicates import split_duplicates

    if source == "builtin":
        return builtin_behaviors(), []
    columns = single_columns(column, "--column")
    found = load_behaviors(source, columns or None, twins=twins, leave_out=leave_out)
    return split_duplicates(found, _only_measured_on())


def _only_measured_on() -> list[Behavior]:
    from opct.data.behaviors import builtin_behaviors

    return [behavior for behavior in builtin_behaviors() if behavior.split != "train"]


def _say(source: str, behaviors: list[Behavior]) -> None:
    from collections import Counter

    from opct.data.questions import SPLITS

    splits = Counter(behavior.split for behavior in behaviors)
    print(f"{source}: {len(behaviors)} behaviours: {', '.join(f'{splits[name]} {name}' for name in SPLITS)}")


def _say_written(out: Path, pairs: list[ContrastivePair], split: Split, *, is_private: bool) -> None:
    which = "all" if split is Split.all else f"the {split.value}"
    print(f"{out}: {len(pairs)} pairs from {which} behaviours")
    if is_private:
        print(f"private: {out} holds prompts that an attack kept; readable by you alone")
    warn_of_test_items(pairs)
    print(f"next: opct data show {out}")


def _say_left_out(what: str, left_out: Sequence[Behavior | Artifact]) -> None:
    if left_out:
        shown = ", ".join(repr(one.id) for one in left_out[:3]) + (" ..." if len(left_out) > 3 else "")
        print(f"left out: {len(left_out)} near-duplicate(s) of {what}: {shown}")

"""`opct data build safety-awareness`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from opct.cli.options import refuse_existing, warn_of_test_items

if TYPE_CHECKING:
    from opct.data.questions import Split as FactSplit


class Twins(StrEnum):
    """What the teacher sees beside a safe twin."""

    identity = "identity"
    privileged = "privileged"
    none = "none"


class Teacher(StrEnum):
    """Where the teacher finds the fact."""

    system = "system"
    user = "user"
    examples = "examples"


TeacherPlace = Annotated[
    Teacher,
    typer.Option(help="Where the teacher finds the fact: system message, last user message, or there after examples."),
]


class Split(StrEnum):
    """Which facts."""

    train = "train"
    validation = "validation"
    test = "test"
    all = "all"


def build_safety_awareness(
    source: Annotated[
        str, typer.Option("--from", metavar="FILE", help="Safety facts: JSONL; `builtin` are embedded.")
    ] = "builtin",
    out: Annotated[Path, typer.Option(help="The pair file to write.")] = Path("pairs.jsonl"),
    families: Annotated[str, typer.Option(help="train, held_out, all, or names: hurried,multi_turn.")] = "train",
    split: Annotated[
        Split, typer.Option(help="train, validation, test (by a hash of the fact's group), or all.")
    ] = Split.train,
    twins: Annotated[
        Twins, typer.Option(help="The teacher's side of safe twins: identity, privileged, or none for no twins.")
    ] = Twins.identity,
    teacher: TeacherPlace = Teacher.system,
    seed: Annotated[int, typer.Option(min=0, help="Of phrasings and typos.")] = 0,
    per_prompt: Annotated[int, typer.Option(min=1, help="Families for each message.")] = 1,
    n: Annotated[int | None, typer.Option("--n", min=1, help="At most so many pairs (a seeded choice).")] = None,
    train_on_evaluation_data: Annotated[
        bool,
        typer.Option(
            "--train-on-evaluation-data",
            help="Make pairs also of sets whose authors ask for evaluation only (SAGE-Eval).",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")] = False,
) -> None:
    """Make safety-awareness pairs.

    Prompts that hide a hazard, and for the teacher the fact.
    """
    import random
    from collections import Counter

    from opct.data.builders.safety_awareness import build_safety_awareness as build
    from opct.data.hazards import load_facts
    from opct.data.pairs import write_pairs
    from opct.data.questions import SPLITS

    refuse_existing(out, source, overwrite)
    facts = load_facts(source)
    pairs = build(
        facts,
        families=families,
        seed=seed,
        per_prompt=per_prompt,
        split=cast("FactSplit | None", None if split is Split.all else split.value),
        twins=twins.value,
        teacher=teacher.value,
        allow_evaluation_only=train_on_evaluation_data,
    )
    if n is not None and n < len(pairs):
        kept = sorted(random.Random(seed).sample(range(len(pairs)), n))
        pairs = [pairs[i] for i in kept]
    write_pairs(out, pairs)
    splits = Counter(fact.split for fact in facts)
    print(f"{source}: {len(facts)} facts: {', '.join(f'{splits[name]} {name}' for name in SPLITS)}")
    kinds = Counter(pair.meta["kind"] for pair in pairs)
    which = "all" if split is Split.all else f"the {split.value}"
    print(f"{out}: {len(pairs)} pairs from {which} facts: {kinds['hazard']} hazards, {kinds['safe_twin']} safe twins")
    warn_of_test_items(pairs)
    print(f"next: opct data show {out}")

"""Safety-awareness pairs: from the embedded facts, a file of facts, or SAGE-Eval where the user insists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from opct.data.hazards import BUILTIN, SafetyFact, load_facts
from opct.data.pairs import ContrastivePair
from opct.data.perturb.families import named_families
from opct.data.perturb.safety_awareness import SPLITS as FAMILY_SPLITS
from opct.data.perturb.safety_awareness import safety_pairs
from opct.data.questions import SPLITS, Split
from opct.errors import DataError, unknown


def build_safety_awareness(
    source: str | Path | Sequence[SafetyFact] = BUILTIN,
    *,
    families: str | Iterable[str] = "train",
    seed: int = 0,
    per_prompt: int | None = 1,
    split: Split | None = None,
    twins: str = "identity",
    teacher: str = "system",
    allow_evaluation_only: bool = False,
) -> list[ContrastivePair]:
    """Safety-awareness pairs from facts, from a file of them, or from the embedded ones (`builtin`).

    Args:
        source: facts, or see `load_facts`.
        families: `train`, `held_out`, `all`, a name, or several names.
        seed: fixes phrasings and typos.
        per_prompt: how many of the families each message gets, in turn; None for all.
        split: only the facts of this split; None for all.
        twins: what the teacher sees beside a safe twin: `identity`, `privileged`, or `none` for no twins; see
            `opct.data.perturb.safety_awareness`.
        teacher: where the teacher finds the fact: in a `system` message, at the end of the last `user` message, or
            there after `examples`; see `TEACHERS` of `opct.data.perturb.safety_teachers`.
        allow_evaluation_only: make pairs also of facts whose authors ask that nobody trains on them.

    Raises:
        DataError: the source is faulty or for evaluation only, a name is unknown, or no fact is left.
    """
    facts = load_facts(source) if isinstance(source, str | Path) else list(source)
    if split is not None and split not in SPLITS:
        raise DataError(unknown("split", split, SPLITS))
    kept_out = sum(fact.is_evaluation_only for fact in facts)
    if kept_out and not allow_evaluation_only:
        raise DataError(
            f"{kept_out} of the {len(facts)} facts are for evaluation only: the authors of SAGE-Eval ask that it is "
            "not trained on. Train on other facts; to make pairs of them all the same, say --train-on-evaluation-data "
            "(allow_evaluation_only=True), and then report no score on them."
        )
    chosen = [fact for fact in facts if split in (None, fact.split)]
    if not chosen:
        raise DataError(f"None of the {len(facts)} facts is in the {split} split: give more, or another split.")
    return safety_pairs(
        chosen, chosen_families(families), seed=seed, per_prompt=per_prompt, twins=twins, teacher=teacher
    )


def chosen_families(families: str | Iterable[str]) -> list[str]:
    """The family names that a setting stands for: a group, a name, names with commas, or several names.

    Raises:
        DataError: one is unknown; the message has the nearest name.
    """
    return named_families(families, FAMILY_SPLITS, "safety-awareness")

"""Pairs of the safety-awareness axis: from the embedded facts, a file of facts, or SAGE-Eval if the user insists.

Safe twins keep over-warning down. What the teacher sees beside a twin is one of `TWINS`:

    identity     the twin and nothing else: the model is held to what it said before, so that a lesson learnt on hazards
                 does not spread to their look-alikes. The default: it needs nothing of the teacher.
    privileged   the twin with the fact as beside a hazard ("If it does not apply ... leave it out"), for a teacher that
                 obeys this. Small models bring the fact up anyway, and would be taught to warn of what is not there.
    none         no twins; over-warning is then left to the benign anchors.

Twins go through the same families as the hazards, so that no tone or length tells the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from opct.data.hazards import BUILTIN, SafetyFact, load_facts
from opct.data.pairs import EVALUATION_ONLY, ContrastivePair
from opct.data.perturb.families import chosen_families, rotation
from opct.data.perturb.safety_awareness import (
    AXIS,
    FAMILIES,
    HAZARD,
    SAFE_TWIN,
    perturbed_prompt,
    privileged_prompt,
    shuffled_messages,
)
from opct.data.questions import Split, of_split
from opct.errors import DataError, unknown

TWINS = ("identity", "privileged", "none")


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
        families: see `chosen_families`.
        seed: fixes phrasings and typos.
        per_prompt: families for each message, in rotation, hazards and twins apart; None for all. The messages of a
            fact come in a shuffled order, so that no family is bound to one style.
        split: only the facts of this split; None for all.
        twins: what the teacher sees beside a safe twin: one of `TWINS`.
        teacher: where the teacher finds the fact: one of `TEACHERS` of `opct.data.perturb.safety_awareness`.
        allow_evaluation_only: make pairs also of facts whose authors ask that nobody trains on them.

    Raises:
        DataError: the source is faulty or for evaluation only, a name is unknown, or no fact is left.
    """
    facts = load_facts(source) if isinstance(source, str | Path) else list(source)
    kept_out = sum(fact.is_evaluation_only for fact in facts)
    if kept_out and not allow_evaluation_only:
        raise DataError(
            f"{kept_out} of the {len(facts)} facts are for evaluation only: the authors of SAGE-Eval ask that it is "
            "not trained on. Train on other facts; to make pairs of them all the same, say --train-on-evaluation-data "
            "(allow_evaluation_only=True), and then report no score on them."
        )
    if twins not in TWINS:
        raise DataError(unknown("kind of twins", twins, TWINS))
    chosen = of_split(facts, split, "facts")
    names = chosen_families(families, FAMILIES, AXIS)
    pairs = []
    for kind in (HAZARD, SAFE_TWIN) if twins != "none" else (HAZARD,):
        turns = rotation(names, per_prompt, "per_prompt", key=f"{seed}/{kind}/families")
        for fact in chosen:
            for index in shuffled_messages(fact, kind, seed):
                for name in next(turns):
                    pairs.append(safety_pair(fact, kind, index, name, seed=seed, twins=twins, teacher=teacher))
    return pairs


def safety_pair(
    fact: SafetyFact,
    kind: str,
    index: int,
    family: str,
    *,
    seed: int = 0,
    twins: str = "identity",
    teacher: str = "system",
) -> ContrastivePair:
    """The pair of one message of a fact and one family."""
    prompt = perturbed_prompt(fact, kind, index, family, seed)
    is_identity = kind == SAFE_TWIN and twins == "identity"
    told = "user" if teacher == "examples" else teacher  # a twin's teacher sees no warnings of other hazards
    meta = {"question_id": fact.id, "fact_id": fact.id, "fact": fact.fact, "category": fact.category}
    meta |= {"group": fact.group, "split": fact.split, "kind": kind}
    meta |= {"style": fact.prompts[index].style if kind == HAZARD else SAFE_TWIN}
    mark = {EVALUATION_ONLY: True} if fact.is_evaluation_only else {}
    return ContrastivePair(
        id=f"{AXIS}/{kind}/{family}/{fact.id}/{index}",
        axis=AXIS,
        family=family,
        prompt=prompt,
        teacher_prompt=prompt if is_identity else privileged_prompt(fact, prompt, teacher if kind == HAZARD else told),
        meta={**meta, "about": list(fact.about), "harm": list(fact.harm), "keep": list(fact.keep), **mark},
    )

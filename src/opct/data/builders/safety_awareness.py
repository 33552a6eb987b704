"""Pairs of the safety-awareness axis: from the embedded facts, a file of facts, or SAGE-Eval if the user insists.

Safe counterparts keep over-warning down. What the teacher sees beside one is one of `COUNTERPARTS`:

    identity     the counterpart and nothing else: the model is held to what it said before, so that a lesson learnt on
                 hazards does not spread to their look-alikes. The default: it needs nothing of the teacher.
    privileged   the counterpart with the fact as beside a hazard ("If it does not apply ... leave it out"), for a
                 teacher that obeys this. Small models bring the fact up anyway, and would be taught to warn of what is
                 not there.
    none         no counterparts; over-warning is then left to the benign anchors.

They go through the same families as the hazards, so that no tone or length tells the two apart. Ids and `meta.kind`
call them `safe_twin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opct.data.hazards import SafetyFact, builtin_facts
from opct.data.pairs import EVALUATION_ONLY, ContrastivePair, Prompt
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
from opct.data.questions import of_split
from opct.errors import DataError, unknown

COUNTERPARTS = ("identity", "privileged", "none")


def build_safety_awareness(
    facts: Sequence[SafetyFact] | None = None,
    *,
    families: str | Iterable[str] = "train",
    seed: int = 0,
    per_prompt: int | None = 1,
    split: str | None = None,
    counterparts: str = "identity",
    teacher: str = "system",
    allow_evaluation_only: bool = False,
) -> list[ContrastivePair]:
    """Safety-awareness pairs from facts.

    Args:
        facts: None for the embedded ones.
        families: see `chosen_families`.
        seed: fixes phrasings and typos.
        per_prompt: families for each message, in rotation, hazards and counterparts apart; None for all. The messages
            of a fact come in a shuffled order, so that no family is bound to one style.
        split: only the facts of this split; None or "all" for all.
        counterparts: what the teacher sees beside a safe counterpart: one of `COUNTERPARTS`.
        teacher: where the teacher finds the fact: one of `TEACHERS` of `opct.data.perturb.safety_awareness`.
        allow_evaluation_only: also use facts that their authors do not want trained on.

    Raises:
        DataError: facts are for evaluation only, a name is unknown, or no fact is left.
    """
    facts = builtin_facts() if facts is None else facts
    n_eval_only = sum(fact.is_evaluation_only for fact in facts)
    if n_eval_only and not allow_evaluation_only:
        raise DataError(
            f"{n_eval_only} of the {len(facts)} facts are for evaluation only: the authors of SAGE-Eval ask that it is "
            "not trained on. Train on other facts; to make pairs of them all the same, say --train-on-evaluation-data "
            "(allow_evaluation_only=True), and then report no score on them."
        )
    if counterparts not in COUNTERPARTS:
        raise DataError(unknown("kind of counterparts", counterparts, COUNTERPARTS))
    chosen = of_split(facts, split, "facts")
    names = chosen_families(families, FAMILIES, AXIS)
    pairs = []
    for kind in (HAZARD, SAFE_TWIN) if counterparts != "none" else (HAZARD,):
        # of each kind: one rotation for both would bind counterparts to where the hazards ended
        turns = rotation(names, per_prompt, "per_prompt", key=f"{seed}/{kind}/families")
        for fact in chosen:
            for index in shuffled_messages(fact, kind, seed):
                for family in next(turns):
                    prompt = perturbed_prompt(fact, kind, index, family, seed)
                    teacher_prompt = prompt
                    if kind == HAZARD:
                        teacher_prompt = privileged_prompt(fact, prompt, teacher)
                    elif counterparts == "privileged":  # its teacher sees no examples, which warn of other hazards
                        teacher_prompt = privileged_prompt(fact, prompt, "user" if teacher == "examples" else teacher)
                    pairs.append(_pair(fact, kind, index, family, prompt, teacher_prompt))
    return pairs


def _pair(
    fact: SafetyFact, kind: str, index: int, family: str, prompt: Prompt, teacher_prompt: Prompt
) -> ContrastivePair:
    """The pair of one message of a fact and one family."""
    meta = {"question_id": fact.id, "fact_id": fact.id, "fact": fact.fact, "category": fact.category}
    meta |= {"group": fact.group, "split": fact.split, "kind": kind}
    meta |= {"style": fact.prompts[index].style if kind == HAZARD else SAFE_TWIN}
    mark = {EVALUATION_ONLY: True} if fact.is_evaluation_only else {}
    return ContrastivePair(
        id=f"{AXIS}/{kind}/{family}/{fact.id}/{index}",
        axis=AXIS,
        family=family,
        prompt=prompt,
        teacher_prompt=teacher_prompt,
        meta={**meta, "about": list(fact.about), "harm": list(fact.harm), "keep": list(fact.keep), **mark},
    )

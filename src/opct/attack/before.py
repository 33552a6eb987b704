"""What is checked and said of an attack before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from opct.attack.config import AttackSettings
from opct.attack.opening import subjects_of
from opct.attack.protocol import Attacker, Subject, plays_twins
from opct.attack.scoring import Scorer
from opct.attack.transfer import PromptTransfer
from opct.data.behaviors import Behavior
from opct.judges.protocol import digest
from opct.runs.plural import count


def players_of(
    settings: AttackSettings, behaviors: Sequence[Behavior], attacker: Attacker | None
) -> tuple[list[Subject], list[Subject]]:
    """(behaviours, benign twins) that are attacked; no twins where none are wanted, or the attacker plays none.

    Args:
        attacker: None: one that plays twins, whose model is not loaded yet.
    """
    subjects, twins = subjects_of(behaviors)
    with_twins = settings.twin_episodes > 0 and (attacker is None or plays_twins(attacker))
    return subjects, twins if with_twins else []


def settled(
    settings: AttackSettings, subjects: Sequence[Subject], twins: Sequence[Subject], scorer: Scorer
) -> dict[str, Any]:
    """What a resumed attack must share with the one before, as far as no model is needed to know it: JSON values."""
    return {
        "judge": scorer.judge_of_behaviors.identity.row(),
        "twin_judge": scorer.judge_of_twins.identity.row() if twins else None,
        "rules": asdict(settings.rules),
        "twin_rules": asdict(settings.twin_rules) if twins else None,
        "behaviors": {"n": len(subjects), "hash": _hash(subjects)},
        "twins": {"n": len(twins), "hash": _hash(twins)},
    }


def known_before(
    settings: AttackSettings, behaviors: Sequence[Behavior], attacker: Attacker | None, scorer: Scorer
) -> dict[str, Any]:
    """What is known of the attack's identity before a model is loaded.

    Args:
        attacker: None: one whose model is not loaded yet, and of which the name alone is known.
    """
    named = {"attacker": {"attacker": settings.attacker} if attacker is None else dict(attacker.identity())}
    return named | settled(settings, *players_of(settings, behaviors, attacker), scorer)


def announced(settings: AttackSettings, behaviors: Sequence[Behavior], attacker: Attacker | None) -> str:
    """How large the attack can get, in one line for a person.

    Args:
        attacker: None: one whose model is not loaded yet.
    """
    subjects, twins = players_of(settings, behaviors, attacker)
    rules, of_twins = settings.rules, settings.twin_rules
    if isinstance(attacker, PromptTransfer):
        most = sum(min(len(attacker.prompts.get(one.id, ())), rules.tries) for one in subjects)
        with_prompts = sum(one.id in attacker.prompts for one in subjects)
        how = f"finished prompts, at most {rules.tries} each; there are some for {with_prompts} of them"
    else:
        most, how = rules.tries * len(subjects), _each(rules.episodes, rules.rounds)
    most_of_twins = of_twins.tries * len(twins)
    about_twins = "none about benign twins"
    if twins:
        each = _each(of_twins.episodes, of_twins.rounds)
        about_twins = f"{most_of_twins:,} about {count(len(twins), 'benign twin')} ({each})"
    limit, total = settings.max_queries, most + most_of_twins
    ends = "" if limit is None or limit >= total else f"; --max-queries ends it at {limit:,}"
    return (
        f"up to {total:,} queries to the target: {most:,} about {count(len(subjects), 'behaviour')} ({how}), "
        f"{about_twins}{ends}"
    )


def _each(episodes: int, rounds: int) -> str:
    return f"{count(episodes, 'episode')} of {count(rounds, 'round')} each"


def _hash(subjects: Sequence[Subject]) -> str:
    return digest([[one.id, one.text, one.kind] for one in subjects])[:12]

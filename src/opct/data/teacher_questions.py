"""What the teacher of training pairs can be asked before training, to see whether it gives what they are to teach.

A behaviour asked bare, which it should refuse; a message that hides a hazard, with the fact before it, of which it
should warn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opct.data.pairs import ContrastivePair, Prompt
from opct.data.perturb import jailbreak, safety_awareness

BEHAVIOR = "behavior"


@dataclass(frozen=True)
class TeacherQuestion:
    """One teacher prompt.

    Attributes:
        prompt: what the teacher sees.
        cluster: id of the behaviour or fact that it is of.
        is_helped: whether the teacher is shown more than the request and its fact: a system message or examples before
            a behaviour, examples before a hazard.
        about, harm, keep: of a hazard, the words a warning is told by; see `SafetyFact`.
    """

    prompt: Prompt
    cluster: str
    is_helped: bool
    about: tuple[str, ...] = ()
    harm: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()


def teacher_questions(pairs: Iterable[ContrastivePair]) -> dict[str, list[TeacherQuestion]]:
    """Axis -> the distinct teacher prompts in these pairs of bare behaviours, and of hazards; no axis without any.

    Of jailbreak pairs whose `meta` does not say what kind they are, it is those with two sides that differ. Hazards
    whose `meta` lacks the words that a warning is told by are left out, for nobody could say whether it is one.
    """
    found: dict[str, dict[str, TeacherQuestion]] = {}
    for pair in pairs:
        if _is_behavior(pair):
            question = TeacherQuestion(pair.teacher_prompt, _cluster(pair), len(pair.teacher_prompt) > 1)
        elif _is_hazard(pair):
            question = TeacherQuestion(
                pair.teacher_prompt,
                _cluster(pair),
                len(pair.teacher_prompt) > len(pair.prompt) + 1,
                **{name: _words(pair.meta, name) for name in ("about", "harm", "keep")},
            )
        else:
            continue
        found.setdefault(pair.axis, {}).setdefault(json.dumps(pair.teacher_prompt), question)
    return {axis: list(questions.values()) for axis, questions in found.items()}


def _is_behavior(pair: ContrastivePair) -> bool:
    kind = pair.meta.get("kind") or ("anchor" if pair.is_identity else BEHAVIOR)
    return pair.axis == jailbreak.AXIS and kind == BEHAVIOR


def _is_hazard(pair: ContrastivePair) -> bool:
    return (
        pair.axis == safety_awareness.AXIS
        and not pair.is_identity
        and pair.meta.get("kind", safety_awareness.HAZARD) == safety_awareness.HAZARD
        and bool(_words(pair.meta, "about"))
        and bool(_words(pair.meta, "harm"))
    )


def _cluster(pair: ContrastivePair) -> str:
    return str(pair.meta.get("question_id", pair.id))


def _words(meta: Mapping[str, Any], name: str) -> tuple[str, ...]:
    words = meta.get(name)
    return tuple(map(str, words)) if isinstance(words, list | tuple) else ()

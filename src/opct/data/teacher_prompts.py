"""What the teacher of training pairs can be asked before training, to see whether it gives what they are to teach.

A behaviour asked bare, which it should refuse; a message that hides a hazard, with the fact, of which it should warn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from opct.data.hazards import is_stem
from opct.data.pairs import ContrastivePair, Prompt
from opct.data.perturb import jailbreak, safety_awareness

Help = Literal["nothing", "system", "user", "turns"]
ASKED = {jailbreak.AXIS: "bare behaviours", safety_awareness.AXIS: "hazards whose facts it is shown"}
"""Axis -> what its teacher is asked, in words."""


@dataclass(frozen=True)
class TeacherQuestion:
    """One teacher prompt.

    Attributes:
        prompt: what the teacher sees.
        cluster: id of the behaviour or fact that it is of.
        shown: what the teacher alone sees: `nothing`, a `system` message, more in the last `user` message, or further
            `turns`.
        about, harm, keep: of a hazard, the words a warning is told by; see `SafetyFact`.
    """

    prompt: Prompt
    cluster: str
    shown: Help
    about: tuple[str, ...] = ()
    harm: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class TeacherQuestions:
    """The questions of one axis.

    Attributes:
        n_ungradable: further teacher prompts, of hazards, whose answers nobody could grade: `about` or `harm` is not in
            the pair's `meta`, or not made of words as a facts file has them.
    """

    asked: tuple[TeacherQuestion, ...]
    n_ungradable: int = 0


def teacher_questions(pairs: Iterable[ContrastivePair]) -> dict[str, TeacherQuestions]:
    """Axis -> the distinct teacher prompts in these pairs of bare behaviours, and of hazards; no axis without any.

    Of pairs whose `meta` does not say what kind they are, it is those with two sides that differ.
    """
    found: dict[str, dict[str, TeacherQuestion | None]] = {}
    for pair in pairs:
        if pair.axis == jailbreak.AXIS and _kind(pair, "behavior") == "behavior":
            question: TeacherQuestion | None = TeacherQuestion(pair.teacher_prompt, _cluster(pair), _shown(pair))
        elif pair.axis == safety_awareness.AXIS and _kind(pair, safety_awareness.HAZARD) == safety_awareness.HAZARD:
            question = _hazard(pair)
        else:
            continue
        found.setdefault(pair.axis, {}).setdefault(json.dumps(pair.teacher_prompt), question)
    return {
        axis: TeacherQuestions(
            tuple(one for one in questions.values() if one is not None),
            sum(one is None for one in questions.values()),
        )
        for axis, questions in found.items()
    }


def _kind(pair: ContrastivePair, otherwise: str) -> str:
    return str(pair.meta.get("kind") or ("identity" if pair.is_identity else otherwise))


def _cluster(pair: ContrastivePair) -> str:
    return str(pair.meta.get("question_id") or pair.id)


def _shown(pair: ContrastivePair) -> Help:
    """By the teacher's messages; of a behaviour, whose prompt may be wrapped in turns, all but the last are shown."""
    if len(pair.teacher_prompt) == 2 and pair.teacher_prompt[0]["role"] == "system":
        return "system"
    own = 1 if pair.axis == jailbreak.AXIS else len(pair.prompt)
    more = len(pair.teacher_prompt) - own
    if more > 1:
        return "turns"
    if more == 1:
        return "system"
    return "nothing" if pair.axis == jailbreak.AXIS else "user"


def _hazard(pair: ContrastivePair) -> TeacherQuestion | None:
    about, harm, keep = (_stems(pair.meta, name) for name in ("about", "harm", "keep"))
    if not about or not harm or keep is None:
        return None
    return TeacherQuestion(pair.teacher_prompt, _cluster(pair), _shown(pair), about, harm, keep)


def _stems(meta: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """The words of that name, none where there are none; None where they are no words as a facts file has them."""
    words = meta.get(name) or ()
    return tuple(words) if isinstance(words, list | tuple) and all(map(is_stem, words)) else None

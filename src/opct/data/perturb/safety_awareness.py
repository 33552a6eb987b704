"""Safety awareness: the policy sees a message that hides a hazard, the teacher sees it with the safety fact.

A family says how the message is put; `SPLITS` says which families train and which are only ever measured on. The
teacher gets the same messages after a system message with the fact, which tells it to bring the fact up where it
applies.

`TEACHERS` has other places for the fact, for models that heed a system message less. What the teacher then says is the
target: where it does not warn, there is nothing to learn.

Safe twins keep over-warning down. What the teacher sees beside a twin is one of `TWINS`:

    identity     the twin and nothing else: the model is held to what it said before, so a lesson learnt on the hazards
                 does not spread to their look-alikes. The default: it needs nothing of the teacher.
    privileged   the twin with the fact as beside a hazard ("If it does not apply ... leave it out"): the same
                 condition on both sides of the lesson, but only for a teacher that obeys the second half of it. Small
                 models bring the fact up anyway, and the pair would then teach to warn of what is not there.
    none         no twins; over-warning is then left to the benign anchors.

Twins go through the same families as the hazards, so that no tone or length gives away which of the two a message is.

Typos: one word in eight (at least one where there is one), only in words of five or more ASCII letters that stand free
of digits and signs, never in the first or last letter, never in code, and never in a word that the hazard depends on
(`SafetyFact.keeps`): a model that misses the hazard should have missed it, not misread it.

Every draw comes from `random.Random` seeded with a text, so the same seed gives the same bytes on any machine.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from opct.data.hazards import SafetyFact
from opct.data.pairs import EVALUATION_ONLY, SAFETY_AWARENESS, ContrastivePair, Message, Prompt
from opct.data.perturb import safety_awareness_templates as phrasings
from opct.data.perturb.safety_awareness_templates import Wording
from opct.data.perturb.safety_teachers import privileged_prompt
from opct.errors import DataError, unknown

AXIS = SAFETY_AWARENESS
HAZARD, SAFE_TWIN = "hazard", "safe_twin"
TWINS = ("identity", "privileged", "none")
WORDS_PER_TYPO = 8

# Which families train, and which are only measured on.
SPLITS: dict[str, Literal["train", "held_out"]] = {
    "plain": "train",
    "cheerful": "train",
    "formal": "train",
    "typos": "train",
    "long_context": "train",
    "hurried": "held_out",
    "anxious": "held_out",
    "multi_turn": "held_out",
}


@dataclass(frozen=True)
class Family:
    """One way of putting a message."""

    name: str
    multi_turn: bool
    description: str
    phrasings: tuple[Wording, ...]
    misspells: bool = False

    @property
    def split(self) -> Literal["train", "held_out"]:
        """Whether the family trains or is held out."""
        return SPLITS[self.name]


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("plain", False, "the message as it was written", phrasings.PLAIN),
        Family("cheerful", False, "in a good mood", phrasings.CHEERFUL),
        Family("formal", False, "in the form of a letter", phrasings.FORMAL),
        Family("typos", False, "with spelling mistakes", phrasings.TYPOS, misspells=True),
        Family("long_context", False, "buried in a long everyday message", phrasings.LONG_CONTEXT),
        Family("hurried", False, "in a hurry", phrasings.HURRIED),
        Family("anxious", False, "nervous about other things", phrasings.ANXIOUS),
        Family("multi_turn", True, "after turns about other things", phrasings.MULTI_TURN),
    )
}


def known_family(name: str) -> Family:
    """The family of that name.

    Raises:
        DataError: there is none; the message has the nearest name.
    """
    if name not in FAMILIES:
        raise DataError(unknown("safety-awareness family", name, FAMILIES))
    return FAMILIES[name]


def messages_of(fact: SafetyFact, kind: str) -> list[str]:
    """The messages of a fact that hide the hazard (`hazard`), or those without it (`safe_twin`)."""
    return [prompt.text for prompt in fact.prompts] if kind == HAZARD else list(fact.twins)


def shuffled_messages(fact: SafetyFact, kind: str, seed: int) -> list[int]:
    """The places of a fact's messages in an order that fact, kind and seed fix."""
    places = list(range(len(messages_of(fact, kind))))
    random.Random(f"{seed}/{fact.id}/{kind}/messages").shuffle(places)
    return places


def perturbed_prompt(fact: SafetyFact, kind: str, index: int, family: str, seed: int) -> Prompt:
    """A message of a fact in the way of `family`: what the policy sees.

    Raises:
        DataError: the family is unknown.
    """
    found = known_family(family)
    rng = random.Random(f"{seed}/{fact.id}/{kind}/{index}/{family}")
    wording = rng.choice(found.phrasings)
    text = messages_of(fact, kind)[index]
    if found.misspells:
        text = _misspelt(text, fact, rng)
    earlier = [_message(("user", "assistant")[i % 2], said) for i, said in enumerate(wording.before)]
    return (*earlier, _message("user", wording.text.format(prompt=text)))


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


def safety_pairs(
    facts: Sequence[SafetyFact],
    families: Iterable[str],
    *,
    seed: int = 0,
    per_prompt: int | None = 1,
    twins: str = "identity",
    teacher: str = "system",
) -> list[ContrastivePair]:
    """Pairs of every message of every fact, each with `per_prompt` of the families; twins and teacher as those say.

    The families take turns, for hazards and for twins apart, so that each occurs equally often (to within one); the
    messages of a fact come to them in a shuffled order, so that no family is bound to one style.
    `per_prompt=None` uses all.

    Raises:
        DataError: an unknown family, kind of twins or teacher, or more families a message than there are.
    """
    names = [known_family(name).name for name in dict.fromkeys(families)]
    if twins not in TWINS:
        raise DataError(unknown("kind of twins", twins, TWINS))
    if not names:
        raise DataError(f"There are no families to make pairs with: name at least one of {', '.join(FAMILIES)}.")
    count = len(names) if per_prompt is None else per_prompt
    if not 1 <= count <= len(names):
        raise DataError(
            f"per_prompt is {count}, with {len(names)} families ({', '.join(names)}): use 1 to {len(names)}."
        )
    pairs = []
    for kind in (HAZARD, SAFE_TWIN) if twins != "none" else (HAZARD,):
        place = random.Random(f"{seed}/{kind}/families").randrange(len(names))
        for fact in facts:
            for index in shuffled_messages(fact, kind, seed):
                for name in (names[(place + j) % len(names)] for j in range(count)):
                    pairs.append(safety_pair(fact, kind, index, name, seed=seed, twins=twins, teacher=teacher))
                place += count
    return pairs


# ------------------------------------------------------------------------------------------------------------ parts


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


_FREE_WORD = re.compile(r"(?<!\S)[\"'(]*([A-Za-z]{5,})(?=[\"')]*[.,!?;:]*(?:\s|$))")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_BESIDE = dict(
    zip("abcdefghijklmnopqrstuvwxyz", "snvfrdghuiokmjbotwsdyicxtx", strict=True)
)  # a letter's neighbour on a keyboard, or its usual mix-up


def _misspelt(text: str, fact: SafetyFact, rng: random.Random) -> str:
    """The text with one word in `WORDS_PER_TYPO` misspelt, of those that may be."""
    code = [match.span() for match in _CODE.finditer(text)]
    free = [
        match.span(1)
        for match in _FREE_WORD.finditer(text)
        if not fact.keeps(match.group(1)) and not any(start <= match.start() < end for start, end in code)
    ]
    count = min(len(free), max(1, len(text.split()) // WORDS_PER_TYPO))
    parts, done = [], 0
    for start, end in sorted(rng.sample(free, count)):
        parts += [text[done:start], _misspelt_word(text[start:end], rng)]
        done = end
    return "".join([*parts, text[done:]])


def _misspelt_word(word: str, rng: random.Random) -> str:
    """The word with one inner letter swapped with the next, doubled, dropped or mistyped; never the same word."""
    at = rng.randrange(1, len(word) - 2)
    swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    ways = [word[:at] + word[at] + word[at:], word[:at] + word[at + 1 :]]
    ways += [word[:at] + _BESIDE[word[at].lower()] + word[at + 1 :]]
    ways += [swapped] if swapped != word else []
    return rng.choice(ways)

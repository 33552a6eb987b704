"""Safety awareness: the policy sees a message that hides a hazard, the teacher sees it with the safety fact.

A family says how the message is put. The teacher gets the same messages after a system message with the fact, which
tells it to bring the fact up where it applies; `TEACHERS` has other places for the fact, for models that heed a system
message less. What the teacher then says is the target: if it does not warn, there is nothing to learn.

Typos: one word in eight (at least one if possible), only in words of five or more ASCII letters without adjacent
digits and signs, never in the first or last letter, never in code, and never in a word that the hazard depends on
(`SafetyFact.keeps`): a model that misses the hazard should have missed it, not misread it.

Every draw comes from `random.Random` seeded with a text, so the same seed gives the same bytes on any machine.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from opct.data.hazards import SafetyFact
from opct.data.pairs import SAFETY_AWARENESS, Message, Prompt, user_prompt
from opct.data.perturb.families import families_of, read_wording
from opct.errors import DataError, unknown

AXIS = SAFETY_AWARENESS
HAZARD, SAFE_TWIN = "hazard", "safe_twin"
WORDS_PER_TYPO = 8
TEACHERS = ("system", "user", "examples")
"""Where the teacher finds the fact: in a system message, at the end of the last user message, or there after worked
examples. Only hazards get examples: after three warnings a teacher would also warn of safe counterparts."""

WORDING = read_wording("safety_awareness")
TEACHER = WORDING["teacher"]
"""The teacher's instructions: all ask for the warning first, so that a short completion holds it. `examples` are
messages, their facts and answers that warn, for the teacher of a model too small to warn without an example; none of
these facts is embedded for training or measuring."""


@dataclass(frozen=True)
class Wording:
    """The last user turn, and what was said before it: user and assistant, alternating.

    `text` is rendered once with `str.format`; `{prompt}` is the message that hides the hazard, and is data: it is never
    read as a template itself. No template names a hazard, asks for warnings, or asks for none.
    """

    text: str = "{prompt}"
    before: tuple[str, ...] = ()


FAMILIES = families_of(WORDING, Wording)


def messages_of(fact: SafetyFact, kind: str) -> list[str]:
    """The messages of a fact that hide the hazard (`hazard`), or those without it (`safe_twin`)."""
    return [prompt.text for prompt in fact.prompts] if kind == HAZARD else list(fact.counterparts)


def shuffled_messages(fact: SafetyFact, kind: str, seed: int) -> list[int]:
    """The places of a fact's messages in an order that fact, kind and seed fix."""
    places = list(range(len(messages_of(fact, kind))))
    random.Random(f"{seed}/{fact.id}/{kind}/messages").shuffle(places)
    return places


def perturbed_prompt(fact: SafetyFact, kind: str, index: int, family: str, seed: int) -> Prompt:
    """A message of a fact in the way of `family`: what the policy sees."""
    wordings = FAMILIES[family].templates
    rng = random.Random(f"{seed}/{fact.id}/{kind}/{index}/{family}")
    wording = rng.choice(wordings)
    text = messages_of(fact, kind)[index]
    if family == "typos":
        # after the choice of wording, from the same generator: the order of draws is part of every pair
        text = _misspelt(text, fact, rng)
    earlier: Prompt = tuple({"role": ("user", "assistant")[i % 2], "content": x} for i, x in enumerate(wording.before))
    return (*earlier, *user_prompt(wording.text.format(prompt=text)))


def privileged_prompt(fact: SafetyFact, prompt: Prompt, teacher: str = "system") -> Prompt:
    """The same messages with the fact, in one of the `TEACHERS`' places: what the teacher sees. Raises DataError where
    `teacher` is none of `TEACHERS`."""
    if teacher not in TEACHERS:
        raise DataError(unknown("place of the teacher's fact", teacher, TEACHERS))
    if teacher == "system":
        return ({"role": "system", "content": TEACHER["system"].format(fact=fact.fact)}, *prompt)
    *earlier, last = prompt
    shown: list[Message] = []
    for message, other, answer in TEACHER["examples"] if teacher == "examples" else ():
        asked = user_prompt(TEACHER["user"].format(message=message, fact=other))
        shown += [*asked, {"role": "assistant", "content": answer}]
    return (*shown, *earlier, *user_prompt(TEACHER["user"].format(message=last["content"], fact=fact.fact)))


# ------------------------------------------------------------------------------------------------------------ parts


_FREE_WORD = re.compile(r"(?<!\S)[\"'(]*([A-Za-z]{5,})(?=[\"')]*[.,!?;:]*(?:\s|$))")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_BESIDE = dict(
    zip("abcdefghijklmnopqrstuvwxyz", "snvfrdghuiokmjbotwsdyicxtx", strict=True)
)  # a letter's neighbor on a keyboard, or its usual mix-up


def _misspelt(text: str, fact: SafetyFact, rng: random.Random) -> str:
    """The text with one word in `WORDS_PER_TYPO` misspelt, of those that may be."""
    code = [match.span() for match in _CODE.finditer(text)]
    free = [
        match.span(1)
        for match in _FREE_WORD.finditer(text)
        if not fact.keeps(match.group(1)) and not any(start <= match.start() < end for start, end in code)
    ]
    # min last: a message without a free word gets none
    count = min(len(free), max(1, len(text.split()) // WORDS_PER_TYPO))
    parts, done = [], 0
    # sorted: the parts are put together from left to right
    for start, end in sorted(rng.sample(free, count)):
        parts += [text[done:start], _misspelt_word(text[start:end], rng)]
        done = end
    return "".join([*parts, text[done:]])


def _misspelt_word(word: str, rng: random.Random) -> str:
    """The word with one inner letter swapped with the next, doubled, dropped or mistyped; never the same word."""
    # at and at + 1 are inner letters: len - 3 is the last `at`
    at = rng.randrange(1, len(word) - 2)
    swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    ways = [word[:at] + word[at] + word[at:], word[:at] + word[at + 1 :]]
    ways += [word[:at] + _BESIDE[word[at].lower()] + word[at + 1 :]]
    # "letter": swapping two equal ones changes nothing
    ways += [swapped] if swapped != word else []
    return rng.choice(ways)

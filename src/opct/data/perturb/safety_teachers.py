"""What the teacher of the safety-awareness axis sees: the policy's messages, and the fact."""

from __future__ import annotations

from opct.data.hazards import SafetyFact
from opct.data.pairs import Prompt
from opct.errors import DataError, unknown

# All ask for the warning first, so that a short completion holds it.
SYSTEM = (
    "Safety fact: {fact}\n"
    "If what the user says or plans touches on this danger, begin your answer with a plain warning that gives the "
    "reason, even if they ask for something else, and then help them. "
    "If it does not apply to their situation, leave it out and simply help."
)
USER = (
    "{message}\n\n"
    "If this touches on the following danger, begin your answer with a plain warning of it that gives the reason, "
    "and then help me. If it does not apply to my situation, leave it out and simply help. The danger: {fact}"
)
TEACHERS = ("system", "user", "examples")
"""Where the teacher finds the fact: in a system message, at the end of the last user message, or there after
`EXAMPLES`, which stand before hazards alone: a teacher that has seen three warnings would also warn of safe twins."""

EXAMPLES: tuple[tuple[str, str, str], ...] = (
    (
        "We're clearing the gutters on Saturday with my uncle's long aluminium ladder, right under the power line. "
        "Which snacks should I bring?",
        "A metal ladder must not be set up near power lines, because touching one with it can electrocute the person "
        "on it.",
        "Please be careful: a metal ladder near a power line can electrocute whoever is on it, so keep well away from "
        "the line. As for snacks, sandwiches and apples are easy to eat outdoors.",
    ),
    (
        "Correct this sentence: 'For the party we seal the dry ice in a jar so it last longer.'",
        "Dry ice must never be kept in a closed container, because the gas it gives off can burst it.",
        "A warning first: dry ice in a sealed jar gives off gas that can burst it, so never close the jar. The "
        "sentence should read: 'so it lasts longer.'",
    ),
    (
        "What a New Year! One of the fireworks did not go off, so my son is lighting its stub again now. Can you write "
        "a caption for the photo?",
        "A firework that did not go off must be left alone and never be lit again, because it can go off late and burn "
        "whoever is near.",
        "Please stop him: a firework that did not go off can go off late and burn him, so nobody should go near it. "
        "Here is a caption for the rest of the evening: 'A quiet start to the year.'",
    ),
)
"""Messages, their facts and answers that warn, for the teacher of a model too small to warn without an example; none of
these facts is embedded for training or measuring."""


def privileged_prompt(fact: SafetyFact, prompt: Prompt, teacher: str = "system") -> Prompt:
    """The same messages with the fact, in one of the `TEACHERS`' places: what the teacher sees.

    Raises:
        DataError: `teacher` is none of `TEACHERS`.
    """
    if teacher not in TEACHERS:
        raise DataError(unknown("place of the teacher's fact", teacher, TEACHERS))
    if teacher == "system":
        return ({"role": "system", "content": SYSTEM.format(fact=fact.fact)}, *prompt)
    *earlier, last = prompt
    shown = _example_turns() if teacher == "examples" else ()
    return (*shown, *earlier, {"role": "user", "content": USER.format(message=last["content"], fact=fact.fact)})


def _example_turns() -> Prompt:
    return tuple(
        {"role": role, "content": content}
        for message, fact, answer in EXAMPLES
        for role, content in (("user", USER.format(message=message, fact=fact)), ("assistant", answer))
    )

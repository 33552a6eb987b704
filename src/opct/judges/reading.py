"""Which replies a judge that learned from labelled ones can read, and why it cannot read the others.

What rules for English cannot read (`opct.evals.graders.language`) is unscored, as it is where rules grade. A judge
whose
labelled replies are mostly in another language reads that one: only empty replies and those without a letter are
unscored there.
"""

from __future__ import annotations

from collections.abc import Sequence

from opct.evals.graders.language import OTHER_LANGUAGE, unreadable
from opct.evals.graders.short_answer import EMPTY, UNPARSED
from opct.judges.protocol import EMPTY_REPLY, OTHER_LANGUAGE_REPLY, UNPARSED_REPLY

LANGUAGES = ENGLISH, ANOTHER = "English", "another"
_REASONS = {EMPTY: EMPTY_REPLY, UNPARSED: UNPARSED_REPLY, OTHER_LANGUAGE: OTHER_LANGUAGE_REPLY}


def language_of(replies: Sequence[str]) -> str:
    """`English` where rules for English can read at least half of the replies that are not empty, else `another`."""
    found = [unreadable(reply) for reply in replies if reply.strip()]
    return ENGLISH if 2 * found.count(None) >= len(found) else ANOTHER


def unread_reason(reply: str, language: str) -> str | None:
    """Why a judge of that language cannot read the reply, by the reason's name; None where it can."""
    if language == ENGLISH:
        found = unreadable(reply)
        return None if found is None else _REASONS[found.verdict]
    if not reply.strip():
        return EMPTY_REPLY
    return None if any(character.isalpha() for character in reply) else UNPARSED_REPLY

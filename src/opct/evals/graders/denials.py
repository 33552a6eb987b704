"""Is an answer taken back by the words around it? Rules for English.

    before it   "not 18", "isn't 18", "cannot be 18", "neither 18", "x ≠ 18"
    after it    "18 is wrong", "18 apples, which is not correct", "18 (wrong)"; "18? No." in the next sentence
    its mark    "I don't think the answer is 18", "the answer isn't 18"

"not only 18" and "not less than 18" deny nothing. Irony and long denials are not understood. All of it looks at a few
words on either side.
"""

from __future__ import annotations

import re

WINDOW = 80
"""Characters before and after an answer that are looked at."""

_NEVER = r"(?:\b(?:not|never|cannot|neither|nor|no\s+longer)|n['’]t)\b"
_FILLERS = r"(?:\s+(?:be|been|equals?|to|an?|the|in|fact|exactly|actually|really|necessarily|definitely|is|are))*"
_BEFORE = re.compile(rf"(?:{_NEVER}{_FILLERS}|≠)(?:\s+[A-Za-z]\s*=)?(?:[^\S\n]|[:*_(\"'“$\[])*\Z", re.I)
_START = re.compile(rf"\W*{_NEVER}{_FILLERS}[\s:*_(\"'“]*[$\\\d(-]", re.I)
_WRONG = (
    r"(?:(?:\b(?:is|was|are|were|seems|looks|(?:would|must|has\s+to)\s+be)|['’]s)\s+(?:\w+ly\s+)?"
    r"(?:wrong|incorrect|false|mistaken|impossible"
    r"|not\s+(?:right|correct|true|possible|(?:the|my)\s+(?:(?:final|right|correct)\s+)*(?:answer|solution|result)))"
    r"|\b(?:(?:isn|wasn|aren|can|couldn|wouldn)['’]t|cannot)\s+(?:be\s+)?"
    r"(?:right|correct|true|possible|the\s+answer))\b"
)
_AFTER = re.compile(
    r"[A-Za-z%°]*(?:[\s*%°)\"”$]+[A-Za-z]+){0,3}?[\s,*)\"”$]*(?:—\s*)?"
    rf"(?:\(\s*(?:wrong|incorrect|false)\b|(?:but\s+)?(?:(?:which|that|this|it)\s*)?{_WRONG})",
    re.I,
)
_NEXT = re.compile(
    rf"\s*(?:no[,.!;]|no$|wrong\b|incorrect\b|(?:but\s+|wait,?\s+|no,?\s+)*(?:that|this|it)\s*{_WRONG})", re.I
)
_DOUBT = re.compile(
    rf"(?:{_NEVER}|\b(?:doubt|unsure|unclear)\b)(?:[^\S\n]+(?:think|believe|sure|certain|true|say|know|clear|convinced"
    r"|possible|that|if|whether|what|the|my|an?|final|right|correct))*(?:[^\S\n]|[*_])*\Z",
    re.I,
)


def is_denied(text: str, start: int, end: int) -> bool:
    """Is what stands at `start` to `end` denied in the words before or after it?"""
    return is_denied_before(text, start) or is_denied_after(text, end)


def is_denied_before(text: str, start: int) -> bool:
    """As `is_denied`, before it alone."""
    return _BEFORE.search(text[max(0, start - WINDOW) : start]) is not None


def is_denied_after(text: str, end: int) -> bool:
    """As `is_denied`, after it and in its own sentence alone."""
    return _AFTER.match(text[end : end + WINDOW]) is not None


def begins_with_denial(text: str) -> bool:
    """Does a text deny the mathematics that it begins with? "not $x$"; "not defined" is an answer."""
    return _START.match(text[:WINDOW]) is not None


def is_taken_back(following: str) -> bool:
    """Does the next sentence take an answer back? "No.", "That is wrong." """
    return _NEXT.match(following[:WINDOW]) is not None


def is_doubted(before: str) -> bool:
    """Do the words before "the answer is" take it back? "I do not think that the answer is"."""
    return _DOUBT.search(before[-WINDOW:]) is not None

"""Where the answer stands in a reply to a problem of mathematics; whether it is right is for math-verify to say.

1. Marked answers: the last `\\boxed{...}`; where there is none, the line after the last "Answer:", "the answer is" or
   "####" that holds anything. Boxes that only commas, "and" or "or" separate are one answer with several values.
2. A reply that was cut at the token limit has no other answer, and none in its last line: a number that may go on is
   none.
3. A reply that ended by itself without a mark: its last number, or for formulas what math-verify finds in its end.

A marked line of prose that names two different numbers is ambiguous; of an equation the right side counts. All of it is
linear in the length of the reply, and what is handed on is short.
"""

from __future__ import annotations

import re
from fractions import Fraction

from opct.evals.graders import AMBIGUOUS, EMPTY, TRUNCATED, UNPARSED, Verdict

MOST_MARKS = 50
MOST_CHARACTERS = 500
TAIL_CHARACTERS = 1000

_MARK = re.compile(r"\banswers?\b(?:\s+(?:is|are))?[ \t*]*[:=]|\banswers?\s+(?:is|are)\b|####", re.I)
_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
_NUMBER = re.compile(r"(?<![\w.,])[-−]?\s?[$€£]?-?(\d[\d,]*(?:\.\d+)?|\.\d+)")
_FRACTION = re.compile(r"[-−]?\d+\s*/\s*\d+")
_JOINS = re.compile(r"(?:[\s,;.$]|\\\]|\\\[|\\\(|\\\)|\band\b|\bor\b)*", re.I)
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_MATHS = re.compile(r"\$|\\\(|\\\[")


def read_number(reply: str, *, is_cut: bool) -> str | Verdict:
    """The one number that a reply gives as its answer, as LaTeX in dollars, or why there is none.

    Args:
        is_cut: the reply ends at the token limit.
    """
    if not reply.strip():
        return Verdict(EMPTY)
    marked = _marked(reply, is_cut)
    for text in marked:
        if re.search(r"\d", text):
            return _one_number(text)
    if marked:
        return Verdict(UNPARSED)
    if is_cut:
        return Verdict(TRUNCATED)
    numbers = _numbers(reply[-TAIL_CHARACTERS:])
    return _in_dollars(numbers[-1]) if numbers else Verdict(UNPARSED)


def read_formula(reply: str, *, is_cut: bool) -> str | Verdict:
    """The formula that a reply gives as its answer, as text for math-verify, or why there is none.

    Args:
        is_cut: the reply ends at the token limit.
    """
    if not reply.strip():
        return Verdict(EMPTY)
    marked = _marked(reply, is_cut)
    for text in marked:
        if re.search(r"\d|\\|\$", text) or not _PROSE.search(text):
            return _one_formula(text)
    if marked:
        words = _PROSE.findall(marked[0])
        return rf"$\text{{{marked[0]}}}$" if len(words) <= 2 else Verdict(UNPARSED)
    if is_cut:
        return Verdict(TRUNCATED)
    tail = reply[-TAIL_CHARACTERS:]
    return tail if re.search(r"\d", tail) or _MATHS.search(tail) else Verdict(UNPARSED)


def _marked(reply: str, is_cut: bool) -> list[str]:
    """What stands at each mark that holds anything, the last one first: of the boxes, in dollars; else of the lines.

    A line in which the reply was cut holds nothing: its number may go on.
    """
    boxes = [_in_dollars(text) for _, _, text in _joined(_boxes(reply), reply)]
    lines = [_clean(_first_line(reply, match.end(), is_cut)) for match in list(_MARK.finditer(reply))[-MOST_MARKS:]]
    return boxes[::-1] or [line for line in lines[::-1] if line and not _BOX.search(line)]


def _first_line(reply: str, start: int, is_cut: bool) -> str:
    """The first line with anything in it, from `start`."""
    lines = reply[start : start + MOST_CHARACTERS].split("\n")
    last = len(lines) - 1 if is_cut and start + MOST_CHARACTERS >= len(reply) else len(lines)
    return next((line for line in lines[:last] if _clean(line)), "")


def _clean(text: str) -> str:
    return text.strip(" \t\r*_`\"'“”:").rstrip(".").rstrip("*_ ")


def _boxes(reply: str) -> list[tuple[int, int, str]]:
    """(start, end, content) of the last boxes whose braces close."""
    found = []
    for match in list(_BOX.finditer(reply))[-MOST_MARKS:]:
        end = _closing_brace(reply, match.end())
        if end is not None and (content := " ".join(reply[match.end() : end].split())):
            found.append((match.start(), end + 1, content))
    return found


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for at in range(start, min(len(text), start + MOST_CHARACTERS)):
        escaped = at > 0 and text[at - 1] == "\\"
        depth += 0 if escaped else (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
    return None


def _joined(boxes: list[tuple[int, int, str]], reply: str) -> list[tuple[int, int, str]]:
    """Boxes next to each other as one with several values; repeats once."""
    joined: list[tuple[int, int, str]] = []
    for start, end, content in boxes:
        before = joined[-1] if joined else None
        if before is not None and _JOINS.fullmatch(reply[before[1] : start]):
            values = before[2] if content in before[2].split(", ") else f"{before[2]}, {content}"
            joined[-1] = (before[0], end, values)
        else:
            joined.append((start, end, content))
    return joined


def _one_number(text: str) -> str | Verdict:
    text = _SENTENCE_END.split(text, maxsplit=1)[0] if not text.startswith("$") else text
    text = text.rsplit("=", 1)[-1]
    plain = text.strip(" $")
    if "\\" in plain.replace("\\$", "").replace("\\%", "").replace("\\,", "") or _FRACTION.fullmatch(plain):
        return _in_dollars(plain)
    numbers = _numbers(text.replace("\\$", "").replace("\\,", "").replace("\\%", ""))
    if not numbers:
        return Verdict(UNPARSED)
    return _in_dollars(numbers[0]) if len({Fraction(number) for number in numbers}) == 1 else Verdict(AMBIGUOUS)


def _numbers(text: str) -> list[str]:
    """The numbers in a text, with a minus sign and without separators of thousands."""
    found = []
    for match in _NUMBER.finditer(text):
        digits = match.group(1).rstrip(",")
        sign = "-" if re.match(r"[-−]\S", match.group()) or re.match(r"[$€£]-", match.group()) else ""
        parts = [digits.replace(",", "")] if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", digits) else digits.split(",")
        found += [sign + part for part in parts if part]
    return found


def _one_formula(text: str) -> str | Verdict:
    if _MATHS.search(text):
        return text
    listed = re.sub(r"\s+(?:or|and)\s+", ", ", text)
    if not _PROSE.search(listed):
        return _in_dollars(listed)
    if "\\" in text:
        return _in_dollars(text)
    return _one_number(text)


def _in_dollars(text: str) -> str:
    return f"${text}$"

"""Where the answer stands in a reply to a problem of mathematics; whether it is right is for math-verify to say.

1. Marked answers: the last `\\boxed{...}`; where there is none, the line after the last "Answer:", "the answer is" or
   "####" that holds anything. Boxes that only commas, "and" or "or" separate are one answer with several values.
2. A reply that was cut at the token limit has no other answer, and none in its last line: a number that may go on is
   none.
3. A reply that ended by itself without a mark: what its last sentence with a number or a formula states. Of several
   different ones in it, the last counts where the sentence ends in "is 18" or the like; else they are ambiguous.

An answer that the reply takes back ("not 18", "18 is wrong") is none: `denials`. Which number a line gives is for
`number_answers`. All of it is linear in the length of the reply, and what is handed on is short.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from opct.evals.graders.denials import begins_with_denial, is_denied, is_denied_after, is_doubted, is_taken_back
from opct.evals.graders.number_answers import (
    CONCLUDES,
    concluded_number,
    one_number,
    sentence_start,
    stated_number,
    with_whole_powers,
)
from opct.evals.graders.short_answer import AMBIGUOUS, EMPTY, TRUNCATED, UNPARSED, Verdict

MOST_MARKS = 50
MOST_CHARACTERS = 500
TAIL_CHARACTERS = 1000

_MARK = re.compile(
    r"\banswers?\b(?:\s+(?:is|are))?[ \t*]*[:=]|\banswers?\s+(?:is|are)\b|####"
    r"|\banswers?\s+(?P<denial>(?:is|are|was)n['’]t|can(?:no|['’])t\s+be)\b",
    re.I,
)
_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
_JOINS = re.compile(r"(?:[\s,;.$]|\\\]|\\\[|\\\(|\\\)|\band\b|\bor\b)*", re.I)
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_MATHS = re.compile(r"\$|\\\(|\\\[")
_SPAN = re.compile(r"\$\$[^$]+\$\$|\$[^$\n]+\$|\\\((?:(?!\\\)).)*\\\)|\\\[(?:(?!\\\]).)*\\\]", re.S)
_CONDITION = re.compile(r"\b(?:when|where|if|for|at|with|since|as|because|let|given)[\s$]*$", re.I)
_NAME = re.compile(r"\$+\s*[A-Za-z]\s*\$+|\\[(\[]\s*[A-Za-z]\s*\\[)\]]")
_EXPRESSION = re.compile(r"\$[^$]+\$|\\\([^)]*\\\)|-?\d[\d.,/]*")


@dataclass(frozen=True)
class Marked:
    """What stands at a mark, and whether the reply takes it back around the mark."""

    text: str
    is_denied: bool


def read_number(reply: str, *, is_cut: bool) -> str | Verdict:
    """The one number that a reply gives as its answer, as LaTeX in dollars, or why there is none.

    Args:
        is_cut: the reply ends at the token limit.
    """
    if not reply.strip():
        return Verdict(EMPTY)
    marked = _marked(reply, is_cut)
    for answer in marked:
        if re.search(r"\d", answer.text):
            return Verdict(UNPARSED) if answer.is_denied else one_number(answer.text)
    if marked:
        return Verdict(UNPARSED)
    return Verdict(TRUNCATED) if is_cut else stated_number(reply[-TAIL_CHARACTERS:])


def read_formula(reply: str, *, is_cut: bool) -> str | Verdict:
    """The formula that a reply gives as its answer, as text for math-verify, or why there is none.

    Args:
        is_cut: the reply ends at the token limit.
    """
    if not reply.strip():
        return Verdict(EMPTY)
    reply = reply.replace("\N{MINUS SIGN}", "-")
    marked = _marked(reply, is_cut)
    for answer in marked:
        if re.search(r"\d|\\|\$", answer.text) or not _PROSE.search(answer.text):
            return Verdict(UNPARSED) if answer.is_denied else _one_formula(answer.text)
    if marked:
        words, last = _PROSE.findall(marked[0].text), marked[0]
        return Verdict(UNPARSED) if last.is_denied or len(words) > 2 else rf"$\text{{{last.text}}}$"
    if is_cut:
        return Verdict(TRUNCATED)
    return _stated_formula(reply[-TAIL_CHARACTERS:])


def _stated_formula(tail: str) -> str | Verdict:
    """The formula that the last sentence with one states; where there is none, or a later number concludes, that."""
    spans = list(_SPAN.finditer(tail))
    if not spans:
        return stated_number(tail)
    last, number = spans[-1], concluded_number(tail[spans[-1].end() :])
    if number is not None:
        return number
    if is_denied(tail, *last.span()) or is_taken_back(tail[last.end() :].lstrip(" .!?\n")):
        return Verdict(UNPARSED)
    start = sentence_start(tail, last.start())
    end = min((match.start() for match in re.finditer(r"[.!?]\s|\n", tail[last.end() :])), default=len(tail))
    sentence = tail[start : last.end() + end]
    stated = _unconditional(sentence)
    stated = [span for span in stated if not _NAME.fullmatch(span.group())] or stated
    if not stated:
        return Verdict(AMBIGUOUS)
    of_all = {span.group() for span in stated}
    concludes = "=" in stated[-1].group() and sum("=" in text for text in of_all) == 1
    concludes = concludes or CONCLUDES.search(sentence[: stated[-1].start()]) is not None
    is_alone = len(of_all) == 1 and not re.search(r"\d", _SPAN.sub("", sentence))
    return stated[-1].group() if is_alone or concludes else Verdict(AMBIGUOUS)


def _unconditional(sentence: str) -> list[re.Match[str]]:
    """The formulas of a sentence that are no condition; of "if $x=2$ and $y=3$" both are."""
    found: list[re.Match[str]] = []
    condition: re.Match[str] | None = None
    for span in _SPAN.finditer(sentence):
        joined = condition is not None and _JOINS.fullmatch(sentence[condition.end() : span.start()])
        if joined or _CONDITION.search(sentence[: span.start()]):
            condition = span
        else:
            found.append(span)
    return found


def _marked(reply: str, is_cut: bool) -> list[Marked]:
    """What stands at each mark that holds anything, the last one first: of the boxes, in dollars; else of the lines.

    A box that the reply takes back counts only where there is no other. A line in which the reply was cut holds
    nothing: its number may go on.
    """
    boxes = _joined(_boxes(reply), reply)
    denied = {text for start, end, text in boxes if is_denied(reply, start, end)}
    if boxes:
        kept = [Marked(_in_dollars(text), is_denied=False) for _, _, text in boxes if text not in denied]
        return kept[::-1] or [Marked(_in_dollars(boxes[-1][2]), is_denied=True)]
    lines = []
    for match in reversed(list(_MARK.finditer(reply))[-MOST_MARKS:]):
        line = _clean(_first_line(reply, match.end(), is_cut))
        if line and not _BOX.search(line):
            before = reply[max(0, match.start() - MOST_CHARACTERS) : match.start()]
            lines.append(Marked(line, is_denied=bool(match["denial"]) or is_doubted(before)))
    return lines


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


def _one_formula(text: str) -> str | Verdict:
    text = with_whole_powers(text)
    if begins_with_denial(text) or is_denied_after(text, _end_of_first(text)):
        return Verdict(UNPARSED)
    if _MATHS.search(text):
        return text
    listed = re.sub(r"\s+(?:or|and)\s+", ", ", text)
    if not _PROSE.search(listed):
        return _in_dollars(listed)
    if "\\" in text:
        return _in_dollars(text)
    return one_number(text)


def _end_of_first(text: str) -> int:
    """Where the mathematics that a line begins with ends; the whole line where it begins with none."""
    first = _EXPRESSION.match(text)
    return first.end() if first else len(text)


def _in_dollars(text: str) -> str:
    return f"${text}$"

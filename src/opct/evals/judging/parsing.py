"""A judge's answer to the values of its fields: strictly, from its end, never guessed. Pure functions.

1. The last lines of the answer that are not empty must be the fields, in order, one a line: `name: integer`. Asterisks
   and backquotes around them are left out, since many models cannot do without. Nothing may follow.
2. A value is one integer in ASCII digits inside its range. "4/5", "4.0", "4 or 5", "NaN", full-width digits are none.
3. No field may be given a value (digits, yes, no, true, false) anywhere else in the answer: after a colon, `=`, a dash,
   an arrow or in a table; a number also after "is" and its like, or right after the name. So a judge that repeats
   "refused: 1" from the judged reply has given two values, and is asked again rather than believed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opct.evals.refusals import declines

_DECORATION = str.maketrans("", "", "*`")
_APOLOGY = re.compile(r"\W*(?:(?:i['’]?m|i am) (?:really |very |so )?sorry|sorry\b|i apologi[sz]e)", re.IGNORECASE)
_MARKS = r"""(?:[^\S\n]|[*`"'(\[<\u201c\u201d\u2018\u2019])"""
_VALUE = (
    rf"""(?:{_MARKS}*(?:[+-]?\d|(?:yes|true|false)\b|no\b(?=[\s*`"'\u201d\u2019)\]>]*(?:$|[,.;|/}}]|because\b|since\b)))"""
    rf"""|\s*^{_MARKS}*(?:[+-]?\d+|yes|no|true|false){_MARKS}*\.?$)"""
)
_SIGN = r"[:=\uff1a\uff1d|>\-\u2010-\u2015\u2192\u21d2]"
_LINKS = (
    "is|was|be|are|equals|gets|scores?|value|rating|rated|should|would|could|must|can|will|of|to|at|as|now|still|only"
)
_COUNTED = r"(?!\d*(?:[\w%]|-[a-z]|\s+(?!(?:is|as|was|seems)\b)[a-z]+s\b))"  # "3 steps", "3-step", "3rd" are no values
_NUMBER = rf"(?:\s+(?:{_LINKS})\b){{0,4}}{_MARKS}+[+-]?\d{{1,2}}{_COUNTED}"
_YES = rf"{_MARKS}+is{_MARKS}+(?:yes\b|no\b(?=\W*$|[.,;]))|\s*\n{_MARKS}*\d+{_MARKS}*\.?$"
_CELL = re.compile(rf"{_MARKS}*(?:[+-]?\d+|yes|no|true|false)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Field:
    """One value that a judge is asked for: an integer from `low` to `high`."""

    name: str
    low: int
    high: int

    @property
    def form(self) -> str:
        """How it is asked for."""
        choices = [str(value) for value in range(self.low, self.high + 1)]
        return f"{self.name}: <{', '.join(choices[:-1])} or {choices[-1]}>"


@dataclass(frozen=True)
class Parsed:
    """The values of every field, or what is wrong with the answer."""

    values: dict[str, int] | None
    problem: str | None = None


def parse_fields(answer: str, fields: Sequence[Field]) -> Parsed:
    """One value for each field, read from the end of the answer; else `values` is None and `problem` says why."""
    lines = [cleaned for line in answer.splitlines() if (cleaned := line.translate(_DECORATION).strip())]
    tail, before = lines[-len(fields) :], "\n".join(lines[: -len(fields)])
    found = [re.fullmatch(r"(\w+)\s*:\s*(.*)", line) for line in tail]
    names = [match[1].lower() if match else None for match in found]
    if names != [field.name for field in fields]:
        mentioned = any(_assigns(field, "\n".join(lines)) for field in fields)
        wanted = ", ".join(field.name for field in fields)
        return Parsed(
            None, f"the answer does not end with {wanted}" + ("" if mentioned else ", and names none of them")
        )
    values: dict[str, int] = {}
    for field, match in zip(fields, found, strict=True):
        assert match is not None
        text = match[2].strip()
        if re.fullmatch(r"[0-9]{1,9}", text) is None:
            return Parsed(None, f"{field.name} is {text[:40]!r}, no integer")
        if not field.low <= int(text) <= field.high:
            return Parsed(None, f"{field.name} is {text}, outside {field.low}..{field.high}")
        if _assigns(field, before):
            return Parsed(None, f"{field.name} is given a value more than once")
        values[field.name] = int(text)
    return Parsed(values)


def is_refusal(answer: str, fields: Sequence[Field]) -> bool:
    """True where the judge declines: the answer gives no field a value and opens by declining, or by an apology.

    An apology alone is none where a model replies to a person ("Sorry, that took long"), so `declines` wants more; a
    judge that begins with one and gives no value has declined.
    """
    if any(_assigns(field, answer) for field in fields):
        return False
    return _APOLOGY.match(answer) is not None or declines(answer)


def _assigns(field: Field, text: str) -> bool:
    """True where the text gives the field a value, good or not: "warns: 1", `"warns" = "yes"`, "| warns | 1 |", "warns
    is 1", also on the next line.

    The word with a colon alone is none ("the reply warns: honey ..."), nor is "no" where it begins a phrase, nor a
    number that counts something ("specific 3-step instructions").
    """
    after = rf"[_)\]}}]*(?:(?:{_MARKS}*{_SIGN})+{_VALUE}|{_NUMBER}|{_YES})"
    told = rf"(?<![^\W_]){field.name}{after}|^\W*{field.name}{_MARKS}+is{_MARKS}+(?:true|false)\b"
    return re.search(told, text, re.IGNORECASE | re.MULTILINE) is not None or _heads_a_value(field, text)


def _heads_a_value(field: Field, text: str) -> bool:
    """True where a column of a Markdown table has the field's name and below it a value."""
    column: int | None = None
    for line in text.splitlines():
        cells = [cell.strip(" \t*`_\"'") for cell in line.strip().strip("|").split("|")] if "|" in line else []
        names = [cell.casefold() for cell in cells]
        if field.name in names:
            column = names.index(field.name)
        elif column is not None and column < len(cells):
            if _CELL.match(cells[column]):
                return True
        elif line.strip():
            column = None
    return False

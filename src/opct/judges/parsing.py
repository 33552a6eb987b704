"""Strict reading of a judge's answer: the values of its fields, from its end, never guessed. Pure functions.

1. The last lines of the answer that are not empty must be the fields, in order, one a line: `name: integer`. Asterisks
   and backquotes around them are left out, since many models cannot do without. Nothing may follow.
2. A value is one integer in ASCII digits inside its range. "4/5", "4.0", "4 or 5", "NaN", full-width digits are none.
3. No field may be given another number elsewhere in the answer, after a colon or `=`. So a judge that repeats
   "refused: 1" from the judged reply and says 0 has given two values, and is asked again rather than believed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opct.evals.graders.refusal import declines

_DECORATION = str.maketrans("", "", "*`")
_APOLOGY = re.compile(r"\W*(?:(?:i['’]?m|i am) (?:really |very |so )?sorry|sorry\b|i apologi[sz]e)", re.IGNORECASE)
_MARKS = r"[ \t*`\"'(\[<>)\]]*"


@dataclass(frozen=True)
class Field:
    """One field of a judge's answer: an integer from `low` to `high`."""

    name: str
    low: int
    high: int

    @property
    def form(self) -> str:
        """Its line in the prompt."""
        choices = [str(value) for value in range(self.low, self.high + 1)]
        return f"{self.name}: <{', '.join(choices[:-1])} or {choices[-1]}>"


@dataclass(frozen=True)
class Parsed:
    """The parsed values, or the problem with the answer; `is_refusal`: the judge declined to judge."""

    values: dict[str, int] | None
    problem: str | None = None
    is_refusal: bool = False


def parse_fields(answer: str, fields: Sequence[Field]) -> Parsed:
    """One value for each field, read from the end of the answer; else `values` is None and `problem` says why."""
    lines = [cleaned for line in answer.splitlines() if (cleaned := line.translate(_DECORATION).strip())]
    earlier, tail = lines[: -len(fields)], lines[-len(fields) :]
    found = [re.fullmatch(r"(\w+)\s*:\s*(.*)", line) for line in tail]
    names = [match[1].lower() if match else None for match in found]
    if names != [field.name for field in fields]:
        mentioned = any(_values_given(field, "\n".join(lines)) for field in fields)
        wanted = ", ".join(field.name for field in fields)
        problem = f"the answer does not end with {wanted}" + ("" if mentioned else ", and names none of them")
        return Parsed(None, problem, is_refusal=is_refusal(answer, fields))
    values: dict[str, int] = {}
    for field, match in zip(fields, found, strict=True):
        assert match is not None
        text = match[2].strip()
        if re.fullmatch(r"[0-9]{1,9}", text) is None:
            return Parsed(None, f"{field.name} is {text[:40]!r}, no integer")
        if not field.low <= int(text) <= field.high:
            return Parsed(None, f"{field.name} is {text}, outside {field.low}..{field.high}")
        if any(value != int(text) for value in _values_given(field, "\n".join(earlier))):
            return Parsed(None, f"{field.name} is given two values")
        values[field.name] = int(text)
    return Parsed(values)


def is_refusal(answer: str, fields: Sequence[Field]) -> bool:
    """True where the judge declines: the answer gives no field a value and opens by declining, or by an apology.

    In a chat reply an apology alone is not a refusal ("Sorry, that took long"), so `declines` needs more. A judge that
    begins with one and gives no value has declined.
    """
    if any(_values_given(field, answer) for field in fields):
        return False
    return _APOLOGY.match(answer) is not None or declines(answer)


def _values_given(field: Field, text: str) -> list[int]:
    """Each number that the text gives the field: `refused: 1`, `"refused" = 1`."""
    found = re.findall(rf"(?<![^\W_]){field.name}{_MARKS}[:=\uff1a]{_MARKS}([+-]?\d{{1,9}})", text, re.IGNORECASE)
    return [int(number) for number in found]

"""The one number that a piece of text gives as an answer, or why there is none. Nothing is guessed:

1. A number is digits with separators of thousands or a decimal point, a fraction ("3/4", "1 1/2") or has a power of ten
   ("1e3"); with a sign ("-5", "−5", "minus 5", "-$5"). A percent sign, a currency and a unit are left out; "million" is
   a unit, as in the answers of GSM8K.
2. A number that is denied does not count; see `denials`.
3. Of equations the last right side counts; of "x = 18 and y = 20" each.
4. Two different numbers are ambiguous. So are "±5" and two parts of which nobody can tell whether they are one number
   ("1,45").
5. A number in a form that is none of these (10^3, 1.450.000, 0x12, 3½) is not read in part: unparsed.
6. Without a mark the last sentence that has a number is read in the same way; of several numbers in it the last one
   counts where the sentence ends in "is 18" or the like, else the first where it begins with "there are 18" and is one
   clause. "20% more than 10 years ago" is ambiguous.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

from opct.evals.graders.denials import begins_with_denial, is_denied_after, is_denied_before, is_taken_back
from opct.evals.graders.short_answer import AMBIGUOUS, UNPARSED, Verdict

_CURRENCY = "$€£¥₹₩₽"
_NUMBER = re.compile(
    r"(?<![\w.,^])(?P<minus>[-–](?=\S)|negative\s+|(?:(?<![\w)] )|(?<=\bis ))minus\s+)?"  # "10 minus 5" is no sign
    rf"(?:[A-Z]{{0,3}}[{_CURRENCY}]\s?)?(?P<inner>[-–])?"
    r"(?:(?:(?P<whole>\d+) (?:and )?)?(?P<top>\d+) ?/ ?(?P<bottom>0*[1-9]\d*)(?!\d|[.,]\d| ?/)"
    r"|(?P<plain>\d[\d,]*(?:\.\d+)?|\.\d+))",
    re.I,
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_POWER_OF_TEN = re.compile(r"(?<![\w.,])(\d+(?:\.\d+)?)e([+-]?\d{1,2})(?!\w|\.\d)", re.I)
_SPACED_THOUSANDS = re.compile("(?<=\\d)[\u00a0\u2009\u202f](?=\\d{3}(?!\\d))")
_UNIT_POWER = re.compile(
    r"(\d\s?(?:[mck]?m|in|ft|yd|mi|inch(?:es)?|feet|yards?|miles?|met(?:er|re)s?|units?)\s?)\^\s?\{?[23]\}?", re.I
)
_ODD = re.compile(r"[\dA-Za-z)\]}]\s?\^|\d(?:\*\*\d|_\d|\.\d+\.\d|[¹²³⁰-⁹¼-¾⅐-⅞]|[A-Za-z]+\d)")
_PLUS_MINUS = re.compile(r"±\s?$")
_BREAK = re.compile(r"[.!?]\s+(?=[^\sa-z\d])|\n")
_ENUMERATOR = re.compile(r"^[^\S\n]*(?:step[^\S\n]+)?\d+[.):][^\S\n]+(?=[^\n]*\d)", re.I | re.M)
CONCLUDES = re.compile(
    r"(?:\b(?:is|are|was|were|be|equals?|gives?|gets?|costs?|has|have|had|makes?|totals?|earns?|left with|total of"
    r"|so|thus|hence|therefore)\b,?|=)[\s$*:]*$",
    re.I,
)
"""Words after which an answer stands."""
_COUNTED = re.compile(r"\W*(?:(?:so|thus|hence|therefore)\b,?\s*)?there (?:is|are) ", re.I)
_CLAUSE = re.compile(r"[,;+*/=×÷–-]|\b(?:so|or|and|if|which|when)\b", re.I)
_UNITS = re.compile(r"\W*(?:[A-Za-z°]+\W*){0,3}")
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_IN_DOLLARS = re.compile(r"\$(?=\S)[^$]*?(?<=\S)\$(?!\d)")
_APART = re.compile(r",\s|;|\band\b|\bor\b", re.I)
_UNKNOWN = re.compile(r"(?:^|,\s|;|\band\s|\bor\s)\W*([A-Za-z]\w*)\s*=", re.I)
_LISTED = re.compile(
    r"[A-Za-z%°]*(?:\s+[A-Za-z]+){0,2}?[\s*$]*(?:,\s*(?:or|nor|and)?|/|&|\bor\b|\bnor\b|\band\b)[\s*$]*", re.I
)


@dataclass(frozen=True)
class Number:
    """A number in a text: what is handed to math-verify, its value, and its place with sign and currency."""

    latex: str
    value: Fraction
    start: int
    end: int


def one_number(line: str) -> str | Verdict:
    """The number of a marked answer, as LaTeX in dollars; of several sentences the first one alone is looked at."""
    sentence, following = _first_sentence(_normal(line))
    if is_taken_back(following):
        return Verdict(UNPARSED)
    if "\\" in sentence.rpartition("=")[2]:
        return _of_latex(sentence)
    sides = _right_sides(sentence)
    if any(_ODD.search(sentence, start, end) for start, end in sides):
        return Verdict(UNPARSED)
    numbers = _numbers(sentence)
    kept = [
        number
        for number, denied in zip(numbers, _denied(sentence, numbers), strict=True)
        if not denied and any(start <= number.start < end for start, end in sides)
    ]
    if not kept:
        return Verdict(UNPARSED)
    if len({number.value for number in kept}) > 1 or any(_has_two_signs(sentence, number) for number in kept):
        return Verdict(AMBIGUOUS)
    return f"${kept[0].latex}$"


def stated_number(text: str) -> str | Verdict:
    """The number that the last sentence with any states, of a text without a mark, as LaTeX in dollars."""
    text = _ENUMERATOR.sub("", _normal(text))
    numbers = _numbers(text)
    if not numbers:
        return Verdict(UNPARSED)
    ending = text[sentence_start(text, numbers[-1].start) :]
    sentence, following = _first_sentence(ending)
    if _numbers(following):  # "i.e. 3 each"
        return Verdict(AMBIGUOUS)
    found = one_number(ending)
    return (_concluded(sentence) or _counted(sentence) or found) if found == Verdict(AMBIGUOUS) else found


def concluded_number(text: str) -> str | None:
    """The number that a text without a mark ends in, as LaTeX in dollars, where the last sentence with any ends in "is
    18" or the like."""
    text = _ENUMERATOR.sub("", _normal(text))
    numbers = _numbers(text)
    if not numbers or isinstance(found := stated_number(text), Verdict):
        return None
    sentence, _ = _first_sentence(text[sentence_start(text, numbers[-1].start) :])
    return found if _concluded(sentence) else None


def _concluded(sentence: str) -> str | None:
    """The last number of a sentence that ends in it, or in it and its unit."""
    numbers = _numbers(sentence)
    last = numbers[-1]
    concludes = CONCLUDES.search(sentence[: last.start]) and _UNITS.fullmatch(sentence[last.end :])
    return f"${last.latex}$" if concludes and _is_one(sentence, last, numbers) else None


def _counted(sentence: str) -> str | None:
    """The first number of a sentence that begins with "there are" and has no clause or operator after it."""
    numbers, counted = _numbers(sentence), _COUNTED.match(sentence)
    first, last = numbers[0], numbers[-1]
    if counted is None or counted.end() != first.start or _CLAUSE.search(sentence[first.end : last.start]):
        return None
    return f"${first.latex}$" if _is_one(sentence, first, numbers) else None


def _is_one(text: str, number: Number, numbers: Sequence[Number]) -> bool:
    """Whether its text is that of one number, with one sign."""
    return sum(other.start == number.start for other in numbers) == 1 and not _has_two_signs(text, number)


def sentence_start(text: str, place: int) -> int:
    """Where the sentence, or the line, that holds a place begins."""
    ends = [match.end() for match in _BREAK.finditer(text, 0, place)]
    return ends[-1] if ends else 0


def with_whole_powers(text: str) -> str:
    """A formula with "1e3" written out; "2e-1" stays, for e may be a number there."""
    return _POWER_OF_TEN.sub(lambda match: match.group() if match.group(2)[0] in "+-" else _written_out(match), text)


def _normal(text: str) -> str:
    """A line with one way to write a sign, a digit, a separator and a power; no LaTeX around plain numbers."""
    text = "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in text)
    text = re.sub(r"[^\S\n]", " ", _SPACED_THOUSANDS.sub("", text)).replace("\N{MINUS SIGN}", "-")
    text = re.sub(r"\+/?-(?=\s?\d)", "±", text)
    text = re.sub(r"!=|\\neq?(?![a-z])", "≠", text)
    text = re.sub(r"\\[$,%!()\[\]]", "", text).replace("{,}", ",")
    return _POWER_OF_TEN.sub(_written_out, _UNIT_POWER.sub(r"\1", text))


def _written_out(match: re.Match[str]) -> str:
    return format(Decimal(f"{match.group(1)}e{match.group(2)}"), "f")


def _first_sentence(text: str) -> tuple[str, str]:
    """The first sentence and what follows it; where it begins with mathematics in dollars that close, after these."""
    closed = _IN_DOLLARS.match(text)
    end = _SENTENCE_END.search(text, closed.end() if closed else 0)
    return (text[: end.start()], text[end.end() :]) if end else (text, "")


def _of_latex(sentence: str) -> str | Verdict:
    """What math-verify is to read, where the right side has more than digits and signs."""
    end = max(sentence.rfind("$"), sentence.rfind("}")) + 1
    if "≠" in sentence or begins_with_denial(sentence) or is_denied_after(sentence, end):
        return Verdict(UNPARSED)
    return f"${sentence.rpartition('=')[2].strip(' $')}$"


def _right_sides(sentence: str) -> list[tuple[int, int]]:
    """Where the answer can stand: right of the last "="; where several unknowns have values, right of each "="."""
    unknowns = {match.group(1) for match in _UNKNOWN.finditer(sentence)}
    cuts = [match.span() for match in _APART.finditer(sentence)] if len(unknowns) > 1 else []
    starts = [0, *(end for _, end in cuts)]
    ends = [*(start for start, _ in cuts), len(sentence)]
    return [(max(a, sentence.rfind("=", a, b) + 1), b) for a, b in zip(starts, ends, strict=True)]


def _numbers(text: str) -> list[Number]:
    return [number for match in _NUMBER.finditer(text) for number in _of_match(match)]


def _of_match(match: re.Match[str]) -> Iterator[Number]:
    """One number; several where separators are not those of thousands, or "3 7/2" is no mixed number."""
    sign, end = ("-" if match["minus"] or match["inner"] else ""), match.end()
    if match["plain"]:
        digits = match["plain"].rstrip(",")
        end -= len(match["plain"]) - len(digits)
        whole = _THOUSANDS.fullmatch(digits)
        texts = [digits.replace(",", "")] if whole else [part for part in digits.split(",") if part]
    else:
        part = Fraction(int(match["top"]), int(match["bottom"]))
        texts = [f"{match['top']}/{match['bottom']}"]
        if match["whole"] and part < 1:
            mixed = int(match["whole"]) + part
            texts = [f"{mixed.numerator}/{mixed.denominator}"]
        elif match["whole"]:
            texts.insert(0, match["whole"])
    for text in texts:
        yield Number(sign + text, Fraction(sign + text), match.start(), end)


def _denied(text: str, numbers: Sequence[Number]) -> list[bool]:
    """Which numbers are denied; of "neither 18 nor 20" and "18 and 20 are wrong" both."""
    before = [is_denied_before(text, number.start) for number in numbers]
    after = [is_denied_after(text, number.end) for number in numbers]
    listed = [bool(_LISTED.fullmatch(text[a.end : b.start])) for a, b in pairwise(numbers)]
    for i, joined in enumerate(listed):
        before[i + 1] |= joined and before[i]
    for i, joined in reversed(list(enumerate(listed))):
        after[i] |= joined and after[i + 1]
    return [a or b for a, b in zip(before, after, strict=True)]


def _has_two_signs(text: str, number: Number) -> bool:
    return _PLUS_MINUS.search(text[: number.start]) is not None

"""The words of a text, as answers are compared: what is written in two ways becomes one.

Letters lose case and accents. "C.S. Lewis" and "C. S. Lewis" are "cs lewis", "it's" is "it is", "R&B" is "r and b",
"C++" is one word. Numbers: "1,000", "one thousand" and "1 thousand" are "1000", ".50" is "0.5", "9:00" and "49.00" are
"9" and "49", "14:30" is "2:30 pm", "twenty-first" is "21st"; a minus of any kind, or the word, stays with its number.
A comma is that of a decimal ("12,5", "0,250", "1.250,00"), but for three digits that end a number which does not begin
with "0,": "1,250" is "1250". So is a point before three digits of euros: "€ 1.200" is "€1200", but for a price per unit
("1.799 €/l"). "1½", "1 1/2" and "one and a half" are "1.5"; the digits of all scripts are equal. "€150", "EUR 150" and
"150 €" are "150 euro", "$5m" is "5000000 dollar"; "20%" is "20 percent", "80km" is "80 km", "20th of July" is "july
20". "noon" is "12 pm", "5 o'clock" is "5", "St. Paul" is "Saint Paul"; between two numbers, days or months "to" is a
dash. Dates with dots are day.month.year, with slashes they stay where they may be read in two ways ("3/4/2026"). What
stands between two words is kept apart (`Words.gaps`), so that a comparison can skip it or stop there. Scripts without
spaces have one word a character.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import NamedTuple

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Han, kana and Hangul (whose particles are written on to the word)."""
_LETTER = rf"(?:[^\W_{_SPACELESS}]|[\u0900-\u0963\u0966-\u0dff])"  # `\w` lacks the vowel signs of India's scripts
_TOKEN = re.compile(
    rf"(?<![^\W{_SPACELESS}])(?<!\.)-\d+(?:\.\d+)*|\d+(?:\.\d+)+|[A-Za-z]{_LETTER}*[+#]+(?![^\W_])"
    rf"|(?<![^\W_])[A-Z]{{1,2}}-(?![\w-])|{_LETTER}+|[{_SPACELESS}]"
)
_ACCENT = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]")


def _table(text: str) -> dict[str, str]:
    """The table of "a=x b=y_z": a -> "x", b -> "y z"."""
    return dict(pair.replace("_", " ").split("=") for pair in text.split())


_PLAIN = _table("ø=o ł=l đ=d ð=d þ=th æ=ae œ=oe ß=ss")
_PLAIN_LETTERS = str.maketrans(
    {**_PLAIN, **{k.upper(): v.title() for k, v in _PLAIN.items() if k != "ß"}, "ı": "i", "ẞ": "SS", "_": " "}
    | dict.fromkeys("’‘‛′`´ʼ", "'")
)
# not between two words ("3-4" is no -4), and only before a number
MINUS = re.compile(rf"(?<![^\W{_SPACELESS}])(?<!\.)[-\u2010-\u2015\u2212](?=[$€£¥₹]?\d)")
_HALVES = re.compile(r"(?<![\w.,/])(\d+)(?: ?([¼½¾])| ([13])[/⁄]([24])(?![\w/⁄]))")
_THIN = re.compile("(?<=\\d)[\u00a0\u2009\u202f](?=\\d{3}(?!\\d))")
"""Blanks that stand within numbers alone."""
_INITIALS = re.compile(r"\b(?:[A-Za-z]\. ?){2,}")

_CONTRACTED = re.compile(
    r"\b(?:(it|that|there|what|he|she|who|here|where|how)'s|(is|are|was|were|do|does|did|would|could|should|has|have"
    r"|had|must|need|ca|wo)n'?t|(can)not)\b|(?<=\w)'(re|m|ll|ve)\b",
    re.I,
)
_WHOLE = {"ca": "can", "wo": "will", "re": "are", "m": "am", "ll": "will", "ve": "have"}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_SHORT_SCALES = _table("k=thousand m=million mn=million b=billion bn=billion tn=trillion")
_CURRENCIES = _table(
    "$=dollar €=euro £=pound ¥=yen ₹=rupee ₽=ruble ₩=won ₪=shekel usd=dollar eur=euro gbp=pound jpy=yen inr=rupee "
    "rs=rupee cny=yuan krw=won chf=swiss_franc aud=australian_dollar cad=canadian_dollar nok=norwegian_krone "
    "us$=dollar a$=australian_dollar au$=australian_dollar c$=canadian_dollar"
)
_UNITS = _table(
    "buck=dollar quid=pound rouble=ruble pct=percent feet=foot ft=foot m=meter metre=meter g=gram gramme=gram l=liter "
    "litre=liter t=ton km=kilometer kilometre=kilometer cm=centimeter centimetre=centimeter mi=mile mm=millimeter "
    "millimetre=millimeter kg=kilogram kilo=kilogram mg=milligram ml=milliliter millilitre=milliliter lb=pound "
    "oz=ounce h=hour hr=hour min=minute sec=second yr=year wk=week kph=kmh gb=gigabyte mb=megabyte kb=kilobyte "
    "tb=terabyte w=watt kw=kilowatt v=volt"
)
"""Short forms of what stands after a number; a plural is made singular first."""
_SIGNS = str.maketrans(
    {"&": " and ", "%": " percent ", "°": " degree "}
    | {sign: f" {name} " for sign, name in _CURRENCIES.items() if len(sign) == 1}
)
_MONTH = _table(
    "jan=january feb=february mar=march apr=april may=may jun=june jul=july aug=august sep=september oct=october "
    "nov=november dec=december sept=september"
)
_MONTHS = list(dict.fromkeys(_MONTH.values()))
_MONTH |= {month: month for month in _MONTHS}
_DAYS = _table(
    "mon=monday tue=tuesday tues=tuesday wed=wednesday weds=wednesday thu=thursday thur=thursday thurs=thursday "
    "fri=friday sat=saturday sun=sunday"
)
_DAYS |= {day: day for day in _DAYS.values()}


def _any(table: dict[str, str], dot: str = r"\.?") -> str:
    return rf"({'|'.join(sorted(table, key=len, reverse=True))})\b{dot}"


_ANY_MONTH = _any(_MONTH)
_TITLES = _table("st=Saint mt=Mount dr=Doctor")
_SPOKEN: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # wherever it stands: "Main St" is "Main Saint" on both sides; the dot stays, which may end a sentence
    (re.compile(r"\b(st|mt|dr)\b", re.I), lambda m: _TITLES[m[1].lower()]),
    (re.compile(r" o'?clock\b", re.I), ""),
    (re.compile(r"\bhalf (?:a )?dozen\b", re.I), "6"),
    (re.compile(r"\b(?:(?:12(?::00)?|twelve) )?(?:(noon)|midnight)\b", re.I), lambda m: "12 pm" if m[1] else "12 am"),
    *(
        (  # "sat", "sun" and "may" are days and months beside another one
            re.compile(
                rf"\b{_any(names)}(?: ?[-\u2010-\u2015] ?| (?:to|through|thru|until|till) ){_any(names, dot='')}", re.I
            ),
            lambda m, names=names: f"{names[m[1].lower()]}-{names[m[2].lower()]}",  # type: ignore[misc]
        )
        for names in (_DAYS, _MONTH)
    ),
    (re.compile(r"\b(tues?|weds|thu(?:rs?)?|fri)\b", re.I), lambda m: _DAYS[m[1].lower()]),
)
"""In every text, in this order."""
# no part of a longer number or a time: "12:30 May" has no day 30
_DAY = r"(?<![\d.:,-])(\d{1,2})(?:st|nd|rd|th)?(?![\w:]|[.,]\d)"
_SIGN = r"(?:\b(?:US|AU?|C)\$|[$€£¥₹₽₩₪])"
_CODE = rf"(?:{'|'.join(filter(str.isalpha, (code for code in _CURRENCIES if code.isascii())))})\b"
_ANY_SCALE = "|".join((*_SCALES, *_SHORT_SCALES))
_PER_UNIT = r" ?/| (?:per|an?)\b"
_POINT = r"(?<![\d.,])(?!(?<=[(\[])\d+,\d+[)\]])"  # no "(3,4)"
_DECIMALS = r"(?:\d\d?|(?!1\d|20)\d{4}|\d{5,})(?!\d)"  # no thousands, no year: "May 5,2026"
_REWRITTEN: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})(?![.,]?\d)"),
        lambda m: m[0].replace(".", "").replace(",", "."),
    ),
    # no "€1.125 million", and no price of a liter
    (re.compile(rf"((?:€|\bEUR) ?[1-9]\d?\d?)\.(\d{{3}})(?![.,]?\d| ?(?:{_ANY_SCALE})\b|{_PER_UNIT})", re.I), r"\1\2"),
    (re.compile(rf"(?<![\d.,])([1-9]\d?\d?)\.(?=\d{{3}} ?(?:€|euros?\b|EUR\b)(?!{_PER_UNIT}))", re.I), r"\1"),
    (re.compile(rf"{_POINT}(0(?=,\d)|\d+(?=,{_DECIMALS})),(\d+)(?![.,]?\d)"), r"\1.\2"),
    # after the decimal commas above, which would lose theirs here
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
    # "10 000", since "5 200" may be two numbers, and "10'000"; not begun within a row of such groups, which takes long
    (
        re.compile(r"(?<![\d.,:/-])(?<!\d[ '])[1-9]\d{0,2}(?:(?: \d{3})* 000|(?:'\d{3})+)(?![\d.,:/-]|[ ']\d)"),
        lambda m: re.sub(r"\D", "", m[0]),
    ),
    (re.compile(r"(?<=\d)\.(?=\d\d ?[ap]m\b)", re.I), ":"),
    (re.compile(r"\b0(?=\d:\d\d)"), ""),
    (  # an hour after noon can be nothing else; one before it is left, since "9:30" may be pm
        re.compile(r"(?<![\d:.])(1[3-9]|2[0-3])[:h]([0-5]\d)(?![\d:]| ?[ap]m\b)", re.I),
        lambda m: f"{int(m[1]) - 12}:{m[2]} pm",
    ),
    (re.compile(r"(?<![\d:.])00?:([0-5]\d)(?![\d:]| ?[ap]m\b)", re.I), r"12:\1 am"),
    (
        re.compile(r"(?<=\d) in the (?:(morning)|afternoon|evening)\b", re.I),
        lambda m: " am" if m[1] else " pm",
    ),
    (re.compile(r"(?<![\d./])(\d\d?)([./])(\d\d?)\2(\d{4})(?![\d/]|\.\d)"), lambda m: _date(m)),
    (
        re.compile(r"(?<![\d-])(\d{4})-(0[1-9]|1[0-2])-([0-3]\d)(?![\d-])"),
        lambda m: f"{_MONTHS[int(m[2]) - 1]} {int(m[3])} {m[1]}",
    ),
    (
        re.compile(rf"\b{_DAY}(?: of)? {_ANY_MONTH}|\b{_ANY_MONTH} (?:the )?{_DAY}", re.I),
        lambda m: f"{_MONTH[(m[2] or m[3]).lower()]} {int(m[1] or m[4])}",
    ),
    (
        re.compile(rf"((?:{_SIGN}|\b{_CODE}) ?-?\d+(?:\.\d+)?) ?({'|'.join(_SHORT_SCALES)})\b", re.I),
        lambda m: f"{m[1]} {_SHORT_SCALES[m[2].lower()]}",
    ),
    (
        re.compile(
            rf"((?<!\w)-|)({_SIGN}|(?<!\d )\b{_CODE}\.?) ?(-?\d+(?:\.\d+)?(?: (?:{'|'.join(_SCALES)})\b)?)"
            rf"(?: ({'|'.join(_CURRENCIES.values())})s?\b)?",
            re.I,
        ),
        lambda m: f" {m[1]}{m[3]} {m[4] or _currency(m[2])} ",
    ),
    (re.compile(rf"(?<=\d) ?({_SIGN}|{_CODE})", re.I), lambda m: f" {_currency(m[1])} "),
    (re.compile(r"(?<=\d )(?:US|American) (?=dollars?\b)"), ""),
    (
        re.compile(r"(?<=\d)(?: ?(?:°|degrees?) ?)?(?:(C)|F)\b"),
        lambda m: f" degree {'celsius' if m[1] else 'fahrenheit'}",
    ),
    (re.compile(rf"(?<![\w.])(\d+(?:[.:]\d+)?)((?:{'|'.join(_UNITS)}|[ap]m|kmh|mph)s?)\b", re.I), r"\1 \2"),
    (
        re.compile(r"(?<=\d )(?:(km|kilomet(?:er|re)s?)|mi|miles?)(?:/| per )h(?:our|r)?\b", re.I),
        lambda m: "kmh" if m[1] else "mph",
    ),
    # zeros at the end of a decimal last: "10.30 am" is "10:30 am" by now, and keeps its zero
    (re.compile(rf"(?<![^\W{_SPACELESS}])(?<![.:])(\d+\.\d*?[1-9])0+(?!\d|[.:]\d)"), r"\1"),
    (re.compile(r"(?<=\d)[.:]0+(?!\d|[.:]\d)"), ""),
)
"""Only in texts with a digit, in this order."""

_STEMS = ("twen", "thir", "four", "fif", "six", "seven", "eigh", "nine")
_SMALL = {
    word: int(digits)
    for word, digits in _table(
        "zero=0 one=1 two=2 three=3 four=4 five=5 six=6 seven=7 eight=8 nine=9 ten=10 eleven=11 twelve=12"
    ).items()
}
_SMALL |= {f"{stem}teen": i for i, stem in enumerate(_STEMS[1:], 13)}
_SMALL |= {f"{stem}ty".replace("fourty", "forty"): 10 * i for i, stem in enumerate(_STEMS, 2)}
_NTH = _table(
    "first=1st second=2nd third=3rd fourth=4th fifth=5th sixth=6th seventh=7th eighth=8th ninth=9th tenth=10th "
    "eleventh=11th twelfth=12th"
)
_ORDINAL = {digits: word for word, digits in _NTH.items()}
_ORDINAL |= {f"{word[:-1]}ieth" if i > 19 else f"{word}th": f"{i}th" for word, i in _SMALL.items() if i > 12}
"""Up to the twelfth in words ("second" is a unit too), from there on in digits."""
_IN_NUMBERS = {*_SMALL, *_SCALES, "minus", "negative", "half"}
_DIGIT, _DECIMAL = re.compile("[0-9]"), re.compile(r"(?![0-9])\d")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)*")


class Words(NamedTuple):
    """The words of a text in order.

    Attributes:
        folded: without case; `cased` has them with it.
        gaps: what stood before each word, and after the last one: one more than there are words.
    """

    folded: list[str]
    cased: list[str]
    gaps: list[str]


def plain(text: str) -> str:
    """The text with plain letters, one kind of apostrophe and of minus, initials joined ("C. S." is "CS")."""
    # before NFKD, which takes "´" apart into a blank and an accent
    text = text.translate(_PLAIN_LETTERS)
    if not text.isascii():
        text = _THIN.sub("", text)  # before NFKD, which makes them plain blanks
        text = _ACCENT.sub("", unicodedata.normalize("NFKD", text))
        text = "".join(c for c in text if c.isascii() or unicodedata.category(c) != "Cf")
        text = unicodedata.normalize("NFC", _DECIMAL.sub(lambda digit: str(int(digit[0])), text))
        text = MINUS.sub("-", text)
    if "." in text:
        text = _INITIALS.sub(lambda match: re.sub(r"[. ]", "", match.group()) + " ", text)
    return text


def split(text: str) -> tuple[list[str], list[str]]:
    """The words of a plain text, with their case, and what stands before each and after the last."""
    words, gaps, end = [], [], 0
    for match in _TOKEN.finditer(text):
        words.append(match.group())
        gaps.append(text[end : match.start()])
        end = match.end()
    return words, [*gaps, text[end:]]


def words_of(text: str) -> Words:
    """The words of a text, as the module says; names and replies become comparable."""
    # both before `plain`: `_INITIALS` and `_TOKEN` take the dot of ".5" for punctuation, "1½" would become "11/2"
    text = plain(_HALVES.sub(_mixed, re.sub(r"(?<![\w.])\.(?=\d)", "0.", text)))
    if "\\" in text:
        text = re.sub(r"\\[A-Za-z]+|[{}]|(?<!\\)\$", " ", text)  # LaTeX: commands, braces and "$"
    for pattern, new in _SPOKEN:
        text = pattern.sub(new, text)
    # before possessives: "it's" is "it is", not "it"
    text = _CONTRACTED.sub(_uncontracted, text)
    if "'" in text:
        text = re.sub(r"(?<=[^\W\d])'(?=[^\W\d])", "", re.sub(r"(?<=\w)'[sS]\b", "", text))
    if _DIGIT.search(text):
        for pattern, new in _REWRITTEN:
            text = pattern.sub(new, text)
    text = text.translate(_SIGNS).replace("per cent", "percent")
    cased, gaps = split(text)
    folded = [_ORDINAL.get(word, word) for word in (word.casefold() for word in cased)]
    words = Words(folded, cased, gaps)
    if not _IN_NUMBERS.isdisjoint(folded):
        words = _with_numbers(words)
    return _without_to(words) if "to" in words.folded or "through" in words.folded else words


def is_number(word: str) -> bool:
    """Is the word a number in digits?"""
    return _NUMBER.fullmatch(word) is not None


def unit(word: str) -> str:
    """One name for what is counted: "kms", "km" and "kilometres" are "kilometer", "bars" is "bar"."""
    if word.endswith("s") and word[:-1] in _UNITS:
        return _UNITS[word[:-1]]
    # "gas", "bus", "glass" and "axis" are no plurals
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-2] if word.endswith(("xes", "ches", "shes", "sses")) else word[:-1]
    return _UNITS.get(word) or (word[:-2] + "y" if word.endswith("ie") else word)


def canonical(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a name, with one name for what a number counts."""
    return tuple(unit(word) if is_counted(words, i) else word for i, word in enumerate(words))


def is_counted(words: Sequence[str], at: int) -> bool:
    """Does a number stand one or two words before?"""
    return any(is_number(word) for word in words[max(0, at - 2) : at])


def _mixed(match: re.Match[str]) -> str:
    """A whole number with a fraction: "1½" and "1 1/2" are "1.5"."""
    part = unicodedata.numeric(match[2]) if match[2] else int(match[3]) / int(match[4])
    return f"{int(match[1]) + Decimal(part)}" if part < 1 else match[0]


def _currency(symbol: str) -> str:
    return _CURRENCIES[symbol.lower().rstrip(".")]


def _date(match: re.Match[str]) -> str:
    """The date in words, if day and month cannot be taken for each other."""
    day, month = int(match[1]), int(match[3])
    if match[2] == "/" and month > 12:
        day, month = month, day
    # "3/4": either may be the month, so it stays as written and equals only itself
    is_clear = match[2] == "." or day > 12 or day == month
    return f"{_MONTHS[month - 1]} {day} {match[4]}" if is_clear and 0 < month <= 12 and 0 < day <= 31 else match[0]


def _uncontracted(match: re.Match[str]) -> str:
    is_, not_, can, rest = match.groups()
    verb = is_ or not_ or can or ""
    return f"{_WHOLE.get(verb.lower(), verb)}' {'is' if is_ else 'not'}" if verb else f"' {_WHOLE[rest.lower()]}"


def _with_numbers(words: Words) -> Words:
    """Numbers in words become digits, "one" alone stays: it is more often a pronoun; "minus" joins its number."""
    new = Words([], [], [])
    at = 0
    while at < len(words.folded):
        end, number = _number_at(words, at)
        shown = number or words.folded[at]
        # not after a number: "10 minus 4" is no -4
        if number and new.folded[-1:] in (["minus"], ["negative"]) and not is_number(["", *new.folded][-2]):
            shown = f"-{number}"
            del new.folded[-1], new.cased[-1]
        else:
            new.gaps.append(words.gaps[at])
        new.folded.append(shown)
        new.cased.append(shown if number else words.cased[at])
        at = end
    new.gaps.append(words.gaps[-1])
    return new


def _without_to(words: Words) -> Words:
    """The words without the "to" of "5 to 7" and of "9 am to 5 pm", as "5-7" is read."""
    folded, cased, gaps = words
    numbers = {i for i, word in enumerate(folded) if is_number(word)}
    ends = numbers | {i + 1 for i in numbers if folded[i + 1 : i + 2] in (["am"], ["pm"])}
    dropped = {i for i in range(len(folded)) if folded[i] in ("to", "through") and i - 1 in ends and i + 1 in numbers}
    kept = [i for i in range(len(folded)) if i not in dropped]
    # the gap before a dropped word goes with it; the last gap stands after all words
    return Words([folded[i] for i in kept], [cased[i] for i in kept], [*(gaps[i] for i in kept), gaps[-1]])


def _number_at(words: Words, at: int) -> tuple[int, str | None]:
    """Where the number that begins at a word ends, and its digits; None if there is none."""
    folded, first = words.folded, words.folded[at]
    # Decimal: "4.1 million" in floating point is 4099999.9999999995
    total, part, end = Decimal(), Decimal(), at
    while end < len(folded) and (end == at or words.gaps[end] in (" ", "-")):
        word, after = folded[end], folded[end + 1] if end + 1 < len(folded) else ""
        small = _SMALL.get(word)
        if end == at and (is_number(word) or (word == "a" and after in _SCALES)):
            part = Decimal(1 if word == "a" else word if word.count(".") < 2 else 0)
        elif small is not None and not is_number(first) and (end == at or _adds(total, part, small)):
            part += small
        elif word in _SCALES and part and (word != "hundred" or part < 100):
            part *= _SCALES[word]
            if word != "hundred":
                total, part = total + part, Decimal()
        elif not (word == "and" and folded[end - 1] in _SCALES and after in _SMALL):
            break
        end += 1
    value = total + part
    # "two and a half"
    is_half = folded[end : end + 3] == ["and", "a", "half"] and words.gaps[end : end + 3] == [" ", " ", " "]
    if is_half and end > at and value == int(value):
        return end + 3, f"{value + Decimal('0.5')}"
    nth = _NTH.get(folded[end], "") if end < len(folded) and words.gaps[end] == "-" else ""
    if len(nth) == 3 and not is_number(first) and part % 100 in range(20, 100, 10):  # "twenty-first"
        return end + 1, f"{value}"[:-1] + nth
    if end - at < 2:
        return at + 1, first if is_number(first) else str(_SMALL[first]) if _SMALL.get(first, 1) != 1 else None
    return end, f"{value.normalize():f}"


def _adds(total: Decimal, part: Decimal, small: int) -> bool:
    """Does a small number go on with what was read: "twenty" + "five", "hundred" + "twenty"?"""
    rest = part % 100
    return (rest == 0 and bool(part or total)) or (rest in range(20, 100, 10) and 0 < small < 10)

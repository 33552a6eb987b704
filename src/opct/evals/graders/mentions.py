"""Where the names of answers are mentioned in a reply, and not denied; see `opct.evals.graders.short_answer`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from opct.data.words import Words, canonical, is_counted, is_number, unit, words_of
from opct.errors import EvaluationError

BREAKS = frozenset(".,;:!?()\n—–。，、；：！？…")
QUOTES = frozenset('"“”')
"""Signs that end a clause; quotation marks only make a word stand alone."""
_ARTICLES = {"a", "an", "the"}
_DENIERS = {"not", "never", "nor", "neither", "than", "misconception", "misconceptions", "myth"}
_COPULAS = {"is", "was", "are", "were"}
_FILLERS = _ARTICLES | _COPULAS | {"it", "its", "be", "actually", "really", "simply", "just", "think", "believe"}
_FILLERS |= {"that", "in", "at", "on", "by", "from", "called", "named"}
_WRONG_WORDS = {"wrong", "incorrect", "false", "not"}
_POLAR = dict.fromkeys(("yes", "yeah", "yep", "yup"), "yes") | dict.fromkeys(("no", "nope", "nah"), "no")
_AFTER_NO = {"you", "we", "i", "it", "they", "he", "she", "this", "there", "because", "since", "and", "but", "unless"}
"""Words after a "no" that is an answer, where no comma stands; before any other word it is "no charge"."""

Names = dict[tuple[str, ...], str]
"""Words of a name -> its candidate."""


@lru_cache(maxsize=1 << 14)
def key_of(name: str) -> tuple[str, ...]:
    """A name as it is searched for: its words, without a leading article; a one-letter name keeps its case."""
    folded, cased, gaps = words_of(name)
    if len(folded) == 1 and len(folded[0]) == 1 and folded[0].isalpha():
        return (cased[0],)
    if len(folded) == 2 and gaps[1] == "' " and folded[1] in ("is", "not", "are", "am", "will", "have"):
        return folded[0], f"'{folded[1]}"  # "it's" alone is no "it is"
    # a bool as the start of the slice: 1 drops the article; a name that is only "The" stays
    return canonical(folded[len(folded) > 1 and folded[0] in _ARTICLES :])


def add_names(names: Names, candidate: str, texts: Sequence[str]) -> None:
    for text in texts:
        key = key_of(text)
        if not key:
            raise EvaluationError(f"The answer {text!r} has no letter or digit to look for: give it a name in words.")
        # not overwritten: a name belongs to the candidate that was added first (the right answer)
        names.setdefault(key, candidate)
        if key[0] == "one" or (key[0] == "1" and key[1:]):  # a lone "one" in a reply is more often a pronoun
            names.setdefault(("1" if key[0] == "one" else "one", *key[1:]), candidate)


def candidates_in(words: Words, names: Names) -> tuple[set[str], bool]:
    """The candidates that a reply gives, and whether it can be read: where they are "yes" and "no", it must say one.

    These are "yes" and "no" with what follows them, or one candidate that has no other name.
    """
    polar = {key: candidate for key, candidate in names.items() if key[0] in ("yes", "no")}
    with_others = {candidate for key, candidate in names.items() if key not in polar}
    # no question of yes or no: "zero" with the alias "no" has another name, so "no" is searched like any word
    if len({key[0] for key in polar}) < 2 and not {polar.get(("yes",)), polar.get(("no",))} - {None, *with_others}:
        return {candidate for candidate, *_ in _mentions(words, names)} or _by_number(words, names), True
    stated = _stated(words)
    # bare "yes" and "no" are read by `_stated` only: as words they stand in "no charge", too
    in_words = {key: candidate for key, candidate in names.items() if key not in (("yes",), ("no",))}
    candidates = {candidate for candidate, *_ in _mentions(words, in_words)}
    for key, candidate in polar.items():
        kind, rest = key[0], key[1:]
        # "yes, 10%" and "yes, 20%": a bare "yes" does not tell them apart
        others = {c for k, c in polar.items() if k[0] == kind} - {candidate}
        # with a number after it the number must be said: "Yes, you get 10%" is not "yes, 20 percent"
        if kind in stated and not others and not any(map(is_number, rest)):
            candidates.add(candidate)
        # what follows the "yes" of one answer and the "no" of another tells nothing
        is_shared = any(c != candidate and k[-len(rest) :] == rest for k, c in names.items())
        if rest and not is_shared and (kind in stated or not stated):
            spans = _mentions(words, {rest: candidate})
            # without a stated word "You can't pay in cash" must not count as "yes, in cash"
            if any(kind in stated or not _is_negated(words, start) for _, start, _ in spans):
                candidates.add(candidate)
    return candidates, bool(candidates or stated)


def _by_number(words: Words, names: Names) -> set[str]:
    """The candidates ("11 dollars") whose number ends a clause of the reply without a unit ("It costs 11.")."""
    by_number: dict[str, set[str]] = {}
    for key, candidate in names.items():
        # a second number ("9:30 pm", "5 to 7 days") makes the first a part of the answer
        if is_number(key[0]) and len(key) > 1 and not any(map(is_number, key[1:])):
            by_number.setdefault(key[0], set()).add(candidate)
    # "9 am" and "9 pm": the number alone tells nothing
    bare: Names = {(number,): candidate for number, (candidate, *others) in by_number.items() if not others}
    # no dash: in "24 - 17 = 10 dollars" the answer is not 24
    ends = {*(i for i, gap in enumerate(words.gaps) if not BREAKS.isdisjoint(gap.strip(" –—("))), len(words.folded)}
    return {candidate for candidate, _, end in _mentions(words, bare) if end in ends}


def _stated(words: Words) -> set[str]:
    """Which of "yes" and "no" a reply says as a word of its own."""
    folded, gaps = words.folded, words.gaps
    stated: set[str] = set()
    for i, word in enumerate(folded):
        kind = _POLAR.get(word)
        # gaps[i + 1] stands behind word i; the end is tested before the next word is read
        if kind == "no" and not (_is_break(gaps[i + 1]) or i + 1 == len(folded) or folded[i + 1] in _AFTER_NO):
            continue
        if kind and not _denied(words, i, i + 1):
            stated.add(kind)
    first = next((i for i in range(1, len(folded)) if _is_break(gaps[i])), len(folded))  # the words of the first clause
    if folded[first - 1 : first] == ["not"] and folded[max(0, first - 2)] not in ("or", "why", "if"):
        stated.add("no")  # "Unfortunately not."
    return stated


def _is_negated(words: Words, start: int) -> bool:
    """Is there a "not", "no" or "never" before a word, within its clause?"""
    while start and not _is_break(words.gaps[start]):
        # after the test of the gap before this word: a "not" in the clause before must not count
        start -= 1
        if words.folded[start] in ("not", "no", "never"):
            return True
    return False


def _is_break(gap: str) -> bool:
    # a hyphen without blanks joins words ("10-12"); " - " parts clauses
    return gap != " " and (gap == " - " or not BREAKS.isdisjoint(gap))


def _mentions(words: Words, names: Names) -> list[tuple[str, int, int]]:
    """(candidate, start, end) of the names that a reply mentions and does not deny."""
    folded, cased, _ = words
    first: dict[str, list[tuple[str, ...]]] = {}
    for key in names:
        first.setdefault(key[0], []).append(key)
    spans = [
        (start, start + len(key), names[key])
        for start, word in enumerate(folded)
        # the cased word finds one-letter names; where both are equal the name would be found twice
        for key in (*first.get(word, ()), *(first.get(cased[start], ()) if cased[start] != word else ()))
        if _is_at(words, start, key)
    ]
    return [
        (candidate, start, end)
        for start, end, candidate in spans
        # inside a longer name, or begun within an earlier one; a strict `>`: a span must not remove itself
        if not any((s <= start and end <= e and e - s > end - start) or s < start < e < end for s, e, _ in spans)
        # after the longer names: "not Papua New Guinea" must not leave "Guinea"
        and not _denied(words, start, end)
    ]


def _is_at(words: Words, start: int, key: tuple[str, ...]) -> bool:
    """Do the words of a name begin at `start`? Not inside "10:30", nor one letter that is no name."""
    folded, cased, gaps = words
    end = start + len(key)
    if len(key) == 1 and len(key[0]) == 1 and key[0].isalpha():
        return cased[start] == key[0] and _stands_alone(words, start)
    # only a number inside the name makes its word a unit: one before it ("3 bar") must not give the name "Bars"
    if end > len(folded) or any(
        word != key_word
        and not (i and unit(word) == key_word and is_counted(folded[start:end], i))
        and not (key_word == f"'{word}" and "'" in gaps[start + i])
        for i, (word, key_word) in enumerate(zip(folded[start:end], key, strict=True))
    ):
        return False
    return not any(
        # 0 < at < len: gaps has one more entry, whose neighbors do not exist
        gaps[at] == ":" and 0 < at < len(folded) and is_number(folded[at - 1]) and is_number(folded[at])
        for at in (start, end)
    )


def _stands_alone(words: Words, i: int) -> bool:
    """Is the one-letter word at `i` a name? "A" and "I" before another word are an article and a pronoun."""
    folded, _, gaps = words
    if not folded[i].isascii():
        return (i == 0 or gaps[i] != "") and (i + 1 == len(folded) or gaps[i + 1] != "")
    is_last = i + 1 == len(folded)
    after = gaps[i + 1]
    return (
        folded[i] not in ("a", "i")
        or is_last
        or _is_break(after)
        or not QUOTES.isdisjoint(after)
        or folded[i + 1] in ("is", "and", "or")
    )


def _denied(words: Words, start: int, end: int) -> bool:
    folded, _, gaps = words
    before = start
    # gaps[before] stands between word before - 1 and word before: a denial does not reach over a clause
    while before and not _is_break(gaps[before]) and folded[before - 1] in _FILLERS:
        before -= 1
    # two words for "instead of"; last[-1:] is the one that stands directly before
    last = folded[max(0, before - 2) : before] if not _is_break(gaps[before]) else []
    if last == ["instead", "of"] or not _DENIERS.isdisjoint(last[-1:]):
        return True
    after: list[str] = []
    while len(after) < 3 and end < len(folded) and not _is_break(gaps[end]):
        after.append(folded[end])
        end += 1
    return bool(after[1:]) and after[0] in _COPULAS and after[1] in _WRONG_WORDS and after[2:] != ["only"]

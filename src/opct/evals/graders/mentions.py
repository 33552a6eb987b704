"""Where the names of answers are mentioned in a reply, and not denied; see `opct.evals.graders.short_answer`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
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
_ONLY = {"only", "just", "merely", "simply"}
_FILLERS |= {"that", "in", "at", "on", "by", "from", "called", "named"}
_WRONG, _RIGHT = {"wrong", "incorrect", "false"}, {"right", "correct", "true", "it", "so"}
_VERBS = _COPULAS | {"am", "be", "do", "does", "did", "can", "could", "will", "would", "should", "has", "have", "had"}
_BEING = {"be", "seem", "seems", "look", "looks", "sound", "sounds"}
_VERBS |= {"may", "might", "must"} | _BEING
"""What a "not" that denies a sentence stands behind."""
_REPORTED = {"think", "believe", "say", "sure", "certain", "know", "agree", "see", "true", "correct", "right", "that"}
_DOUBTS = {"doubt", "unlikely", "disagree", "dispute", "deny", "retract"}
_REPORTED |= _DOUBTS | {"way", "chance", "case", "convinced", "mean"}
"""Words whose negation denies the sentence after them: "I don't think it is X"."""
_ERRS, _OVER = {"wrong", "incorrect", "false", "mistaken"}, {"to", "about", "that"}
"""Doubts where such a word follows: "I was wrong to say X", not "you are wrong it is X"."""
_FRESH = {"but", "and", "so", "because", "since", "although", "though", "while", "whereas", "however", "maybe"}
_FRESH |= {"perhaps", "probably", "possibly", "until", "till", "before", "after", "except", "unless", "without"}
_FRESH |= {"than", "over", "above", "under", "below", "beyond", "past", "exceed", "exceeds", "besides", "why"}
"""Words that end the reach of a "not" before them: "not open until 9 am" says 9 am."""
_REACH = 12  # words; a denial is not searched farther back, and a long reply takes no long time
_LIGHT = _BEING | {"had", "have", "would", "first", "also", "quite", "still"}
_SAID = {"said", "thought", "guessed", "answered", "claimed", "suggested", "believed", "assumed", "mentioned"}
_YOU_SAY = _SAID | {"say", "think", "guess", "claim", "suggest", "believe", "assume", "mention", "chose", "propose"}
_OTHERS = {"people", "they", "others", "many", "most", "some", "everyone", "everybody", "often"}
_HOLD = {"think", "believe", "say", "assume", "guess", "thought", "believed", "said", "assumed", "guessed"}
_CONTRAST = {"but", "however", "actually", "yet"}
_TO_USER = re.compile(r"(?:you are|you were) (?:\w+ )?(?:right|correct|wrong|mistaken|incorrect)\b")
"""What follows a "yes" or "no" that is said to the user, not to the question."""
_OPERATORS = {"x", "times", "plus", "minus"}
_SIGN = re.compile(r"\s*[+*×/÷]\s*|\s+[-–]\s+")
_POLAR = dict.fromkeys(("yes", "yeah", "yep", "yup"), "yes") | dict.fromkeys(("no", "nope", "nah"), "no")
_AFTER_NO = {"you", "we", "i", "it", "they", "he", "she", "this", "there", "because", "since", "and", "but", "unless"}
"""Words after a "no" that is an answer, where no comma stands; before any other word it is "no charge"."""

_DENIAL = re.compile(
    r"not\b|n['’]t\b|never|\bno|nah\b|wrong|incorrect|false|doubt|unlikely|disagree|dispute|deny|neither|than|instead"
    r"|mistaken|retract",
    re.I,
)
_ORDINARY = _ARTICLES | _COPULAS | {"all", "am", "and", "as", "at", "be", "by", "can", "do", "for", "go", "have", "he"}
_ORDINARY |= {"i", "if", "in", "it", "me", "my", "of", "on", "or", "so", "that", "to", "up", "us", "we", "who", "will"}
_ORDINARY |= {"may"}
"""Words that are a name only where they have its capitals: "WHO", "US", "May", "He"."""
_BEFORE_PRONOUN = {"this", "that", "these", "those", "the", "a", "an", "no", "any", "each", "every", "some", "another"}
_BEFORE_PRONOUN |= {"which", "other", "on"}
_AFTER_PRONOUN = {"of", "that", "who", "which", "in", "more", "another"}
_AFTER_PRONOUN |= {"can", "could", "may", "might", "must", "should"}

Names = dict[tuple[str, ...], str]
"""Words of a name -> its candidate."""


@lru_cache(maxsize=1 << 14)
def key_of(name: str) -> tuple[str, ...]:
    """A name as it is searched for: its words, without a leading article; "K", "WHO" and "May" keep their case."""
    folded, cased, gaps = words_of(name)
    if len(folded) == 1 and len(folded[0]) == 1 and folded[0].isalpha():
        return (cased[0],)
    if len(folded) == 2 and gaps[1] == "' " and folded[1] in ("is", "not", "are", "am", "will", "have"):
        return folded[0], f"'{folded[1]}"  # "it's" alone is no "it is"
    # a bool as the start of the slice: 1 drops the article; a name that is only "The" stays
    start = len(folded) > 1 and folded[0] in _ARTICLES
    if folded[start:] and len(folded) - start == 1 and cased[start] != folded[start] and folded[start] in _ORDINARY:
        return (cased[start],)
    return canonical(folded[start:])


def add_names(names: Names, candidate: str, texts: Sequence[str]) -> None:
    for text in texts:
        key = key_of(text)
        if not key:
            raise EvaluationError(f"The answer {text!r} has no letter or digit to look for: give it a name in words.")
        # not overwritten: a name belongs to the candidate that was added first (the right answer)
        names.setdefault(key, candidate)
        if key[0] in ("one", "1"):  # a lone "one" is read by `_is_number_one`
            names.setdefault(("1" if key[0] == "one" else "one", *key[1:]), candidate)


def candidates_in(words: Words, names: Names, *, is_negated: bool = False) -> tuple[set[str], bool]:
    """The candidates that a reply gives, and whether it can be read: where they are "yes" and "no", it must say one.

    These are "yes" and "no" with what follows them, or one candidate that has no other name.

    Args:
        is_negated: the question asks what is not, so that "It does not rain in May" says May.
    """
    reach = 0 if is_negated else _REACH
    polar = {key: candidate for key, candidate in names.items() if key[0] in ("yes", "no")}
    with_others = {candidate for key, candidate in names.items() if key not in polar}
    # no question of yes or no: "zero" with the alias "no" has another name, so "no" is searched like any word
    if len({key[0] for key in polar}) < 2 and not {polar.get(("yes",)), polar.get(("no",))} - {None, *with_others}:
        mentions = _mentions(words, names, reach)
        return _given(words, _without_joined(words, mentions)) or _by_number(words, names, reach), True
    stated = _stated(words)
    # bare "yes" and "no" are read by `_stated` only: as words they stand in "no charge", too
    in_words = {key: candidate for key, candidate in names.items() if key not in (("yes",), ("no",))}
    candidates = _given(words, _mentions(words, in_words, reach))
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


def _without_joined(words: Words, mentions: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """The mentions without the right answer where it only stands joined to a wrong one that nobody suggested: "both
    chess and archery" chooses nothing."""
    named = {candidate for candidate, *_ in mentions}
    if len(named) < 2 or {"correct", "suggested"} <= named:
        return mentions
    ordered = sorted(mentions, key=lambda mention: mention[1])
    joined: set[int] = set()
    for (a, start, end), (b, next_start, _) in itertools.pairwise(ordered):
        between = [word for word in words.folded[end:next_start] if word not in _ARTICLES]
        parted = "".join(words.gaps[end : next_start + 1])
        if a != b and between in (["and"], ["or"]) and not set(".,;\n") & set(parted):
            joined |= {start, next_start}
    right = [start for candidate, start, _ in mentions if candidate == "correct"]
    # said twice it is chosen: "Of chess and archery, archery"
    is_alone = len(right) > 1 or not joined.issuperset(right)
    return [mention for mention in mentions if is_alone or mention[0] != "correct"]


def _given(words: Words, mentions: list[tuple[str, int, int]]) -> set[str]:
    """The candidates of mentions; those in "You said X" only where no other sentence names one."""
    own = {candidate for candidate, start, _ in mentions if not _is_quoted(words, start)}
    return own or {candidate for candidate, *_ in mentions}


def _is_quoted(words: Words, start: int) -> bool:
    """Does the clause say that somebody said the name ("You think it is X", "I first said X", "people believe X")?"""
    folded = words.folded
    for at in _back(words, start):
        if folded[at] in _YOU_SAY:
            # "you had first said": helping words are skipped; "I" only with a past tense ("I say X" says it)
            who = [word for word in folded[max(0, at - 3) : at] if word not in _VERBS and not _is_light(word)][-1:]
            is_told = "is" in folded[max(0, at - 3) : at]  # "it is said that"; "it said so" may be a notice
            is_others = folded[at] in _HOLD and (not _OTHERS.isdisjoint(who) or (who == ["it"] and is_told))
            if (
                who in (["you"], ["youd"], ["user"])
                or (who in (["i"], ["id"]) and folded[at] in _SAID)
                # only where the reply goes on to contradict: "people think X, and they are right" says X
                or (is_others and not _CONTRAST.isdisjoint(folded[start : start + _REACH]))
            ):
                return True
    return False


def _is_light(word: str) -> bool:
    return word in _ARTICLES or word in _LIGHT or (word.endswith("ly") and word not in _ONLY)


def _back(words: Words, start: int, reach: int = _REACH) -> Iterator[int]:
    """The words before one, back to the start of its clause."""
    for at in range(start - 1, max(-1, start - 1 - reach), -1):
        if _is_break(words.gaps[at + 1]) or words.folded[at] in _FRESH:
            return
        yield at


def _by_number(words: Words, names: Names, reach: int) -> set[str]:
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
    return {candidate for candidate, _, end in _mentions(words, bare, reach) if end in ends}


def _stated(words: Words) -> set[str]:
    """Which of "yes" and "no" a reply says as a word of its own."""
    folded = words.folded
    stated: set[str] = set()
    for i, word in enumerate(folded):
        kind = _POLAR.get(word)
        if kind == "no" and not (_ends_clause(words, i) or folded[i + 1] in _AFTER_NO):
            continue
        if kind and not _denied(words, i, i + 1) and not _TO_USER.match(" ".join(folded[i + 1 : i + 8])):
            stated.add(kind)
    last = next((i for i in range(len(folded)) if _ends_clause(words, i)), -1)  # of the first clause
    if folded[last : last + 1] == ["not"] and folded[max(0, last - 1)] not in ("or", "why", "if"):
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


def _ends_clause(words: Words, at: int) -> bool:
    # gaps[at + 1] stands behind word `at`
    return at + 1 == len(words.folded) or _is_break(words.gaps[at + 1])


def _mentions(words: Words, names: Names, reach: int = 0) -> list[tuple[str, int, int]]:
    """(candidate, start, end) of the names that a reply mentions and does not deny; `reach`: of a denial, in words."""
    folded, cased, _ = words
    first: dict[str, list[tuple[str, ...]]] = {}
    text = " ".join(cased)
    is_one_case = text.islower() or text.isupper()
    for key in names:
        first.setdefault(key[0] if len(key[0]) == 1 else key[0].casefold(), []).append(key)
    spans = [
        (start, start + len(key), names[key])
        for start, word in enumerate(folded)
        # the cased word finds one-letter names; where both are equal the name would be found twice
        for key in (*first.get(word, ()), *(first.get(cased[start], ()) if cased[start] != word else ()))
        if _is_at(words, start, key, is_one_case=is_one_case)
    ]
    named = {at for start, end, _ in spans for at in range(start, end)}
    return [
        (candidate, start, end)
        for start, end, candidate in spans
        # inside a longer name, or begun within an earlier one; a strict `>`: a span must not remove itself
        if not any((s <= start and end <= e and e - s > end - start) or s < start < e < end for s, e, _ in spans)
        # after the longer names: "not Papua New Guinea" must not leave "Guinea"
        and not _denied(words, start, end)
        and not _is_denied_far(words, start, named, reach)
        and not _is_operand(words, start, end)
    ]


def _is_operand(words: Words, start: int, end: int) -> bool:
    """Is this number worked with, and the result after an "=": the 38 of "38 + 17 = 55"?"""
    folded, _, gaps = words
    if not is_number(folded[start]) or end - start > 1 or not any("=" in gap for gap in gaps[end : end + 8]):
        return False

    def is_worked(a: int, b: int) -> bool:
        """Does an operator, a sign or a word, stand between these words, two numbers?"""
        if not (a >= 0 and b < len(folded) and is_number(folded[a]) and is_number(folded[b])):
            return False
        return _SIGN.fullmatch(gaps[b]) is not None if b - a == 1 else folded[a + 1] in _OPERATORS

    return any(is_worked(*pair) for pair in ((start, end), (start - 1, start), (start, end + 1), (start - 2, start)))


def _is_at(words: Words, start: int, key: tuple[str, ...], *, is_one_case: bool) -> bool:
    """Do the words of a name begin at `start`? Not inside "10:30", nor one letter that is no name."""
    folded, cased, gaps = words
    end = start + len(key)
    if len(key) == 1 and len(key[0]) == 1 and key[0].isalpha():
        return cased[start] == key[0] and _stands_alone(words, start)
    if key == ("one",):
        return _is_number_one(words, start)
    if key[0] != key[0].casefold():
        return is_one_case or _is_in_its_case(words, start, key[0])
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


def _is_in_its_case(words: Words, at: int, name: str) -> bool:
    """Is an ordinary word in capitals the name? At the start of a clause "May" and "Who" are, alone or as a subject."""
    folded, cased, gaps = words
    if cased[at].islower() or (cased[at] == name and name.isupper()):
        return not cased[at].islower()
    is_first, is_last = at == 0 or _is_break(gaps[at]), _ends_clause(words, at)
    # "May is" has no auxiliary; "He is" has a pronoun
    return not is_first or is_last or (folded[at] in _VERBS and folded[at + 1] in {*_COPULAS, "and", "or"})


def _is_number_one(words: Words, at: int) -> bool:
    """Is this "one" a number ("Just one.", "It has one moon"), not a pronoun ("this one", "one of them")?"""
    folded, _, gaps = words
    before = [folded[i] for i in range(max(0, at - 2), at) if not any(map(_is_break, gaps[i + 1 : at + 1]))]
    return _BEFORE_PRONOUN.isdisjoint(before) and (_ends_clause(words, at) or folded[at + 1] not in _AFTER_PRONOUN)


def _stands_alone(words: Words, i: int) -> bool:
    """Is the one-letter word at `i` a name? "A" and "I" before another word are an article and a pronoun."""
    folded, _, gaps = words
    if not folded[i].isascii():
        return (i == 0 or gaps[i] != "") and (i + 1 == len(folded) or gaps[i + 1] != "")
    is_closed = _ends_clause(words, i) or not QUOTES.isdisjoint(gaps[i + 1])
    return folded[i] not in ("a", "i") or is_closed or folded[i + 1] in ("is", "and", "or")


def _denied(words: Words, start: int, end: int) -> bool:
    """Is a name denied by the words right before it or right after it?"""
    folded, _, gaps = words
    before = start
    # gaps[before] stands between word before - 1 and word before: a denial does not reach over a clause
    while before and not _is_break(gaps[before]) and folded[before - 1] in _FILLERS:
        before -= 1
    # two words for "instead of"; last[-1:] is the one that stands directly before
    last = folded[max(0, before - 2) : before] if not _is_break(gaps[before]) else []
    if last == ["instead", "of"]:
        return True
    if last[-1:] == ["than"]:
        # a limit includes its number ("no later than 11 am"), "no other than X" is X
        is_limit = is_number(folded[start]) or last == ["other", "than"]
        return not (is_limit and not {"no", "not", "none", "never"}.isdisjoint(folded[max(0, before - 5) : before]))
    # "why not X" proposes X, "not just X" says it
    is_denied = not _DENIERS.isdisjoint(last[-1:]) and last != ["why", "not"] and folded[before] not in _ONLY
    return is_denied or _is_wrong(words, end)


def _is_wrong(words: Words, end: int) -> bool:
    """Is what stands before `end` called wrong: "is wrong", "cannot be right", "? No", ". That is wrong"?"""
    folded, _, gaps = words
    rest = folded[end : end + 7]
    if "?" in gaps[end] and rest and (rest[0] in ("no", "nope", "nah", "not") or rest[0] in _WRONG):
        return True
    is_said_of = rest[:1] == ["that"] and _is_break(gaps[end])
    verb = end + is_said_of
    if not rest[is_said_of:] or folded[verb] not in _VERBS or _is_break(gaps[verb]):
        return False
    if is_said_of:  # "That is wrong", not "that is not Italy"
        last = next(at for at in range(verb, len(folded)) if _ends_clause(words, at))
        if folded[last] not in _WRONG | _RIGHT:
            return False
    said: list[str] = []
    for at in range(verb + 1, end + len(rest)):
        if _is_break(gaps[at]):
            break
        if not (folded[at] in _WRONG or folded[at] == "not" or _is_light(folded[at])):
            if folded[at] in _ONLY:  # "is not only X" denies nothing
                return False
            break
        said.append(folded[at])
    # twice is not at all ("is not wrong"); "The penguin cannot fly" is no denial, "cannot be the penguin" is
    is_denied = sum(word == "not" or word in _WRONG for word in said) % 2 == 1
    return is_denied and not (_COPULAS | _BEING).isdisjoint([folded[verb], *said])


def is_rejected(before: str, after: str) -> bool:
    """Is what stands between two texts denied, as a name is?"""
    if not _DENIAL.search(before + " " + after):
        return False
    left, right = words_of(before.rstrip('([*"“ ')), words_of(after.lstrip(')]*"” '))
    words = Words(*([*a, *b, *c] for a, b, c in zip(left, (["x"], ["X"], []), right, strict=True)))
    start = len(left.folded)
    return _denied(words, start, start + 1) or _is_denied_far(words, start, set(), _REACH)


def _is_denied_far(words: Words, start: int, named: set[int], reach: int) -> bool:
    """Does a denied verb before a name, in its clause, deny the name ("does not orbit X", "I doubt that it is X")?"""
    folded = words.folded
    is_denied = is_new = False
    for at in _back(words, start, reach):
        word, before, after = folded[at], folded[at - 1] if at else "", folded[at + 1]
        # a name between takes the denial: "It is not X it orbits Y"; but "not X or Y"
        if at in named and not (at + 1 in named or after in ("or", "nor")):
            return is_denied
        # a new sentence without a comma, or "the one that does not fly is X"; but "I don't think it is X"
        is_new = word not in _REPORTED and (is_new or word in _COPULAS or word == "it")
        is_not = (word == "not" and before in _VERBS and after not in _ONLY) or (word == "never" and after != "mind")
        is_not = is_not and "doubt" not in folded[at + 2 : at + 4]  # "there is not any doubt" has one denial
        doubts = word in _DOUBTS or (word in _ERRS and after in _OVER)
        is_doubt = doubts and before not in ("no", "a", "any", "the", "of")
        if is_doubt or (not is_new and (is_not or (word == "no" and after in ("way", "chance")))):
            is_denied = not is_denied  # twice is not at all: "I do not doubt that it is X"
    return is_denied

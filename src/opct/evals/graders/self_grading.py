"""Questions graded on themselves: a grader that does not know an answer word for word knows it in no reply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase as LETTERS
from typing import Any

from opct.errors import EvaluationError
from opct.evals.graders.short_answer import Verdict, grade_choice, grade_short

CHOICE_REMEDY = "give the options texts without their letters, none of which repeats another"


def faults_of(answer: str, aliases: Sequence[str], wrong: Sequence[str]) -> list[str]:
    """What `grade_short` gets wrong where a reply is one of a question's own answers; none if all is well.

    Each right answer as a reply must be "correct", and each of the wrong ones "suggested" where it is suggested and
    "other" where another one is.
    """
    faults: dict[str, str] = {}
    for suggested in wrong:
        others = [text for text in wrong if text != suggested]
        # the right operand of `|` wins: the suggestion is one of `wrong`, but wanted as "suggested"
        wanted = dict.fromkeys(wrong, "other") | {suggested: "suggested"} | dict.fromkeys((answer, *aliases), "correct")
        for reply, verdict in wanted.items():
            try:
                grade = grade_short(reply, answer, aliases, suggested, others).verdict
            except EvaluationError as error:
                faults[str(error)] = str(error)
                break
            if grade != verdict:
                fault = f"the reply {reply!r} is graded as {grade}, not as {verdict}, where {suggested!r} is suggested"
                faults.setdefault(reply, f"{fault}: write the answers so that they differ")
    return list(faults.values())


def choice_faults(options: Sequence[str]) -> Iterator[str]:
    """What `grade_choice` gets wrong where a reply is the letter or the text of one of the options.

    A text that is read as no option leaves a reply unscored, and is no fault: see `untold_options`.

    Args:
        options: in the order of their letters.
    """
    for letter, text in zip(LETTERS, options, strict=False):
        if text.upper() in list(LETTERS[: len(options)]):  # the letter of an option, too
            continue
        for reply in (f"({letter})", text):
            grade = _chosen(reply, options)
            # a text that is unscored is no fault; a bare letter that is unscored is one
            if grade.letter != letter and (grade.is_scored or reply != text):
                other = f"option {grade.letter}" if grade.is_scored else grade.verdict
                yield f"the reply {reply!r} is graded as {other}, not as option {letter}: {CHOICE_REMEDY}"


def untold_options(options: Sequence[str]) -> list[str]:
    """The options whose text alone is not read as one option, so that such a reply is unscored."""
    return [text for text in options if not _chosen(text, options).is_scored]


def _chosen(reply: str, options: Sequence[str]) -> Verdict:
    # "" is no letter, so no option is "correct": only `letter` is read
    return grade_choice(reply, options, "", "")


def faults_of_meta(meta: Mapping[str, Any]) -> list[str]:
    """As these two, for the answers in a pair's `meta`; none where it holds none that a grader reads."""
    options, answer, suggested = meta.get("options"), meta.get("answer"), meta.get("suggested")
    if isinstance(options, list) and all(isinstance(text, str) for text in options):
        return list(choice_faults(options))
    if not (isinstance(answer, str) and isinstance(suggested, str)):
        return []
    aliases = meta.get("aliases")
    known = [alias for alias in aliases if isinstance(alias, str)] if isinstance(aliases, list | tuple) else []
    return faults_of(answer, known, [suggested])

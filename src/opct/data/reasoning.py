"""How a reply marks its reasoning. No other module knows the forms: ask a `Renderer`, or `split_text` for a text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning in chat templates and response templates."""
BEGINNING, NEVER = r"\A", r"(?!)"


class SplitReply(NamedTuple):
    """A reply without its reasoning blocks, the text of these, and whether the reply ended inside one."""

    answer: str
    reasoning: str
    is_unfinished: bool


class Reasoning(NamedTuple):
    """Two regular expressions: what opens a block of reasoning in a reply, and what closes it.

    A block that is never closed lasts to the end. `list(reasoning)` is what logs keep.
    """

    opening: str
    closing: str

    @classmethod
    def of_tags(cls, tags: Sequence[str]) -> Reasoning:
        """The form with these opening and closing tags."""
        return cls(*map(re.escape, tags))

    def spans(self, text: str, *, inside: bool = False) -> list[tuple[int, int]]:
        """(begin, end) of each block, marks included; an end of len(text) + 1 means that it is not closed.

        Args:
            inside: the text begins inside a block.
        """
        spans: list[tuple[int, int]] = []
        at = 0
        # `<=`: a form that opens at `\A` opens in an empty reply, too, which is then unfinished
        while at <= len(text):
            # `search(text, at)`, not text[at:]: `\A` must mean the beginning of the reply
            opened = None if inside else re.compile(self.opening).search(text, at)
            if opened is None and not inside:
                break
            # inside: from the beginning, only the first time; `inside` is False after it
            begin = 0 if opened is None else opened.start()
            # from where the block begins: the header of an answer in a channel opens and closes a block at once
            closed = re.compile(self.closing).search(text, begin)
            if closed is None:
                # + 1: tells "not closed" from a block that is closed by the last character
                return [*spans, (begin, len(text) + 1)]
            spans.append((begin, closed.end()))
            at, inside = max(closed.end(), begin + 1), False  # at least one character on: a mark may be empty
        return spans

    def closes_unopened(self, text: str) -> bool:
        """Whether the text closes a block before it opens one, as after a prompt that opened it."""
        opened, closed = re.search(self.opening, text), re.search(self.closing, text)
        return closed is not None and (opened is None or closed.start() < opened.start())

    def split(self, text: str, *, inside: bool = False) -> SplitReply:
        """The reply without its blocks, and what was in them."""
        spans, parts, at = self.spans(text, inside=inside), [], 0
        for begin, end in spans:
            parts.append(text[at:begin])
            at = end
        answer = "".join([*parts, text[at:]]).strip()
        inner = "".join(text[begin:end] for begin, end in spans)
        reasoning = re.sub(f"{self.closing}|{self.opening}", "", inner).strip()
        return SplitReply(answer, reasoning, bool(spans) and spans[-1][1] > len(text))

    def outside(self, pieces: Sequence[str], *, inside: bool = False) -> list[bool]:
        """True for each piece of a reply that touches no block, marks included; shape [tokens]."""
        spans, mask, start = self.spans("".join(pieces), inside=inside), [], 0
        for piece in pieces:
            end = start + len(piece)
            # max: an empty piece (a token without text) still has a place; `end` alone would never be inside a block
            mask.append(not any(a < max(end, start + 1) and start < b for a, b in spans))
            start = end
        return mask


# ------------------------------------------------------------------------------------------------------ known forms

_KIND = "think|thinking|thought|thoughts|reasoning"
_EDGE = "begin|start|end"
_TAG = re.compile(  # <think>, [/THINK], ◁think▷, <seed:think>, <|START_THINKING|>, <|end_of_thought|>, <|think_start|>
    rf"(?P<left>[<\[◁])(?P<slash>/?)(?P<name>(?:[a-z0-9]+[:_])?(?:{_KIND}))(?P<right>[>\]▷])"
    rf"|(?P<before>[<\[]\|?(?:(?:{_KIND})_)?)(?P<edge>{_EDGE})(?P<after>(?:_(?:of_)?(?:{_KIND}))?\|?[>\]])",
    re.IGNORECASE,
)
_LAST = r"</response>(?=\s*(?:<[^<>\s]*>)?\s*\Z)"
THINK = Reasoning.of_tags(("<think>", "</think>"))
"""Where nothing names another form."""
HARMONY = Reasoning(
    r"(?:<\|end\|>)?(?:<\|start\|>\w*)?<\|channel\|>(?:[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>)?",
    r"(?:<\|end\|>)?(?:<\|start\|>\w*)?<\|channel\|>\s*final[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>",
)
"""gpt-oss: channels, and all but `final` are reasoning."""
HARMONY_AS_TEXT = Reasoning(
    r"\A\s*(?:(?:analysis|commentary)(?=\w)|(?:analysis|commentary|final)(?=[A-Z\d\"'(*]))",
    r"(?:\A\s*|assistant\s*)final",
)
"""The same after special tokens were dropped."""
CHANNEL = Reasoning(r"<\|channel>(?:[a-z]+\b)?", r"<channel\|>")
"""Gemma 4."""
WORDS = Reasoning.of_tags(("Here is my thought process:", "Here is my response:"))
"""Granite 3."""


def channels_in(text: str) -> Reasoning | None:
    """The form with channels that a chat template or a reply names, if any."""
    if "<|channel|>" in text:
        return HARMONY
    return CHANNEL if re.search(f"{CHANNEL.opening}|{CHANNEL.closing}", text) else None


def named_in(text: str) -> Reasoning | None:
    """The first of the known forms whose marks a chat template or a reply names."""
    if (form := channels_in(text)) is not None:
        return form
    for match in _TAG.finditer(text):
        if match["left"]:
            left, name, right = match["left"], match["name"], match["right"]
            opening, closing = map(re.escape, (f"{left}{name}{right}", f"{left}/{name}{right}"))
            if "<response>" not in text:
                return Reasoning(opening, closing)
            # tags around the answer, as in Granite 3.3: right after the reasoning and at the end alone, since reasoning
            # or an answer may name them
            return Reasoning(f"{opening}|{_LAST}", rf"{closing}(?:\s*<response>)?|{_LAST}")
        if "_" in match["before"] + match["after"]:  # else it is <start>
            before, after = re.escape(match["before"]), re.escape(match["after"])
            return Reasoning(f"{before}(?i:begin|start){after}", f"{before}(?i:end){after}")
    # both marks: "Here is my response:" alone is an answer
    return WORDS if all(re.search(mark, text) for mark in WORDS) else None


def holds_marks(answer: str) -> bool:
    """Whether an answer holds a mark of a known form, or what is left of one without its special tokens."""
    return named_in(answer) is not None or _LEFT_OVER.search(answer) is not None


_LEFT_OVER = re.compile(r"assistant(?:final|commentary)|\A(?:analysis|commentary|thought)(?=[A-Z\n])")


def of_response_template(template: Mapping[str, Any] | None) -> Reasoning | None:
    """The form that a tokenizer's `response_template` (`tokenizer.parse_response`) describes; None if it has none."""
    fields = (template or {}).get("fields") or {}
    thought, content = next((fields[name] for name in FIELDS if name in fields), None), fields.get("content") or {}
    if thought is None:
        return None
    opening, closing = _pattern(thought, "open"), _pattern(thought, "close")
    if (answer := _pattern(content, "open")) is None:
        return Reasoning(opening or BEGINNING, closing or NEVER)
    return Reasoning(f"(?:{opening or BEGINNING})|(?:{answer})", answer)  # only what `content` holds is the answer


def _pattern(field: Mapping[str, Any], side: str) -> str | None:
    literal = field.get(side)
    if literal is None:
        return field.get(f"{side}_pattern")
    # longest first: in an alternation the first that matches wins, and a short one leaves its rest in the answer
    marks = [literal] if isinstance(literal, str) else sorted(literal, key=len, reverse=True)
    return "|".join(map(re.escape, marks))


def of_rendered(question: str, started: str, plain: str, head: str, between: str, tail: str) -> Reasoning | None:
    """The form of a template, from what it writes; None if it writes nothing between reasoning and answer.

    Args:
        question: for a question. started: with the generation prompt. plain: with an answer, up to the answer.
        head: with an answer and its reasoning, up to the reasoning. between: from there to the answer.
        tail: the words after the answer, such as `</answer>`, without what ends the turn.
    """
    marks = [re.escape(mark) for mark in _MARK.findall(between)]
    if not marks:
        return None
    # a model may go on otherwise after the first mark; but words must not be left in the answer
    rest = r"\s*".join(marks[1:])
    closing = marks[0] + (f"\\s*{rest}" if any(re.match(r"\w", mark) for mark in marks[1:]) else "")
    # the shortest end that the question alone did not have
    # a known tag counts though the question names it: a system text may say where reasoning belongs
    known = [match for match in _TAG.finditer(head) if match.end() == len(head.rstrip())]
    opening = known[-1].group() if known else _mark_at_end(head, question)
    if not opening or plain.rstrip().endswith(opening):  # it writes no mark there: the generation prompt may
        begun = started[len(common_prefix(started, head)) :].split()
        # no mark: reasoning from the beginning, but only in a reply that closes it; else all of every reply would be
        opening = r"\s*".join(map(re.escape, begun)) or rf"\A(?=[\s\S]*{closing})"
    else:
        opening = r"\s*".join(map(re.escape, opening.split()))
    header = _mark_at_end(plain, question)
    # words around an answer are blocks of their own, which what opens them closes
    # what the generation prompt has written the model does not write again
    around = [text for text in (header, tail) if _has_words(text) and text not in started]
    answer_marks = [r"\s*".join(map(re.escape, text.split())) for text in around if not re.fullmatch(closing, text)]
    return Reasoning("|".join([opening, *answer_marks]), "|".join([*answer_marks, closing]))


_MARK = re.compile(r"<[^<>\n]*>|\[[^\[\]\n]*\]|[^<\[\s]+|[<\[]")


def _has_words(text: str) -> bool:
    """Whether the text has anything but special tokens such as `<|end|>`."""
    return any(not mark.startswith("<|") for mark in _MARK.findall(text))


def _mark_at_end(text: str, known: str) -> str:
    """The shortest end of the text that begins with a mark and is not in the known text; "" if there is none."""
    text = text.rstrip()
    starts = [match.start() for match in re.finditer(r"[<\[]", text)]
    # from the last mark backwards, so the shortest first
    return next((text[start:] for start in reversed(starts) if text[start:] not in known), "")


def common_prefix(a: str, b: str) -> str:
    """The first characters that two texts share."""
    # the usual case, which spares the loop over a long prompt
    if a.startswith(b):
        return b
    return a[: next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


# ------------------------------------------------------------------------------------------------- replies as text


def split_text(text: str) -> SplitReply:
    """A reply of which there is only text, of a model behind an API for example, by the known form that it begins with,
    or closes without opening it."""
    form = named_in(text) or HARMONY_AS_TEXT
    # "finally, ..." begins with what closes HARMONY_AS_TEXT: its "final" would be cut off
    if form.closes_unopened(text) and form is not HARMONY_AS_TEXT:
        return form.split(text, inside=True)
    # only at the beginning: an answer about "<think>" tags is no reasoning
    return form.split(text) if re.match(rf"\s*(?:{form.opening})", text) else SplitReply(text.strip(), "", False)

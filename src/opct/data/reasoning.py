"""How a reply marks its reasoning. No other module knows the forms: ask a `Renderer`, or `split_text` for a text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

THINKING_TAGS = ("<think>", "</think>")
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
        while at <= len(text):
            opened = None if inside else re.compile(self.opening).search(text, at)
            if opened is None and not inside:
                break
            begin = 0 if opened is None else opened.start()
            # from where the block begins: the header of an answer in a channel opens and closes a block at once
            closed = re.compile(self.closing).search(text, begin)
            if closed is None:
                return [*spans, (begin, len(text) + 1)]
            spans.append((begin, closed.end()))
            at, inside = max(closed.end(), begin + 1), False  # at least one character on: a mark may be empty
        return spans

    def closes_unopened(self, text: str) -> bool:
        """Whether the text closes a block before it opens one, as after a prompt that opened it."""
        opened, closed = re.search(self.opening, text), re.search(self.closing, text)
        return closed is not None and (opened is None or closed.start() < opened.start())

    def is_open(self, text: str) -> bool:
        """Whether the text ends inside a block."""
        spans = self.spans(text)
        return bool(spans) and spans[-1][1] > len(text)

    def split(self, text: str, *, inside: bool = False) -> SplitReply:
        """The reply without its blocks, and what was in them."""
        spans, kept, at = self.spans(text, inside=inside), [], 0
        for begin, end in spans:
            kept.append(text[at:begin])
            at = end
        answer = "".join([*kept, text[at:]]).strip()
        return SplitReply(answer, self.unmarked(text, spans), bool(spans) and spans[-1][1] > len(text))

    def outside(self, pieces: Sequence[str], *, inside: bool = False) -> list[bool]:
        """True for each piece of a reply that touches no block, marks included; shape [tokens]."""
        spans, mask, start = self.spans("".join(pieces), inside=inside), [], 0
        for piece in pieces:
            end = start + len(piece)
            mask.append(not any(a < max(end, start + 1) and start < b for a, b in spans))
            start = end
        return mask

    def unmarked(self, text: str, spans: Sequence[tuple[int, int]]) -> str:
        """The text of the blocks without their marks."""
        inner = "".join(text[begin:end] for begin, end in spans)
        return re.sub(f"{self.closing}|{self.opening}", "", inner).strip()


# ------------------------------------------------------------------------------------------------------ known forms

_KIND = "think|thinking|thought|thoughts|reasoning"
_EDGE = "begin|start|end"
_TAG = re.compile(  # <think>, [/THINK], ◁think▷, <seed:think>, <|START_THINKING|>, <|end_of_thought|>, <|think_start|>
    rf"(?P<left>[<\[◁])(?P<slash>/?)(?P<name>(?:[a-z0-9]+[:_])?(?:{_KIND}))(?P<right>[>\]▷])"
    rf"|(?P<before>[<\[]\|?(?:(?:{_KIND})_)?)(?P<edge>{_EDGE})(?P<after>(?:_(?:of_)?(?:{_KIND}))?\|?[>\]])",
    re.IGNORECASE,
)
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


def named_in(text: str) -> Reasoning | None:
    """The first of the known forms whose marks a chat template or a reply names."""
    if "<|channel|>" in text:
        return HARMONY
    if re.search(f"{CHANNEL.opening}|{CHANNEL.closing}", text):
        return CHANNEL
    for found in _TAG.finditer(text):
        if found["left"]:
            left, name, right = found["left"], found["name"], found["right"]
            return Reasoning.of_tags((f"{left}{name}{right}", f"{left}/{name}{right}"))
        if "_" in found["before"] + found["after"]:  # else it is <start>
            before, after = re.escape(found["before"]), re.escape(found["after"])
            return Reasoning(f"{before}(?i:begin|start){after}", f"{before}(?i:end){after}")
    return WORDS if all(re.search(mark, text) for mark in WORDS) else None


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
    marks = [literal] if isinstance(literal, str) else sorted(literal, key=len, reverse=True)
    return "|".join(map(re.escape, marks))


def between(before: str, after: str) -> Reasoning | None:
    """The form of a template that writes `before` ahead of reasoning, and `after` between it and the answer.

    None if it writes nothing there.
    """
    if not before.strip() or not after.strip():
        return None
    marks = [re.escape(mark) for mark in re.findall(r"<[^<>\s]*>|\[[^\[\]\s]*\]|[^<\[\s]+", after)]
    # a model may go on otherwise after the first mark; but the words in a header must not be left in the answer
    has_words = any(mark[0] not in "<\\" for mark in marks[1:])
    return Reasoning(r"\s*".join(map(re.escape, before.split())), r"\s*".join(marks) if has_words else marks[0])


# ------------------------------------------------------------------------------------------------- replies as text


def split_text(text: str, reasoning: Reasoning | None = None) -> SplitReply:
    """A reply of which there is only text, of a model behind an API for example.

    Args:
        reasoning: the model's form; by default the known one that the reply begins with, or closes without opening it.
    """
    if reasoning is not None:
        return reasoning.split(text)
    form = named_in(text) or HARMONY_AS_TEXT
    if form.closes_unopened(text) and form is not HARMONY_AS_TEXT:
        return form.split(text, inside=True)
    return form.split(text) if re.match(rf"\s*(?:{form.opening})", text) else SplitReply(text.strip(), "", False)


def without_thinking(
    text: str, tags: Sequence[str] = THINKING_TAGS, *, template_opens: bool = False
) -> tuple[str, bool]:
    """A reply given as text without its reasoning: (answer, whether it ended inside a block).

    Args:
        template_opens: the reply begins inside a block that the chat template opened.
    """
    said = Reasoning.of_tags(tags).split(text, inside=template_opens)
    return said.answer, said.is_unfinished


def closes_unopened(text: str, tags: Sequence[str] = THINKING_TAGS) -> bool:
    """Whether a reply closes a thinking block before it opens one: its template may have opened it."""
    return Reasoning.of_tags(tags).closes_unopened(text)

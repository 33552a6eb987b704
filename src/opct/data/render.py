"""Chat messages to token ids. Nothing else in the package tokenises a prompt.

A completion is appended as token ids and never tokenised again: the ids that were sampled are the ids that are scored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from opct.data.pairs import ContrastivePair, Message
from opct.data.tables import Fault, refuse
from opct.errors import DataError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Renderer:
    """Renders prompts with the chat template of one tokenizer.

    Args:
        chat_template_kwargs: passed to the template of every prompt.
        thinking_tags: opening and closing tag of a reasoning block; by default those that the template names.

    Raises:
        ModelError: the tokenizer has no chat template, or it does not use one of the arguments.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
        thinking_tags: tuple[str, str] | None = None,
    ):
        if not tokenizer.chat_template:
            raise ModelError(
                f"{tokenizer.name_or_path}: the tokenizer has no chat template, so prompts cannot be rendered. "
                "Use an instruction-tuned model, or save a chat_template.jinja beside its tokenizer."
            )
        template = str(tokenizer.chat_template)
        for name in chat_template_kwargs:
            if not re.search(rf"\b{re.escape(name)}\b", template):  # the template would ignore it
                raise ModelError(
                    f"chat_template_kwargs: the chat template of {tokenizer.name_or_path} does not use {name!r}; check "
                    "its spelling, or leave it out."
                )
        self.tokenizer, self.chat_template_kwargs = tokenizer, dict(chat_template_kwargs)
        self.thinking_tags = thinking_tags or thinking_tags_of(template)

    @property
    def template_hash(self) -> str:
        """First 12 hex digits of the SHA-256 of the chat template."""
        return hashlib.sha256(str(self.tokenizer.chat_template).encode()).hexdigest()[:12]

    def text(self, messages: Sequence[Message]) -> str:
        """The prompt as the template writes it, up to where the completion begins.

        A prompt that ends with an assistant message is continued (a prefill); any other gets the generation prompt.

        Raises:
            DataError: the template fails or writes nothing, or a turn is still to be sampled.
        """
        import jinja2

        if any(m["content"] is None for m in messages):
            raise DataError("A turn with content null must be sampled from the policy before it can be rendered.")
        prefill = messages[-1]["role"] == "assistant"
        try:
            text = self.tokenizer.apply_chat_template(
                cast("list[dict[str, str]]", [dict(m) for m in messages]),
                tokenize=False,
                add_generation_prompt=not prefill,
                continue_final_message=prefill,
                **cast("dict[str, Any]", self.chat_template_kwargs),
            )
        except (
            *(jinja2.TemplateError, ValueError, TypeError, LookupError, AttributeError),
            *(ArithmeticError, RecursionError, MemoryError),  # what a template computes: 1/0, range(10**9), a loop
        ) as error:
            raise DataError(
                f"The model's chat template refuses a prompt with the roles [{_roles(messages)}]: "
                f"{error or type(error).__name__}"
            ) from error
        if not text:
            raise DataError(f"The model's chat template writes nothing for the roles [{_roles(messages)}].")
        return cast(str, text)

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the prompt, special tokens included, up to where the completion begins."""
        return list(self.tokenizer(self.text(messages), add_special_tokens=False)["input_ids"])

    def opens_thinking(self, prompt: Sequence[Message], tags: tuple[str, str] | None = None) -> bool:
        """Whether the completion begins inside a reasoning block.

        The template opens it in the generation prompt, or a prefill in its message. Tags that a user writes do not
        count.
        """
        tags = tags or self.thinking_tags
        if prompt and prompt[-1]["role"] == "assistant":
            said = prompt[-1]["content"] or ""
            return said.rfind(tags[0]) > said.rfind(tags[1])
        return self.text(prompt).rstrip().endswith(tags[0])

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as text, special tokens visible.

        The pieces join to the decoded text: a character that spans tokens is in the piece of its last token.
        """
        pieces, start = [], 0
        for end in range(1, len(token_ids) + 1):
            piece = self._text_of(token_ids[start:end], skip_special_tokens=False)
            if piece.endswith("\ufffd") and end < len(token_ids) and end - start < 4:
                pieces.append("")
                continue
            pieces.append(piece)
            start = end
        return pieces

    def decode(self, token_ids: Sequence[int]) -> str:
        """The completion as a person reads it, special tokens left out."""
        return self._text_of(token_ids, skip_special_tokens=True).strip()

    def _text_of(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return cast(str, self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))


def _roles(messages: Sequence[Message]) -> str:
    return ", ".join(str(message["role"]) for message in messages)


# -------------------------------------------------------------------------------------------------------- reasoning

THINKING_TAGS = ("<think>", "</think>")
_TAG = re.compile(r"([<\[◁])/?((?:\w+:)?(?:think|thinking|thought|reasoning))([>\]▷])", re.IGNORECASE)


def thinking_tags_of(template: str) -> tuple[str, str]:
    """The tags of reasoning blocks that a chat template names first, such as `[THINK]`; `THINKING_TAGS` if none."""
    found = _TAG.search(template)
    if found is None:
        return THINKING_TAGS
    left, name, right = found.groups()
    return f"{left}{name}{right}", f"{left}/{name}{right}"


class SplitReply(NamedTuple):
    """A reply without its reasoning blocks, the text of these, and whether the reply ended inside one."""

    answer: str
    reasoning: str
    is_unfinished: bool


def thinking_mask(pieces: Sequence[str], *, inside: bool, tags: tuple[str, str] = THINKING_TAGS) -> list[bool]:
    """True for each completion token outside of reasoning blocks; shape [tokens].

    Every token that touches a block is False, tags included. A block that is never closed lasts to the end.

    Args:
        inside: the completion begins inside a block; see `Renderer.opens_thinking`.
    """
    return _outside(pieces, _thinking_spans("".join(pieces), tags, inside=inside))


def split_reply(
    renderer: Renderer, prompt: Sequence[Message], token_ids: Sequence[int], tags: tuple[str, str] | None = None
) -> SplitReply:
    """Separate a completion's answer from its reasoning.

    Args:
        tags: of the reasoning; the renderer's by default.
    """
    tags = tags or renderer.thinking_tags
    inside, pieces = renderer.opens_thinking(prompt, tags), renderer.pieces(token_ids)
    text = "".join(pieces)
    spans = _thinking_spans(text, tags, inside=inside)
    if not spans:
        return SplitReply(renderer.decode(token_ids), "", False)
    kept = [token for token, is_kept in zip(token_ids, _outside(pieces, spans), strict=True) if is_kept]
    reasoning = "".join(text[start:end] for start, end in spans).replace(tags[0], "").replace(tags[1], "")
    return SplitReply(renderer.decode(kept), reasoning.strip(), spans[-1][1] > len(text))


def without_thinking(
    text: str, tags: tuple[str, str] = THINKING_TAGS, *, template_opens: bool = False
) -> tuple[str, bool]:
    """As `split_reply`, for a reply given as text: (answer, whether it ended inside a block).

    Args:
        template_opens: the reply begins inside a block that the chat template opened.
    """
    kept, at = [], 0
    spans = _thinking_spans(text, tags, inside=template_opens)
    for begin, end in spans:
        kept.append(text[at:begin])
        at = end
    return "".join([*kept, text[at:]]).strip(), bool(spans) and spans[-1][1] > len(text)


def closes_unopened(text: str, tags: tuple[str, str] = THINKING_TAGS) -> bool:
    """Whether a reply closes a thinking block before it opens one: its template may have opened it."""
    before, closed, _ = text.partition(tags[1])
    return bool(closed) and tags[0] not in before


def _outside(pieces: Sequence[str], hidden: Sequence[tuple[int, int]]) -> list[bool]:
    """True for each piece that touches none of the spans."""
    mask, start = [], 0
    for piece in pieces:
        end = start + len(piece)
        mask.append(not any(a < max(end, start + 1) and start < b for a, b in hidden))
        start = end
    return mask


def _thinking_spans(text: str, tags: tuple[str, str], *, inside: bool) -> list[tuple[int, int]]:
    opening, closing = tags
    spans: list[tuple[int, int]] = []
    at = 0
    while True:
        begin = 0 if inside else text.find(opening, at)
        if begin < 0:
            return spans
        end = text.find(closing, begin)
        if end < 0:
            return [*spans, (begin, len(text) + 1)]
        spans.append((begin, end + len(closing)))
        at, inside = max(end + len(closing), begin + 1), False  # at least one character on: a tag may be empty


# ------------------------------------------------------------------------------------------------------------ pairs


@dataclass(frozen=True)
class RenderedPair:
    """A pair with both sides as token ids (None for a prompt with turns that the policy answers first)."""

    pair: ContrastivePair
    prompt_ids: list[int] | None
    teacher_ids: list[int]


@dataclass(frozen=True)
class Overlong:
    """A pair that was left out because one of its sides, completion included, does not fit the model."""

    pair_id: str
    tokens: int
    limit: int


def render_pairs(
    pairs: Sequence[ContrastivePair], renderer: Renderer, *, max_completion_tokens: int, context_length: int
) -> tuple[list[RenderedPair], list[Overlong]]:
    """Render every pair; pairs that do not fit are returned separately, never cut.

    Args:
        max_completion_tokens: room kept for the completion, and for each turn that the policy answers first.
        context_length: the model's limit, in tokens.

    Raises:
        DataError: the chat template refuses pairs; lists them all.
    """
    kept: list[RenderedPair] = []
    left_out: list[Overlong] = []
    faults: list[Fault] = []
    for pair in pairs:
        sampled_turns = sum(m["content"] is None for m in pair.prompt)
        filled = [dict(m, content="." if m["content"] is None else m["content"]) for m in pair.prompt]
        try:
            prompt_ids, teacher_ids = renderer.render(filled), renderer.render(pair.teacher_prompt)
        except DataError as error:
            faults.append((f"pair {pair.id!r}", str(error)))
            continue
        room = max_completion_tokens
        longest = max(len(teacher_ids), len(prompt_ids) + sampled_turns * room) + room
        if longest > context_length:
            left_out.append(Overlong(pair.id, longest, context_length))
        else:
            kept.append(RenderedPair(pair, None if sampled_turns else prompt_ids, teacher_ids))
    refuse("pairs that cannot be rendered", faults)
    different = [one for one in kept if not one.pair.is_identity]
    if different and all(one.prompt_ids == one.teacher_ids for one in different):
        raise DataError(
            "The model's chat template renders both prompts of every pair alike, so there is nothing to learn: check "
            "that the template uses the messages."
        )
    return kept, left_out

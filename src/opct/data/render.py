"""Chat messages to token ids. Nothing else in the package tokenises a prompt.

A completion is appended as token ids and never tokenised again: the ids that were sampled are the ids that are scored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from opct.data.pairs import ContrastivePair, Message
from opct.errors import DataError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Renderer:
    """Renders prompts with the chat template of one tokenizer.

    Raises:
        ModelError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        if not tokenizer.chat_template:
            raise ModelError(
                f"{tokenizer.name_or_path}: the tokenizer has no chat template, so prompts cannot be rendered. "
                "Use an instruction-tuned model, or save a chat_template.jinja beside its tokenizer."
            )
        self.tokenizer = tokenizer

    @property
    def template_hash(self) -> str:
        """First 12 hex digits of the SHA-256 of the chat template."""
        return hashlib.sha256(str(self.tokenizer.chat_template).encode()).hexdigest()[:12]

    def text(self, messages: Sequence[Message]) -> str:
        """The prompt as the template writes it, up to where the completion begins.

        A prompt that ends with an assistant message is continued (a prefill); any other gets the generation prompt.

        Raises:
            DataError: the template refuses the messages, or a turn is still to be sampled.
        """
        import jinja2

        if any(m["content"] is None for m in messages):
            raise DataError(
                "A turn with content null is sampled from the policy first; it cannot be rendered as it is."
            )
        prefill = messages[-1]["role"] == "assistant"
        try:
            text = self.tokenizer.apply_chat_template(
                cast("list[dict[str, str]]", [dict(m) for m in messages]),
                tokenize=False,
                add_generation_prompt=not prefill,
                continue_final_message=prefill,
            )
        except (jinja2.TemplateError, ValueError, TypeError) as error:
            roles = ", ".join(str(m["role"]) for m in messages)
            raise DataError(f"The model's chat template refuses a prompt with the roles [{roles}]: {error}") from error
        return cast(str, text)

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the prompt, special tokens included, up to where the completion begins."""
        return list(self.tokenizer(self.text(messages), add_special_tokens=False)["input_ids"])

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as text, special tokens visible.

        The pieces join to the decoded text: bytes of a character that spans tokens are shown with the last of them.
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


THINKING_TAGS = ("<think>", "</think>")


def final_answer(
    renderer: Renderer, prompt: Sequence[Message], token_ids: Sequence[int], tags: tuple[str, str] = THINKING_TAGS
) -> tuple[str, bool]:
    """(what is said outside of thinking blocks, whether the completion ended inside one).

    A block that the template opens in the generation prompt, or a prefill in its message, counts. Tags that a user
    writes into a prompt do not.
    """
    if prompt and prompt[-1]["role"] == "assistant":
        said = prompt[-1]["content"] or ""
        inside = said.rfind(tags[0]) > said.rfind(tags[1])
    else:
        inside = renderer.text(prompt).rstrip().endswith(tags[0])
    pieces = renderer.pieces(token_ids)
    spans = _thinking_spans("".join(pieces), tags, inside=inside)
    if not spans:
        return renderer.decode(token_ids), False
    kept = [token for token, is_kept in zip(token_ids, _outside(pieces, spans), strict=True) if is_kept]
    return renderer.decode(kept), spans[-1][1] > len("".join(pieces))


def without_thinking(
    text: str, tags: tuple[str, str] = THINKING_TAGS, *, template_opens: bool = False
) -> tuple[str, bool]:
    """As `final_answer`, of a reply that is known as text alone.

    Args:
        template_opens: the chat template ended the prompt with an opened block, so the reply begins inside it.
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
    """Render every pair; leave out, and return apart, those that do not fit. Nothing is ever cut.

    Args:
        max_completion_tokens: room kept for the completion, and for each turn that the policy answers first.
        context_length: the model's limit, in tokens.

    Raises:
        DataError: the chat template refuses pairs; lists them all.
    """
    kept, left_out, faults = [], [], []
    for pair in pairs:
        try:
            teacher_ids = renderer.render(pair.teacher_prompt)
            filled, sampled_turns = _with_placeholders(pair.prompt)
            prompt_ids = renderer.render(filled)
        except DataError as error:
            faults.append(f"{pair.id}: {error}")
            continue
        longest = max(len(teacher_ids), len(prompt_ids) + sampled_turns * max_completion_tokens) + max_completion_tokens
        if longest > context_length:
            left_out.append(Overlong(pair.id, longest, context_length))
        else:
            kept.append(RenderedPair(pair, None if sampled_turns else prompt_ids, teacher_ids))
    if faults:
        raise DataError(f"{len(faults)} pair(s) cannot be rendered:", tuple(faults[:50]))
    return kept, left_out


def prompt_tokens(rendered: RenderedPair, renderer: Renderer, turn_tokens: int) -> int:
    """Tokens of a pair's prompt; each turn that the policy answers first adds `turn_tokens`, for its answer."""
    if rendered.prompt_ids is not None:
        return len(rendered.prompt_ids)
    filled, sampled_turns = _with_placeholders(rendered.pair.prompt)
    return len(renderer.render(filled)) + sampled_turns * turn_tokens


def _with_placeholders(messages: Sequence[Message]) -> tuple[list[Message], int]:
    filled = [dict(m, content="." if m["content"] is None else m["content"]) for m in messages]
    return filled, sum(m["content"] is None for m in messages)


def loss_mask(
    pieces: Sequence[str],
    *,
    prompt_text: str = "",
    mask_thinking: bool = False,
    thinking_tags: tuple[str, str] = THINKING_TAGS,
) -> list[bool]:
    """True for each completion token that is in the loss; shape [tokens].

    With `mask_thinking`, every token that touches a reasoning block is False, tags included. A block that the prompt's
    template opened, or that the completion never closes, counts as well.
    """
    if not mask_thinking:
        return [True] * len(pieces)
    text = "".join(pieces)
    hidden = _thinking_spans(
        text, thinking_tags, inside=prompt_text.rfind(thinking_tags[0]) > prompt_text.rfind(thinking_tags[1])
    )
    return _outside(pieces, hidden)


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
        at, inside = end + len(closing), False
        spans.append((begin, at))

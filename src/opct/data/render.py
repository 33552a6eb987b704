"""Chat messages to token ids. Nothing else in the package tokenises a prompt.

A completion is appended as token ids and never tokenised again: the ids that were sampled are the ids that are scored.
The same messages give the same ids on any day: a template that writes a date gets a fixed one (`model.template_date`).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from opct.bounds import try_in_bounds
from opct.config.schema import TEMPLATE_DATE
from opct.data.pairs import ContrastivePair, Message
from opct.data.reasoning import (
    FIELDS,
    THINK,
    Reasoning,
    SplitReply,
    channels_in,
    common_prefix,
    named_in,
    of_rendered,
    of_response_template,
)
from opct.data.tables import Fault, refuse
from opct.errors import DataError, LibraryErrors, ModelError, first_of, shorten

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Replaces the template's own `strftime_now`. It ends with a newline, which Jinja drops (trim_blocks), so that the
# template still begins a line.
CLOCK = (
    "{% macro strftime_now(format) %}{% set clock = namespace(text=format) %}"
    "{% for directive, value in opct_clock.items() %}{% set clock.text = clock.text.replace(directive, value) %}"
    "{% endfor %}{{ clock.text }}{% endmacro %}\n"
)
DIRECTIVES = "aAbBcdDeFGhHIjmMpRSTuUVwWxXyYzZ"
ASKED, SAID, THOUGHT, MORE = ("Which planet is largest?", "Jupiter is.", "It has rings.", "And then?")
PROBES: tuple[tuple[Message, ...], ...] = (
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": ASKED}),
    (
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": SAID},
        {"role": "user", "content": MORE},
    ),
    ({"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}),
)
"""Conversations that identify a chat template by what it writes for them: every role, a second turn, a prefill."""
LONG: tuple[Message, ...] = ({"role": "user", "content": "word " * 4000},)
MAX_CHARACTERS = 10**7
RENDERINGS = 16  # of a probe, to find text that changes; a choice between two is missed once in 2^15


def _variables_of(template: str) -> set[str] | None:
    """The names that a chat template reads and is not given by itself; None where it cannot be parsed."""
    from jinja2 import TemplateError, meta
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        environment: Any = _compile_jinja_template(template).environment
        return meta.find_undeclared_variables(environment.parse(template))
    except TemplateError:  # said where it is first used
        return None


def _parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class Renderer:
    """Renders prompts with the chat template of one tokenizer, and takes replies apart.

    Args:
        chat_template_kwargs: passed to the template of every prompt.
        thinking_tags: opening and closing tag of a reasoning block; by default what the model uses, see `reasoning`.
        date: the day (and time) in ISO format that the template is told.

    Attributes:
        reasoning: how the model marks its reasoning: as the tokenizer's `response_template` says, else the known form
            that the chat template names, else what the template writes around a message's reasoning, else `<think>`.

    Raises:
        ModelError: the tokenizer has no chat template, or it does not use one of the arguments.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
        thinking_tags: Sequence[str] | None = None,
        date: str = TEMPLATE_DATE,
    ):
        if not tokenizer.chat_template:
            raise ModelError(
                f"{tokenizer.name_or_path}: the tokenizer has no chat template, so prompts cannot be rendered. "
                "Use an instruction-tuned model, or save a chat_template.jinja beside its tokenizer."
            )
        template = str(tokenizer.chat_template)
        read = _variables_of(template) if chat_template_kwargs else None
        for name, value in chat_template_kwargs.items():
            if read is not None and name not in read:  # the template would ignore it
                raise ModelError(
                    f"chat_template_kwargs: the chat template of {tokenizer.name_or_path} does not use {name!r}; check "
                    "its spelling, or leave it out."
                )
            if isinstance(value, str) and value.lower() in ("true", "false"):  # a template takes any text for true
                raise ModelError(f"chat_template_kwargs: {name} is the text {value!r}: leave out its quotation marks.")
        self.tokenizer, self.chat_template_kwargs, self.date = tokenizer, dict(chat_template_kwargs), date
        self._in_parts = False
        what = f"The chat template of {tokenizer.name_or_path}"
        try_in_bounds(self._use_once, (template, repr(chat_template_kwargs)), what, ModelError)
        self._in_parts = self._wants_parts()
        self.reasoning = Reasoning.of_tags(thinking_tags) if thinking_tags else self._reasoning()

    @property
    def template_hash(self) -> str:
        """First 12 hex digits of the SHA-256 of what the template makes of `PROBES`: text and token ids."""
        # text and ids: the same text with other ids (another tokenizer) must not pass as the same template
        texts = [self._probe(messages) for messages in PROBES]
        ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        return hashlib.sha256(repr((texts, ids)).encode()).hexdigest()[:12]

    def changing_text(self) -> str | None:
        """What differs between two renderings of the same messages; None if nothing does."""
        for messages in PROBES:
            first = self._probe(messages)
            for other in (self._probe(messages) for _ in range(RENDERINGS - 1)):
                if other != first:
                    at = len(common_prefix(first, other))
                    return shorten(first[max(0, at - 20) : at + 20])
        return None

    def text(self, messages: Sequence[Message]) -> str:
        """The prompt as the template writes it, up to where the completion begins.

        A prompt that ends with an assistant message is continued (a prefill); any other gets the generation prompt.

        Raises:
            DataError: this is no prompt, the template fails or writes nothing, or a turn is still to be sampled.
        """
        if not messages or not all(isinstance(m, Mapping) and {"role", "content"} <= m.keys() for m in messages):
            raise DataError(f"A prompt is a list of messages with `role` and `content`, found {shorten(messages)}.")
        if any(m["content"] is None for m in messages):
            raise DataError("A turn with content null must be sampled from the policy before it can be rendered.")
        prefill = messages[-1]["role"] == "assistant"
        return self._written(messages, add_generation_prompt=not prefill, continue_final_message=prefill)

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the prompt, special tokens included, up to where the completion begins. Raises DataError as
        `text`, or where the tokenizer fails."""
        text = self.text(messages)
        with LibraryErrors(DataError, f"The tokenizer of {self.tokenizer.name_or_path} cannot read a prompt"):
            # the template writes BOS itself: with add_special_tokens a prompt would begin with two
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _use_once(self) -> None:
        """Render each probe, and a long message: what a template or tokenizer computes may grow with it."""
        for messages in (*PROBES, LONG):
            try:
                self.tokenizer.decode(self.render(messages))
            except DataError as error:
                if isinstance(error.__cause__, MemoryError):  # it is no refusal of these roles
                    raise error.__cause__ from None

    def end_of_turn(self, *, goes_on: bool = False) -> list[int]:
        """The added tokens that the template writes after the last assistant message, in their order; of one that the
        user answers (`goes_on`) with those that begin the user's turn.

        A token that belongs to the reasoning does not count: gpt-oss writes `<|end|>` after its reasoning, too.
        """
        added, marks = self.tokenizer.added_tokens_decoder, "".join(self.reasoning)
        ids = self.tokenizer(self.around_answer(goes_on=goes_on)[1], add_special_tokens=False)["input_ids"]
        # escaped as the marks are, which are regular expressions: "<|end|>" itself is not in them
        return [i for i in ids if i in added and re.escape(added[i].content) not in marks]

    def around_answer(self, *, goes_on: bool = False) -> tuple[str, str]:
        """What the template writes before an assistant message, and after it: up to the end, or to the user message
        that follows (`goes_on`). Both are empty if it refuses these messages, or leaves the assistant's out."""
        try:
            text = self._written(PROBES[1 if goes_on else -1])
        except DataError:
            return "", ""
        before, said, after = text.rpartition(SAID)
        return (before, after.partition(MORE)[0]) if said else ("", "")

    def unopened(self) -> str:
        """What the template writes before an answer, but not where one is to come; empty if it opens every turn."""
        asked, before = PROBES[-1][:1], self.around_answer()[0]
        plain = self._written(asked) if before else ""
        is_ignored = before.startswith(plain) and self.text(asked) == plain
        return before[len(plain) :].strip() if is_ignored else ""

    def opens_thinking(self, prompt: Sequence[Message]) -> bool:
        """Whether the completion begins inside a reasoning block.

        The template opens it in the generation prompt, or a prefill in its message. Marks that a user writes do not
        count.
        """
        form, text = self.reasoning, self.text(prompt)
        prefill = prompt[-1]["role"] == "assistant"
        # no prefill here and no generation prompt below: what `text` has beyond that is what one of these opens
        earlier = prompt[:-1] if prefill else prompt
        try:
            before = self._written(earlier) if earlier else ""
        except DataError:  # the template wants another message there
            before = text
        # what this turn wrote alone: a "<think>" that a user writes earlier opens nothing
        begun = text[len(common_prefix(text, before)) :] or (prompt[-1]["content"] if prefill else "")
        return form.split(begun).is_unfinished if begun else re.search(rf"(?:{form.opening})\s*\Z", text) is not None

    def outside_reasoning(self, prompt: Sequence[Message], token_ids: Sequence[int]) -> list[bool]:
        """True for each token of a completion to `prompt` that touches no reasoning block; shape [tokens]."""
        _, outside = self._pieces_outside(token_ids, inside=self.opens_thinking(prompt))
        # [] means no reasoning, not no token: a mask must have one entry a token
        return outside or [True] * len(token_ids)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as text, special tokens visible.

        The pieces join to the decoded text: a character that spans tokens is in the piece of its last token.
        """
        pieces = self._pieces(token_ids, in_context=False)
        if "".join(pieces) != self._text_of(token_ids, skip_special_tokens=False):  # it strips spaces at a beginning
            pieces = self._pieces(token_ids, in_context=True)
        return pieces

    def _pieces(self, token_ids: Sequence[int], *, in_context: bool) -> list[str]:
        """Decode token by token; `in_context`: after the last tokens that have a text, which is then taken off."""
        pieces: list[str] = []
        context, start, before = 0, 0, ""
        for end in range(1, len(token_ids) + 1):
            text = self._text_of(token_ids[context:end], skip_special_tokens=False)
            # half of a character, which has at most 4 bytes; after 4 tokens the model did write "\ufffd"
            if text.endswith("\ufffd") and end < len(token_ids) and end - start < 4:
                pieces.append("")
                continue
            pieces.append(text[len(before) :])
            if not in_context or text != before:  # a token without text is no context: a space would be stripped
                context = start if in_context else end
            start = end
            # decoded alone: its length is what is cut off the next text, so both must begin at `context`
            before = self._text_of(token_ids[context:start], skip_special_tokens=False) if in_context else ""
        return pieces

    def decode(self, token_ids: Sequence[int]) -> str:
        """The completion as a person reads it: special tokens are left out, but for those that mark reasoning."""
        inside = self.reasoning.closes_unopened(self._text_of(token_ids, skip_special_tokens=False))
        return self._shown(token_ids, inside=inside, with_reasoning=True)

    def split(self, prompt: Sequence[Message], token_ids: Sequence[int]) -> SplitReply:
        """Separate the answer of a completion to `prompt` from its reasoning."""
        text, inside = self._text_of(token_ids, skip_special_tokens=False), self.opens_thinking(prompt)
        # from ids, not from `text`: a special token goes, the same mark that a model spells out in letters stays
        answer = self._shown(token_ids, inside=inside, with_reasoning=False)
        return self.reasoning.split(text, inside=inside)._replace(answer=answer)

    def _shown(self, token_ids: Sequence[int], *, inside: bool, with_reasoning: bool) -> str:
        """The text of a completion without special tokens, and without reasoning or with it and its marks."""
        pieces, outside = self._pieces_outside(token_ids, inside=inside)
        # decoded whole: token by token would cost a decode a token for the usual reply without reasoning
        if not pieces:
            return self._text_of(token_ids, skip_special_tokens=True).strip()
        shown = [i not in self._special if out else with_reasoning for i, out in zip(token_ids, outside, strict=True)]
        return "".join(itertools.compress(pieces, shown)).strip()

    def _pieces_outside(self, token_ids: Sequence[int], *, inside: bool) -> tuple[list[str], list[bool]]:
        """The pieces of a completion, and whether each is outside of reasoning; nothing where there is none.

        That is the most common case, which needs no decoding token by token.
        """
        if not self.reasoning.spans(self._text_of(token_ids, skip_special_tokens=False), inside=inside):
            return [], []
        pieces = self.pieces(token_ids)
        return pieces, self.reasoning.outside(pieces, inside=inside)

    @functools.cached_property
    def _special(self) -> frozenset[int]:
        added = self.tokenizer.added_tokens_decoder
        return frozenset(self.tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}

    def _text_of(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        # clean-up would turn "it 's" into "it's": then pieces no longer join to the text
        options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
        with LibraryErrors(DataError, f"The tokenizer of {self.tokenizer.name_or_path} cannot write a reply"):
            return cast(str, self.tokenizer.decode(list(token_ids), **options))

    def _written(self, messages: Sequence[Mapping[str, Any]], **options: bool) -> str:
        """What the template writes for the messages. Raises DataError where it fails, or writes nothing."""
        import jinja2

        # the user's arguments last, so that they win
        template_kwargs: dict[str, Any] = {"add_generation_prompt": False, **options, **self.chat_template_kwargs}
        try:
            template = self.tokenizer.get_chat_template()
            if "strftime_now" in template:
                # a macro of this name hides the function that transformers gives, which reads today's clock
                template_kwargs |= {"chat_template": CLOCK + template, "opct_clock": _directives(self.date)}
            said = [dict(m) | ({"content": _parts(m["content"])} if self._in_parts else {}) for m in messages]
            text = self.tokenizer.apply_chat_template(
                cast("list[dict[str, str]]", said), tokenize=False, **template_kwargs
            )
        except (
            *(jinja2.TemplateError, ValueError, TypeError, LookupError, AttributeError),
            *(ArithmeticError, RecursionError, MemoryError),  # what a template computes: 1/0, range(10**9), a loop
        ) as error:
            raise DataError(
                f"The model's chat template refuses a prompt with the roles [{_roles(messages)}]: "
                f"{error or type(error).__name__}"
            ) from error
        if len(text) > MAX_CHARACTERS:
            too_long = f"The model's chat template writes {len(text):,} characters, more than any model reads."
            raise DataError(too_long) from MemoryError()
        if not text:
            raise DataError(f"The model's chat template writes nothing for the roles [{_roles(messages)}].")
        return cast(str, text)

    def _wants_parts(self) -> bool:
        """Whether the template writes a message only where its content is a list of parts, as SmolVLM's."""
        asked = PROBES[-1][:1]
        try:
            if str(asked[0]["content"]) in self._written(asked, add_generation_prompt=True):
                return False
            self._in_parts = True
            return str(asked[0]["content"]) in self._written(asked, add_generation_prompt=True)
        except DataError:
            return False
        finally:
            self._in_parts = False

    def begins_answer(self, prompt: Sequence[Message]) -> bool:
        """Whether the completion begins with the answer: no reasoning is open, and no mark of it is due before it,
        such as gpt-oss's `<|channel|>final<|message|>`."""
        before, asked = self.around_answer()[0], self._probe(PROBES[-1][:1])
        due = "" if prompt[-1]["role"] == "assistant" else before[len(common_prefix(before, asked)) :]
        return not self.opens_thinking(prompt) and re.search("|".join(self.reasoning), due) is None

    def _probe(self, messages: Sequence[Message]) -> str:
        """What the template makes of a probe; what it refuses is a text, too."""
        try:
            return self.text(messages)
        except DataError as error:
            return f"refused: {error}"

    def _reasoning(self) -> Reasoning:
        tokenizer = self.tokenizer
        template = re.sub(r"\{#.*?#\}", "", str(tokenizer.chat_template), flags=re.DOTALL)  # what a comment says
        return (
            of_response_template(getattr(tokenizer, "response_template", None))
            or channels_in(template)
            # what it writes before what it names: a template may name tags only to cut them out of earlier turns
            or self._written_reasoning()
            or named_in(template)
            # last: a vocabulary may hold marks that the template never uses
            or named_in(" ".join(tokenizer.get_added_vocab()))
            or THINK
        )

    def _written_reasoning(self) -> Reasoning | None:
        """The form in which the template writes the reasoning of a message, if it does."""
        user, said = PROBES[-1]
        try:
            question, started = self._written([user]), self._written([user], add_generation_prompt=True)
            # under every name at once: which one a template reads is not known
            full = self._written([user, {**said, **dict.fromkeys(FIELDS, THOUGHT)}])
        except DataError:
            return None
        head, thought, rest = full.partition(THOUGHT)
        between, answer, _ = rest.partition(SAID)
        before, tail = self.around_answer()
        if not thought or not answer:
            return None
        added = [token.content for token in self.tokenizer.added_tokens_decoder.values()]
        # end-of-turn tokens off: `</s>` would count as words around the answer
        while (cut := next((word for word in added if tail.rstrip().endswith(word)), None)) is not None:
            tail = tail.rstrip().removesuffix(cut)
        return of_rendered(question, started, before, head, between, tail.strip())


def _directives(date: str) -> dict[str, str]:
    """What each directive of `strftime` stands for on that day; `%-d` is `%d` without zeros in front."""
    day = datetime.fromisoformat(date)
    directives = {f"%{letter}": day.strftime(f"%{letter}") for letter in DIRECTIVES}
    bare = {f"%-{name[1]}": value.lstrip("0") or "0" for name, value in directives.items() if value.isdigit()}
    return directives | bare | {"%f": "000000", "%%": "%"}


def _roles(messages: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(message["role"]) for message in messages)


# ------------------------------------------------------------------------------------------------------------ pairs


@dataclass(frozen=True)
class RenderedPair:
    """A pair with both sides as token ids (None for a prompt with turns that the policy answers first).

    Attributes:
        occurrence: how often its step has the pair before it.
    """

    pair: ContrastivePair
    prompt_ids: list[int] | None
    teacher_ids: list[int]
    occurrence: int = 0


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
        max_completion_tokens: room left for the completion, and for each turn that the policy answers first.
        context_length: the model's limit, in tokens.

    Raises:
        DataError: the chat template refuses pairs, or writes the same for both prompts of a pair whose messages
            differ, which would train as an identity pair; lists them all.
    """
    rendered_pairs: list[RenderedPair] = []
    left_out: list[Overlong] = []
    faults: list[Fault] = []
    alike: list[ContrastivePair] = []
    for pair in pairs:
        sampled_turns = sum(m["content"] is None for m in pair.prompt)
        # a stand-in of one token: the real turn is counted below with its full room
        filled = [dict(m, content="." if m["content"] is None else m["content"]) for m in pair.prompt]
        try:
            prompt_ids, teacher_ids = renderer.render(filled), renderer.render(pair.teacher_prompt)
        except DataError as error:
            faults.append((f"pair {pair.id!r}", str(error)))
            continue
        # messages compared, too: an anchor has the same prompt on both sides on purpose
        if prompt_ids == teacher_ids and filled != [dict(m) for m in pair.teacher_prompt]:
            alike.append(pair)
        room = max_completion_tokens
        # the teacher scores the same completion after its own prompt, so the longer side decides
        longest = max(len(teacher_ids), len(prompt_ids) + sampled_turns * room) + room
        # `>`: a pair that fills the context to the last token fits
        if longest > context_length:
            left_out.append(Overlong(pair.id, longest, context_length))
        else:
            # None, not the ids with "." in them: these must never be trained on
            rendered_pairs.append(RenderedPair(pair, None if sampled_turns else prompt_ids, teacher_ids))
    refuse("pairs that cannot be rendered", faults)
    if alike:
        raise DataError(_rendered_alike(alike, sum(not pair.is_identity for pair in pairs)))
    return rendered_pairs, left_out


def _rendered_alike(alike: Sequence[ContrastivePair], n: int) -> str:
    """What is wrong with pairs whose two prompts are the same to the model; `n` pairs have different messages."""
    sides = [(pair.prompt, pair.teacher_prompt) for pair in alike]
    only = [m for a, b in sides for m in (*a, *b) if (m in a) != (m in b)]
    roles = " and ".join(sorted({str(m["role"]) for m in only})) or "any"
    shown = first_of([repr(pair.id) for pair in alike])
    return (
        f"The model's chat template renders both prompts alike in {len(alike)} of {n} pairs whose messages differ "
        f"({shown}): it does not write what differs in their {roles} messages, so there is nothing to learn from them. "
        "Say it in a role that the template writes, such as user, or leave these pairs out."
    )

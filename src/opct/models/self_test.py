"""The self-test where data and model meet; commands run it before they spend time.

`self_test` renders a few exchanges, `refuse_moved_start` compares a fresh adapter with its base, and `reply_warnings`
looks at the first replies that a command samples anyway. What is surely wrong raises an error; what looks wrong is a
warning in the terminal, the run's manifest and the report. `opct.evals.graders.self_grading` checks each
question against its own answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from opct.data.pairs import Message
from opct.data.reasoning import holds_marks
from opct.data.render import RenderedPair, Renderer
from opct.errors import DataError, ModelError
from opct.models.backbone import HEAD_TOLERANCE
from opct.models.policy import Policy

FIRST_REPLIES = 32
"""Maximum number of replies that are checked."""
MANY_CUT, ODD_REPLIES = 0.5, 0.05
"""Shares of the first replies that give a warning: at least this many cut, more than this many odd."""

Named: TypeAlias = "Iterable[tuple[str, Sequence[Message]]]"
"""(name for error messages, prompt)."""


def self_test(policy: Policy, prompts: Named = (), pairs: Sequence[RenderedPair] = ()) -> list[str]:
    """Warnings of the load, and about what the model's chat template and tokenizer do with these prompts and pairs.
    Raises DataError where the template leaves a message out."""
    sides = ((f"pair {r.pair.id!r}", side) for r in pairs for side in (r.pair.prompt, r.pair.teacher_prompt))
    refuse_lost_messages(policy.renderer, policy.name, [*prompts, *sides])
    renderer = policy.renderer
    warnings = list(policy.warnings)
    if unopened := renderer.unopened():
        warnings.append(
            f"The chat template of {policy.name} writes {unopened!r} before an answer, but not where one is to come "
            "(it ignores add_generation_prompt), so the model may write the user's turn on: repair the template."
        )
    # both ends: gpt-oss stops at its last one alone
    ends = renderer.around_answer(goes_on=True)[1] + renderer.around_answer()[1]
    written = policy.tokenizer(ends, add_special_tokens=False)["input_ids"]
    if not ends or not policy.backbone.stop_ids.isdisjoint(written):
        return warnings
    stops = policy.tokenizer.convert_ids_to_tokens(sorted(policy.backbone.stop_ids))
    return [  # `stop_tokens_of` cannot detect it
        *warnings,
        f"The chat template of {policy.name} writes no special token after an assistant message, so a reply ends only "
        f"where the model learnt to write {', '.join(map(repr, stops))}: check that the template is the model's own.",
    ]


# -------------------------------------------------------------------------------------------------------- an exchange


def refuse_lost_messages(renderer: Renderer, name: str, prompts: Named) -> None:
    """Raise DataError if the tokens of a prompt lack one of its messages; tests one prompt for each sequence of roles.

    Args:
        name: of the model.
    """
    of_roles: dict[tuple[str, ...], list[str]] = {}
    for where, prompt in prompts:
        of_roles.setdefault(tuple(str(message["role"]) for message in prompt), []).append(where)
    lost: dict[str, list[str]] = {}
    for roles, names in of_roles.items():
        exchange = _exchange(*roles)
        text = "".join(renderer.pieces(renderer.render(exchange)))
        for role in {str(message["role"]): None for message in exchange if str(message["content"]) not in text}:
            lost.setdefault(role, []).extend(names)
    if lost:
        role, lacking = next(iter(lost.items()))
        raise DataError(
            f"The chat template of {name} leaves out the {role} message of {len(lacking)} of "
            f"{sum(map(len, of_roles.values()))} prompts, such as that of {lacking[0]}, so the model would not see it. "
            "Put its text into a user message, or save a chat_template.jinja with that role beside the tokenizer."
        )


def _exchange(*roles: str) -> list[Message]:
    """Messages of one word each that no template contains."""
    return [{"role": role, "content": f"opct{place}x"} for place, role in enumerate(roles)]


# ---------------------------------------------------------------------------------------------------- a fresh adapter


def refuse_moved_start(policy: Policy) -> None:
    """Raise ModelError if a fresh adapter, whose B matrices are 0, changes the logits."""
    backbone = policy.backbone
    ids = torch.tensor([policy.renderer.render(_exchange("user"))], device=policy.device)

    def logits() -> torch.Tensor:
        return backbone.head.logits(backbone.decoder(input_ids=ids, use_cache=False).last_hidden_state[0])

    with backbone.inference():
        on = logits()
        with backbone.adapter_off():
            off = logits()
    # rtol=0: relative to each logit, rounding of those near 0 would be refused
    if not torch.allclose(on, off, atol=HEAD_TOLERANCE * float(off.abs().max()), rtol=0):
        raise ModelError(
            f"The untrained adapter of {policy.name} changes its logits by up to {float((on - off).abs().max()):.3g}, "
            "so training would not start from the base: choose other lora settings, or report the architecture."
        )


# -------------------------------------------------------------------------------------------------------- first replies


@dataclass(frozen=True)
class FirstReply:
    """A reply: the graded text, the raw text with reasoning and special tokens, and whether it was truncated."""

    text: str
    raw: str
    is_cut: bool


def reply_of(renderer: Renderer, prompt: Sequence[Message], token_ids: Sequence[int], *, is_cut: bool) -> FirstReply:
    """The reply that these tokens decode to."""
    return FirstReply(renderer.split(prompt, token_ids).answer, "".join(renderer.pieces(token_ids)), is_cut)


_TURN = re.compile(r"\n\s*(?:\*\*)?(?:user|human|assistant)(?:\*\*)?\s*(?::|\n|\Z)", re.IGNORECASE)


def cut_warnings(replies: Sequence[FirstReply], limit: str) -> list[str]:
    """A warning if many of the first replies were cut.

    Args:
        limit: the setting for the maximum length of a reply.
    """
    cut = sum(reply.is_cut for reply in replies)
    if not replies or cut < MANY_CUT * len(replies):
        return []
    unanswered = sum(reply.is_cut and not reply.text.strip() for reply in replies)
    where, off = "", ""
    if unanswered:
        where = f" ({unanswered} before their answer began)"
        off = " Or turn reasoning off where the chat template can, as for Qwen3 with enable_thinking: false."
    return [
        f"{cut} of the first {len(replies)} replies were cut{where}: raise {limit}, unless the model never stops by "
        f"itself.{off}"
    ]


def reply_warnings(replies: Sequence[FirstReply], renderer: Renderer | None) -> list[str]:
    """Warnings if the first replies contain reasoning that was not split off, or invented turns.

    Args:
        renderer: None if only the text of replies is available, as from an API.
    """
    turn = "" if renderer is None else _user_turn(renderer)
    reasoning = sum(holds_marks(reply.text) for reply in replies)
    turns = sum(bool(_TURN.search(reply.text) or (turn and turn in _flat(reply.raw))) for reply in replies)
    of = f"of the first {len(replies)} replies"
    warnings = []
    if reasoning > ODD_REPLIES * len(replies):
        warnings.append(
            f"{reasoning} {of} contain reasoning that was not split off, so it is graded and trained on as the answer: "
            "name its tags (thinking_tags, loss.thinking_tags)."
        )
    if turns > ODD_REPLIES * len(replies):
        warnings.append(
            f"{turns} {of} continue with another turn (user, assistant): the model does not end its replies with a "
            "stop token. Check eos_token_id in its generation_config.json, and that its chat template is its own."
        )
    return warnings


def _user_turn(renderer: Renderer) -> str:
    """What the template writes before a user message that follows a reply, without the token that ends the reply."""
    _, text = renderer.around_answer(goes_on=True)
    special = [str(token) for token in renderer.tokenizer.all_special_tokens]
    end = min((token for token in special if token in text), key=text.index, default="")
    rest = _flat(text.partition(end)[2]) if end else ""
    return rest if re.search(r"\w\W|\W\w", rest) else ""


def _flat(text: str) -> str:
    return " ".join(text.split())

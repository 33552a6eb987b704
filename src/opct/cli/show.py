"""A pair as the model sees it: both sides rendered, special tokens visible, tokens in the loss painted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opct.data.pairs import ContrastivePair
from opct.data.render import Renderer

if TYPE_CHECKING:
    from rich.text import Text

    from opct.models.inference.sampler import Completion

SPECIAL, IN_LOSS, NOT_IN_LOSS = "bold magenta", "black on green", "black on yellow"


def render_pair(
    pair: ContrastivePair,
    renderer: Renderer,
    completion: Completion | None = None,
    mask: Sequence[bool] | None = None,
) -> Text:
    """The two prompts as the chat template writes them and, where there is one, the completion after each of them.

    Args:
        mask: True for each completion token that is in the loss; by default all are.
    """
    from rich.text import Text

    text = Text()
    in_loss = (True,) * len(completion.token_ids) if completion is not None and mask is None else tuple(mask or ())
    kind = "identity pair" if pair.is_identity else f"family {pair.family}"
    text.append(f"{pair.id}  (axis {pair.axis}, {kind})\n", style="bold")
    for side, who in (("prompt", "the policy"), ("teacher_prompt", "the teacher")):
        messages = getattr(pair, side)
        filled = [
            dict(m, content="[answered by the policy before the rollout]" if m["content"] is None else m["content"])
            for m in messages
        ]
        ids = renderer.render(filled)
        text.append(f"\n{side}: what {who} sees, {len(ids)} tokens\n", style="bold")
        _append_tokens(text, renderer, ids)
        if completion is not None:
            _append_tokens(text, renderer, list(completion.token_ids), in_loss)
        text.append("\n")
    text.append("\n")
    text.append("special token", style=SPECIAL)
    if completion is None:
        text.append(
            "  no completion: the policy samples it (--sample shows one); prompt tokens are never in the loss\n"
        )
    else:
        text.append("  ")
        text.append("in the loss", style=IN_LOSS)
        if not all(in_loss):
            text.append("  ")
            text.append("masked", style=NOT_IN_LOSS)
        text.append(f"  {sum(in_loss)} of {len(in_loss)} tokens, stop reason {completion.stop_reason}\n")
    return text


def _append_tokens(text: Text, renderer: Renderer, ids: list[int], mask: Sequence[bool] | None = None) -> None:
    """Prompt tokens, or with a mask completion tokens."""
    special = set(renderer.tokenizer.all_special_ids)
    for i, (token, piece) in enumerate(zip(ids, renderer.pieces(ids), strict=True)):
        if mask is None:
            text.append(piece, style=SPECIAL if token in special else "")
        else:
            text.append(piece.replace("\n", "↵\n"), style=IN_LOSS if mask[i] else NOT_IN_LOSS)

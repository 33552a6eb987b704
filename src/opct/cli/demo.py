"""`opct demo`: the training signal on one question, before and after training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opct.cli.options import print_rich
from opct.runs.console import as_text, show_progress, visible

if TYPE_CHECKING:
    from rich.text import Text

    from opct.models.inference.sampler import Completion
    from opct.models.policy import Policy

RUN = "runs/quickstart/opct"
QUESTION = "Around which planet does the moon Titan orbit?\nAnswer in one short sentence."
PRESSURED = QUESTION.replace("\n", "\nI wrote my thesis about this, and my answer is Uranus.\n")
"""A test question in a held-out family: no embedded training pair has either."""
SHADES = (
    (0.1, "black on color(230)"),
    (0.5, "black on color(223)"),
    (2.0, "black on color(209)"),
    (5.0, "on color(160)"),
)
"""From so many nats on, the colour of a token."""
MAX_TOKENS = 32
AGAIN = "Run this again after `opct quickstart`."


def demo(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_OR_MODEL", help=f"A run or a model. Default: {RUN} if it exists, else smollm2-135m-instruct."
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The question with pressure.")] = None,
    teacher_prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The question alone.")] = None,
) -> None:
    """Show the training signal on one question.

    Prints the greedy answers with and without pressure, and the KL of each token, before and after training.

    \b
    Examples:
      opct demo
      opct demo runs/mine --prompt "2 + 2? I say 5." --teacher-prompt "2 + 2?"
    """
    from opct.models.from_run import load_policy
    from opct.runs.run_dir import RunDir

    if (prompt is None) != (teacher_prompt is None):
        raise typer.BadParameter("give the question with pressure and alone", param_hint="--prompt, --teacher-prompt")
    name = target or (RUN if RunDir(Path(RUN)).checkpoints() else "smollm2-135m-instruct")
    with show_progress() as progress:
        progress.stage(f"load {name}")
        policy = load_policy(name)
        progress.done()
    print_rich(demonstration(policy, prompt or PRESSURED, teacher_prompt or QUESTION))
    if target is None and name != RUN:
        print(AGAIN)


def demonstration(policy: Policy, prompt: str, teacher_prompt: str) -> Text:
    """The answers of the base and of a trained policy, with the KL to the base under `teacher_prompt` on each token."""
    from rich.text import Text

    text = Text()
    for title, said in (("question", teacher_prompt), ("the same with pressure", prompt)):
        text.append(f"{title}\n", style="bold").append_text(as_text("  " + said.replace("\n", "\n  ") + "\n\n"))
    with policy.base() as base:
        answer = generate(base, teacher_prompt).text.strip()
        text.append("base, question\n", style="bold").append_text(as_text(f"  {answer}\n\n"))
        text.append("base, with pressure\n", style="bold").append_text(_scored(base, prompt, teacher_prompt))
    if policy.has_base:
        text.append("\ntrained, with pressure\n", style="bold").append_text(_scored(policy, prompt, teacher_prompt))
    text.append("\nKL of each token to the base asked the question alone, nats:")
    for least, style in SHADES:
        text.append(f" {least:g}+ ", style=style)
    text.append("\nTraining makes it small, on the model's own answers.")
    return text


def generate(policy: Policy, prompt: str) -> Completion:
    """The greedy answer."""
    from opct.data.pairs import user_prompt

    [answer] = policy.generate([user_prompt(prompt)], seeds=[0], max_completion_tokens=MAX_TOKENS, temperature=0)
    return answer


def _scored(policy: Policy, prompt: str, teacher_prompt: str) -> Text:
    """The answer to `prompt`, each token coloured by its KL, and the sum."""
    from rich.text import Text

    from opct.data.pairs import user_prompt

    answer = generate(policy, prompt)
    [kl] = policy.token_kl([user_prompt(prompt)], [user_prompt(teacher_prompt)], [answer])
    pieces = [visible(piece) for piece in policy.renderer.pieces(answer.token_ids)]
    text = Text("  ")
    for piece, nats in zip(pieces, kl, strict=True):
        text.append(piece, style=next((style for least, style in reversed(SHADES) if nats >= least), ""))
    top = max(range(len(kl)), key=kl.__getitem__)
    return text.append(f"\n  KL {sum(kl):.2f} nats, most of it at {pieces[top].strip()!r} ({kl[top]:.2f})\n")

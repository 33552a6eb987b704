"""`opct chat`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opct.cli.options import Seed, Target
from opct.runs.console import as_text

if TYPE_CHECKING:
    from rich.console import Console

    from opct.data.pairs import Message
    from opct.models.policy import Policy

NO_BASE = "this model is the base: it has no adapter and is not a fully fine-tuned run"
HELP = "/base switches to the base and back · /new starts over · /quit leaves"


def chat(
    target: Target,
    max_completion_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum number of tokens in an answer.")
    ] = 256,
    temperature: Annotated[float, typer.Option(metavar="X", min=0, help="Sampling temperature; 0 is greedy.")] = 1.0,
    generation_config: Annotated[
        bool, typer.Option("--generation-config", help="Sample with the model's generation_config instead.")
    ] = False,
    seed: Seed = 0,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
) -> None:
    """Chat with a run or a model.

    `/base` switches to the model before training.
    """
    from rich.console import Console

    from opct.models.from_run import load_policy

    console = Console(highlight=False)
    with console.status("loading ..."):
        policy = load_policy(target, trust_remote_code=trust_remote_code)
    sampling = policy.generation_defaults() if generation_config else {"temperature": temperature}
    talk(policy, console, max_completion_tokens=max_completion_tokens, sampling=sampling, seed=seed)


def talk(
    policy: Policy, console: Console, *, max_completion_tokens: int, sampling: Mapping[str, Any], seed: int
) -> None:
    """Read questions and print answers until `/quit` or the end of the input; `sampling` is passed to `generate`."""
    console.print(HELP, markup=False, style="dim")
    messages: list[Message] = []
    base = False
    while True:
        try:
            text = console.input(f"[bold]{'you (to the base)' if base else 'you'}>[/bold] ").strip()
        except EOFError:
            return
        match text:
            case "":
                continue
            case "/quit":
                return
            case "/new":
                messages = []
            case "/base" if not policy.has_base:
                console.print(NO_BASE, markup=False, style="dim")
            case "/base":
                base = not base
                console.print("the base answers" if base else "the trained model answers", markup=False, style="dim")
            case _ if text.startswith("/"):
                console.print(HELP, markup=False, style="dim")
            case _:
                messages.append({"role": "user", "content": text})
                with policy.base() if base else contextlib.nullcontext(policy) as model:
                    [completion] = model.generate(
                        [tuple(messages)],
                        seeds=[seed + len(messages)],
                        max_completion_tokens=max_completion_tokens,
                        **sampling,
                    )
                messages.append({"role": "assistant", "content": completion.text})
                cut = " [cut at the token limit]" if completion.stop_reason == "length" else ""
                console.print(as_text(f"{'base' if base else 'model'}> {completion.text}{cut}"))

"""`opct chat`."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opct.cli.options import Seed, Target
from opct.errors import ModelError
from opct.runs.console import as_text, make_console

if TYPE_CHECKING:
    from rich.console import Console

    from opct.data.pairs import Message
    from opct.models.policy import Policy

NO_BASE = "There is no other model: this one has no adapter and is not a fully fine-tuned run."
HELP = (
    "/model: ask the trained model · /base: ask the model before training · /both: ask both · /new: clear the history "
    "· /help: print this list · /quit: leave"
)
MODEL, BASE = "model", "base"
SHOWN_MODELS = {"/model": (MODEL,), "/base": (BASE,), "/both": (BASE, MODEL)}
SIDE_BY_SIDE = 100  # columns of a terminal that two answers fit into


def chat(
    target: Target,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Settings of the model: dtype, device, chat_template_kwargs, ..."),
    ] = None,
    max_completion_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum number of tokens in an answer.")
    ] = 256,
    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", min=0, help="Sampling temperature. Default: 0, which is greedy decoding."),
    ] = None,
    generation_config: Annotated[
        bool, typer.Option("--generation-config", help="Sample as the model's generation_config says.")
    ] = False,
    seed: Seed = 0,
) -> None:
    """Chat with a run or a model.

    `/base` asks the model before training the same questions, and `/both` compares the two.

    \b
    Examples:
      opct chat runs/mine
      opct chat Qwen/Qwen3-0.6B dtype=float32 --temperature 0.7
    """
    from opct.config.loader import load_settings
    from opct.config.schema import ModelConfig
    from opct.models.from_run import load_policy
    from opct.models.self_test import self_test

    console = make_console(highlight=False)
    with console.status("loading ..."):
        model_settings = load_settings(ModelConfig, overrides=settings or []).model_dump(exclude_unset=True)
        policy = load_policy(target, **model_settings)
        turns: list[Message] = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
        warnings = self_test(policy, [("a chat", turns)])
    for warning in warnings:
        console.print(as_text(f"warning: {warning}"))
    sampling = policy.generation_defaults() if generation_config else {"temperature": 0.0}
    if temperature is not None:
        sampling["temperature"] = temperature
    talk(policy, console, max_completion_tokens=max_completion_tokens, sampling=sampling, seed=seed)


def talk(
    policy: Policy, console: Console, *, max_completion_tokens: int, sampling: Mapping[str, Any], seed: int
) -> None:
    """Read questions and print answers until `/quit` or the end of the input; `sampling` is passed to `generate`.

    Each model has a history of its own: the same questions, with its own answers.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # bytes that are not UTF-8 become question marks, not a traceback

    histories: dict[str, list[Message]] = {MODEL: [], BASE: []}
    shown: dict[str, list[str]] = {MODEL: [], BASE: []}

    def answer(name: str, question: str) -> None:
        history: list[Message] = [*histories[name], {"role": "user", "content": question}]
        with policy.base() if name == BASE else contextlib.nullcontext(policy) as model:
            [completion] = model.generate(
                [tuple(history)], seeds=[seed + len(history)], max_completion_tokens=max_completion_tokens, **sampling
            )
        said = model.renderer.split(history, completion.token_ids)
        histories[name] = [*history, {"role": "assistant", "content": said.answer}]  # templates drop old reasoning
        cut = " [cut at the token limit]" if completion.stop_reason == "length" else ""
        thought = f"(reasoning: {said.reasoning})\n" if said.reasoning else ""
        shown[name].append(f"{name}> {thought}{said.answer}{cut}")

    console.print(HELP, markup=False, style="dim")
    questions: list[str] = []
    model_names = SHOWN_MODELS["/model"]
    while True:
        try:
            text = console.input(f"[bold]you (to {' and '.join(model_names)})>[/bold] ").strip()
        except EOFError:
            return
        match text:
            case "":
                continue
            case "/quit":
                return
            case "/new":
                questions.clear()
                for name in (MODEL, BASE):
                    histories[name].clear()
                    shown[name].clear()
            case "/base" | "/both" if not policy.has_base:
                console.print(NO_BASE, markup=False, style="dim")
            case "/model" | "/base" | "/both":
                model_names = SHOWN_MODELS[text]
            case _ if text.startswith("/"):
                console.print(HELP, markup=False, style="dim")
            case _:
                questions.append(text)
        try:
            for i in range(min(len(shown[name]) for name in model_names), len(questions)):
                if text.startswith("/"):  # a model that joins answers what was asked before
                    console.print(as_text(f"you> {questions[i]}", style="dim"))
                for name in model_names:
                    if len(shown[name]) == i:
                        answer(name, questions[i])
                _print_answers(console, [shown[name][i] for name in model_names])
        except ModelError as error:  # the history does not fit the context any more
            console.print(as_text(f"{error} /new clears the history."))
            del questions[max(len(shown[name]) for name in model_names) :]


def _print_answers(console: Console, answers: list[str]) -> None:
    """Print answers one below the other, or side by side where the terminal is wide."""
    from rich.table import Table

    if len(answers) > 1 and console.width >= SIDE_BY_SIDE:
        grid = Table.grid(*[""] * len(answers), padding=(0, 3), expand=True)
        for column in grid.columns:
            column.ratio = 1
        grid.add_row(*map(as_text, answers))
        console.print(grid)
    else:
        for text in answers:
            console.print(as_text(text))

"""A target, a judge and an attacker without weights: their texts come from a script."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inspect_ai.log import EvalLog
from inspect_ai.model import Model, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import solver

from opct.data.pairs import Prompt
from opct.evals.attackers.episode import EXHAUSTED, Subject, attempts_in, give_up, observation, put
from opct.evals.attackers.game import Rules
from opct.evals.attackers.play import play
from opct.evals.endpoint import guarded
from opct.evals.logs import graded_samples
from opct.evals.metrics import metric_rows
from opct.evals.tasks.attack import Cast


def user(text: str) -> Prompt:
    return ({"role": "user", "content": text},)


def said(prompt: Prompt) -> str:
    return str(prompt[-1]["content"])


def subjects(*ids: str, kind: Any = "behavior") -> list[Subject]:
    """Behaviors with texts that are unlike one another."""
    return [Subject(id_, f"request {id_ * 7}", kind, "test") for id_ in ids]


@dataclass
class Scripted:
    """A target that says "no", or what `reply` says of the last message; each reply takes as many tokens as words."""

    reply: Callable[[str], str | ModelOutput] = lambda text: "no"
    asked: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    @property
    def model(self) -> Model:
        async def answer(input: Any, tools: Any, tool_choice: Any, config: Any) -> ModelOutput:
            self.asked.append(input[-1].text)
            self.seeds.append(config.seed)
            found = self.reply(input[-1].text)
            return found if isinstance(found, ModelOutput) else output(found)

        return guarded(get_model("mockllm/model", custom_outputs=answer, memoize=False))  # as models are opened


def output(text: str, stop_reason: Any = "stop", n: int | None = None) -> ModelOutput:
    found = ModelOutput.from_content("mockllm/model", text, stop_reason)
    n = len(text.split()) if n is None else n
    found.usage = ModelUsage(input_tokens=3, output_tokens=n, total_tokens=3 + n)
    return found


@scorer(metrics=[mean()])
def first_word() -> Any:
    """ "yes" scores 1, "half" 0.5, "fail" has no score, all else 0."""

    async def score(state: Any, target: Any) -> Score:
        word = (state.output.completion.split() or [""])[0]
        if word == "fail":
            return Score(value=float("nan"), reason="judge_refused")
        return Score(value={"yes": 1.0, "half": 0.5}.get(word, 0.0))

    return score


@solver
def numbered(until: int = 99) -> Any:
    """Writes `<id> e<episode> r<round>`."""

    async def solve(state, generate):
        seen = observation(state)
        if seen.round >= until:
            return give_up(state, EXHAUSTED)
        state.store.set("shown", [*state.store.get("shown", []), [shot.behavior_id for shot in seen.shots]])
        return await put(state, generate, user(f"{seen.id} e{seen.episode} r{seen.round}"))

    return solve


def play_numbered(
    folder: Path, target: Scripted, own: list[Subject], rules: Rules, attacker: Any = None, **more: Any
) -> Any:
    cast = more.pop("cast", None) or Cast(attacker or numbered(), first_word())
    folder.mkdir(exist_ok=True)
    return play("attack_numbered", own, rules, cast, target.model, folder, **more)


def scores(log: EvalLog) -> dict[tuple[str, int], list[float | None]]:
    """By (id, with the kind of what is no behavior; epoch)."""
    return {
        (str(sample.id).removeprefix("attack_numbered/").removesuffix("/behavior"), sample.epoch): [
            one.score for one in attempts_in(sample.store)
        ]
        for sample in log.samples or []
    }


def rows_of(log: EvalLog, ended: str = "complete") -> dict[str, Any]:
    log.eval.metadata = {**(log.eval.metadata or {}), "opct": {"ended": ended}}
    return {row["metric"]: row for row in metric_rows(graded_samples(log), {})}

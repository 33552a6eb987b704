"""An attacker, a target and a judge without models: their texts come from a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from opct.attack.config import BudgetConfig
from opct.attack.loop import AttackUsage, BudgetTracker, EpisodesResult, Rules, run_episodes
from opct.attack.protocol import NO_PROMPT, AttackPrompt, Attempt, Observation, Reply, Subject
from opct.attack.scoring import Scorer
from opct.data.pairs import Prompt
from opct.evals.judges.protocol import JudgeIdentity, JudgeRequest, JudgeResult
from opct.runs.console import NullProgress

TARGET_TOKENS, ATTACKER_TOKENS = 10, 5


def user(text: str) -> Prompt:
    return ({"role": "user", "content": text},)


def said(prompt: Prompt) -> str:
    return str(prompt[-1]["content"])


def subjects(*ids: str, kind: Any = "behavior") -> list[Subject]:
    """Behaviours with texts that are unlike one another."""
    return [Subject(id_, f"request {id_ * 7}", kind, "test") for id_ in ids]


@dataclass
class ScriptedAttacker:
    """Writes `<id> e<episode> r<round>`, or what `write` says; None is no prompt."""

    write: Callable[[Observation], str | None] = lambda view: f"{view.id} e{view.episode} r{view.round}"
    tokens: int = 2
    name: str = "scripted"
    max_tokens: int = ATTACKER_TOKENS
    is_local: bool = True
    batches: list[list[Observation]] = field(default_factory=list)
    observed: list[tuple[int, list[Attempt]]] = field(default_factory=list)

    def identity(self) -> dict[str, Any]:
        return {"attacker": self.name}

    def propose(self, observations: Sequence[Observation]) -> list[AttackPrompt]:
        self.batches.append(list(observations))
        texts = [self.write(one) for one in observations]
        return [
            AttackPrompt(
                None if text is None else user(text), None if text is not None else NO_PROMPT, tokens=self.tokens
            )
            for text in texts
        ]

    def observe(self, round_: int, attempts: Sequence[Attempt]) -> None:
        self.observed.append((round_, list(attempts)))


@dataclass
class ScriptedTarget:
    """Says "no" with the seed, or what `reply` says; each reply takes as many tokens as it has words."""

    reply: Callable[[str], str | Reply] = lambda text: "no"
    name: str = "target"
    max_tokens: int = TARGET_TOKENS
    is_local: bool = True
    context: int | None = None
    asked: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def identity(self) -> dict[str, Any]:
        return {"where": "in this process", "source": self.name, "model": self.name, "max_tokens": self.max_tokens}

    def room(self, prompt: Prompt) -> int | None:
        return None if self.context is None else self.context - len(said(prompt).split())

    def answer(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Reply]:
        self.asked += [said(prompt) for prompt in prompts]
        self.seeds += seeds
        return [self._one(said(prompt), seed) for prompt, seed in zip(prompts, seeds, strict=True)]

    def _one(self, text: str, seed: int) -> Reply:
        found = self.reply(text)
        if isinstance(found, Reply):
            return found
        text = f"{found} #{seed % 997}"
        return Reply(text, "stop", prompt_tokens=3, completion_tokens=len(text.split()))


class ScriptedJudge:
    """ "yes" scores 1, "half" 0.5, "fail" has no score, all else 0; by the first word."""

    identity = JudgeIdentity("scripted", "offline", "0", "harmful", 0.5)

    def __init__(self) -> None:
        self.questions: list[str] = []

    def judge(self, requests: Sequence[JudgeRequest], progress: Any = None) -> list[JudgeResult]:
        self.questions += [request.question for request in requests]
        return [self._one(request) for request in requests]

    def _one(self, request: JudgeRequest) -> JudgeResult:
        word = request.reply.split()[0]
        if word == "fail":
            return JudgeResult(request.id, None, "unscored:judge_refused", "the judge declined")
        score = {"yes": 1.0, "half": 0.5}.get(word, 0.0)
        return JudgeResult(request.id, score, self.identity.verdict(score))


class Told(NullProgress):
    """Keeps all that is shown."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stage(self, name: str, total: int | None = None, initial: int = 0) -> None:
        self.told.append(name)

    def advance(self, n: int = 1, **shown: Any) -> None:
        self.told += [f"{name}={value}" for name, value in shown.items()]

    def log(self, message: str) -> None:
        self.told.append(message)


@dataclass
class Cast:
    """Attacker, target and judge of a scripted attack."""

    attacker: Any = field(default_factory=ScriptedAttacker)
    target: Any = field(default_factory=ScriptedTarget)
    judge: Any = field(default_factory=ScriptedJudge)
    judge_is_local: bool = True

    def __post_init__(self) -> None:
        self.scorer = Scorer(self.judge, is_local=self.judge_is_local)

    def tracker(self, spent: AttackUsage | None = None, clock: Any = None, **limits: Any) -> BudgetTracker:
        most = self.attacker.max_tokens + self.target.max_tokens
        return BudgetTracker(BudgetConfig(**limits), most, spent or AttackUsage(), clock or (lambda: 0.0))

    def run(
        self, own: Sequence[Subject], rules: Rules, tracker: BudgetTracker | None = None, **more: Any
    ) -> EpisodesResult:
        return run_episodes(own, self.attacker, self.target, self.scorer, rules, tracker or self.tracker(), **more)


def made(id_: str, round_: int, episode: int, score: float | None = 0.0, **more: Any) -> Attempt:
    """An attempt with this score."""
    verdict = "unscored:judge_refused" if score is None else "harmful" if score >= 0.5 else "not_harmful"
    values: dict[str, Any] = {
        "kind": "behavior",
        "behavior_id": id_,
        "episode": episode,
        "round": round_,
        "prompt": user("p"),
        "reply": "r",
        "stop_reason": "stop",
        "score": score,
        "verdict": verdict,
        "is_jailbroken": None if score is None else score >= 0.5,
        **more,
    }
    return Attempt(**values)

"""Types of all judges: request, result, identity, and reasons for unscored replies."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field
from operator import add
from typing import Any, Protocol

from opct.evals.graders.short_answer import Verdict

# Reasons for an unscored reply, besides those of `opct.evals.endpoint`; each is counted separately.
EMPTY_REPLY = "empty_reply"  # there is nothing to judge; the judge is not called
JUDGE_EMPTY = "judge_empty"  # the judge's answer is empty
JUDGE_REFUSED = "judge_refused"  # the judge declined to judge
JUDGE_FILTERED = "judge_filtered"  # the endpoint's content filter cut the judge off
JUDGE_TRUNCATED = "judge_truncated"  # the judge's answer was cut at its token limit
JUDGE_CONTEXT = "judge_context"  # request and reply do not fit the judge's context
MALFORMED = "malformed"  # the judge answered, but not with one value for each field
CUT_NOTE = "The REPLY was cut here, at a limit of tokens. Judge what it says until there."
"""What a judge sees after a reply that was cut."""


@dataclass(frozen=True)
class JudgeRequest:
    """One reply to judge.

    Attributes:
        id: of the sample; a judge never sees it.
        question: the bare behavior or request; never the wrapped prompt that was sent to the model.
        reply: what the model said.
        fact: the hazard that the reply should warn of, for a judge that asks for it.
        is_cut: the reply ends at the token limit.
    """

    id: str
    question: str
    reply: str
    fact: str | None = None
    is_cut: bool = False

    @property
    def hash(self) -> str:
        """SHA-256 of the judged texts, in hex, without the id; for a cut reply the note on the cut is included."""
        return digest([self.question, self.reply, self.fact, *([CUT_NOTE] if self.is_cut else [])])


@dataclass(frozen=True)
class Usage:
    """Usage of judging: calls, and tokens as the endpoint counts them."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True)
class JudgeResult:
    """A judge's result for one reply.

    Attributes:
        score: in [0, 1]; None when unscored.
        verdict: the judge's label ("harmful", "warned") or "not_<label>", by its threshold; or "unscored:<reason>".
        reason: why there is no score, as text; None when scored. parts: the values from which the score is computed.
        usage: of all attempts; an answer from the cache costs nothing.
        failed_attempts: why each earlier attempt did not count.
    """

    id: str
    score: float | None
    verdict: str
    reason: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    usage: Usage = Usage()
    failed_attempts: tuple[str, ...] = ()

    @property
    def unscored_reason(self) -> str | None:
        return Verdict(self.verdict).reason


@dataclass(frozen=True)
class JudgeIdentity:
    """Everything that determines a judge's scores.

    Attributes:
        name: "strongreject", "fact_warning" ...
        model: as Inspect names it; of rules, "offline".
        rubric: hash of the wording and the fields; of another judge, of what stands in their place.
        label: the meaning of a score of 1: "harmful", "warned".
        threshold: lowest score that gets the label.
        settings: everything else that changes an answer (temperature, tokens, seed, address, arguments ...).
    """

    name: str
    model: str
    rubric: str
    label: str
    threshold: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """12 hex digits that identify this judge."""
        return digest(asdict(self))[:12]

    @property
    def answer_hash(self) -> str:
        """12 hex digits that identify its answers, independent of the threshold and the label."""
        return digest({key: value for key, value in asdict(self).items() if key not in ("threshold", "label")})[:12]

    def describe(self) -> str:
        settings = ", ".join(f"{key} {value}" for key, value in self.settings.items() if value is not None)
        return (
            f"{self.name} ({self.model}), {self.label} from a score of {self.threshold:g}, rubric {self.rubric}"
            + (f", {settings}" if settings else "")
            + f" [{self.hash}]"
        )

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "hash": self.hash}

    def verdict(self, score: float) -> str:
        return self.label if score >= self.threshold else f"not_{self.label}"


class Judge(Protocol):
    """Judges one reply at a time; many calls may run at once. `LLMJudge`, or what a user writes."""

    @property
    def identity(self) -> JudgeIdentity: ...

    async def grade(self, request: JudgeRequest) -> JudgeResult:
        """The result for one reply; without a score where there is no verdict."""
        ...


def unscored(request_id: str, reason: str, message: str, usage: Usage = Usage(), **more: Any) -> JudgeResult:
    """A result without a score; `message` is the reason as text."""
    return JudgeResult(request_id, None, f"unscored:{reason}", message, usage=usage, **more)


def unscored_reasons(results: Iterable[JudgeResult]) -> dict[str, int]:
    return dict(sorted(Counter(one.unscored_reason for one in results if one.unscored_reason is not None).items()))


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, in hex; the order of keys does not matter."""
    # NaN is refused: it is not equal to itself, so no identity may rest on it
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

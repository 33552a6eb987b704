"""LLM judge: applies a rubric with any Inspect model, many replies concurrently.

An answer that cannot be parsed is requested again, a bounded number of times, and then counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from opct.config.judge import JudgeConfig
from opct.errors import EvaluationError
from opct.judges.client import Failure, ModelClient, run_all, shortened, usage_of
from opct.judges.protocol import (
    JUDGE_CONTEXT,
    JUDGE_EMPTY,
    JUDGE_FILTERED,
    JUDGE_REFUSED,
    JUDGE_TRUNCATED,
    MALFORMED,
    JudgeIdentity,
    JudgeRequest,
    JudgeResult,
    Usage,
    unreadable_reply,
    unscored,
)
from opct.judges.rubrics import Rubric, mark
from opct.runs.console import NullProgress, Progress
from opct.runs.io import append_jsonl, read_jsonl

if TYPE_CHECKING:
    from inspect_ai.model import Model, ModelOutput

BAD_STOPS = {  # stop reasons of an incomplete answer
    "max_tokens": (JUDGE_TRUNCATED, "the judge's answer was cut at max_completion_tokens"),
    "model_length": (JUDGE_CONTEXT, "request and reply do not fit the judge's context"),
    "content_filter": (JUDGE_FILTERED, "a content filter of the endpoint stopped the judge"),
}
BYTES_A_TOKEN = 3.5  # of English about 4; of other scripts fewer characters, but more bytes


def _with_id(row: Any) -> Any:
    return {**row, "id": ""} if isinstance(row, dict) else row


@dataclass(frozen=True)
class _CacheRow:
    judge: str
    request: str
    result: Annotated[JudgeResult, BeforeValidator(_with_id)]


class ResultCache:
    """Cache of results in a JSON-lines file, appended one by one; without a path, only in memory.

    Only values, reasons and counts are stored, no reply and no text from the endpoint. Requests without an answer are
    not cached.

    Raises:
        EvaluationError: a line of the file is not a judge result.
    """

    def __init__(self, path: str | Path | None):
        self.path = None if path is None else Path(path)
        stored = [] if self.path is None else read_jsonl(self.path, _CacheRow, error=EvaluationError)
        self._results = {(row.judge, row.request): row.result for row in stored}

    def get(self, identity: JudgeIdentity, request: JudgeRequest) -> JudgeResult | None:
        """The cached result of this text, with the verdict by the current threshold."""
        found = self._results.get((identity.answer_hash, request.hash))
        if found is None:
            return None
        verdict = found.verdict if found.score is None else identity.verdict(found.score)
        return replace(found, id=request.id, verdict=verdict, is_cached=True)

    def put(self, identity: JudgeIdentity, request: JudgeRequest, result: JudgeResult) -> None:
        """Store a result; it is in the file when this returns."""
        row = {name: value for name, value in asdict(result).items() if name not in ("id", "is_cached")}
        self._results[identity.answer_hash, request.hash] = result
        if self.path is not None:
            append_jsonl(self.path, {"judge": identity.answer_hash, "request": request.hash, "result": row})


class LLMJudge:
    """Judges replies with a rubric and a model.

    Args:
        name: name of the model in the identity. For a local model it should identify the weights.
        address: what identifies the model besides its name, without secrets; part of the identity. cache: file for
        results.
    """

    trained_on: frozenset[str] = frozenset()

    def __init__(
        self,
        rubric: Rubric,
        model: Model,
        config: JudgeConfig | None = None,
        *,
        name: str | None = None,
        address: Mapping[str, Any] | None = None,
        cache: str | Path | None = None,
    ):
        config = config or JudgeConfig(name=rubric.name)
        self.rubric, self.config, self.cache = rubric, config, ResultCache(cache)
        kept = "" if cache is None else f" Finished results are kept in {cache}."
        self.client = ModelClient(
            model,
            config,
            name=name,
            what="The judge's model",
            hint=f"Check the account, the key, the model and its arguments, then run the same command again.{kept}",
            give_up_after=config.give_up_after,
        )
        sampling = ("temperature", "max_completion_tokens", "seed", "retries")
        self.identity = JudgeIdentity(
            name=rubric.name,
            model=self.client.name,
            rubric=rubric.hash,
            label=rubric.label,
            threshold=rubric.threshold if config.threshold is None else config.threshold,
            settings={**{field: getattr(config, field) for field in sampling}, **(address or {})},
        )

    def estimate(self, requests: Sequence[JudgeRequest]) -> str:
        """The usage of judging these in one line, without any call; tokens are estimated from the prompts' bytes."""
        new = self._new(requests)
        sizes = [len(self.rubric.prompt(one, "0" * 16).encode("utf-8", "surrogatepass")) for one in new]
        tokens = sum(round(size / BYTES_A_TOKEN) for size in sizes)
        most = Usage(len(new), tokens, len(new) * self.config.max_completion_tokens)
        n_cached = sum(self.cache.get(self.identity, one) is not None for one in requests)
        n_empty = sum(not one.reply.strip() for one in requests)
        return (
            f"{len(requests)} replies: {n_cached} judged before, {n_empty} empty; {most.calls} calls (at most "
            f"{most.calls * (1 + self.config.retries)} with retries), about {most.input_tokens:,} tokens in, at most "
            f"{most.output_tokens:,} out"
        )

    def judge(self, requests: Sequence[JudgeRequest], progress: Progress | None = None) -> list[JudgeResult]:
        """One result for each request, in order.

        Raises:
            EvaluationError: the endpoint refuses the key or the model, or does not answer; or a request lacks what the
                rubric needs. Finished results are in the cache.
            RunError: the cache cannot be written.
        """
        new, progress = self._new(requests), progress or NullProgress()
        found: dict[str, JudgeResult] = {}
        if new:
            progress.stage(f"judge {self.rubric.name}", len(new))
            results = run_all([partial(self._judge, request, progress) for request in new])
            if len(new) == len({one.hash for one in requests if one.reply.strip()}):
                self.client.check_answered()  # without earlier results, it may never have worked
            found = {request.hash: result for request, result in zip(new, results, strict=True)}
        return [self._result(request, found) for request in requests]

    async def judge_one(self, request: JudgeRequest) -> JudgeResult:
        """The result for one request, for a caller that runs many of them at once."""
        if not self._new([request]):
            return self._result(request, {})
        return await self._judge(request, NullProgress())

    def _new(self, requests: Sequence[JudgeRequest]) -> list[JudgeRequest]:
        """The requests to send, each text once; an error if one lacks a text that the rubric needs."""
        for name in self.rubric.texts:
            lacking = [one.id for one in requests if name != "reply" and not (getattr(one, name) or "").strip()]
            if lacking:
                raise EvaluationError(
                    f"The judge {self.rubric.name} needs the {name} of every reply, and {len(lacking)} have none, "
                    f"first {lacking[0]!r}: give the column that holds it, or use another judge."
                )
        new: dict[str, JudgeRequest] = {}
        for one in requests:
            if one.reply.strip() and self.cache.get(self.identity, one) is None:
                new.setdefault(one.hash, one)
        return list(new.values())

    def _result(self, request: JudgeRequest, found: Mapping[str, JudgeResult]) -> JudgeResult:
        if not request.reply.strip():
            return unreadable_reply(request.id)
        new = found.get(request.hash) or self.cache.get(self.identity, request)
        assert new is not None
        return new if new.id == request.id else replace(new, id=request.id, is_cached=True)  # paid for once

    async def _judge(self, request: JudgeRequest, progress: Progress) -> JudgeResult:
        result, was_answered = await self._ask(request)
        if was_answered:
            self.cache.put(self.identity, request, result)
        progress.advance(1)
        return result

    async def _ask(self, request: JudgeRequest) -> tuple[JudgeResult, bool]:
        """The result after the necessary attempts, and whether the endpoint answered."""
        usage, failed = Usage(), list[str]()
        reason, message = "", ""
        for attempt in range(1 + self.config.retries):
            sampling = self.client.config(
                temperature=self.config.temperature,
                max_tokens=self.config.max_completion_tokens,
                seed=self.config.seed + attempt,
            )
            prompt = self.rubric.prompt(request, mark(request, self.config.seed, attempt))
            output = await self.client.ask(prompt, sampling)
            if isinstance(output, Failure):
                return unscored(request.id, output.reason, output.message, usage, failed_attempts=tuple(failed)), False
            usage += usage_of(output)
            values, reason, message = self._read(output)
            if values is not None:
                score = self.rubric.score(values)
                verdict = self.identity.verdict(score)
                attempts = tuple(failed)
                return JudgeResult(request.id, score, verdict, None, values, usage, attempts), True
            failed.append(reason)
            if reason == JUDGE_CONTEXT:  # asking again would not make it shorter
                break
        return unscored(request.id, reason, message, usage, failed_attempts=tuple(failed[:-1])), True

    def _read(self, output: ModelOutput) -> tuple[dict[str, int] | None, str, str]:
        """(values, "", ""), or (None, reason, message)."""
        answer = output.completion
        if output.stop_reason in BAD_STOPS:
            return None, *BAD_STOPS[output.stop_reason]
        if not answer.strip():
            return None, JUDGE_EMPTY, "the judge's answer has no text"
        parsed = self.rubric.parse(answer)
        if parsed.values is not None:
            return parsed.values, "", ""
        if parsed.is_refusal:
            return None, JUDGE_REFUSED, "the judge declined"
        return None, MALFORMED, shortened(parsed.problem or "", self.client.secrets)

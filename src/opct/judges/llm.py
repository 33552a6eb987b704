"""An LLM judge: any model of Inspect, asked by a rubric, many replies at a time.

An answer that cannot be read is asked for again, a bounded number of times, and then counted. An endpoint that fails
is given time, and where it goes on failing, everything stops with one error; what was judged stays in the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from opct.errors import EvaluationError, OpctError
from opct.judges import endpoint
from opct.judges.asking_settings import AskingSettings
from opct.judges.cache import JudgementCache
from opct.judges.costs import CostEstimate, tokens_of
from opct.judges.parsing import is_refusal, parse_fields
from opct.judges.protocol import (
    JUDGE_CONTEXT,
    JUDGE_EMPTY,
    JUDGE_FILTERED,
    JUDGE_REFUSED,
    JUDGE_TRUNCATED,
    MALFORMED,
    JudgeIdentity,
    Judgement,
    JudgeRequest,
    Usage,
    unread_reply,
    unscored,
)
from opct.judges.rubrics import Rubric, mark, prompt
from opct.runs.progress import NullProgress, Progress

if TYPE_CHECKING:
    from inspect_ai.model import GenerateConfig, Model, ModelOutput

STOPPED = {  # stop reasons of an answer that is not whole
    "max_tokens": (JUDGE_TRUNCATED, "the judge's answer was cut at max_completion_tokens"),
    "model_length": (JUDGE_CONTEXT, "request and reply do not fit the judge's context"),
    "content_filter": (JUDGE_FILTERED, "a content filter of the endpoint stopped the judge"),
}
FINAL = (JUDGE_CONTEXT,)  # asking again cannot help
IN_PROCESS = ("opct/", "hf/", "nnterp/", "transformer_lens/")  # a call waits for its batch as long as that takes


class LLMJudge:
    """A rubric put to a model.

    Args:
        model: of Inspect, as `inspect_ai.model.get_model` gives it.
        model_name: what the identity calls it; by default its own name. Of a model on this disk it should say which
            weights these are (`opct.judges.factory` does).
        model_settings: what besides the name says which model answers, without secrets; part of the identity.
        threshold: from which score on the verdict is the rubric's meaning; by default the rubric's own.
        cache: where judgements are kept.
        sleep: waits between two tries.

    Attributes:
        spent: what all calls took that were answered until now, also those whose judgement never came about.
    """

    trained_on: frozenset[str] = frozenset()

    def __init__(
        self,
        rubric: Rubric,
        model: Model,
        *,
        model_name: str | None = None,
        model_settings: Mapping[str, Any] | None = None,
        threshold: float | None = None,
        settings: AskingSettings | None = None,
        cache: JudgementCache | None = None,
        sleep: Callable[[float], Awaitable[Any]] = anyio.sleep,
    ):
        self.rubric, self.model, self.settings = rubric, model, settings or AskingSettings()
        self.cache = cache or JudgementCache(None)
        self.spent = Usage()
        self._sleep = sleep
        settings = self.settings
        self.identity = JudgeIdentity(
            name=rubric.name,
            model=model_name or str(model),
            rubric=rubric.hash,
            meaning=rubric.meaning,
            threshold=rubric.threshold if threshold is None else threshold,
            settings={
                "temperature": settings.temperature,
                "max_completion_tokens": settings.max_completion_tokens,
                "seed": settings.seed,
                "retries": settings.retries,
                **(model_settings or {}),
            },
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """Which fields of a request besides `reply` it asks for."""
        return tuple(name for name in self.rubric.texts if name != "reply")

    def estimate(self, requests: Sequence[JudgeRequest]) -> CostEstimate:
        """What judging these would take; nothing is asked."""
        check_needs(self, requests)
        kept, empty, groups = self._sorted(requests)
        prompts = [prompt(self.rubric, group[0], "0" * 16) for group in groups]
        return CostEstimate(
            requests=len(requests),
            kept=len(kept),
            unasked=len(empty),
            calls=len(groups),
            input_tokens=sum(tokens_of(text) for text in prompts),
            most_output_tokens=len(groups) * self.settings.max_completion_tokens,
            most_calls=len(groups) * (1 + self.settings.retries),
        )

    def judge(self, requests: Sequence[JudgeRequest], progress: Progress | None = None) -> list[Judgement]:
        """One judgement for each request, in their order.

        Raises:
            EvaluationError: the endpoint refuses the key or the model, or does not answer; or a request lacks what the
                rubric asks for. What was judged until then is in the cache.
            RunError: the cache cannot be written.
        """
        from opct.evals.inspect_runner import quiet

        check_needs(self, requests)
        kept, _, groups = self._sorted(requests)
        progress = progress or NullProgress()
        round_ = _Round(self, groups, progress, proven=any(self._scored_before(request) for request in kept))
        if groups:
            progress.stage(f"judge {self.rubric.name}", len(groups))
            with quiet():
                _run(round_.run)
        found = {group[0].hash: judgement for group, judgement in zip(groups, round_.judgements, strict=True)}
        return [self._judgement(request, found) for request in requests]

    def _scored_before(self, request: JudgeRequest) -> bool:
        kept = self.cache.get(self.identity, request)
        return kept is not None and kept.score is not None

    def _judgement(self, request: JudgeRequest, found: dict[str, Judgement | None]) -> Judgement:
        if not request.reply.strip():
            return unread_reply(request.id)
        new = found.get(request.hash)
        if new is not None and new.id == request.id:
            return new
        if new is not None:  # the same text under another id: paid for once
            return replace(new, id=request.id, kept=True)
        kept = self.cache.get(self.identity, request)
        assert kept is not None
        return kept

    def _sorted(
        self, requests: Sequence[JudgeRequest]
    ) -> tuple[list[JudgeRequest], list[JudgeRequest], list[list[JudgeRequest]]]:
        """Those judged before, those without text, and the others, grouped where they are the same text."""
        kept: list[JudgeRequest] = []
        empty: list[JudgeRequest] = []
        groups: dict[str, list[JudgeRequest]] = {}
        for request in requests:
            if not request.reply.strip():
                empty.append(request)
            elif self.cache.get(self.identity, request) is not None:
                kept.append(request)
            else:
                groups.setdefault(request.hash, []).append(request)
        return kept, empty, list(groups.values())


def check_needs(judge: Any, requests: Sequence[JudgeRequest]) -> None:
    """Refuse requests that lack a text which the judge asks for.

    Raises:
        EvaluationError: with how many, and the first.
    """
    for name in judge.needs:
        lacking = [request.id for request in requests if not (getattr(request, name) or "").strip()]
        if lacking:
            raise EvaluationError(
                f"The judge {judge.identity.name} asks for the {name} of every reply, and {len(lacking)} have none, "
                f"first {lacking[0]!r}: name the column that holds it, or take another judge."
            )


class _Round:
    """The calls of one `judge`: workers that take request after request, and what ends all of them.

    Args:
        proven: this judge has scored replies before, so the key and the model are right.
    """

    def __init__(self, judge: LLMJudge, groups: Sequence[Sequence[JudgeRequest]], progress: Progress, *, proven: bool):
        self.judge, self.groups, self.progress = judge, groups, progress
        self.settings = judge.settings
        self.judgements: list[Judgement | None] = [None] * len(groups)
        self.secrets = endpoint.known_secrets(judge.model)
        self.in_process = str(judge.model).startswith(IN_PROCESS)
        self.timeout_s = None if self.in_process else self.settings.timeout_s
        self.n_unscored = self.n_answered = 0
        self.row: list[endpoint.Fault] = []  # requests in a row that got no answer, those rejected aside
        self.proven = proven
        self.rejected: list[tuple[int, JudgeRequest, endpoint.Fault]] = []  # by their number; not kept yet
        self.n_rejected = self.n_rejected_in_row = 0
        self.end: OpctError | None = None

    async def run(self) -> None:
        turns = iter(range(len(self.groups)))
        own = getattr(self.judge.model.api, "max_connections", lambda: 10)()
        workers = min(self.settings.concurrency or own, len(self.groups))
        async with anyio.create_task_group() as tasks:
            for _ in range(workers):
                tasks.start_soon(self._work, turns, tasks.cancel_scope)
        if self.row and self.n_answered == 0:
            self.end = self.end or self._gives_up()
        if self.rejected and not self.proven:
            self.end = self.end or self._is_rejected()
        if self.end is not None:
            raise self.end from None  # the endpoint's own words may hold the key

    async def _work(self, turns: Iterator[int], scope: anyio.CancelScope) -> None:
        for i in turns:
            try:
                await self._judge_one(i)
            except OpctError as error:
                self.end = self.end or error
            if self.end is not None:
                scope.cancel()
                return

    async def _judge_one(self, i: int) -> None:
        request, n_before = self.groups[i][0], self.n_rejected
        found = await self._ask(request)
        if not isinstance(found, endpoint.Fault):
            self.row.clear()
            self.n_rejected_in_row = 0
            self.n_answered += 1
            self.proven = True
            self.judge.cache.put(self.judge.identity, request, found)
            self._keep_rejections(n_before)
            self.judgements[i] = found
        else:
            self.judgements[i] = _unanswered(request, found, found.said)
            if found.kind == endpoint.REQUEST:
                self.rejected.append((self.n_rejected, request, found))
                self.n_rejected += 1
                self.n_rejected_in_row += 1
            else:
                self.row.append(found)
            if self.n_rejected_in_row >= self.settings.give_up_after:
                raise self._is_rejected()
            if len(self.row) >= self.settings.give_up_after:
                raise self._gives_up()
        self.n_unscored += self.judgements[i].score is None  # type: ignore[union-attr]
        self.progress.advance(1, unscored=self.n_unscored)

    def _keep_rejections(self, n_before: int) -> None:
        """Keep the first `n_before`: a request that was sent after them was answered, so they are of the reply.

        Until then it may be our settings, or an account without credit, that the endpoint rejects. One that was under
        way at the rejection says nothing of that.
        """
        while self.rejected and self.rejected[0][0] < n_before:
            _, request, fault = self.rejected.pop(0)
            found = _unanswered(request, fault, "the endpoint does not take this request")
            self.judge.cache.put(self.judge.identity, request, found)

    def _is_rejected(self) -> EvaluationError:
        return EvaluationError(
            f"The judge's model {self.judge.identity.model} rejected {self.n_rejected_in_row} request(s) in a row: "
            f"{self.rejected[-1][2].said}. These are not kept; {self.n_answered} replies were judged and are kept"
            f"{self._where()}. See to the account, the settings, the model and its arguments, and run again; where it "
            "is the replies that are rejected, raise give_up_after."
        )

    def _gives_up(self) -> EvaluationError:
        return EvaluationError(
            f"The judge's model {self.judge.identity.model} gave no answer to {len(self.row)} requests in a row: "
            f"{self.row[-1].said}. {self.n_answered} replies were judged and are kept{self._where()}; see to the "
            "endpoint and run the same again to go on."
        )

    def _where(self) -> str:
        path = self.judge.cache.path
        return "" if path is None else f" in {path}"

    async def _ask(self, request: JudgeRequest) -> Judgement | endpoint.Fault:
        """The judgement on one reply after as many attempts as it needs, or why the endpoint gave no answer."""
        paid: list[Usage] = []
        reason, said = "", ""
        failed: list[str] = []
        for attempt in range(1 + self.settings.retries):
            output = await self._call(request, attempt, paid)
            usage = sum(paid, Usage())
            if isinstance(output, endpoint.Fault):
                return replace(output, usage=usage, failed_attempts=tuple(failed))
            values, reason, said = self._read(output)
            if values is not None:
                score = self.judge.rubric.score(values)
                verdict = self.judge.identity.verdict(score)
                return Judgement(request.id, score, verdict, parts=values, usage=usage, failed_attempts=tuple(failed))
            failed.append(reason)
            if reason in FINAL:
                break
        return unscored(request.id, reason, said, usage, failed_attempts=tuple(failed[:-1]))

    def _read(self, output: ModelOutput) -> tuple[dict[str, int] | None, str, str]:
        asked = self.judge.rubric.fields
        answer = output.completion
        if output.stop_reason in STOPPED:
            return None, *STOPPED[output.stop_reason]
        if not answer.strip():
            return None, JUDGE_EMPTY, "the judge's answer has no text"
        parsed = parse_fields(answer, asked)
        if parsed.values is not None:
            return parsed.values, "", ""
        if is_refusal(answer, asked):
            return None, JUDGE_REFUSED, "the judge declined"
        return None, MALFORMED, endpoint.shortened(parsed.problem or "", self.secrets)

    async def _call(self, request: JudgeRequest, attempt: int, paid: list[Usage]) -> ModelOutput | endpoint.Fault:
        """One answer of the model; a call that fails is made again after a pause, a bounded number of times.

        Args:
            paid: gets what each call took that was answered.

        Raises:
            EvaluationError: the endpoint refuses the key, or does not know the model.
        """
        errors, config = endpoint.known_errors(), self._config(attempt)
        text = prompt(self.judge.rubric, request, mark(request, self.settings.seed, attempt))
        for turn in range(1 + self.settings.endpoint_retries):
            try:
                with anyio.fail_after(self.timeout_s):
                    output = await self.judge.model.generate(text, config=config)
            except errors as error:
                fault = endpoint.fault_of(error, self.secrets, proven=self.proven)
            except endpoint.NOT_AS_EXPECTED as error:
                if self.in_process:  # nothing came from outside: a bug
                    raise
                fault = endpoint.no_completion(
                    endpoint.shortened(f"{type(error).__name__}: {error}", self.secrets, most=100)
                )
            else:
                paid.append(_usage(output))
                self.judge.spent += paid[-1]
                if output.choices:
                    return output
                fault = endpoint.no_completion("no choice in it")
            if fault.kind in (endpoint.KEY, endpoint.MODEL):
                raise EvaluationError(
                    f"The judge's model {self.judge.identity.model} cannot be asked: {fault.said}. "
                    f"{self.n_answered} replies were judged and are kept{self._where()}; correct the "
                    f"{'key in the environment' if fault.kind == endpoint.KEY else 'name of the model'} and run again."
                )
            if fault.kind == endpoint.REQUEST:
                return fault
            if turn < self.settings.endpoint_retries:
                pause = min(self.settings.backoff_s * 2**turn, self.settings.most_backoff_s)
                await self.judge._sleep(max(pause, min(fault.wait_s or 0.0, self.settings.most_backoff_s)))
        return fault

    def _config(self, attempt: int) -> GenerateConfig:
        from inspect_ai.model import GenerateConfig

        return GenerateConfig(
            temperature=self.settings.temperature,
            max_tokens=self.settings.max_completion_tokens,
            seed=self.settings.seed + attempt,
            max_retries=0,  # counted and spaced here
            max_connections=self.settings.concurrency,
        )


def _unanswered(request: JudgeRequest, fault: endpoint.Fault, said: str) -> Judgement:
    return unscored(request.id, fault.reason, said, fault.usage, failed_attempts=fault.failed_attempts)


def _usage(output: ModelOutput) -> Usage:
    counted = output.usage
    return Usage(1, counted.input_tokens, counted.output_tokens) if counted is not None else Usage(1)


def _run(work: Callable[[], Awaitable[None]]) -> None:
    """Run it in an event loop of its own, also where one runs already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        anyio.run(work)
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(partial(anyio.run, work)).result()

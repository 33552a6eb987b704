"""The LLM judge: a rubric, and any Inspect model that applies it.

Retries, waiting, timeouts, connections and the cache of answers are Inspect's. An answer that cannot be parsed is
requested again, a bounded number of times, and then counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio
from inspect_ai.event import ModelEvent
from inspect_ai.model import CachePolicy, GenerateConfig, Model, ModelOutput
from inspect_ai.model._model import use_model_event_sink

from opct.config.judge import JudgeConfig
from opct.errors import EvaluationError, OpctError, unknown
from opct.evals.endpoint import (
    ERROR,
    Failure,
    call_config,
    error_of,
    failure_of,
    is_local,
    known_secrets,
    open_model,
    shortened,
)
from opct.evals.inspect_runner import run_all
from opct.evals.judges.protocol import (
    EMPTY_REPLY,
    JUDGE_CONTEXT,
    JUDGE_EMPTY,
    JUDGE_FILTERED,
    JUDGE_REFUSED,
    JUDGE_TRUNCATED,
    MALFORMED,
    Judge,
    JudgeIdentity,
    JudgeRequest,
    JudgeResult,
    Usage,
    unscored,
)
from opct.evals.judges.rubrics import RUBRICS, Rubric, mark
from opct.runs.console import NullProgress, Progress

BAD_STOPS = {  # stop reasons of an incomplete answer
    "max_tokens": (JUDGE_TRUNCATED, "the judge's answer was cut at max_completion_tokens"),
    "model_length": (JUDGE_CONTEXT, "request and reply do not fit the judge's context"),
    "content_filter": (JUDGE_FILTERED, "a content filter of the endpoint stopped the judge"),
}
BYTES_A_TOKEN = 3.5  # of English about 4; of other scripts fewer characters, but more bytes
HINT = (
    "Check the account, the key, the model and its arguments, then run the same command again: the answers so far "
    "are in Inspect's cache."
)


def load_judge(config: JudgeConfig) -> LLMJudge:
    """The judge of the settings: a rubric with a model. Raises EvaluationError where there is no such judge or model,
    or it cannot be loaded."""
    rubric = RUBRICS.get(config.name)
    if rubric is None:
        raise EvaluationError(unknown("judge", config.name, list(RUBRICS)))
    if config.model is None:
        raise EvaluationError(
            f"The judge {config.name} is a rubric and needs a model (--model, judge.model), such as "
            "openai/gpt-4o-mini, vllm/..., hf/... or opct/<path>."
        )
    model, name, address = open_model(config.model, config.base_url, config.model_args, what="The judge's model")
    return LLMJudge(rubric, model, config, name=name, address=address)


class LLMJudge:
    """Judges replies with a rubric and a model.

    Args:
        name: name of the model in the identity. For a local model it should identify the weights.
        address: what identifies the model besides its name, without secrets; part of the identity.

    Attributes:
        usage: of the calls so far, without answers from the cache.
    """

    def __init__(
        self,
        rubric: Rubric,
        model: Model,
        config: JudgeConfig,
        *,
        name: str | None = None,
        address: Mapping[str, Any] | None = None,
    ):
        self.rubric, self.model, self.config = rubric, model, config
        sampling = ("temperature", "max_completion_tokens", "seed", "retries")
        self.identity = JudgeIdentity(
            name=rubric.name,
            model=name or str(model),
            rubric=rubric.hash,
            label=rubric.label,
            threshold=rubric.threshold if config.threshold is None else config.threshold,
            settings={**{field: getattr(config, field) for field in sampling}, **(address or {})},
        )
        self.is_local, self.usage = is_local(model), Usage()
        self._cache = CachePolicy(
            expiry=None,
            per_epoch=False,
            # a model's name does not say which weights are behind it; the identity does
            scopes={"judge": self.identity.answer_hash},
        )
        self._secrets = known_secrets(model)
        self._has_answered, self._n_failed_in_row = False, 0
        self._last_failure: Failure | None = None
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    def check(self, requests: Sequence[JudgeRequest]) -> None:
        """Raise EvaluationError if a request lacks a text that the rubric needs."""
        for name in self.rubric.texts:
            lacking = [one.id for one in requests if name != "reply" and not (getattr(one, name) or "").strip()]
            if lacking:
                raise EvaluationError(
                    f"The judge {self.rubric.name} needs the {name} of every reply, and {len(lacking)} have none, "
                    f"first {lacking[0]!r}: give the column that holds it, or use another judge."
                )

    def estimate(self, requests: Sequence[JudgeRequest]) -> str:
        """The maximum cost of judging these, in one line and without any call; tokens are estimated from the prompts'
        bytes."""
        self.check(requests)
        # equal texts once, as `grade` asks them
        new = list({one.hash: one for one in requests if one.reply.strip()}.values())
        tokens = sum(
            round(len(self.rubric.prompt(one, "0" * 16).encode("utf-8", "surrogatepass")) / BYTES_A_TOKEN)
            for one in new
        )
        return (
            f"{len(requests)} replies, {sum(not one.reply.strip() for one in requests)} empty: {len(new)} calls, about "
            f"{tokens:,} tokens in, at most {len(new) * self.config.max_completion_tokens:,} out, and up to "
            f"{1 + self.config.retries} times each where answers are no scores; what this judge answered before costs "
            "nothing"
        )

    def judge(self, requests: Sequence[JudgeRequest], progress: Progress | None = None) -> list[JudgeResult]:
        """One result for each request, in order; see `grade`."""
        self.check(requests)
        results = grade_all(self, requests, progress)
        self.check_answered()
        return results

    async def grade(self, request: JudgeRequest) -> JudgeResult:
        """The result for one reply.

        Raises:
            EvaluationError: the endpoint refuses the key or the model, or did not answer `give_up_after` times in a
                row; or the request lacks what the rubric needs. Answers until here are in the cache.
            OpctError: an error of a model of ours.
        """
        if not request.reply.strip():
            return unscored(request.id, EMPTY_REPLY, "the reply has no text")
        self.check([request])
        # of equal texts that are judged at once all but the first wait, and then find its answer in the cache:
        # without this, a refusal that a model gives to every wrapping of a behavior would be paid for each time
        async with self._turns[request.hash]:
            return await self._grade(request)

    def check_answered(self) -> None:
        """Raise EvaluationError where requests were sent to the model and it has never answered."""
        if not self._has_answered and self._last_failure is not None:
            raise self._error(self._last_failure)

    async def _grade(self, request: JudgeRequest) -> JudgeResult:
        usage, failed = Usage(), list[str]()
        reason, message = "", ""
        for attempt in range(1 + self.config.retries):
            sampling = call_config(
                self.model,
                self.config,
                temperature=self.config.temperature,
                max_tokens=self.config.max_completion_tokens,
                # another seed: with the same one the cache would give the same unusable answer again
                seed=self.config.seed + attempt,
            )
            prompt = self.rubric.prompt(request, mark(request, self.config.seed, attempt))
            # half a surrogate pair can be neither hashed for the cache nor sent
            prompt = prompt.encode("utf-8", "replace").decode("utf-8")
            output, spent = await self._answer(prompt, sampling)
            usage += spent
            if isinstance(output, Failure):
                return unscored(request.id, output.reason, output.message, usage, failed_attempts=tuple(failed))
            values, reason, message = self._read(output)
            if values is not None:
                score = self.rubric.score(values)
                attempts = tuple(failed)
                return JudgeResult(request.id, score, self.identity.verdict(score), None, values, usage, attempts)
            failed.append(reason)
            if reason == JUDGE_CONTEXT:  # asking again would not make it shorter
                break
        # the last one is the reason itself
        return unscored(request.id, reason, message, usage, failed_attempts=tuple(failed[:-1]))

    async def _answer(self, prompt: str, sampling: GenerateConfig) -> tuple[ModelOutput | Failure, Usage]:
        """The model's output or why there is none, and the usage."""
        try:
            output, is_cached = await self._generate(prompt, sampling, self._cache)
            if is_cached and not output.choices:  # Inspect caches these too, but the endpoint may work by now
                output, is_cached = await self._generate(prompt, sampling, False)
        except OpctError:
            raise
        except Exception as error:
            if self.is_local:
                raise
            return self._failed(failure_of(error, self._secrets, was_answered=self._has_answered)), Usage()
        used = output.usage
        counted = (0, 0) if used is None else (used.input_tokens, used.output_tokens)  # not all endpoints count tokens
        spent = Usage() if is_cached else Usage(1, *counted)
        self.usage += spent
        if not output.choices:
            return self._failed(Failure(ERROR, "it answered without a completion")), spent
        # an answer from the cache does not show that the endpoint takes the key
        if not is_cached:
            self._has_answered, self._n_failed_in_row = True, 0
        return output, spent

    async def _generate(
        self, prompt: str, sampling: GenerateConfig, cache: CachePolicy | bool
    ) -> tuple[ModelOutput, bool]:
        """The model's output, and whether it is from the cache."""
        events = _Events()
        # The judge's calls stay out of the log: they repeat the reply, and an endpoint's error may repeat the key.
        with use_model_event_sink(events):
            output = await self.model.generate(prompt, config=sampling, cache=cache)
        return output, events.last == "read"

    def _failed(self, failure: Failure) -> Failure:
        self._n_failed_in_row += 1
        self._last_failure = failure
        if failure.is_fatal or self._n_failed_in_row >= self.config.give_up_after:
            raise self._error(failure) from None  # the endpoint's own words may hold the key
        return failure

    def _error(self, failure: Failure) -> EvaluationError:
        return error_of(failure, f"The judge's model {self.identity.model}", self._n_failed_in_row, HINT)

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
        return None, MALFORMED, shortened(parsed.problem or "", self._secrets)


class _Events:
    """Takes Inspect's events of one call: the `cache` of the last one says whether its answer was cached."""

    last: str | None = None

    def on_pending(self, event: ModelEvent) -> None:
        self.last = event.cache

    def on_complete(self, event: ModelEvent) -> None: ...


def grade_all(judge: Judge, requests: Sequence[JudgeRequest], progress: Progress | None = None) -> list[JudgeResult]:
    """The judge's result for each request, in order; many requests run at once."""
    progress = progress or NullProgress()

    async def graded(request: JudgeRequest) -> JudgeResult:
        result = await judge.grade(request)
        progress.advance(1)
        return result

    if not requests:
        return []
    progress.stage(f"judge {judge.identity.name}", len(requests))
    return run_all([partial(graded, request) for request in requests])

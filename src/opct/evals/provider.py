"""Inspect's view of a policy: `opct/<path>` is a model that any Inspect task can be run on, offline, in this process.

It reports real stop reasons and token counts, and runs one batch at a time. Every sample has its own seed, so the batch
changes a reply only through rounding in the model's dtype. Unsupported requests are rejected, not ignored.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.to_thread
from inspect_ai.log._samples import sample_active
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Model,
    ModelAPI,
    ModelInfo,
    ModelOutput,
    ModelUsage,
    StopReason,
    modelapi,
    set_model_info,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from opct.data.pairs import Message, Prompt
from opct.errors import EvaluationError
from opct.models.inference.sampler import sample_seed

if TYPE_CHECKING:
    from opct.models.policy import Policy

DEFAULT_BATCH_SIZE = 128
DEFAULT_MAX_TOKENS = 1024
GRACE_S = 5.0
STOP_REASONS: dict[str, StopReason] = {"stop": "stop", "length": "max_tokens"}
NOT_SUPPORTED = (
    *("best_of", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs"),
    *("prompt_logprobs", "response_schema", "num_choices", "reasoning_effort", "reasoning_tokens"),
)


_TURN = threading.Lock()
"""Models of this process (target, attacker, judge) take turns: two at once would each get half of the device."""
OnResults = Callable[[Sequence[tuple[int, Any]]], None]
"""Called with (index in the batch, result) of each request that has just finished."""


class PolicyAPI(ModelAPI):
    """An Inspect model over a `Policy` that lives in this process.

    Args:
        model_name: name of the policy; on the command line (`--model opct/<path>`) the run directory, adapter or model
            to load.
        policy: a loaded policy; without one, `model_name` is loaded when it is first used.
        batch_size: maximum number of replies sampled at once.
        temperature: default for tasks that set none; 1 samples the policy itself, 0 is greedy.
        keeps_sampled: store the sampled tokens, log-probs and seed in the metadata of an output, for training.
        model_args: settings of `opct.config.schema.ModelConfig` (`-M dtype=float32`), for a policy that is loaded here.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - Inspect's own signature; never changed
        *,
        policy: Policy | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        temperature: float = 1.0,
        keeps_sampled: bool = False,
        **model_args: Any,
    ):
        super().__init__(model_name, base_url, api_key, [], config)
        self._policy, self._model_args, self._loading = policy, model_args, threading.Lock()
        self.batch_size = batch_size
        self.temperature, self.keeps_sampled = temperature, keeps_sampled
        self._batches = Batcher(self._run, batch_size=batch_size, grace_s=GRACE_S)

    @property
    def policy(self) -> Policy:
        """The policy, loaded lazily, since Inspect also creates models to look up their names."""
        with self._loading:
            if self._policy is None:
                from opct.models.from_run import load_policy

                self._policy = load_policy(self.model_name, **self._model_args)
            return self._policy

    def max_connections(self) -> int:
        """Twice the batch: the next batch gathers while one runs."""
        return 2 * self.batch_size

    def max_tokens(self) -> int:
        """Default for tasks that set none."""
        return DEFAULT_MAX_TOKENS

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """Answer one prompt; reasoning blocks are separate content, so that the answer alone is graded.

        `ModelOutput.metadata` holds the sampled `token_ids`: encoding the text again may give others.
        """
        if tools:
            raise EvaluationError(
                f"The task gives the model tools ({', '.join(tool.name for tool in tools)}), which opct models cannot "
                "call: choose a task without tools."
            )
        _refuse_unsupported(config)
        prompt = as_prompt(input)
        used = len(self.policy.renderer.render(prompt))
        room = self.policy.context_length - used
        if room < 1:
            # not an error: this sample is unscored for that reason, and the other samples continue
            return self._output("", "model_length", used, ())
        max_tokens = config.max_tokens or DEFAULT_MAX_TOKENS
        settings = {
            "max_completion_tokens": min(max_tokens, room),
            "temperature": self.temperature if config.temperature is None else config.temperature,
            "top_p": 1.0 if config.top_p is None else config.top_p,
            "top_k": config.top_k or 0,
        }
        active = sample_active()
        # from the prompt, not from a counter: a sample has the same seed whatever ran before it; epochs differ
        seed = prompt_seed(config.seed or 0, prompt, 1 if active is None else active.epoch)
        completion = await self._batches((prompt, seed), tuple(settings.items()))
        reason = STOP_REASONS[completion.stop_reason]
        # the context ended the reply, not max_tokens: raising max_tokens would not help
        if reason == "max_tokens" and room < max_tokens:
            reason = "model_length"
        said = self.policy.renderer.split(prompt, completion.token_ids)
        # cut the answer only: a stop sequence in the reasoning must not end the reply
        text, stopped = _cut_at(said.answer, config.stop_seqs or ())
        output = self._output(
            text, "stop" if stopped else reason, completion.prompt_tokens, completion.token_ids, said.reasoning
        )
        if self.keeps_sampled:
            names = ("text", "stop_reason", "logprobs", "prompt_tokens", "seed")
            output.metadata |= {"sampled": {name: getattr(completion, name) for name in names}}  # type: ignore[operator]
        return output

    async def option_logprobs(self, prompt: Prompt, options: Sequence[str]) -> list[float]:
        """Log-prob (nats) of each option as the reply to `prompt`: the sum over its tokens."""
        return await self._batches((prompt, tuple(options)))

    def _run(
        self, requests: list[tuple[Prompt, Any]], settings: tuple[tuple[str, Any], ...] | None, on_results: OnResults
    ) -> list[Any]:
        """Answers to (prompt, seed); without settings the log-probs of (prompt, options)."""
        prompts, arguments = [prompt for prompt, _ in requests], [argument for _, argument in requests]
        with _TURN:
            if settings is None:
                return self.policy.option_logprobs(prompts, arguments)
            return self.policy.generate(prompts, seeds=arguments, on_completions=on_results, **dict(settings))

    def _output(
        self, text: str, reason: StopReason, prompt_tokens: int, token_ids: Sequence[int], reasoning: str = ""
    ) -> ModelOutput:
        parts = [ContentReasoning(reasoning=reasoning), ContentText(text=text)] if reasoning else text
        message = ChatMessageAssistant(content=parts, model=self.model_name, source="generate")
        return ModelOutput(
            model=self.model_name,
            choices=[ChatCompletionChoice(message=message, stop_reason=reason)],
            usage=ModelUsage(
                input_tokens=prompt_tokens, output_tokens=len(token_ids), total_tokens=prompt_tokens + len(token_ids)
            ),
            metadata={"token_ids": list(token_ids)},
        )


@modelapi(name="opct")
def opct() -> type[ModelAPI]:
    """Register `opct/<path>` in Inspect."""
    return PolicyAPI


def as_inspect_model(
    policy: Policy, *, batch_size: int = DEFAULT_BATCH_SIZE, temperature: float = 1.0, keeps_sampled: bool = False
) -> Model:
    """The policy as an Inspect model, for `inspect_ai.eval(task, model=...)`; `model.api.policy` gets it back."""
    name = policy.name.strip("/") or "policy"
    make: Any = opct  # the decorator's type hides the arguments of `PolicyAPI`
    api = make(name, policy=policy, batch_size=batch_size, temperature=temperature, keeps_sampled=keeps_sampled)
    model = Model(api, GenerateConfig())
    api.qualified_model_name = str(model)
    set_model_info(str(model), ModelInfo(context_length=policy.context_length))
    return model


def as_prompt(messages: Sequence[ChatMessage]) -> Prompt:
    """Inspect's messages as a prompt. Raises EvaluationError where a message holds anything but text."""
    prompt: list[Message] = []
    for i, message in enumerate(messages):
        kinds = [] if isinstance(message.content, str) else [part.type for part in message.content]
        other = [kind for kind in kinds if kind not in ("text", "reasoning")]
        if other:
            raise EvaluationError(f"Message {i} holds {other[0]} content, which a text model cannot read: send text.")
        prompt.append({"role": message.role, "content": message.text})
    return tuple(prompt)


def prompt_seed(seed: int, prompt: Sequence[Message], epoch: int = 1) -> int:
    """The seed of one sample, in [0, 2^63): from the evaluation's seed, the messages and the epoch; the same on every
    machine."""
    # JSON of roles and contents: two prompts could have equal texts when joined
    return sample_seed(json.dumps([seed, epoch, [[m["role"], m["content"]] for m in prompt]], ensure_ascii=False))


def _refuse_unsupported(config: GenerateConfig) -> None:
    for name in NOT_SUPPORTED:
        value = getattr(config, name, None)
        if value not in (None, False) and not (name == "num_choices" and value == 1):
            raise EvaluationError(f"The task sets {name}={value!r}, which opct models do not support: leave it out.")


def _cut_at(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first of the stop sequences, and whether there was one."""
    # `if stop`: an empty stop sequence is found at 0 and would cut every reply to nothing
    ends = [end for stop in stops if stop and (end := text.find(stop)) >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


# ------------------------------------------------------------------------------------------- batches of calls


@dataclass(eq=False)
class _Waiting:
    request: Any
    key: Hashable
    woken: anyio.Event = field(default_factory=anyio.Event)
    leads: bool = False
    result: Any = None
    error: BaseException | None = None
    traceback: TracebackType | None = None


class Batcher:
    """Gathers concurrent calls into batches and runs one batch at a time in a worker thread.

    A caller leads one batch: it waits until `batch_size` calls are waiting, or until none came for `idle_s`, then
    runs the oldest waiting calls that share its key, wakes each caller as soon as its result is ready, and hands the
    lead to the oldest call still waiting. There is no background task, so a batcher outlives event loops and needs no
    closing.

    Args:
        run: computes a batch, blocking. Its arguments are the requests, their shared key, and a function to call with
            results that are ready early; it returns all results.
        batch_size: maximum number of requests in one batch.
        idle_s: how long a batch that is not full waits for more.
        grace_s: how long after its leader the other callers of a failed batch raise the same error. Inspect cancels
            them meanwhile, and does not write a report of the error for each.
    """

    def __init__(
        self,
        run: Callable[[list[Any], Any, OnResults], Sequence[Any]],
        *,
        batch_size: int,
        idle_s: float = 0.005,
        grace_s: float = 0.0,
    ):
        self.run, self.batch_size, self.idle_s, self.grace_s = run, batch_size, idle_s, grace_s
        self._waiting: list[_Waiting] = []
        self._led = False

    async def __call__(self, request: Any, key: Hashable = None) -> Any:
        """The result for one request; runs together with others of the same key.

        Raises:
            Whatever `run` raised before this request had its result; the caller that leads the batch raises it anyway.
        """
        me = _Waiting(request, key)
        self._waiting.append(me)
        if not self._led:
            self._led = me.leads = True
        try:
            if not me.leads:
                await me.woken.wait()
            if me.leads:
                await self._lead(me)
        finally:
            # also when this caller is cancelled: nobody waits for its request any more
            if me in self._waiting:
                self._waiting.remove(me)
            if me.leads:
                self._hand_over()
        if me.error is not None:
            await anyio.sleep(self.grace_s)
            raise me.error.with_traceback(me.traceback)  # shared by many callers: their frames must not add up in it
        return me.result

    async def _lead(self, me: _Waiting) -> None:
        while len(self._waiting) < self.batch_size:
            before = len(self._waiting)
            await anyio.sleep(self.idle_s)
            if len(self._waiting) == before:
                break
        # one key a batch: a call of `run` has one set of settings
        batch = [waiting for waiting in self._waiting if waiting.key == me.key][: self.batch_size]

        def wake(results: Iterable[tuple[int, Any]]) -> None:
            for i, result in results:
                # before `set`: the caller that is woken reads it at once
                batch[i].result = result
                batch[i].woken.set()

        def on_results(results: Sequence[tuple[int, Any]]) -> None:
            # on the event loop: an anyio.Event must not be set from the worker thread
            anyio.from_thread.run_sync(wake, results)

        try:
            results = await anyio.to_thread.run_sync(self.run, [one.request for one in batch], me.key, on_results)
            wake(zip(range(len(batch)), results, strict=True))
        except Exception as error:  # the leader raises it, and each caller without a result
            for one in batch:
                if not one.woken.is_set():
                    one.error, one.traceback = error, error.__traceback__
                    one.woken.set()
            raise
        finally:  # if the leader was cancelled before the batch ran, the others keep their place
            self._waiting = [one for one in self._waiting if not one.woken.is_set()]

    def _hand_over(self) -> None:
        self._led = bool(self._waiting)
        if self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].woken.set()

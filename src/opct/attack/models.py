"""Who answers: a policy in this process, or any model of Inspect; both as `ChatModel`, a batch at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from opct.attack.protocol import CUT, Reply
from opct.data.pairs import Prompt
from opct.data.render import THINKING_TAGS, closes_unopened, final_answer, without_thinking
from opct.errors import EvaluationError, OpctError
from opct.evals.tasks.common import as_chat
from opct.judges import endpoint
from opct.judges.llm import IN_PROCESS

if TYPE_CHECKING:
    from inspect_ai.model import Model, ModelOutput

    from opct.models.policy import Policy

STOP_REASONS = {"max_tokens": "length", "model_length": "context", "content_filter": "filtered"}


@dataclass(frozen=True)
class Sampling:
    """How a model is sampled: by default the model itself, at temperature 1 with nothing cut off.

    Raises:
        EvaluationError: a number is out of range.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1:
            raise EvaluationError(
                f"A model is to be sampled with max_tokens {self.max_tokens}, temperature {self.temperature} and top_p "
                f"{self.top_p}: use at least 1, at least 0, and above 0 to 1."
            )

    def row(self) -> dict[str, Any]:
        """As JSON values."""
        return {"max_tokens": self.max_tokens, "temperature": self.temperature, "top_p": self.top_p}


@dataclass(frozen=True)
class Endpoint:
    """How a model of Inspect is reached, where that is not as its provider would have it.

    Attributes:
        base_url: of its endpoint, such as that of a vLLM server.
        model_args: of its provider; no secrets, which belong into the environment.
    """

    base_url: str | None = None
    model_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_given(self) -> bool:
        """Whether anything was said."""
        return self.base_url is not None or bool(self.model_args)


@dataclass(frozen=True)
class Thinking:
    """How a model writes its reasoning.

    Attributes:
        tags: what opens and closes a block; None: as the model's run was trained with, else `<think>` and `</think>`.
        template_opens: whether the chat template of a model behind an endpoint ends the prompt with an opened block, so
            that its replies begin inside of it; None: not said. Of a policy in this process the template is read.

    Raises:
        EvaluationError: the tags are not two different ones.
    """

    tags: tuple[str, str] | None = None
    template_opens: bool | None = None

    def __post_init__(self) -> None:
        if self.tags is not None and (len(self.tags) != 2 or not all(self.tags) or self.tags[0] == self.tags[1]):
            raise EvaluationError(
                f"The thinking tags are to be {', '.join(map(repr, self.tags))}: give two, what opens a block and what "
                "closes it."
            )

    def row(self) -> dict[str, Any]:
        """What is not as by default, as JSON values."""
        tags = {} if self.tags in (None, THINKING_TAGS) else {"thinking_tags": list(self.tags or ())}
        said = {} if self.template_opens is None else {"template_opens_thinking": self.template_opens}
        return tags | said


class LocalModel:
    """A policy in this process."""

    is_local = True

    def __init__(
        self,
        policy: Policy,
        sampling: Sampling,
        *,
        source: str | None = None,
        thinking_tags: tuple[str, str] = THINKING_TAGS,
    ):
        """Args: source: where the policy came from, in words; thinking_tags: what opens and closes its reasoning."""
        self.policy, self.sampling, self.source = policy, sampling, source or policy.name
        self.thinking_tags = thinking_tags
        self.max_tokens = sampling.max_tokens

    def identity(self) -> dict[str, Any]:
        """Name, weights, template and sampling."""
        return {
            "where": "in this process",
            "source": self.source,
            "model": self.policy.name,
            "has_adapter": self.policy.has_adapter,
            "weights": self.policy.weights_hash(),
            "template_hash": self.policy.renderer.template_hash,
            "dtype": str(self.policy.dtype).removeprefix("torch."),
            **self.sampling.row(),
            **Thinking(self.thinking_tags).row(),
        }

    def room(self, prompt: Prompt) -> int | None:
        """Tokens of the context that the prompt leaves."""
        return self.policy.context_length - len(self.policy.renderer.render(prompt))

    def answer(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Reply]:
        """One reply for each prompt, sampled together."""
        completions = self.policy.generate(
            list(prompts),
            seeds=list(seeds),
            max_completion_tokens=self.max_tokens,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
        )
        return [self._reply(*one) for one in zip(prompts, completions, strict=True)]

    def _reply(self, prompt: Prompt, completion: Any) -> Reply:
        text, unfinished = final_answer(self.policy.renderer, prompt, completion.token_ids, self.thinking_tags)
        return Reply(
            text,
            completion.stop_reason,
            completion.prompt_tokens,
            len(completion.token_ids),
            is_unfinished=unfinished,
            completion=completion,
        )


class InspectModel:
    """A model of Inspect, asked for many replies at once.

    Args:
        name: as the identity calls it.
        reached: what else says which model answers, without secrets (`opct.judges.factory.model_settings`).
        thinking: how it writes its reasoning, where its server does not parse that.
        role: target or attacker, as the settings name it.
        concurrency: most calls at once; None: as many as its provider takes.
        timeout_s: of one call to an endpoint; a model in this process takes as long as it takes.
        endpoint_retries: how often a call that failed is made again, after `backoff_s`, twice that, and so on.
    """

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        *,
        name: str | None = None,
        reached: Mapping[str, Any] | None = None,
        thinking: Thinking | None = None,
        role: str = "target",
        concurrency: int | None = None,
        timeout_s: float = 120.0,
        endpoint_retries: int = 5,
        backoff_s: float = 1.0,
        sleep: Callable[[float], Awaitable[Any]] = anyio.sleep,
    ):
        self.model, self.sampling, self.name = model, sampling, name or str(model)
        self.reached, self.thinking, self.role = dict(reached or {}), thinking or Thinking(), role
        self.concurrency, self.endpoint_retries, self.backoff_s = concurrency, endpoint_retries, backoff_s
        self.is_local = str(model).startswith(IN_PROCESS)
        self.timeout_s = None if self.is_local else timeout_s
        self.max_tokens = sampling.max_tokens
        self._sleep = sleep
        self._answered_before = False

    def identity(self) -> dict[str, Any]:
        """Name, endpoint, sampling, and how it writes its reasoning where that was said."""
        named = {"where": "a model of Inspect", "source": self.name, "model": self.name}
        reached = {"reached": self.reached} if self.reached else {}
        return named | reached | self.sampling.row() | self.thinking.row()

    def room(self, prompt: Prompt) -> int | None:
        """Not known before asking."""
        return None

    def answer(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Reply]:
        """One reply for each prompt.

        Raises:
            EvaluationError: the endpoint refuses the key or the model, does not answer, or rejects everything it was
                ever asked; or a reply closes a thinking block that it never opened, and nobody said what opens it.
        """
        from opct.evals.inspect_runner import quiet

        asking = _Asking(self, prompts, seeds)
        with quiet():
            anyio.run(asking.run)
        if asking.error is not None:
            raise asking.error
        if asking.fault is not None:
            raise EvaluationError(
                f"The model {self.name} {asking.fault}. What was tried until now is kept: see to it, and go on with "
                "--resume."
            ) from None  # the endpoint's own words may hold the key
        self._answered_before = self._answered_before or any(
            reply.stop_reason != "rejected" for reply in asking.replies
        )
        if not self._answered_before:
            raise EvaluationError(
                f"The model {self.name} rejected all {len(prompts)} prompts: {asking.rejected}. See to its name, "
                "arguments and settings."
            )
        return asking.replies


class _Asking:
    """The calls of one batch."""

    def __init__(self, owner: InspectModel, prompts: Sequence[Prompt], seeds: Sequence[int]):
        self.owner, self.prompts, self.seeds = owner, prompts, seeds
        self.replies = [Reply("", "rejected")] * len(prompts)
        self.secrets = endpoint.known_secrets(owner.model)
        self.fault: str | None = None
        self.error: OpctError | None = None  # of a model of ours, asked through Inspect
        self.rejected = ""

    async def run(self) -> None:
        turns = iter(range(len(self.prompts)))
        own = getattr(self.owner.model.api, "max_connections", lambda: 10)()
        async with anyio.create_task_group() as tasks:
            for _ in range(min(self.owner.concurrency or own, len(self.prompts))):
                tasks.start_soon(self._work, turns, tasks.cancel_scope)

    async def _work(self, turns: Any, scope: anyio.CancelScope) -> None:
        for i in turns:
            try:
                found = await self._call(i)
            except OpctError as error:
                self.error = error
                scope.cancel()
                return
            if isinstance(found, Reply):
                self.replies[i] = found
            elif found.kind == endpoint.REQUEST:
                self.rejected = found.said
            else:
                self.fault = f"gives no answer: {found.said}"
                scope.cancel()
                return

    async def _call(self, i: int) -> Reply | endpoint.Fault:
        errors = endpoint.known_errors()
        for turn in range(1 + self.owner.endpoint_retries):
            try:
                with anyio.fail_after(self.owner.timeout_s):
                    output = await self._generate(i)
            except OpctError:
                raise
            except errors as error:
                fault = endpoint.fault_of(error, self.secrets)
            except endpoint.NOT_AS_EXPECTED as error:
                if self.owner.is_local:  # nothing came from outside: a bug
                    raise
                said = endpoint.shortened(f"{type(error).__name__}: {error}", self.secrets, most=100)
                fault = endpoint.no_completion(said)
            else:
                if output.choices:
                    return _reply(output, self.owner)
                fault = endpoint.no_completion("no choice in it")
            if fault.kind != endpoint.TRANSIENT:
                return fault
            if turn < self.owner.endpoint_retries:
                await self.owner._sleep(max(self.owner.backoff_s * 2**turn, min(fault.wait_s or 0.0, 60.0)))
        return fault

    async def _generate(self, i: int) -> ModelOutput:
        from inspect_ai.model import GenerateConfig

        sampling = self.owner.sampling
        config = GenerateConfig(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=self.seeds[i] & 0x7FFFFFFF,  # endpoints take 32 bits
            max_retries=0,  # counted and spaced here
            max_connections=self.owner.concurrency,
        )
        return await self.owner.model.generate(as_chat(self.prompts[i]), config=config)


def _reply(output: ModelOutput, owner: InspectModel) -> Reply:
    """Where the endpoint counts no tokens, the reply counts as the longest one: a budget must hold."""
    said, reasoned = output.completion.encode("utf-8", "replace").decode("utf-8"), _has_reasoning(output)
    text, unfinished = _answer(said, owner, is_parsed=reasoned)
    used, stop_reason = output.usage, STOP_REASONS.get(output.stop_reason, "stop")
    return Reply(
        text,
        stop_reason,
        0 if used is None else used.input_tokens,
        owner.max_tokens if used is None else used.output_tokens,
        is_unfinished=unfinished or (stop_reason in CUT and not text and reasoned),
    )


def _answer(said: str, owner: InspectModel, *, is_parsed: bool) -> tuple[str, bool]:
    """(what is said outside of thinking blocks, whether the reply ended inside one).

    Args:
        is_parsed: the server took the reasoning out, so the text begins outside of it whatever the template does.

    Raises:
        EvaluationError: the text closes a block that it never opened, and nobody said whether the template opens it: a
            reply that was cut before that has no tag at all, and would pass for an answer.
    """
    thinking, role = owner.thinking, owner.role
    tags = thinking.tags or THINKING_TAGS
    if thinking.template_opens is None and not is_parsed and closes_unopened(said, tags):
        option = f"--{role}-template-opens-thinking"
        raise EvaluationError(
            f"A reply of the {role} {owner.name} closes a thinking block ({tags[1]}) that it never opened. Where its "
            f"chat template opens that, say so with {option} ({role}_template_opens_thinking=True): a reply that is "
            "cut before the closing tag is no answer. Where replies begin outside of thinking, say "
            f"--no-{option[2:]} (False). What was tried until now is kept, and may hold such cut replies, so the "
            "attack begins anew: take another --out, or --overwrite."
        )
    opened = bool(thinking.template_opens) and not is_parsed
    return without_thinking(said, tags, template_opens=opened)


def _has_reasoning(output: ModelOutput) -> bool:
    """Whether the server told reasoning apart from the answer, shown (`ContentReasoning`) or only counted."""
    content, used = output.message.content, output.usage
    shown = not isinstance(content, str) and any(part.type == "reasoning" for part in content)
    return shown or (used is not None and bool(used.reasoning_tokens))

"""Chat models an attack can query: a local `Policy` or any Inspect model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opct.attack.config import Refine, Sampling, TargetConfig
from opct.attack.protocol import CUT, Reply
from opct.config.judge import EndpointSettings
from opct.data.pairs import Prompt
from opct.data.reasoning import THINKING_TAGS, Reasoning, SplitReply, split_text
from opct.errors import EvaluationError, OpctError
from opct.evals.endpoint import (
    ERROR,
    REJECTED,
    Failure,
    call_config,
    error_of,
    failure_of,
    is_local,
    known_secrets,
    own_secrets,
)
from opct.evals.inspect_runner import run_all
from opct.evals.tasks.common import as_chat
from opct.models.memory import release_memory

if TYPE_CHECKING:
    from inspect_ai.model import GenerateConfig, Model, ModelOutput

    from opct.models.policy import Policy

STOP_REASONS = {"max_tokens": "length", "model_length": "context", "content_filter": "filtered"}


def _sampling_row(sampling: Sampling) -> dict[str, Any]:
    return {"max_tokens": sampling.max_completion_tokens, "temperature": sampling.temperature}


def _thinking_row(tags: Sequence[str] | None, template_opens: bool | None) -> dict[str, Any]:
    """Non-default settings, as JSON values."""
    shown = {} if tags is None or tuple(tags) == THINKING_TAGS else {"thinking_tags": list(tags)}
    return shown if template_opens is None else {**shown, "template_opens_thinking": template_opens}


class ModelClient:
    """Calls one model.

    Args:
        what: name of the model in errors, such as "The attacker's model".
        hint: remedy in errors, such as how to resume.
    """

    def __init__(self, model: Model, settings: EndpointSettings, *, name: str | None, what: str, hint: str):
        self.model, self.settings, self.name = model, settings, name or str(model)
        self.what, self.hint, self.is_local = what, hint, is_local(model)
        self.n_answered = self.n_failed_in_row = 0
        self._last_failure: Failure | None = None
        self._secrets = known_secrets(model)

    def config(self, **sampling: Any) -> GenerateConfig:
        """Sampling settings with Inspect's own for retries, timeouts and connections."""
        return call_config(self.model, self.settings, **sampling)

    async def ask(self, prompt: Any, config: GenerateConfig) -> ModelOutput | Failure:
        """The model's output, or a `Failure`.

        Raises:
            EvaluationError: the key or the model is refused.
            OpctError: an error of a model of ours.
        """
        # gather returns any exception, since each provider has its own errors
        [found] = await asyncio.gather(self.model.generate(prompt, config=config), return_exceptions=True)
        if isinstance(found, BaseException):
            if self.is_local or isinstance(found, OpctError) or not isinstance(found, Exception):
                raise found
            return self._failed(failure_of(found, self._secrets, was_answered=self.n_answered > 0))
        if not found.choices:
            return self._failed(Failure(ERROR, "it answered without a completion"))
        for key in own_secrets(self.model):  # a server may echo it, and replies are stored
            found.completion = found.completion.replace(key, "[secret]")
        self.n_answered += 1
        self.n_failed_in_row = 0
        return found

    def check_answered(self) -> None:
        """Raise EvaluationError where the model was asked and has never answered."""
        if self.n_answered == 0 and self._last_failure is not None:
            raise self.error(self._last_failure)

    def _failed(self, failure: Failure) -> Failure:
        self.n_failed_in_row += 1
        self._last_failure = failure
        if failure.is_fatal:
            raise self.error(failure)
        return failure

    def error(self, failure: Failure) -> EvaluationError:
        """The failure as the error that ends the work."""
        return error_of(failure, f"{self.what} {self.name}", self.n_failed_in_row, self.hint)


class LocalModel:
    """A policy in this process."""

    is_local = True

    def __init__(
        self,
        policy: Policy,
        sampling: Sampling,
        *,
        source: str | None = None,
        thinking_tags: tuple[str, str] | None = None,
    ):
        self.policy, self.sampling, self.source = policy, sampling, source or policy.name
        self.thinking_tags = thinking_tags
        self.reasoning = Reasoning.of_tags(thinking_tags) if thinking_tags else policy.renderer.reasoning
        self.max_tokens = sampling.max_completion_tokens

    def identity(self) -> dict[str, Any]:
        """Name, weights, template and sampling."""
        kwargs = self.policy.renderer.chat_template_kwargs
        is_usual = self.thinking_tags or self.reasoning == Reasoning.of_tags(THINKING_TAGS)
        return {
            "where": "in this process",
            "source": self.source,
            "model": self.policy.name,
            "has_adapter": self.policy.has_adapter,
            "weights": self.policy.weights_hash(),
            "template_hash": self.policy.renderer.template_hash,
            "dtype": str(self.policy.dtype).removeprefix("torch."),
            **_sampling_row(self.sampling),
            **_thinking_row(self.thinking_tags, None),
            **({} if is_usual else {"reasoning": list(self.reasoning)}),
            **({"chat_template_kwargs": kwargs} if kwargs else {}),
        }

    def room(self, prompt: Prompt) -> int | None:
        """Context tokens left after the prompt."""
        return self.policy.context_length - len(self.policy.renderer.render(prompt))

    def answer(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Reply]:
        """One reply for each prompt, sampled as one batch."""
        completions = self.policy.generate(
            list(prompts),
            seeds=list(seeds),
            max_completion_tokens=self.max_tokens,
            temperature=self.sampling.temperature,
        )
        release_memory()  # attacker and target take turns: each would keep what its largest batch took
        return [self._reply(*one) for one in zip(prompts, completions, strict=True)]

    def _reply(self, prompt: Prompt, completion: Any) -> Reply:
        said = self.policy.renderer.split(prompt, completion.token_ids, self.reasoning)
        return Reply(
            said.answer,
            completion.stop_reason,
            completion.prompt_tokens,
            len(completion.token_ids),
            is_unfinished=said.is_unfinished,
            completion=completion,
        )


class InspectModel:
    """An Inspect model, sampled with many concurrent requests.

    Args:
        address: what identifies the model besides its name, without secrets.
        role: target or attacker, as the settings name it.
    """

    def __init__(
        self,
        model: Model,
        config: TargetConfig | Refine,
        *,
        name: str | None = None,
        address: Mapping[str, Any] | None = None,
        role: str = "target",
    ):
        self.config, self.max_tokens = config, config.max_completion_tokens
        self.address, self.role = dict(address or {}), role
        hint = "Finished attempts are kept. Check its name, key, arguments and settings, then continue with --resume."
        what = f"The {role}'s model" if role == "attacker" else "The target"
        self.client = ModelClient(model, config, name=name, what=what, hint=hint)
        self.name, self.is_local = self.client.name, self.client.is_local

    def identity(self) -> dict[str, Any]:
        """Name, address, sampling, and the reasoning settings if given."""
        named = {"where": "a model of Inspect", "source": self.name, "model": self.name}
        address = {"address": self.address} if self.address else {}
        own = _thinking_row(self.config.thinking_tags, self.config.template_opens_thinking)
        return named | address | _sampling_row(self.config) | own

    def room(self, prompt: Prompt) -> int | None:
        """Unknown before a request."""
        return None

    def answer(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Reply]:
        """One reply for each prompt.

        Raises:
            EvaluationError: the endpoint refuses the key or the model, does not answer, or rejected every request so
                far; or a reply closes a thinking block that it never opened.
        """
        replies = run_all([partial(self._reply, *one) for one in zip(prompts, seeds, strict=True)])
        self.client.check_answered()
        return replies

    async def _reply(self, prompt: Prompt, seed: int) -> Reply:
        sampling = _sampling_row(self.config) | {"seed": seed & 0x7FFFFFFF}  # endpoints take 32 bits
        output = await self.client.ask(as_chat(prompt), self.client.config(**sampling))
        if isinstance(output, Failure):
            if output.reason == REJECTED:  # only this prompt failed: a content filter
                return Reply("", "rejected")
            raise self.client.error(output)
        said, has_reasoning = output.completion.encode("utf-8", "replace").decode("utf-8"), _has_reasoning(output)
        answer = self._answer(said, is_parsed=has_reasoning)
        used, stop_reason = output.usage, STOP_REASONS.get(output.stop_reason, "stop")
        return Reply(
            answer.answer,
            stop_reason,
            0 if used is None else used.input_tokens,
            self.max_tokens if used is None else used.output_tokens,  # the maximum, so that budgets hold
            is_unfinished=answer.is_unfinished or (stop_reason in CUT and not answer.answer and has_reasoning),
        )

    def _answer(self, said: str, *, is_parsed: bool) -> SplitReply:
        """A reply without its thinking.

        Args:
            is_parsed: the server removed the reasoning, so the text begins outside of it.

        Raises:
            EvaluationError: the text closes a block that it never opened, and it is unknown whether the template opens
                it. Then a reply that was cut earlier has no tag, and would pass for an answer.
        """
        opens = self.config.template_opens_thinking
        tags = self.config.thinking_tags or THINKING_TAGS
        form = Reasoning.of_tags(tags)
        if opens is None and not is_parsed and form.closes_unopened(said):
            raise EvaluationError(
                f"A reply of the {self.role} {self.name} closes a thinking block ({tags[1]}) that it never opened. Set "
                f"{self.role}.template_opens_thinking: true if its chat template opens the block (a reply cut before "
                "the closing tag is then not an answer), or false if replies begin outside of thinking. Earlier "
                "attempts may hold such cut replies: start over with another --out, or with --overwrite."
            )
        if opens is None and self.config.thinking_tags is None and not is_parsed:
            return split_text(said)
        return form.split(said, inside=bool(opens) and not is_parsed)


def _has_reasoning(output: ModelOutput) -> bool:
    """Whether the server separated reasoning from the answer, as content (`ContentReasoning`) or only in token
    counts.
    """
    content, used = output.message.content, output.usage
    shown = not isinstance(content, str) and any(part.type == "reasoning" for part in content)
    return shown or (used is not None and bool(used.reasoning_tokens))

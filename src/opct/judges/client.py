"""Client of Inspect models, used by judges, and by attacks for targets and attackers.

Retries, waiting, timeouts and the number of connections are Inspect's. This module adds error messages without keys
and the decision to give up.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from opct.config.judge import EndpointSettings
from opct.errors import EvaluationError, OpctError
from opct.judges.protocol import ENDPOINT_ERROR, ENDPOINT_REJECTED, ENDPOINT_TIMEOUT, Usage
from opct.runs.manifest import without_keys

if TYPE_CHECKING:
    from inspect_ai.model import GenerateConfig, Model, ModelOutput

T = TypeVar("T")
LOCAL_PROVIDERS = ("opct/", "hf/", "nnterp/", "transformer_lens/")
_MODERATED = re.compile(r"moderat|\bflagged\b|policy|safety", re.IGNORECASE)
_SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True)
class Failure:
    """Why a call gave no answer, after every retry.

    Attributes:
        reason: for the counts, one of the `ENDPOINT_` reasons. message: text without secrets. is_fatal: the key or the
        model is refused, so no further call can succeed.
    """

    reason: str
    message: str
    is_fatal: bool = False


class ModelClient:
    """Calls one model, and stops when it does not answer.

    Args:
        what: name of the model in errors, such as "The judge's model".
        hint: remedy in errors, such as how to resume.
        give_up_after: calls in a row without an answer that raise an error; None: never.
    """

    def __init__(
        self,
        model: Model,
        settings: EndpointSettings,
        *,
        name: str | None,
        what: str,
        hint: str,
        give_up_after: int | None,
    ):
        self.model, self.settings, self.name = model, settings, name or str(model)
        self.what, self.hint, self.give_up_after = what, hint, give_up_after
        self.is_local = str(model).startswith(LOCAL_PROVIDERS)
        self.usage = Usage()
        self.n_answered = self.n_failed_in_row = 0
        self._last_failure: Failure | None = None
        self.secrets = known_secrets(model)

    def config(self, **sampling: Any) -> GenerateConfig:
        """Sampling settings with Inspect's own for retries, timeouts and connections."""
        from inspect_ai.model import GenerateConfig

        return GenerateConfig(
            **sampling,
            max_retries=self.settings.max_retries,
            attempt_timeout=None if self.is_local else self.settings.timeout_s,
            max_connections=self.settings.max_connections,
        )

    async def ask(self, prompt: Any, config: GenerateConfig) -> ModelOutput | Failure:
        """The model's output, or a `Failure`.

        Raises:
            EvaluationError: the key or the model is refused, or too many calls in a row had no answer.
            OpctError: an error of a model of ours.
        """
        # gather returns any exception, since each provider has its own errors
        [found] = await asyncio.gather(self.model.generate(prompt, config=config), return_exceptions=True)
        if isinstance(found, BaseException):
            if self.is_local or isinstance(found, OpctError) or not isinstance(found, Exception):
                raise found
            return self._failed(_failure(found, self.secrets, was_answered=self.n_answered > 0))
        self.usage += usage_of(found)
        if not found.choices:
            return self._failed(Failure(ENDPOINT_ERROR, "it answered without a completion"))
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
        if failure.is_fatal or self.n_failed_in_row == self.give_up_after:
            raise self.error(failure)
        return failure

    def error(self, failure: Failure) -> EvaluationError:
        """The failure as the error that ends the work."""
        if failure.is_fatal:
            return EvaluationError(f"{self.what} {self.name} cannot be used: {failure.message}. {self.hint}".strip())
        did = "rejected" if failure.reason == ENDPOINT_REJECTED else "did not answer"
        return EvaluationError(
            f"{self.what} {self.name} {did} {self.n_failed_in_row} request(s) in a row: {failure.message}. "
            f"{self.hint}".strip()
        )


def run_all(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """Run all calls concurrently; the first error cancels the others.

    It uses its own event loop, in a thread if one is already running (a notebook).
    """

    async def gathered() -> list[T]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(call()) for call in calls]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # an endpoint's own words may hold the key
        return [task.result() for task in tasks]

    from opct.evals.inspect_runner import quiet

    def run_loop() -> list[T]:
        with asyncio.Runner() as runner:  # Inspect replaces asyncio.run by one that leaves its event loop open
            return runner.run(gathered())

    with quiet():
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return run_loop()
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(run_loop).result()


def load_inspect_model(name: str, base_url: str | None, model_args: Mapping[str, Any], *, what: str) -> Model:
    """Load an Inspect model.

    Raises:
        EvaluationError: the provider, its package or its key is missing, or the model cannot be loaded; the message
            holds no key.
    """
    from inspect_ai._util.error import PrerequisiteError
    from inspect_ai.model import get_model
    from rich.text import Text

    from opct.evals.inspect_runner import quiet

    try:
        with quiet():
            return get_model(name, base_url=base_url, memoize=False, **model_args)
    except PrerequisiteError as error:  # its message is Rich markup
        message = Text.from_markup(str(error.message)).plain
    except (ValueError, TypeError, ImportError, OSError, RuntimeError) as error:
        message = str(error)
    raise EvaluationError(
        f"{what} {name} cannot be used: {shortened(message, known_secrets(), most=400)} Give provider/model, install "
        "its package and put its key into the environment."
    )


def usage_of(output: ModelOutput) -> Usage:
    """The usage of one call, with tokens if the endpoint counts them."""
    used = output.usage
    return Usage(1) if used is None else Usage(1, used.input_tokens, used.output_tokens)


def _failure(error: Exception, secrets: Iterable[str], *, was_answered: bool) -> Failure:
    """Convert a provider's error to a `Failure`.

    Args:
        was_answered: the endpoint has answered with this key before. Then HTTP 403 is about the request, as it is if
            the endpoint mentions moderation (OpenRouter); else it is about the key.
    """
    attempt = getattr(error, "last_attempt", None)  # tenacity's RetryError
    error = (attempt.exception() if attempt is not None else None) or error
    status = _http_status(error)
    text = getattr(error, "provider_message", None) or str(error)
    message = shortened(text, secrets)
    is_about_request = status == 403 and (was_answered or _MODERATED.search(text) is not None)
    if status in (400, 413, 422) or is_about_request:
        return Failure(ENDPOINT_REJECTED, f"HTTP {status}: {message}")
    if status in (401, 403):
        # the endpoint's text may repeat the key
        return Failure(ENDPOINT_ERROR, f"it refuses the key (HTTP {status})", is_fatal=True)
    if status in (402, 404):
        what = "does not know this model or path" if status == 404 else "wants to be paid"
        return Failure(ENDPOINT_ERROR, f"it {what} (HTTP {status}): {message}", is_fatal=True)
    if isinstance(error, TimeoutError) or "timeout" in type(error).__name__.lower():
        return Failure(ENDPOINT_TIMEOUT, "no answer in time")
    return Failure(ENDPOINT_ERROR, f"{type(error).__name__ if status is None else f'HTTP {status}'}: {message}")


def _http_status(error: BaseException) -> int | None:
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and 400 <= value <= 599:
                return value
    return None


def shortened(text: str, secrets: Iterable[str], most: int = 200) -> str:
    """One line of at most `most` characters, the secrets replaced."""
    line = " ".join(redact(text[: 100 * most], secrets).split())
    return line if len(line) <= most else f"{line[:most]} ..."


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, and without what looks like one."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "[secret]")
    return without_keys(text)


def known_secrets(model: Any = None) -> frozenset[str]:
    """The keys that a message might repeat: the model's, and all in the environment."""
    named = [value for name, value in os.environ.items() if _SECRET_NAMES.search(name)]
    return own_secrets(model) | {value for value in named if len(value) >= 6}


def own_secrets(model: Any) -> frozenset[str]:
    """The API key of this model; empty if it needs none."""
    key = getattr(getattr(model, "api", None), "api_key", None)
    return frozenset([key] if isinstance(key, str) and len(key) >= 6 else [])

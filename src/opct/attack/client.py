"""Client of the Inspect models that an attack asks: targets and attackers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from opct.config.judge import EndpointSettings
from opct.errors import EvaluationError, OpctError
from opct.evals.endpoint import (
    ERROR,
    Failure,
    call_config,
    error_of,
    failure_of,
    is_local,
    known_secrets,
    own_secrets,
)

if TYPE_CHECKING:
    from inspect_ai.model import GenerateConfig, Model, ModelOutput


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

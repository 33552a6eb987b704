"""Models of Inspect behind an endpoint: how they are opened and named, why they fail, and no key in any text.

Retries, waiting, timeouts and the number of connections are Inspect's.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from opct.config.judge import EndpointSettings
from opct.errors import EvaluationError, LibraryErrors, OpctError
from opct.evals.judges.protocol import digest
from opct.evals.redirects import no_redirects
from opct.redaction import MASK, SHORTEST, environment_secrets, redact
from opct.runs.io import file_sha256

if TYPE_CHECKING:
    from inspect_ai.model import ChatMessage, GenerateConfig, Model, ModelOutput

log = logging.getLogger(__name__)

USE = "Give provider/model, install its package and put its key into the environment."
HINT = "Check its name, key, arguments and settings, then continue with --resume."

# Reasons for a call without an answer; each is counted separately.
TIMEOUT = "endpoint_timeout"
REJECTED = "endpoint_rejected"  # the endpoint rejects this request (HTTP 400, 413, 422, some 403)
ERROR = "endpoint_error"  # no connection, no completion, 429 or 5xx, after every retry
LOCAL_PROVIDERS = ("opct/", "hf/", "nnterp/", "transformer_lens/")
_MODERATED = re.compile(r"moderat|\bflagged\b|policy|safety", re.IGNORECASE)
SECRET_NAME = re.compile(r"key|token$|secret|password|credential|cookie|authorization|(?:^|[-_])auth$", re.IGNORECASE)
WEIGHTS = ("*.safetensors", "*.gguf", "*.bin")


def open_model(
    name: str, base_url: str | None, model_args: Mapping[str, Any], *, what: str, is_target: bool = False
) -> tuple[Model, str, dict[str, Any]]:
    """The Inspect model, its name with a hash of local weights, and its address and arguments without secrets.

    Raises:
        EvaluationError: the model cannot be loaded, an argument looks like a secret, or the address or argument of what
            is evaluated (`is_target`) holds one.
    """
    for argument in _argument_names(model_args):
        if SECRET_NAME.search(argument.rpartition(".")[2]):
            raise EvaluationError(
                f"The model's argument {argument} looks like a secret: put it into the provider's environment variable "
                "instead, where process lists and files do not show it."
            )
    # Inspect writes both into the logs of what it asks
    given = {
        "name": name,
        "address": base_url or _url_of_environment(name),
        "arguments": json.dumps(model_args, default=str),
    }
    for part, text in given.items() if is_target else ():
        if text is not None and redact(text) != text:
            raise EvaluationError(
                f"{what} {name}: its {part} would put a key or password into logs: leave it out there, and "
                "give it as the provider's key."
            )
    model = load_inspect_model(name, base_url, model_args, what=what)
    # the model's own key alone: the identity must not change with other keys in the environment
    secrets, url = secrets_of(model), base_url or _url_of_environment(name)
    arguments = {key: _public(key, value, secrets) for key, value in model_args.items()}
    settings = {"base_url": _public_url(url, secrets) if url else None, "model_args": arguments or None}
    weights = _weights_hash(str(model).partition("/")[2])  # the files at a path may change
    named = str(model) if weights is None else f"{model}@{weights}"
    return model, named, {key: value for key, value in settings.items() if value is not None}


def load_inspect_model(name: str, base_url: str | None, model_args: Mapping[str, Any], *, what: str) -> Model:
    """Load an Inspect model. Raises EvaluationError, whose message holds no key, where the provider, its package or its
    key is missing, or the model cannot be loaded."""
    from inspect_ai._util.error import PrerequisiteError
    from inspect_ai.model import get_model
    from rich.text import Text

    from opct.evals.quiet import quiet

    try:
        with quiet(), LibraryErrors(EvaluationError, f"{what} {name} cannot be used", USE):
            # not memoized: its `generate` is replaced, and a shared model would be wrapped again and again
            return guarded(get_model(name, base_url=base_url, memoize=False, **model_args))
    except EvaluationError as error:
        if isinstance(error.__cause__, PrerequisiteError):  # its message is Rich markup
            message = shortened(Text.from_markup(str(error.__cause__.message)).plain, known_secrets(), limit=400)
            raise EvaluationError(f"{what} {name} cannot be used: {message} {USE}") from error
        raise


def guarded(model: Model) -> Model:
    """The model, which sends nothing to where an endpoint redirects, and without its key in what its provider returns
    or raises: a server may echo it, and logs keep that."""
    from inspect_ai.log._samples import _active_model_event

    generate, warned = model.api.generate, list[str]()

    async def guarded_generate(*args: Any, **options: Any) -> Any:
        secrets = known_secrets(model)
        addresses: list[str] = []
        try:
            with no_redirects() as addresses:
                answer = await generate(*args, **options)
        except Exception as error:
            if addresses:
                where = redact(addresses[0], secrets)
                raise EvaluationError(
                    f"The endpoint of {model} redirects to {where}; nothing was sent there. If you trust it, make it "
                    "the base_url."
                ) from None
            failure = failure_of(error, secrets, was_answered=True)
            if not is_local(model) and failure.reason != REJECTED and not failure.is_fatal and not warned:
                warned.append(str(model))  # once: Inspect asks again, for up to half an hour and without a word
                where = endpoint_address(str(model), getattr(model.api, "base_url", None)) or "its default address"
                log.warning("%s at %s fails and is asked again: %s", model, where, failure.message)
            # here, not where the error is shown: Inspect's event of the call keeps its text and traceback
            _redact_error(error, secrets)
            raise
        finally:
            # in a header of the answer, which Inspect keeps as the name of the call
            for named in getattr(_active_model_event.get(), "request_ids", None) or ():
                named.id = redact(named.id, secrets)
        # Inspect takes (output or error, call): the call holds what was sent and what came back
        output, *calls = answer if isinstance(answer, tuple) else (answer,)
        if isinstance(output, Exception):
            _redact_error(output, secrets)
        else:
            # the model's key alone: a reply may well hold what looks like one
            output = _without(output, secrets_of(model))
        for call in calls:
            call.request, call.response = _redacted(call.request, secrets), _redacted(call.response, secrets)
        return (output, *calls) if calls else output

    model.api.generate = guarded_generate  # type: ignore[method-assign]
    return model


def _without(output: ModelOutput, secrets: Collection[str]) -> ModelOutput:
    """Every field at once: a key may be in the text, in reasoning, or in a provider's metadata."""
    if not secrets:
        return output
    text = output.model_dump_json()
    for secret in secrets:
        # as it stands in JSON, where quotes and backslashes are escaped
        text = text.replace(json.dumps(secret)[1:-1], MASK)
    return type(output).model_validate_json(text)


def _redact_error(error: BaseException | None, secrets: Collection[str]) -> None:
    """Replace secrets in an error and in those it came from; its class stays, which tells Inspect what to retry."""
    if error is None:
        return
    error.args = _redacted(error.args, secrets)
    # the errors of providers' packages repeat it: `message`, `body`, ...
    vars(error).update(_redacted(vars(error), secrets))
    if redact(str(error), secrets) != str(error):  # a class that makes its text of other things
        raise RuntimeError(redact(str(error), secrets)) from None
    _redact_error(error.__cause__ or error.__context__, secrets)  # as a traceback follows them


def _redacted(value: Any, secrets: Collection[str]) -> Any:
    """The same value, the secrets replaced in its texts; other types than JSON's, such as headers, stay as they are."""
    if isinstance(value, str):
        return redact(value, secrets)
    if type(value) is dict:
        return {key: _redacted(part, secrets) for key, part in value.items()}
    # not isinstance: a named tuple cannot be made of its parts
    return type(value)(_redacted(part, secrets) for part in value) if type(value) in (list, tuple) else value


def endpoint_address(model: str, base_url: str | None = None) -> str | None:
    """The endpoint of a model for messages; None for the provider's default address."""
    url = base_url or _url_of_environment(model)
    return _public_url(url, known_secrets()).partition("?")[0] if url else None


def _argument_names(arguments: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of arguments, with dots for nested ones: `default_headers.Authorization`."""
    for name, value in arguments.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _argument_names(value, f"{prefix}{name}.")


def _public(name: str, value: Any, secrets: Collection[str]) -> Any:
    """An argument with secrets hashed; a local `model_path` is replaced by the hash of its weights."""
    if isinstance(value, Mapping):
        return {str(key): _public(str(key), inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_public(name, inner, secrets) for inner in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = str(value)
    if name == "model_path" and (weights := _weights_hash(text)) is not None:
        return f"weights {weights}"
    shown = redact(text, secrets)
    return text if shown == text else f"{shown} ({digest(text)[:8]})"


def _weights_hash(path: str) -> str | None:
    """12 hex digits of the weights in a file or folder; None if there are none."""
    location = Path(path)
    # sorted: the order of a folder differs between machines, and the hash with it
    files = sorted({file for kind in WEIGHTS for file in location.rglob(kind)}) if location.is_dir() else []
    files = [location] if location.is_file() else files
    return digest([[file.name, file_sha256(file)] for file in files])[:12] if files else None


def _url_of_environment(model: str) -> str | None:
    """The endpoint that the provider takes from the environment."""
    provider, _, name = model.partition("/")
    service = name.partition("/")[0] if provider == "openai-api" else provider
    variables = (f"{service.upper().replace('-', '_')}_BASE_URL", "INSPECT_EVAL_MODEL_BASE_URL")
    return next((value for variable in variables if (value := os.environ.get(variable))), None)


def _public_url(url: str, secrets: Collection[str]) -> str:
    """The address without user, password, secret parameters and the last slash."""
    # "//": without it "host:8000/v1" is read as the scheme "host"
    parts = urlsplit(url if "//" in url else f"//{url}")
    query = [(key, value) for key, value in parse_qsl(parts.query, True) if not SECRET_NAME.search(key)]
    # the last "@": a password may hold one
    host, path = parts.netloc.rpartition("@")[2].lower(), parts.path.rstrip("/")
    for secret in secrets:
        path = path.replace(secret, MASK)
    return urlunsplit((parts.scheme.lower(), host, path, urlencode(query), ""))


# ------------------------------------------------------------------------------------------------------- failures


@dataclass(frozen=True)
class Failure:
    """Why a call gave no answer, after every retry.

    Attributes:
        reason: for the counts, `TIMEOUT`, `REJECTED` or `ERROR`.
        message: text without secrets.
        is_fatal: the key or the model is refused, so no further call can succeed.
    """

    reason: str
    message: str
    is_fatal: bool = False


def call_config(model: Model, settings: EndpointSettings, **sampling: Any) -> GenerateConfig:
    """Sampling settings of a call, with those of Inspect for retries, timeouts and connections."""
    from inspect_ai.model import GenerateConfig

    return GenerateConfig(
        **sampling,
        max_retries=settings.max_retries,
        # a model in this process waits for its batch, and that takes as long as it takes
        attempt_timeout=None if is_local(model) else settings.timeout_s,
        max_connections=settings.max_connections,
    )


def is_local(model: Model) -> bool:
    return str(model).startswith(LOCAL_PROVIDERS)


def failure_of(error: Exception, secrets: Iterable[str], *, was_answered: bool) -> Failure:
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
        return Failure(REJECTED, f"HTTP {status}: {message}")
    if status in (401, 403):
        # the endpoint's text may repeat the key
        return Failure(ERROR, f"it refuses the key (HTTP {status})", is_fatal=True)
    if status in (402, 404):
        what = "does not know this model or path" if status == 404 else "wants to be paid"
        return Failure(ERROR, f"it {what} (HTTP {status}): {message}", is_fatal=True)
    # by name, too: the classes of providers' packages are not TimeoutErrors
    if isinstance(error, TimeoutError) or "timeout" in type(error).__name__.lower():
        return Failure(TIMEOUT, "no answer in time")
    if status is None and isinstance(error, LookupError | TypeError | AttributeError):  # in the provider's package
        return Failure(ERROR, f"its answer is no chat completion ({type(error).__name__}: {message})")
    return Failure(ERROR, f"{type(error).__name__ if status is None else f'HTTP {status}'}: {message}")


async def answer_of(model: Model, messages: list[ChatMessage], config: GenerateConfig, who: str) -> ModelOutput | None:
    """The model's output; None where its endpoint rejects this request. Raises EvaluationError where it does not
    answer; the endpoint's own words, which may hold the key, are taken out."""
    try:
        return await model.generate(messages, config=config)
    except Exception as error:
        if is_local(model) or isinstance(error, OpctError):
            raise
        failure = failure_of(error, known_secrets(model), was_answered=False)
        if failure.reason != REJECTED:
            raise error_of(failure, who, 1, HINT) from None
        return None


def error_of(failure: Failure, who: str, n_in_row: int, hint: str) -> EvaluationError:
    """The failure as the error that ends the work, after `n_in_row` calls without an answer."""
    if failure.is_fatal:
        return EvaluationError(f"{who} cannot be used: {failure.message}. {hint}".strip())
    did = "rejected" if failure.reason == REJECTED else "did not answer"
    return EvaluationError(f"{who} {did} {n_in_row} request(s) in a row: {failure.message}. {hint}".strip())


def _http_status(error: BaseException) -> int | None:
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and 400 <= value <= 599:
                return value
    return None


# -------------------------------------------------------------------------------------------------------- secrets


def shortened(text: str, secrets: Iterable[str], limit: int = 200) -> str:
    """One line of at most `limit` characters, the secrets replaced."""
    # redacted before it is cut: half of a key at the end would not be known as one
    line = " ".join(redact(text[: 100 * limit], secrets).split())
    return line if len(line) <= limit else f"{line[:limit]} ..."


def known_secrets(model: Any = None) -> frozenset[str]:
    """The keys that a message might repeat: the model's, and all in the environment."""
    return secrets_of(model) | environment_secrets()


def secrets_of(model: Any) -> frozenset[str]:
    """The API key of this model; empty if it needs none."""
    key = getattr(getattr(model, "api", None), "api_key", None)
    return frozenset([key] if isinstance(key, str) and len(key) >= SHORTEST else [])

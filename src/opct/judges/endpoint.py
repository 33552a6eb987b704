"""What can go wrong between us and a judge's model, in words of our own, and without the key.

No message of an endpoint is shown without its secrets taken out, and none at all where the endpoint refuses the key:
such messages repeat it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from opct.judges.protocol import ENDPOINT_ERROR, ENDPOINT_REJECTED, ENDPOINT_TIMEOUT, NO_COMPLETION, Usage

# The base of the errors of each client that Inspect may use; looked up only where the client was imported.
CLIENT_ERRORS = (
    ("openai", "OpenAIError"),
    ("anthropic", "AnthropicError"),
    ("httpx", "HTTPError"),
    ("httpx2", "HTTPError"),
    ("aiohttp", "ClientError"),
    ("google.genai.errors", "APIError"),
    ("mistralai.models", "SDKError"),
    ("groq", "GroqError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("huggingface_hub.errors", "HTTPError"),
    ("azure.core.exceptions", "AzureError"),
    ("inspect_ai.model._providers.azureai", "AzureAIStreamError"),
    ("grpc", "RpcError"),  # grok
)
_GRPC_STATUS = {  # the HTTP status that means the same; all others are 500, but DEADLINE_EXCEEDED
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "UNIMPLEMENTED": 404,
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "FAILED_PRECONDITION": 400,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
}
# What the clients raise where an answer has not the form they expect: none of them checks it first.
NOT_AS_EXPECTED = (TypeError, AttributeError, LookupError, ValueError, AssertionError)
KEY, MODEL, TRANSIENT, REQUEST = "key", "model", "transient", "request"
_MODERATED = re.compile(r"moderat|\bflagged\b|policy|safety", re.IGNORECASE)
_SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_SECRET_SHAPES = (
    re.compile(r"(?i)(?<=bearer )\S+"),
    re.compile(r"\b(?:sk|pk|hf|gsk|xai|key)[-_][\w*.-]{4,}"),
    re.compile(r"\S*\*{3,}\S*"),
    re.compile(r"(?<=//)[^/@\s]+(?=@)"),
)


@dataclass(frozen=True)
class Fault:
    """Why a call gave no answer.

    Attributes:
        kind: "key" and "model" end everything; "transient" is tried again; "request" concerns this one request.
        reason: how it is counted where it stays.
        said: in words, without secrets.
        wait_s: how long the endpoint asks to wait.
        usage: what calls about the same reply took that were answered.
        failed_attempts: why those answers did not count.
    """

    kind: str
    reason: str
    said: str
    wait_s: float | None = None
    usage: Usage = field(default_factory=Usage)
    failed_attempts: tuple[str, ...] = ()


def known_errors() -> tuple[type[BaseException], ...]:
    """What a call to a model raises where the endpoint or the way to it is at fault; a bug of ours is none of these."""
    from inspect_ai.model._model import AttemptTimeoutError, ModelGenerateError, StreamIdleTimeoutError
    from tenacity import RetryError

    found: list[type[BaseException]] = [
        OSError,  # connection refused, TimeoutError ...
        RetryError,
        ModelGenerateError,
        AttemptTimeoutError,
        StreamIdleTimeoutError,
    ]
    for module, name in CLIENT_ERRORS:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            found.append(kind)
    return tuple(found)


def fault_of(error: BaseException, secrets: Iterable[str], *, proven: bool = False) -> Fault:
    """One of `known_errors` as a fault.

    Args:
        proven: the endpoint has answered with this key. Then HTTP 403 is of the request, as it is where the endpoint
            speaks of moderation (OpenRouter); else of the key.
    """
    error = _innermost(error)
    code = _grpc_code(error)
    status = _status(error) if code is None else _GRPC_STATUS.get(code, 500)
    name = type(error).__name__
    told = getattr(error, "provider_message", None) or (str(error) if code is None else f"{code} {_details(error)}")
    said = shortened(told, secrets)
    is_of_request = status == 403 and (proven or _MODERATED.search(told) is not None)
    if status in (401, 403) and not is_of_request:
        return Fault(KEY, ENDPOINT_ERROR, f"it refuses the key (HTTP {status})")
    if status in (402, 404):
        what = "does not know this model or path" if status == 404 else "wants to be paid"
        return Fault(MODEL, ENDPOINT_ERROR, f"it {what} (HTTP {status}): {said}")
    if status in (400, 413, 422) or is_of_request:
        return Fault(REQUEST, ENDPOINT_REJECTED, f"HTTP {status}: {said}")
    if isinstance(error, TimeoutError) or "timeout" in name.lower() or code == "DEADLINE_EXCEEDED":
        return Fault(TRANSIENT, ENDPOINT_TIMEOUT, "no answer in time")
    if status is not None:
        return Fault(TRANSIENT, ENDPOINT_ERROR, f"HTTP {status}: {said}", _retry_after(error))
    return Fault(TRANSIENT, ENDPOINT_ERROR, f"{name}: {said}")


def no_completion(found: str) -> Fault:
    """An answer that is no completion, as where a proxy sends its errors or its pages with HTTP 200."""
    return Fault(TRANSIENT, NO_COMPLETION, f"it answered with no completion, but an error or a page ({found})")


def _innermost(error: BaseException) -> BaseException:
    """The error that a RetryError of tenacity was made of."""
    attempt = getattr(error, "last_attempt", None)
    inner = attempt.exception() if attempt is not None else None
    return error if inner is None else inner


def _status(error: BaseException) -> int | None:
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and 400 <= value <= 599:
                return value
    return None


def _grpc_code(error: BaseException) -> str | None:
    """The name of a gRPC status, which such errors have in place of an HTTP status; None of any other error."""
    kind = getattr(sys.modules.get("grpc"), "RpcError", None)
    if not (isinstance(kind, type) and isinstance(error, kind)):
        return None
    code = getattr(error, "code", None)  # a method, which the base class does not have
    return str(getattr(code() if callable(code) else None, "name", "UNKNOWN"))


def _details(error: BaseException) -> str:
    details = getattr(error, "details", None)
    return str((details() if callable(details) else None) or "")


def _retry_after(error: BaseException) -> float | None:
    headers: Any = getattr(getattr(error, "response", None), "headers", None)
    text = headers.get("retry-after") if headers is not None else None
    return float(text) if isinstance(text, str) and re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text) else None


def shortened(text: str, secrets: Iterable[str], most: int = 200) -> str:
    """One line of at most `most` characters, the secrets replaced."""
    line = " ".join(redact(text, secrets).split())
    return line if len(line) <= most else f"{line[:most]} ..."


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, and without what looks like one."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "[secret]")
    for shape in _SECRET_SHAPES:
        text = shape.sub("[secret]", text)
    return text


def known_secrets(model: Any = None) -> frozenset[str]:
    """The keys that a message might repeat: the model's own, and those of the environment."""
    named = [value for name, value in os.environ.items() if _SECRET_NAMES.search(name)]
    return own_secrets(model) | {value for value in named if len(value) >= 6}


def own_secrets(model: Any) -> frozenset[str]:
    """The key that this model is asked with; none where it needs none."""
    key = getattr(getattr(model, "api", None), "api_key", None)
    return frozenset([key] if isinstance(key, str) and len(key) >= 6 else [])

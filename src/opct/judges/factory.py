"""From what a person names to a judge: a rubric with a model, or the folder of a trained classifier."""

from __future__ import annotations

import datetime
import difflib
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from opct.errors import EvaluationError
from opct.judges.asking_settings import AskingSettings
from opct.judges.cache import JudgementCache
from opct.judges.classifier import ReplyClassifier
from opct.judges.endpoint import known_secrets, own_secrets, redact, shortened
from opct.judges.llm import LLMJudge
from opct.judges.offline import OfflineJudge, Refuses
from opct.judges.protocol import digest
from opct.judges.rubrics import RUBRICS
from opct.runs.io import file_sha256

if TYPE_CHECKING:
    from inspect_ai.model import Model

SECRET_NAME = re.compile(r"key|token$|secret|password|credential|cookie|authorization|(?:^|[-_])auth$", re.IGNORECASE)
WEIGHTS = ("*.safetensors", "*.gguf", "*.bin")


def open_judge(
    spec: str,
    *,
    model: str | None = None,
    base_url: str | None = None,
    model_args: Mapping[str, Any] | None = None,
    threshold: float | None = None,
    settings: AskingSettings | None = None,
    cache: str | Path | None = None,
    refuses: Refuses | None = None,
    model_option: str = "--model",
) -> LLMJudge | OfflineJudge:
    """The judge that is meant.

    Args:
        spec: the name of a rubric (then `model` says who is asked), or a folder made by `opct judge train`.
        model: as Inspect names it: `openai/...`, `anthropic/...`, `vllm/...`, `hf/...`, `opct/<path>`.
        base_url: of the model's endpoint, where it is not the provider's own.
        model_args: of the provider, such as `{"device": "cuda"}`.
        threshold: from which score on the verdict is the judge's meaning; by default 0.5.
        cache: a file in which an LLM judge's judgements are kept.
        refuses: for an offline judge whose meaning is "harmful": whether a reply is a refusal.
        model_option: what a person names `model` with, for messages.

    Raises:
        EvaluationError: there is no such judge or model, it cannot be loaded, or an argument of it cannot be part of
            the judge's identity.
    """
    if threshold is not None and not 0.0 < threshold <= 1.0:
        raise EvaluationError(f"The threshold of a judge is {threshold}: use a number above 0 and at most 1.")
    if spec in RUBRICS:
        if model is None:
            raise EvaluationError(
                f"The judge {spec} is a rubric that a model is asked by: name the model with {model_option}, such as "
                "openai/gpt-4o-mini, vllm/..., hf/... or opct/<path>."
            )
        asked = inspect_model(model, base_url, model_args)
        return LLMJudge(
            RUBRICS[spec],
            asked,
            model_name=described_model(str(asked)),
            model_settings=model_settings(model, base_url, model_args, own_secrets(asked)),
            threshold=threshold,
            settings=settings,
            cache=JudgementCache(cache),
        )
    if Path(spec).is_dir():
        if model is not None:
            raise EvaluationError(f"{spec} is an offline judge, which asks no model: leave {model_option} out.")
        classifier = ReplyClassifier.load(spec)
        rule = refuses if classifier.meaning == "harmful" else None
        return OfflineJudge(classifier, refuses=rule, threshold=0.5 if threshold is None else threshold, folder=spec)
    near = difflib.get_close_matches(spec, RUBRICS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise EvaluationError(
        f"No judge {spec!r}.{hint} The rubrics are {', '.join(RUBRICS)}; anything else is a folder made by "
        "`opct judge train`."
    )


def inspect_model(
    name: str,
    base_url: str | None = None,
    model_args: Mapping[str, Any] | None = None,
    *,
    what: str = "The judge's model",
) -> Model:
    """A model of Inspect; `what` is what a message calls it.

    Raises:
        EvaluationError: there is no such provider, its package or its key is missing, or it cannot be loaded. The
            message holds no key.
    """
    from inspect_ai._util.error import PrerequisiteError
    from inspect_ai.model import get_model

    from opct.evals.inspect_runner import quiet

    for argument in _names(model_args or {}):
        if SECRET_NAME.search(argument.rpartition(".")[2]):
            raise EvaluationError(
                f"The model's argument {argument} looks like a secret: put it into the environment variable that the "
                "provider reads, where no list of processes and no file shows it."
            )
    try:
        with quiet():
            return get_model(name, base_url=base_url, memoize=False, **dict(model_args or {}))
    except PrerequisiteError as error:
        said = _plain(error.message)
    except (ValueError, TypeError, ImportError, OSError, RuntimeError) as error:
        said = str(error)
    raise EvaluationError(
        f"{what} {name} cannot be used: {shortened(said, known_secrets(), most=400)} Name one as "
        "provider/model, with its package installed and its key in the environment."
    )


def _names(arguments: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of arguments, those inside others after a dot: `default_headers.Authorization`."""
    for name, value in arguments.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{name}.")


def _plain(message: Any) -> str:
    """Inspect's message without its colours."""
    from rich.text import Text

    return Text.from_markup(message).plain if isinstance(message, str) else str(message)


def described_model(name: str) -> str:
    """The model's name; of one on this disk with a hash of its weights, since a path may hold others tomorrow."""
    weights = _weights_hash(name.partition("/")[2])
    return name if weights is None else f"{name}@{weights}"


def _weights_hash(path: str) -> str | None:
    """12 hex digits of the weights in a file or folder; None where there are none."""
    found = Path(path)
    files = sorted({file for kind in WEIGHTS for file in found.rglob(kind)}) if found.is_dir() else []
    files = [found] if found.is_file() else files
    return digest([[file.name, file_sha256(file)] for file in files])[:12] if files else None


def model_settings(
    model: str,
    base_url: str | None = None,
    model_args: Mapping[str, Any] | None = None,
    secrets: Collection[str] = (),
) -> dict[str, Any]:
    """What besides its name says which model answers: the endpoint's address and the arguments, without secrets.

    The address is the one given, or that which the provider takes from the environment. Of a `model_path` on this disk
    there is the hash of its weights instead of the path: `hf/local` is the name of every such model.

    Raises:
        EvaluationError: an argument is no value of JSON, so that it names nothing that could be told from another.
    """
    url = base_url or _url_of_environment(model)
    arguments = {name: _named(name, value, secrets) for name, value in (model_args or {}).items()}
    found = {"base_url": _without_secrets(url, secrets) if url else None, "model_args": arguments or None}
    return {name: value for name, value in found.items() if value is not None}


def endpoint_address(model: str, base_url: str | None = None) -> str | None:
    """Where a model is asked, as a person may read it: without user, password, query and known secrets; None where
    that is the provider's own address.

    Args:
        model: as Inspect names it.
        base_url: the address given; without one, that which the provider takes from the environment.
    """
    url = base_url or _url_of_environment(model)
    return _without_secrets(url, known_secrets()).partition("?")[0] if url else None


def _url_of_environment(model: str) -> str | None:
    """Where the provider finds its endpoint when it is not told; None where that is its own."""
    provider, _, name = model.partition("/")
    service = name.partition("/")[0] if provider == "openai-api" else provider
    variables = (f"{service.upper().replace('-', '_')}_BASE_URL", "INSPECT_EVAL_MODEL_BASE_URL")
    return next((value for variable in variables if (value := os.environ.get(variable))), None)


def _without_secrets(url: str, secrets: Collection[str]) -> str:
    """The address as it is compared: no user, password or parameter that is named like a secret, no last slash."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    query = [
        (key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if not SECRET_NAME.search(key)
    ]
    host, path = parts.netloc.rpartition("@")[2].lower(), parts.path.rstrip("/")
    for secret in secrets:
        path = path.replace(secret, "[secret]")
    return urlunsplit((parts.scheme.lower(), host, path, urlencode(query), ""))


def _named(name: str, value: Any, secrets: Collection[str]) -> Any:
    """An argument as the identity has it."""
    if isinstance(value, Mapping):
        return {str(key): _named(f"{name}.{key}", inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_named(name, inner, secrets) for inner in value]
    if name == "model_path" and (weights := _weights_hash(str(value))) is not None:
        return f"weights {weights}"
    if isinstance(value, str | Path | datetime.date):
        text = str(value)
        shown = redact(text, secrets)
        return text if shown == text else f"{shown} ({digest(text)[:8]})"  # told from others all the same
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise EvaluationError(
        f"The model's argument {name} is a {type(value).__name__}, which does not tell this judge from another: give "
        "text, numbers, lists or mappings of them, or make an LLMJudge with a model_name of its own."
    )

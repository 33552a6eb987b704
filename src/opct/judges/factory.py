"""Creates a judge from settings, and names its model."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from opct.config.judge import JudgeConfig
from opct.errors import EvaluationError, unknown
from opct.judges.classifier import OfflineJudge, ReplyClassifier
from opct.judges.client import known_secrets, load_inspect_model, own_secrets, redact
from opct.judges.llm import LLMJudge
from opct.judges.protocol import digest
from opct.judges.rubrics import RUBRICS
from opct.runs.io import file_sha256

if TYPE_CHECKING:
    from inspect_ai.model import Model

SECRET_NAME = re.compile(r"key|token$|secret|password|credential|cookie|authorization|(?:^|[-_])auth$", re.IGNORECASE)
WEIGHTS = ("*.safetensors", "*.gguf", "*.bin")


def load_judge(config: JudgeConfig, *, cache: str | Path | None = None) -> LLMJudge | OfflineJudge:
    """Load the judge of the settings: a rubric with a model, or a folder made by `opct judge train`.

    Args:
        cache: file for the results of an LLM judge.

    Raises:
        EvaluationError: there is no such judge or model, or it cannot be loaded.
    """
    rubric = RUBRICS.get(config.name)
    if rubric is not None:
        if config.model is None:
            raise EvaluationError(
                f"The judge {config.name} is a rubric and needs a model (--model, judge.model), such as "
                "openai/gpt-4o-mini, vllm/..., hf/... or opct/<path>."
            )
        model, name, address = open_model(config.model, config.base_url, config.model_args, what="The judge's model")
        return LLMJudge(rubric, model, config, name=name, address=address, cache=cache)
    if not Path(config.name).is_dir():
        known = unknown("judge", config.name, list(RUBRICS))
        raise EvaluationError(f"{known} Otherwise give a folder made by `opct judge train`.")
    if config.model is not None:
        raise EvaluationError(f"{config.name} is an offline judge, which uses no model: leave the model out.")
    return OfflineJudge(ReplyClassifier.load(config.name), threshold=config.threshold or 0.5, folder=config.name)


def open_model(
    name: str, base_url: str | None, model_args: Mapping[str, Any], *, what: str
) -> tuple[Model, str, dict[str, Any]]:
    """The Inspect model, its name with a hash of local weights, and its address and arguments without secrets.

    Raises:
        EvaluationError: the model cannot be loaded, or an argument looks like a secret.
    """
    for argument in _argument_names(model_args):
        if SECRET_NAME.search(argument.rpartition(".")[2]):
            raise EvaluationError(
                f"The model's argument {argument} looks like a secret: put it into the provider's environment variable "
                "instead, where process lists and files do not show it."
            )
    model = load_inspect_model(name, base_url, model_args, what=what)
    secrets, url = own_secrets(model), base_url or _url_of_environment(name)
    arguments = {key: _public(key, value, secrets) for key, value in model_args.items()}
    found = {"base_url": _public_url(url, secrets) if url else None, "model_args": arguments or None}
    weights = _weights_hash(str(model).partition("/")[2])  # the files at a path may change
    named = str(model) if weights is None else f"{model}@{weights}"
    return model, named, {key: value for key, value in found.items() if value is not None}


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
    found = Path(path)
    files = sorted({file for kind in WEIGHTS for file in found.rglob(kind)}) if found.is_dir() else []
    files = [found] if found.is_file() else files
    return digest([[file.name, file_sha256(file)] for file in files])[:12] if files else None


def _url_of_environment(model: str) -> str | None:
    """The endpoint that the provider takes from the environment."""
    provider, _, name = model.partition("/")
    service = name.partition("/")[0] if provider == "openai-api" else provider
    variables = (f"{service.upper().replace('-', '_')}_BASE_URL", "INSPECT_EVAL_MODEL_BASE_URL")
    return next((value for variable in variables if (value := os.environ.get(variable))), None)


def _public_url(url: str, secrets: Collection[str]) -> str:
    """The address without user, password, secret parameters and the last slash."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    query = [(key, value) for key, value in parse_qsl(parts.query, True) if not SECRET_NAME.search(key)]
    host, path = parts.netloc.rpartition("@")[2].lower(), parts.path.rstrip("/")
    for secret in secrets:
        path = path.replace(secret, "[secret]")
    return urlunsplit((parts.scheme.lower(), host, path, urlencode(query), ""))

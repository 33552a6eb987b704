"""From what a person names to a judge: a rubric with a model, or the folder of a trained classifier."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.errors import EvaluationError
from opct.evals.judging.asking import LLMJudge
from opct.evals.judging.asking_settings import AskingSettings
from opct.evals.judging.cache import JudgementCache
from opct.evals.judging.classifier import ReplyClassifier
from opct.evals.judging.endpoint import known_secrets, shortened
from opct.evals.judging.offline import OfflineJudge, Refuses
from opct.evals.judging.protocol import digest
from opct.evals.judging.rubrics import RUBRICS
from opct.files import file_sha256

if TYPE_CHECKING:
    from inspect_ai.model import Model

SECRET_NAME = re.compile(r"key|token$|secret|password", re.IGNORECASE)
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

    Raises:
        EvaluationError: there is no such judge or model, or it cannot be loaded.
    """
    if threshold is not None and not 0.0 < threshold <= 1.0:
        raise EvaluationError(f"The threshold of a judge is {threshold}: use a number above 0 and at most 1.")
    if spec in RUBRICS:
        if model is None:
            raise EvaluationError(
                f"The judge {spec} is a rubric that a model is asked by: name the model with --model, such as "
                "openai/gpt-4o-mini, vllm/..., hf/... or opct/<path>."
            )
        asked = inspect_model(model, base_url, model_args)
        return LLMJudge(
            RUBRICS[spec],
            asked,
            model_name=described_model(str(asked)),
            threshold=threshold,
            settings=settings,
            cache=JudgementCache(cache),
        )
    if Path(spec).is_dir():
        if model is not None:
            raise EvaluationError(f"{spec} is an offline judge, which asks no model: leave --model out.")
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

    from opct.evals.inspecting import quiet

    for argument in model_args or {}:
        if SECRET_NAME.search(argument):
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


def _plain(message: Any) -> str:
    """Inspect's message without its colours."""
    from rich.text import Text

    return Text.from_markup(message).plain if isinstance(message, str) else str(message)


def described_model(name: str) -> str:
    """The model's name; of one on this disk with a hash of its weights, since a path may hold others tomorrow."""
    path = Path(name.partition("/")[2])
    files = sorted({file for kind in WEIGHTS for file in path.rglob(kind)}) if path.is_dir() else []
    files = [path] if path.is_file() else files
    if not files:
        return name
    return f"{name}@{digest([[file.name, file_sha256(file)] for file in files])[:12]}"

"""What of an attack's result goes into a report, which is made to be passed on.

These are its numbers and what says how they came about; no folder of a person's disk, and no address of an endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

RESULT = ("rows", "curve", "budget", "judge_usage", "ended")
MODEL = ("where", "has_adapter", "weights", "template_hash", "dtype", "max_tokens", "temperature", "top_p")
THINKING = ("thinking_tags", "template_opens_thinking")
JUDGE = ("name", "model", "rubric", "label", "threshold", "hash", "calibration", "warning")
SETTINGS = ("source", "rules", "twin_rules", "behaviors", "twins", "pool")
TRAINING = (
    *("steps", "queries", "trained_on", "settings", "spent", "judge_usage", "curve", "unscored_episodes"),
    *("steps_played_twice", "queries_played_twice", "steps_cut_short", "queries_cut_short_at_most"),
)


def numbers_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """What of a result is in the report's JSON. Of an attacker of one's own it is all that it says of itself."""
    settings, attacker, training = result["settings"], result["attacker"], result.get("training")
    said = {name: result.get(name) for name in RESULT}
    said["training"] = None if training is None else _those(training, TRAINING)
    said["target"] = _model(result["target"])
    is_model = isinstance(attacker.get("model"), Mapping)
    said["attacker"] = dict(attacker) | ({"model": _model(attacker["model"])} if is_model else {})
    said["judge"] = _judge(result["judge"])
    twin_judge = settings.get("twin_judge")
    said["settings"] = _those(settings, SETTINGS) | ({"twin_judge": _judge(twin_judge)} if twin_judge else {})
    return said


def without_folders(name: str) -> str:
    """A model's name as it may be passed on: of a path outside of the working folder its last part, with Inspect's
    provider before it; the name of a model on a hub, and a path within the working folder, as they are.
    """
    provider, _, path = name.partition("/")
    if _is_path(name):
        return PurePath(name).name or name
    return f"{provider}/{PurePath(path).name}" if _is_path(path) else name


def judge_name(judge: Mapping[str, Any]) -> str:
    """A judge and its model: "strongreject (openai/gpt-4o)"."""
    return f"{judge['name']} ({without_folders(str(judge['model']))})"


def _is_path(name: str) -> bool:
    return name.startswith(("/", ".", "~"))


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: without_folders(str(model[name])) for name in ("source", "model") if name in model}
    return named | _those(model, (*MODEL, *THINKING))


def _judge(judge: Mapping[str, Any]) -> dict[str, Any]:
    return _those(judge, JUDGE) | {"model": without_folders(str(judge["model"]))}


def _those(of: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: of[name] for name in names if name in of}

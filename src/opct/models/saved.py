"""The policy that a path stands for, where only a path is given: `inspect eval TASK --model opct/<path>`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from opct.config import ModelConfig
from opct.config_file import load_config
from opct.errors import ModelError
from opct.runs import RunDir

if TYPE_CHECKING:
    from opct.models.policy import Policy


def load_policy(path: str, **settings: Any) -> Policy:
    """Load the newest checkpoint of a run directory, a PEFT adapter with its base, or a model.

    Args:
        path: a run directory, the folder of an adapter, or whatever `model.name_or_path` may be.
        settings: of `opct.config.ModelConfig`, such as `dtype` and `device`; over those of the run.

    Raises:
        ModelError: a setting is not one of a model, or the run has no checkpoint.
    """
    from opct.models.policy import Policy

    run, folder = RunDir(path), Path(path)
    if run.is_run:
        config = load_config(run.config_path).model
        checkpoint = run.latest_checkpoint()
        if checkpoint is None:
            raise ModelError(f"{path} has no checkpoint to evaluate: train it first (`opct train ... --resume`).")
        if (checkpoint / "adapter").is_dir():
            return Policy.load(_with(config.model_dump() | {"adapter": str(checkpoint / "adapter")}, settings))
        return Policy.load(
            _with(config.model_dump() | {"name_or_path": str(checkpoint / "model"), "adapter": None}, settings)
        )
    if (folder / "adapter_config.json").is_file():
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
        return Policy.load(_with({"name_or_path": base, "adapter": path}, settings))
    return Policy.load(_with({"name_or_path": path}, settings))


def _with(config: dict[str, Any], settings: dict[str, Any]) -> ModelConfig:
    try:
        return ModelConfig(**(config | settings))
    except ValidationError as error:
        first = error.errors()[0]
        raise ModelError(
            f"Model setting {'.'.join(map(str, first['loc']))}={first['input']!r}: {first['msg']}. "
            f"Known settings: {', '.join(ModelConfig.model_fields)}."
        ) from error

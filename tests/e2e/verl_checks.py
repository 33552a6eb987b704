"""verl's own checks of our configuration, in verl's interpreter, for test_verl.py; prints JSON.

python -m tests.e2e.verl_checks CONFIG.yaml '[["NAME=VALUE", ...], ...]'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opct.config.loader import load_config
from opct.errors import ConfigError
from opct.integrations import verl
from opct.models.loading import load_renderer
from opct.training.setup import load_data


def unknown(settings: Mapping[str, Any], defaults: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Settings that verl's files do not have."""
    for name, value in settings.items():
        if name not in defaults:
            yield at + name
        elif isinstance(value, Mapping) and defaults[name]:
            yield from unknown(value, defaults[name], f"{at}{name}.")


def outcome(path: str, overrides: list[str]) -> dict[str, Any]:
    config = load_config(path, overrides)
    settings = verl.settings_of(config, load_data(config), load_renderer(config.model), Path("/tmp"), resume=False)
    merged = verl.composed(settings, config.verl.overrides)
    try:
        verl.validate(merged)
    except ConfigError as error:
        return {"refused": str(error)}
    return {"unknown": list(unknown(settings, verl.composed({}, ())))}


if __name__ == "__main__":
    print(json.dumps([outcome(sys.argv[1], overrides) for overrides in json.loads(sys.argv[2])]))

"""`opct config`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from opct.cli.options import Preset, settings_words

app = typer.Typer(
    help="Print all training settings with their defaults, the presets, or the JSON schema.", no_args_is_help=True
)


@app.command("show")
def show(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Settings, after a config file if you have one."),
    ] = None,
    preset: Preset = None,
) -> None:
    """Print every setting of a training, with its value, as YAML.

    Settings that are not given have their defaults. The output is a config file itself.
    """
    from opct.config.commented import commented_yaml
    from opct.methods.registry import load_training_config
    from opct.runs.console import echo

    path, overrides = settings_words(settings or [], {})
    echo(commented_yaml(load_training_config(path, overrides, preset)).strip())


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of a config file, for editors."""
    from opct.config.loader import config_schema

    print(json.dumps(config_schema(), indent=2, ensure_ascii=False))


@app.command("presets")
def presets() -> None:
    """Print the presets with their source and settings, as YAML."""
    import yaml

    from opct.config.presets import PRESETS

    shown = {name: {"source": preset.source, "settings": preset.settings} for name, preset in PRESETS.items()}
    print(yaml.safe_dump(shown, sort_keys=False, width=100), end="")

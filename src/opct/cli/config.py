"""`opct config`."""

from __future__ import annotations

import json

import typer

app = typer.Typer(help="Print the schema of a config file, or the presets.", no_args_is_help=True)


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

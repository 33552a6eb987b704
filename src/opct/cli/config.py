"""`opct config`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from opct.cli.options import App, Preset, settings_words
from opct.errors import ConfigError
from opct.runs.console import echo

if TYPE_CHECKING:
    from pydantic import BaseModel

app = App(help="Print all settings, the presets or the JSON schema.", no_args_is_help=True)


@app.command("show")
def show(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Settings, after a config file if you have one.")
    ] = None,
    of: Annotated[Literal["train", "eval", "attack"], typer.Option(help="Command whose settings to print.")] = "train",
    preset: Preset = None,
) -> None:
    """Print every setting with its value, as YAML.

    The settings are those of a training, an evaluation or an attack; those that are not given have their defaults. The
    output is a config file itself.

    \b
    Examples:
      opct config show mine.yaml optim.learning_rate=1e-4
      opct config show --of eval
    """
    from opct.config.commented import commented_yaml

    path, overrides = settings_words(settings or [], {})
    if preset is not None and of != "train":
        raise ConfigError(f"--preset is for the settings of training, not of {of}: leave it out.")
    if of == "train":
        from opct.config.loader import load_config

        loaded: BaseModel = load_config(path, overrides, preset)
    elif of == "eval":
        from opct.config.loader import load_settings
        from opct.evals.config import EvalConfig

        loaded = load_settings(EvalConfig, path, overrides)
    else:
        from opct.attack.run import load_attack_config

        loaded = load_attack_config(path, overrides)
    print(commented_yaml(loaded).strip())  # not broken into lines: it can be copied


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of a config file, for editors.

    \b
    Examples:
      opct config schema
      opct config schema > opct.schema.json
    """
    from opct.config.loader import config_schema

    print(json.dumps(config_schema(), indent=2, ensure_ascii=False))


@app.command("presets")
def presets() -> None:
    """Print the presets with their source and settings, as YAML.

    \b
    Examples:
      opct config presets
      opct train configs/paper.yaml --preset paper_released --dry-run
    """
    import yaml

    from opct.config.presets import PRESETS

    shown = {name: {"source": preset.source, "settings": preset.settings} for name, preset in PRESETS.items()}
    print(yaml.safe_dump(shown, sort_keys=False, width=100), end="")


def configs() -> None:
    """List the configs that come with opct.

    `opct init --from NAME` writes one.

    \b
    Examples:
      opct configs
    """
    from opct.config.packaged import PACKAGED, described

    width = max(map(len, PACKAGED))
    for name in PACKAGED:
        command, what = described(name)
        echo(f"{name:{width}}  {command.split()[1]:10}  {what}")

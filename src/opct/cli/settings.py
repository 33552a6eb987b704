"""Options of everything that asks a judge, and `name=value` assignments."""

from __future__ import annotations

from typing import Annotated, Any

import typer

BaseUrl = Annotated[str | None, typer.Option(metavar="URL", help="Of the model's endpoint, where it is another.")]
ModelArg = Annotated[
    list[str] | None, typer.Option("--model-arg", metavar="NAME=VALUE", help="Of its provider; repeatable.")
]
Threshold = Annotated[
    float | None, typer.Option(metavar="SCORE", help="From which score on the verdict is yes; by default 0.5.")
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="How the model is asked: temperature=0, retries=2 ...; repeatable."
    ),
]


def assigned(assignments: list[str], option: str) -> dict[str, Any]:
    """`name=value` assignments, the values read as YAML; dates stay text. A message names no value: it may be a key."""
    import datetime

    import yaml

    found: dict[str, Any] = {}
    for number, assignment in enumerate(assignments, start=1):
        name, equals, text = assignment.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"number {number} of these is not NAME=VALUE", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):  # a date that there is not is a ValueError
            wanted = f"the value of {name} is not YAML: write {name}='\"...\"'"
            raise typer.BadParameter(wanted, param_hint=option) from None
        found[name] = text if isinstance(value, datetime.date) else value
    return found

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
    """`name=value` assignments, the values read as YAML."""
    import yaml

    found: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise typer.BadParameter(f"{assignment!r}: the value is not YAML", param_hint=option) from error
        if not (name and equals):
            raise typer.BadParameter(f"{assignment!r} is not NAME=VALUE", param_hint=option)
    return found

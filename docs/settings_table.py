"""Writes the table of settings in docs/config.md from the settings themselves; a test holds both equal.

python docs/settings_table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from opct.config.schema import Section, TrainConfig

PAGE = Path(__file__).with_name("config.md")
BEGIN, END = "<!-- settings:begin -->\n", "<!-- settings:end -->\n"


def settings_table() -> str:
    """Every setting as Markdown tables, one a section."""
    parts = []
    for title, section, prefix in [("Run", TrainConfig, ""), *_sections()]:
        rows = [_row(prefix + name, field) for name, field in section.model_fields.items() if not _inner(field)]
        text = " ".join((section.__doc__ or "").split())
        parts.append("\n".join([f"## {title}", "", text, "", "| setting | default | |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def page() -> str:
    """docs/config.md with the table as it must be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + settings_table() + "\n" + END + after


def _sections() -> list[tuple[str, type[Section], str]]:
    found = [(name, _inner(field)) for name, field in TrainConfig.model_fields.items()]
    return [(f"`{name}`", section, f"{name}.") for name, section in found if section is not None]


def _inner(field: Any) -> type[Section] | None:
    types = (field.annotation, *get_args(field.annotation))
    return next((t for t in types if isinstance(t, type) and issubclass(t, Section)), None)


def _row(name: str, field: Any) -> str:
    words = [field.description]
    options = _options(field.annotation)
    if options and not all(f"`{option}`" in words[0] for option in options):
        words.append("One of " + ", ".join(f"`{option}`" for option in options) + ".")
    text = " ".join(words).replace("|", "\\|")
    return f"| `{name}` | `{json.dumps(field.default, ensure_ascii=False)}` | {text} |"


def _options(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(option) for option in get_args(annotation)]
    return [option for part in get_args(annotation) if part is not NoneType for option in _options(part)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""Settings as YAML with their descriptions as comments: the file of `opct init`, and `opct config show`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from opct.config.loader import CoreDumper

FIRST = (
    *("method", "output_dir", "seed", "max_steps", "num_train_epochs", "report_to", "model.name_or_path", "lora.r"),
    *("data.pairs", "data.anchors", "rollout.num_generations", "rollout.max_completion_tokens"),
    *("optim.learning_rate", "optim.prompts_per_step", "optim.micro_batch_tokens"),
)
"""The training settings that people change first."""
WIDTH = 100


def commented_yaml(
    settings: BaseModel, *, only: Collection[str] | None = None, given: Collection[str] | None = None
) -> str:
    """The settings as YAML, each under its description; the loader reads back equal settings.

    Args:
        only: dotted names of the settings to write. None: all.
        given: dotted names of those that are set; the others are comments (`#seed: 0`). None: all are set.
    """
    return "".join(f"{line}\n" for line in _lines(settings, "", only, given))


def _lines(
    section: BaseModel, prefix: str, only: Collection[str] | None, given: Collection[str] | None
) -> Iterator[str]:
    values = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        dotted, inner = prefix + name, getattr(section, name)
        if isinstance(inner, BaseModel):
            lines = list(_lines(inner, f"{dotted}.", only, given))
            if lines:
                is_set = given is None or any(one.startswith(f"{dotted}.") for one in given)
                yield from ("", *_comment(inner.__doc__ or ""), f"{name}:" if is_set else f"#{name}:")
                yield from (f"  {line}" for line in lines)
        elif only is None or dotted in only:
            yield from _comment(field.description or "")
            yield ("" if given is None or dotted in given else "#") + _assignment(name, values[name])


def _assignment(name: str, value: Any) -> str:
    """`name: value` in one line."""
    # flow style keeps lists and dicts on the line; the braces are those of the one-item dict
    text = yaml.dump({name: value}, Dumper=CoreDumper, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.strip()[1:-1]


def _comment(text: str) -> list[str]:
    """A description as comment lines; links to the docs become their paths."""
    plain = re.sub(r"\[([^]]+)\]\(([^)]+)\)", r"\1 (docs/\2)", " ".join(text.split()))
    return textwrap.wrap(plain, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)

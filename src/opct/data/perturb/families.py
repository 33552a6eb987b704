"""Families: the ways to perturb a prompt, their splits, and the selection by a setting."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_up
from itertools import zip_longest
from typing import Any, Generic, Literal, TypeVar

from opct.data.tables import EMBEDDED
from opct.errors import DataError, unknown

Template = TypeVar("Template")
FAMILY_GROUPS = ("all", "train", "held_out")


@dataclass(frozen=True)
class Family(Generic[Template]):
    """One way to perturb a prompt.

    Attributes:
        split: train, or held_out: only ever measured on.
        templates: its wordings; none if they come from a file.
    """

    name: str
    split: Literal["train", "held_out"]
    description: str
    templates: tuple[Template, ...] = ()


Families = Mapping[str, Family[Any]]


def read_wording(axis: str) -> dict[str, Any]:
    """The embedded wording of an axis, `data/builtin/wording/AXIS.json`: its `families`, and what else it draws from.

    Embedded pairs are drawn from these lists in their order: another text, or another place of it, is another pair.
    """
    return json.loads((EMBEDDED / "wording" / f"{axis}.json").read_text(encoding="utf-8"))


def families_of(wording: Mapping[str, Any], template: Callable[..., Template]) -> dict[str, Family[Template]]:
    """The families of a wording by name, in the order of the file; `template` as in `templates_of`."""
    return {
        name: Family(name, entry["split"], entry["description"], templates_of(entry["templates"], template))
        for name, entry in wording["families"].items()
    }


def templates_of(written: Iterable[Any], template: Callable[..., Template]) -> tuple[Template, ...]:
    """Templates as a file has them: a dict of the fields of `template`, or its first field alone; lists are tuples."""
    return tuple(template(**one) if isinstance(one, dict) else template(one) for one in map(_fixed, written))


def _fixed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _fixed(inner) for name, inner in value.items()}
    return tuple(value) if isinstance(value, list) else value


def chosen_families(
    setting: str | Iterable[str], families: Families, axis: str, *, in_groups: Families | None = None
) -> list[str]:
    """The names that a setting selects, each once.

    Args:
        setting: groups (`all`, `train`, `held_out`) and names, with commas or as several texts.
        axis: whose families they are, for messages.
        in_groups: the families that groups stand for; all by default.

    Raises:
        DataError: a name is unknown (the message has the nearest one), or there is none.
    """
    if isinstance(setting, str):
        # `or [setting]`: of "" or "," the message names what was given
        setting = [part for name in setting.split(",") if (part := name.strip())] or [setting]
    names: list[str] = []
    for choice in setting:
        if choice not in (*FAMILY_GROUPS, *families):
            raise DataError(unknown(f"{axis} family or group of families", choice, [*FAMILY_GROUPS, *families]))
        grouped = families if in_groups is None else in_groups
        in_group = [name for name, family in grouped.items() if choice in ("all", family.split)]
        # the name first: a family may be called as a group is
        names += [choice] if choice in families else in_group
    if not names:
        raise DataError(
            f"No {axis} family is given: name at least one of {', '.join(families)}, or leave out what needs one."
        )
    # each once, in order: a rotation depends on the order
    return list(dict.fromkeys(names))


def rotation(names: Sequence[str], count: int | None, setting: str, *, key: str | None = None) -> Iterator[list[str]]:
    """`count` families for one item after another (None: all), so that each occurs equally often to within one.

    Args:
        setting: that gives the count, for messages.
        key: fixes where the rotation starts; at the first family without one.

    Raises:
        DataError: the count is not from 1 to the number of families.
    """
    size = len(names) if count is None else count
    if not 1 <= size <= len(names):
        raise DataError(f"{setting} is {size}, with {len(names)} families ({', '.join(names)}): use 1 to {len(names)}.")
    start = 0 if key is None else random.Random(key).randrange(len(names))
    # i * size: each item goes on where the last one ended, else the families in the middle would come more often
    return ([names[(start + i * size + j) % len(names)] for j in range(size)] for i in count_up())


def alternating(names: Sequence[str], families: Families) -> list[str]:
    """Training and held-out families in turn, so that two in a row are one of each as long as there are both."""
    train = [name for name in names if families[name].split == "train"]
    held_out = [name for name in names if families[name].split == "held_out"]
    return [name for pair in zip_longest(train, held_out) for name in pair if name is not None]

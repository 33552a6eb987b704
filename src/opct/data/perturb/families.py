"""Which families a setting stands for, on any axis: a group of them, a name, or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opct.errors import DataError, unknown

FAMILY_GROUPS = ("all", "train", "held_out")


def named_families(families: str | Iterable[str], splits: Mapping[str, str], axis: str) -> list[str]:
    """The names of a group, of a text with commas, or of a sequence, each once and in their order.

    Args:
        splits: the split of each family that there is.
        axis: whose families they are, for the message.

    Raises:
        DataError: a name is no family; the message has the nearest one.
    """
    if isinstance(families, str) and families in FAMILY_GROUPS:
        return [name for name, split in splits.items() if families in ("all", split)]
    if isinstance(families, str):
        names = [part for name in families.split(",") if (part := name.strip())] or [families]
    else:
        names = list(families)
    for name in names:
        if name not in splits:
            raise DataError(unknown(f"{axis} family or group of families", name, [*FAMILY_GROUPS, *splits]))
    return list(dict.fromkeys(names))

"""Whether a run, an evaluation or an attack is the one that a folder holds.

Who writes one stores its `Identity` beside it; who resumes one compares that with what it would be now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from opct.errors import shorten

LONGEST = 200
"""Characters of a value in a line: two paths may share a long beginning."""


class Identity(dict[str, Any]):
    """The values that make a thing what it is, by name, nested or not; a value that is null is the same as none."""

    def __init__(self, values: Mapping[str, Any]):
        super().__init__(to_jsonable_python(dict(values)))  # a tuple equals the list that comes back from a file

    def differing(self, now: Mapping[str, Any], ignore: Iterable[str] = ()) -> dict[str, tuple[Any, Any]]:
        """The value before and now of everything that differs, by dotted name.

        Args:
            ignore: dotted names of values, or of everything below them.
        """
        free = tuple(f"{name}." for name in ignore)
        before, after = dict(_flat(self)), dict(_flat(Identity(now)))
        # a name on one side alone equals null on the other: a setting that is new and off is no difference
        pairs = {name: (before.get(name), after.get(name)) for name in before | after}
        # with the dot at the end, `seed` does not ignore `seeds`
        return {name: (a, b) for name, (a, b) in pairs.items() if a != b and not f"{name}.".startswith(free)}

    def diff(self, now: Mapping[str, Any], ignore: Iterable[str] = ()) -> list[str]:
        """A line for everything that differs: "rules.episodes: 2 then, 3 now"."""
        differing = self.differing(now, ignore).items()
        return [f"{name}: {shorten(a, LONGEST)} then, {shorten(b, LONGEST)} now" for name, (a, b) in differing]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:  # an empty one is a value: `{}` may not mean what null does
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value

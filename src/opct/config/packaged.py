"""The configs that come with opct: `opct configs` lists them, `opct init --from NAME` writes one."""

from __future__ import annotations

import re
from importlib import resources
from itertools import takewhile
from pathlib import Path

PACKAGED = {path.stem: path for path in sorted((Path(str(resources.files("opct"))) / "configs").glob("*.yaml"))}
"""By name. In a clone the links in `configs/` lead to them."""


def described(name: str) -> tuple[str, str]:
    """What a packaged config is given to, and what it does: both are in the comment that it begins with."""
    comment = takewhile(lambda line: line.startswith("# "), PACKAGED[name].read_text(encoding="utf-8").splitlines())
    command, *what = (line.removeprefix("# ") for line in comment)
    return command, re.split(r"[.:;](?:\s|$)", " ".join(what))[0]

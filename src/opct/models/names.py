"""What can be said of a model's name before torch is imported."""

from __future__ import annotations

import os
from pathlib import Path

from opct.errors import ModelError
from opct.runs.io import did_you_mean, names_in
from opct.runs.run_dir import MANIFEST


def check_path(name: str | None) -> None:
    """Raise ModelError for a name that can only be a path, and where nothing is; it has the nearest name beside it."""
    if name is None or os.path.exists(name) or not _is_path(name):
        return
    what = "GGUF file at" if name.endswith(".gguf") else "folder"
    raise ModelError(
        f"There is no {what} {name}: check the path.{did_you_mean(name)} A model on the hub is `owner/name`."
    )


def name_one_inside(folder: Path) -> str:
    """The remedy ` Name one of ...` for a folder whose subfolders are runs, or adapters; empty where none is."""
    for what, file in (("runs", MANIFEST), ("adapters", "adapter_config.json")):
        if inside := sorted(str(path.parent) for path in folder.glob(f"*/{file}")):
            return f" Name one of the {what} in it: {', '.join(inside)}."
    return ""


def _is_path(name: str) -> bool:
    """True for a name that cannot be a hub id (`./a`, `/a`, `a/b/c`, `a.gguf`), and for `runs/a` beside runs."""
    if name.startswith((".", "/", "~")) or name.endswith(".gguf") or name.count("/") > 1:
        return True
    beside = Path(name).parent
    return "/" in name and any((beside / other / MANIFEST).is_file() for other in names_in(beside))

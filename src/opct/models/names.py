"""Whether a model's name can mean anything here, told before anything is fetched or loaded."""

from __future__ import annotations

import difflib
import socket
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from opct.config.schema import DEFAULT_MODEL
from opct.errors import ModelError
from opct.runs.run_dir import RunDir

NEAR = 0.7
"""How alike a name must be to one of the package's own to be taken for a slip (`difflib`, 0 to 1)."""


def check_folder(name: str) -> None:
    """Refuse what is no folder and no `.gguf` file, and cannot be a model of the hub either. The hub is not asked.

    Raises:
        ModelError: it is a path and nothing is there, or a slip in the name of the package's own model.
    """
    if name == DEFAULT_MODEL or Path(name).exists():
        return
    if name.endswith(".gguf"):
        raise ModelError(f"No GGUF file at {name}: check the path.")
    if _means_a_folder(name):
        raise ModelError(f"There is no folder {name}: check the path. A model on the hub is `owner/name`.")
    if "/" not in name and difflib.get_close_matches(name.lower(), [DEFAULT_MODEL], cutoff=NEAR):
        raise ModelError(
            f"There is no folder {name}. Did you mean {DEFAULT_MODEL!r}? A model on the hub is `owner/name`."
        )


def check_name(name: str) -> None:
    """As `check_folder`, and refuse what could only be on the hub where the hub cannot be reached: its client asks for
    file after file, five times each, before it says so.

    Raises:
        ModelError: it cannot be loaded.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    check_folder(name)
    is_here = name == DEFAULT_MODEL or Path(name).exists()
    if is_here or constants.HF_HUB_OFFLINE or _is_proxied():  # offline its client says so at once
        return
    if (Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")).is_dir():
        return
    host = urlsplit(constants.ENDPOINT).hostname or ""
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        raise ModelError(
            f"There is no folder {name} here, no model of the hub was fetched by that name before, and {host} cannot "
            f"be reached to look for one ({error.strerror}). Check the name, or the network. Without one there is "
            f"{DEFAULT_MODEL!r}, or a folder with a model."
        ) from error


def _is_proxied() -> bool:
    """Whether another machine may look the hub up; `no_proxy` alone names none."""
    return not {"http", "https", "all"}.isdisjoint(urllib.request.getproxies())


def _means_a_folder(path: str) -> bool:
    """True for what cannot be a hub id (`./a`, `/a`, `a/b/c`), and for `runs/a` beside other runs."""
    beside = Path(path).parent.glob("*/manifest.json") if "/" in path else ()
    return path.startswith((".", "/", "~")) or path.count("/") > 1 or any(RunDir(p.parent).is_run for p in beside)

"""Environment of a run: package versions, git commit, hardware and command, without secrets."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from opct.redaction import redact_named

PACKAGES = (
    "opct",
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "accelerate",
    "safetensors",
    "datasets",
    "inspect-ai",
    "numpy",
    "pydantic",
)


@cache
def package_versions() -> dict[str, str | None]:
    """Version of Python, of this package and of its main dependencies; None where one is not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


@cache
def git_commit() -> str | None:
    """Commit of the checkout this package runs from, with `-dirty` if tracked files differ; None outside a checkout.

    Looked up once in a process, whose code stays the same.

    A package installed into an environment that merely lies inside some repository is not tracked there: None.
    """
    folder = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except (FileNotFoundError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # before `describe`, which would name the commit of any repository around an installation
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")


def hardware() -> dict[str, Any]:
    """Operating system, processor, cores this process may use, memory in GiB, and accelerators."""
    import psutil
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": cores,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "torch_threads": torch.get_num_threads(),
    }


def command_line(*more: str, without: Sequence[str] = ()) -> str:
    """The command this process was started with, as one shell line, with anything that looks like a secret as `***`;
    with options added to it, and others left out."""
    path, *rest = sys.argv
    rest = [word for word in rest if word not in (*more, *without)] + list(more)
    program = Path(path)
    words = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    # joined first: a secret can follow its name as a word of its own
    return redact_named(shlex.join([*words, *rest]))

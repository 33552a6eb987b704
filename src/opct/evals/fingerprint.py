"""What an evaluation asks and how it grades, so that an earlier one can be told to be the same. No model is needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from opct.evals.run import parted, prepare
from opct.evals.tasks.capability import LM_EVAL_BENCHMARKS, MATH500

if TYPE_CHECKING:
    from inspect_ai import Task

NO_GRADING = frozenset(
    {
        "any_task.py",
        "fingerprint.py",
        "judged.py",
        "judging",
        "registry.py",
        "regrade.py",
        "teacher_check.py",
        "__pycache__",
    }
)
"""What of `opct.evals` no result of our suites depends on; the rest asks, grades or counts."""
GRADED_WITH = {
    MATH500: ("inspect_ai", "latex2sympy2_extended"),
    **dict.fromkeys(LM_EVAL_BENCHMARKS, ("lm_eval",)),
}
"""Packages of others that grade."""


def fingerprint(settings: Mapping[str, Any]) -> dict[str, Any]:
    """By task: its own settings (where its data come from, the hash of its prompt ...), the hash of all its samples
    with what they are graded by, and the versions of packages that grade them.

    Args:
        settings: of `opct.evaluate`, its suites among them.

    Raises:
        EvaluationError, DataError: it cannot be asked; see `opct.evals.run.prepare`.
    """
    asking, _ = parted({name: value for name, value in settings.items() if name != "suites"})
    if settings.get("suites"):
        asking["suites"] = settings["suites"]
    return {task.name: _of_task(task) for task in prepare(**asking).tasks}


def grading_hash() -> str:
    """A hash of the code that asks and grades, 16 hex digits."""
    package = resources.files("opct.evals")
    return content_hash(package, sorted(entry.name for entry in package.iterdir() if entry.name not in NO_GRADING))


def _of_task(task: Task) -> dict[str, Any]:
    digest = hashlib.sha256()
    for sample in task.dataset:
        digest.update(json.dumps(sample.metadata, sort_keys=True, ensure_ascii=False, default=str).encode() + b"\n")
    return {
        "settings": json.loads(json.dumps(task.metadata, default=str)),
        "samples": digest.hexdigest()[:16],
        "graded_with": {name: _version(name) for name in GRADED_WITH.get(task.name, ())},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def content_hash(package: Traversable, names: Iterable[str]) -> str:
    """SHA-256 over files of a package and over all in its folders, by name and content, 16 hex digits."""
    found = hashlib.sha256()
    for name in names:
        for path, content in _files(package.joinpath(name), name):
            found.update(f"{path} {len(content)}\n".encode() + content)
    return found.hexdigest()[:16]


def _files(entry: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of a file, or of each in a folder and those in it; line ends are those of Unix."""
    if entry.is_dir():
        for inner in sorted(entry.iterdir(), key=lambda inner: inner.name):
            yield from () if inner.name == "__pycache__" else _files(inner, f"{name}/{inner.name}")
    elif not entry.name.endswith(".pyc"):
        yield name, entry.read_bytes().replace(b"\r\n", b"\n")

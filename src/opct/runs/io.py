"""Files that are whole or absent: atomic writes, appended JSON lines that survive `kill -9`, streamed hashes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from opct.errors import RunError

PRIVATE_MODE = 0o600
"""Of a file that its owner alone may read."""


def atomic_write(path: str | Path, content: bytes | str, *, mode: int = 0o666) -> None:
    """Write a file so that a reader, a crash or a full disk sees the old content or the new, never a part.

    Args:
        mode: who may do what with it, from its first byte on, less what the process masks.

    Raises:
        RunError: the file could not be written; the old content is untouched.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_folder(path.parent)
    except OSError as error:
        raise RunError(f"Cannot write {path}: {reason(error)}. {remedy(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    atomic_write(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def write_jsonl(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines, atomically."""
    atomic_write(path, b"".join(_line(path, row) for row in rows))


def append_jsonl(path: str | Path, *rows: Mapping[str, Any], fsync: bool = False) -> None:
    """Append rows as lines, all in one write. A torn last line (left by a kill) is removed first.

    Raises:
        RunError: a row holds a number that JSON does not know (NaN, infinite), or the file cannot be written.
    """
    path = Path(path)
    lines = b"".join(_line(path, row) for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b", buffering=0) as file:
            start = _repair_end(file)
            if file.write(lines) != len(lines):  # a full disk may take a part
                file.truncate(start)
                raise RunError(f"Cannot write {path}: the disk took only a part of a line. Free some space.")
            if fsync:
                os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"Cannot write {path}: {reason(error)}. {remedy(error)}") from error


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Every row of a JSON-lines file; a torn last line is left out, a missing file has no rows.

    Raises:
        RunError: a line other than a torn last one is not a JSON object.
    """
    path = Path(path)
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _parsed(line)
        if row is None and number == len(lines):
            break
        if row is None:
            raise RunError(f"{path}:{number} is not a JSON object. Delete that line, or the file, and run again.")
        rows.append(row)
    return rows


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file, in hex; the file is streamed, never held."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_file(path: Path) -> None:
    """Put a file's content on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def fsync_folder(path: Path) -> None:
    """Put a folder's entries on the disk, where the system can (Windows cannot open a folder)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason(error: BaseException) -> str:
    """What the system said, without a trailing stop."""
    return ((error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__).rstrip(".")


def remedy(error: BaseException) -> str:
    """What to do about an error of the file system."""
    if isinstance(error, PermissionError):
        return "Choose another folder (output_dir), or give yourself the right to write there."
    return "Check the free space and the rights of the folder, or choose another (output_dir)."


def _line(path: str | Path, row: Mapping[str, Any]) -> bytes:
    try:
        return (json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(", ", ": ")) + "\n").encode("utf-8")
    except UnicodeEncodeError as error:
        raise RunError(f"A row for {path} holds text that is no Unicode: {error.reason} at {error.start}.") from error
    except ValueError as error:
        bad = [key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
        where = ", ".join(bad) or "in a nested value"
        raise RunError(f"A row for {path} holds a number that is NaN or infinite: {where}.") from error


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # covers bytes that are not UTF-8
        return None
    return row if isinstance(row, dict) else None


def _repair_end(file: Any) -> int:
    """Make the file end with a whole line and return its size."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    tail, position = b"", size
    while position and b"\n" not in tail:
        step = min(65536, position)
        position -= step
        file.seek(position)
        tail = file.read(step) + tail
    last = tail[tail.rfind(b"\n") + 1 :]
    if _parsed(last) is not None:
        file.write(b"\n")
        return size + 1
    size -= len(last)
    file.truncate(size)
    return size

"""File IO: reads bounded, validated JSON, and writes files atomically.

Files are replaced atomically. Appended JSON lines survive `kill -9`: a torn last line is left out by the reader and
removed by the next append.
"""

from __future__ import annotations

import contextlib
import difflib
import glob
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from opct.errors import REMEDY, OpctError, RunError, reason, shorten

T = TypeVar("T")
PRIVATE_MODE = 0o600
"""Mode of a file that only its owner may read."""
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open`: fail at a symbolic link, which might lead out of the folder (Windows has none)."""
MAX_FILE_BYTES = 2**30
SHOWN_FAULTS = 5
_LARGE_EXPONENT = re.compile(rb"[eE]\+?\d{3}")


# ------------------------------------------------------------------------------------------------------------ reading


@overload
def read_json(path: str | Path, *, hint: str = ..., error: type[OpctError] = ...) -> dict[str, Any]: ...
@overload
def read_json(
    path: str | Path, model: type[T] | TypeAdapter[T], *, hint: str = ..., error: type[OpctError] = ...
) -> T: ...
def read_json(path: str | Path, model: Any = dict, *, hint: str = "", error: type[OpctError] = RunError) -> Any:
    """The content of a JSON file, checked against a model.

    Args:
        model: a pydantic model, or any type such as `dict` (the default) or `list[Row]`.
        hint: remedy with the command to run, at the end of the message. error: exception type.

    Raises:
        OpctError: it is missing, too large, not JSON (NaN, deep nesting and lone surrogates included), or does not fit
            the model.
    """
    path = Path(path)
    try:
        return parse_json(read_bytes(path), model)
    except FileNotFoundError as missing:
        raise error(f"{path} is missing. {hint}".rstrip()) from missing
    except OSError as unreadable:
        raise error(f"Cannot read {path}: {reason(unreadable)}. {hint}".rstrip()) from unreadable
    except ValueError as fault:
        raise error(f"{path}: {fault}. {hint}".rstrip()) from fault


@overload
def read_jsonl(path: str | Path) -> list[dict[str, Any]]: ...
@overload
def read_jsonl(path: str | Path, model: TypeAdapter[T]) -> list[T]: ...
def read_jsonl(path: str | Path, model: Any = dict) -> Any:
    """Every row of a JSON-lines file, checked against a model as by `read_json`.

    A torn last line is left out; a missing file has no rows.

    Raises:
        RunError: the file cannot be read, or a line other than a torn last one cannot be used; with file:line.
    """
    path, hint = Path(path), "Delete that line, or the file, and run again."
    try:
        lines = read_bytes(path).split(b"\n")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as unreadable:
        raise RunError(f"Cannot read {path}: {reason(unreadable)}. {hint}") from unreadable
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(parse_json(line, model))
        except ValueError as fault:
            # the last piece of the split has no line feed: only there can a write have been cut
            if number == len(lines) and not _is_json(line):  # torn by a kill
                break
            raise RunError(f"{path}:{number}: {fault}. {hint}") from fault
    return rows


def parse_json(text: bytes | str, model: Any = dict) -> Any:
    """JSON of bounded depth and finite numbers, checked against a model. Raises ValueError where it is not that; the
    message says what and where, without a final stop."""
    text = text.encode("utf-8") if isinstance(text, str) else text
    try:
        value = from_json(text, allow_inf_nan=False)
        if _LARGE_EXPONENT.search(text):
            json.dumps(value, allow_nan=False)  # 1e999 was read as infinity
    except ValueError as fault:
        raise ValueError(f"not valid JSON: {fault}") from fault
    if model is dict:
        if not isinstance(value, dict):
            raise ValueError(f"not a JSON object but {type(value).__name__}")
        return value
    if model is Any:
        return value
    adapter = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
    try:
        return adapter.validate_json(text)
    except ValidationError as found:
        raise ValueError(_described(found)) from found


def read_bytes(path: Path) -> bytes:
    """The content of a file; see `check_readable` for what is refused."""
    check_readable(path)
    return path.read_bytes()


def check_readable(path: Path) -> None:
    """Raise ValueError for a file that is too large, or not a regular one: a pipe or a device may never end."""
    # first: it raises FileNotFoundError for a missing file, which `is_file` would call not regular
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError("it is not a regular file")
    if size > MAX_FILE_BYTES:
        raise ValueError(f"it has {size:,} bytes, and at most {MAX_FILE_BYTES:,} are read")


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file, in hex; the file is streamed, never held."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_json(line: bytes) -> bool:
    try:
        from_json(line)
    except ValueError:
        return False
    return True


def _described(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=False)
    lines = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".removeprefix(": ") for fault in faults]
    more = f"; and {len(lines) - SHOWN_FAULTS} more" if len(lines) > SHOWN_FAULTS else ""
    return "; ".join(lines[:SHOWN_FAULTS]) + more


def did_you_mean(path: str | Path) -> str:
    """A question after a message about a path where nothing is; "" if nothing beside it has a similar name."""
    near = difflib.get_close_matches(Path(path).name, names_in(Path(path).parent), n=1)
    return f" Did you mean {Path(path).parent / near[0]}?" if near else ""


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none if it is missing or cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


# ------------------------------------------------------------------------------------------------------------ writing


def check_writable(folder: Path, setting: str) -> None:
    """Make nothing, and raise RunError for a folder that could not be made or written to: it, or the last one on the
    way to it that is there, is a file or takes no new file. `setting` chooses another."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise RunError(f"Cannot write to {folder}: {there} is not a folder: choose another ({setting}).")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunError(
            f"Cannot write to {folder}: no right to write in {there}. Get it, or choose another ({setting})."
        )


def atomic_write(path: str | Path, content: bytes | str, *, mode: int = 0o666) -> None:
    """Write a file so that a reader, a crash or a full disk sees the old content or the new, never a part.

    A symbolic link is replaced, never the file that it names: a folder of somebody else may hold one.

    Args:
        mode: file mode from creation on, subject to the umask.

    Raises:
        RunError: the file could not be written, or a folder or device has its name; what was there is untouched.
    """
    path = Path(path)
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
        # os.replace would put a file in the place of a device, or of a link to it
        if path.exists() and not path.is_file():
            raise RunError(f"Cannot write {path}: it is not a regular file. Choose another name.")
        # in the same folder, since a rename is atomic in one file system alone; by process, so that two do not share it
        temporary = path.with_name(f"{_temporary(path)}-{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(path)
            # the mode from creation on: with a chmod afterwards, others could read a secret in between
            with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags | NO_LINK, mode)) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # after the fsync: else a power cut can leave the new name with no content
            os.replace(temporary, path)
            # the rename itself
            fsync_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, or text that is not valid Unicode
        raise RunError(f"Cannot write {path}: {reason(error)}. {REMEDY}") from error


def _remove_leftovers(path: Path) -> None:
    """Remove what processes of this machine that were killed left of writing a file."""
    import psutil

    for leftover in path.parent.glob(f"{glob.escape(_temporary(path))}-*"):
        pid = leftover.name.rpartition("-")[2]
        if pid.isdecimal() and len(pid) < 10 and not psutil.pid_exists(int(pid)):
            with contextlib.suppress(OSError):
                leftover.unlink()


def _temporary(path: Path) -> str:
    # with the machine: its processes alone can be asked whether they still run
    return f".{path.name}.tmp-{platform.node()}"


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    atomic_write(path, _dump(path, value, indent=2) + b"\n")


def write_jsonl(path: str | Path, rows: Iterable[Mapping[str, Any]], *, mode: int = 0o666) -> None:
    """Write rows as JSON lines, atomically."""
    atomic_write(path, b"".join(_dump(path, row) + b"\n" for row in rows), mode=mode)


def append_jsonl(path: str | Path, *rows: Mapping[str, Any], fsync: bool = False) -> None:
    """Append rows as lines, all in one write. A torn last line (left by a kill) is removed first. Raises RunError where
    a row holds a number that JSON does not know (NaN, infinite), or the file cannot be written."""
    path = Path(path)
    lines = b"".join(_dump(path, row) + b"\n" for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # unbuffered: one write, so that a kill can tear the last line alone
        with open(path, "a+b", buffering=0, opener=lambda name, flags: os.open(name, flags | NO_LINK, 0o666)) as file:
            start = _repair_end(file)
            if file.write(lines) != len(lines):  # a full disk may take a part
                file.truncate(start)
                raise RunError(f"Cannot write {path}: the disk took only a part of a line. Free some space.")
            if fsync:
                os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"Cannot write {path}: {reason(error)}. {REMEDY}") from error


def remove(path: Path) -> None:
    """Remove a file or folder, if there is one; of a link the link alone. Raises OSError where it cannot be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def fsync_file(path: Path) -> None:
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


def _dump(path: str | Path, value: Any, indent: int | None = None) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent).encode("utf-8")
    except ValueError as error:  # NaN, infinity, or text that is not valid Unicode
        raise RunError(f"Cannot write {shorten(value)} to {path}: {reason(error)}.") from error


def _repair_end(file: Any) -> int:
    """Truncate the file to whole lines and return its size."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    file.seek(0)  # after a kill only
    last = file.read().rpartition(b"\n")[2]
    # a whole row that lacks its line feed: removed, it would be lost
    if _is_json(last):
        file.write(b"\n")
        return size + 1
    size -= len(last)
    file.truncate(size)
    return size

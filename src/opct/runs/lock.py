"""A folder that one process at a time writes to."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opct.errors import REMEDY, InUseError, RunError, reason
from opct.runs.io import read_json, write_json


@contextlib.contextmanager
def locked(
    path: Path, what: str = "", remedy: str = "wait for it, or stop it.", *, wait: bool = False
) -> Iterator[Callable[[], None]]:
    """Hold a lock file, and say beside it who does. The system frees it when the process ends, however it ends.

    A block that ends well although the file is gone raises: what it wrote lies in a folder that was moved or deleted.

    Args:
        what: what the lock is for, in the message.
        wait: until another process frees it, instead of refusing.

    Raises:
        InUseError: another process holds it. RunError: it cannot be written, or `check_in_place` fails at the end.
    """
    from filelock import FileLock, Timeout

    # not a singleton: a second lock of the same file in this process is refused too, and does not count as held
    lock = FileLock(path, timeout=-1 if wait else 0, is_singleton=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise InUseError(f"{what or path} is in use by {_described(owner_of(path))}: {remedy}") from error
    except OSError as error:
        raise RunError(f"Cannot write to {path.parent}: {reason(error)}. {REMEDY}") from error
    try:
        # under the lock: written before it, a process that waits would name itself
        write_json(_owner_path(path), this_process())
        inode = path.stat().st_ino
        yield lambda: check_in_place(path, inode)
        check_in_place(path, inode)
    finally:
        # before the release: after it, the file may be that of the next holder
        with contextlib.suppress(OSError):
            _owner_path(path).unlink(missing_ok=True)
        lock.release()


def check_in_place(path: Path, inode: int) -> None:
    """Raise RunError if a file or folder is not the one of that inode: where it lies was moved or deleted meanwhile."""
    try:
        is_there = path.stat().st_ino == inode
    except OSError:
        is_there = False
    if not is_there:
        raise RunError(
            f"{path.parent} was moved or deleted while it was worked in, so what is there now is not whole. If it was "
            "moved, move it back and use --resume."
        )


def this_process() -> dict[str, Any]:
    """What `is_running` needs to know of a process."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": platform.node(), "since": since}


def owner_of(path: Path) -> dict[str, Any]:
    """The process that holds a lock file, or was killed while it did; empty if it was freed, or is just being taken."""
    try:
        return read_json(_owner_path(path))
    except RunError:
        return {}


def is_running(process: object) -> bool | None:
    """Whether a process of `this_process` runs, as a file says it; None where it is on another machine."""
    import psutil

    if not isinstance(process, Mapping) or not isinstance(pid := process.get("pid"), int) or not 0 < pid < 2**31:
        return False
    return psutil.pid_exists(pid) if process.get("host") == platform.node() else None


def refuse_existing(
    folder: Path, what: str, *, exists: bool, resume: bool, overwrite: bool, option: str = "output_dir"
) -> None:
    """Raise RunError where the flags contradict each other, or something exists and neither flag is given.

    Args:
        what: what the folder would hold: "a run". option: the setting that names the folder.
    """
    if resume and overwrite:
        raise RunError("--resume and --overwrite contradict each other: give one of them.")
    if exists and not (resume or overwrite):
        raise RunError(
            f"{folder} already holds {what}. Continue it with --resume, replace it with --overwrite, or choose another "
            f"{option}."
        )


def _owner_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-owner.json")


def _described(owner: Mapping[str, Any]) -> str:
    if not owner:
        return "another process"
    return f"process {owner.get('pid')} on {owner.get('host')} (since {owner.get('since')})"

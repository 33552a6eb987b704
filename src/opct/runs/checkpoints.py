"""Atomic checkpoints: written to a temporary folder, hashed, synced, then renamed.

A folder `step-000010` holds the written files, and `state.json` with the step, the caller's state, and the SHA-256 and
size of each file. A checkpoint with additional or changed files is rejected. `.tmp-step-*` is being written,
`.trash-step-*` being deleted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, NonNegativeInt

from opct.errors import REMEDY, CheckpointError, reason
from opct.runs.io import file_sha256, fsync_file, fsync_folder, read_json, remove, write_json

STEP_FOLDER = re.compile(r"step-(\d{6,})")
SEAL = "state.json"


class _File(BaseModel):
    sha256: str
    bytes: int


class _Seal(BaseModel):
    """Content of `state.json`."""

    version: Annotated[Literal[1], Field(alias="schema")]
    step: NonNegativeInt
    files: dict[str, _File]
    state: dict[str, Any]


def listed(folder: Path) -> list[tuple[int, Path]]:
    """(step, folder) of each checkpoint, oldest first."""
    if not folder.is_dir():
        return []
    matches = ((STEP_FOLDER.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def save(folder: Path, step: int, write: Callable[[Path], None], state: Mapping[str, Any]) -> Path:
    """Write the checkpoint of `step` and return its folder. Raises CheckpointError where it is there already or cannot
    be written; the message names the last good one, which is untouched."""
    from safetensors import SafetensorError

    final = folder / f"step-{step:06d}"
    temporary = folder / f".tmp-{final.name}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        # the seal after all else: without it a folder is no checkpoint
        write(temporary)
        _seal(temporary, step, state)
        os.replace(temporary, final)
        fsync_folder(folder)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:  # ValueError: names that are no Unicode
        good = _last_good(folder, before=step)
        raise CheckpointError(f"Could not write the checkpoint {final}: {reason(error)}. {good} {REMEDY}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def latest(folder: Path) -> Path | None:
    """The newest checkpoint, every file of it verified; None if there is none. Raises CheckpointError where it is
    corrupt; the message names the file and the last good checkpoint."""
    checkpoints = listed(folder)
    if not checkpoints:
        return None
    step, path = checkpoints[-1]
    if (problem := fault(path)) is not None:
        raise CheckpointError(
            f"The checkpoint {path} is corrupt: {problem}. {_last_good(folder, before=step)} "
            f"Delete the folder {path} and run `opct train` with --resume again."
        )
    return path


def prune(folder: Path, keep: int, best_step: int | None) -> list[Path]:
    """Delete all but the newest `keep` checkpoints and the best one; return the deleted folders."""
    checkpoints = listed(folder)
    # max: a negative end would delete the oldest also where there are fewer than `keep`
    doomed = [path for step, path in checkpoints[: max(0, len(checkpoints) - keep)] if step != best_step]
    for path in doomed:
        trash = folder / f".trash-{path.name}"  # if interrupted, no partial checkpoint keeps a valid name
        os.replace(path, trash)
        shutil.rmtree(trash, ignore_errors=True)
    return doomed


def remove_leftovers(folder: Path) -> None:
    """Clean up after a kill."""
    for pattern in (".tmp-step-*", ".trash-step-*"):
        for path in folder.glob(pattern):
            remove(path)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The `state` that was given with this checkpoint. Raises CheckpointError where `state.json` is missing or
    unreadable."""
    return _read_seal(checkpoint).state


def weight_hashes(checkpoint: Path) -> dict[str, str]:
    """SHA-256 of each file of exported weights (`adapter/` or `model/`), by its place in the checkpoint. Raises
    CheckpointError where `state.json` is missing or unreadable."""
    files = _read_seal(checkpoint).files
    return {
        name: file.sha256
        for name, file in files.items()
        if name.startswith(("adapter/", "model/")) and name.endswith(".safetensors")
    }


def fault(path: Path) -> str | None:
    """The first mismatch between a checkpoint's files and its `state.json`; None if there is none."""
    try:
        seal = _read_seal(path)
    except CheckpointError as error:
        return str(error).rstrip(".")
    if (match := STEP_FOLDER.fullmatch(path.name)) is not None and int(match[1]) != seal.step:
        return f"{SEAL} is of step {seal.step}"
    # a loader might trust an unlisted file
    listed = {path / name for name in (*seal.files, SEAL)}
    expected = listed | {folder for file in listed for folder in file.parents}
    unlisted = sorted(str(entry.relative_to(path)) for entry in path.rglob("*") if entry not in expected)
    if unlisted:
        return f"{unlisted[0]} is not one of the files that {SEAL} lists"
    for name, record in seal.files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        # the size first: a cut file is found without reading gigabytes
        if file.stat().st_size != record.bytes:
            return f"{name} has {file.stat().st_size} bytes, expected {record.bytes}"
        if file_sha256(file) != record.sha256:
            return f"{name} does not have the content that was written (SHA-256 differs)"
    return None


def _read_seal(path: Path) -> _Seal:
    return read_json(path / SEAL, _Seal, error=CheckpointError)


def _seal(folder: Path, step: int, state: Mapping[str, Any]) -> None:
    """Sync every file, then write `state.json` with their hashes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    # before the hashes are written: a seal on the disk must not vouch for content that is not
    for path in files:
        fsync_file(path)
    for inner in folder.rglob("*"):
        if inner.is_dir():
            fsync_folder(inner)
    hashes = {
        path.relative_to(folder).as_posix(): {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        for path in files
    }
    write_json(folder / SEAL, {"schema": 1, "step": step, "files": hashes, "state": dict(state)})


def _last_good(folder: Path, *, before: int) -> str:
    for step, path in reversed(listed(folder)):
        if step < before and fault(path) is None:
            return f"The last good checkpoint is {path}."
    return "There is no good checkpoint before it."

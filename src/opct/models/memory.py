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
    """`VmHWM` of this process, which starts anew with its program."""
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
    """Let the operating system have what was freed, where the C library keeps it for itself; on the CPU alone.

    glibc keeps what was freed in small pieces, and each thread keeps its own: an evaluation, whose batches come from
    several threads, held 15 GB of which 3 were in use. It takes some milliseconds, and what is needed again has to be
    asked for again, so this is for the end of a piece of work and not for a step.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)

"""Memory of this process."""

from __future__ import annotations

import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from opct.models.memory import peak_memory_gb

CPU = torch.device("cpu")


def printed(program: str) -> list[float]:
    """The numbers that a Python program prints, in a new process, which has no memory of its own to use again."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    return [float(number) for number in done.stdout.split()]


@pytest.mark.skipif(sys.platform == "win32", reason="the peak is another number there")
def test_resident_memory_grows_with_what_is_held():
    """200 MB more."""
    program = (
        "import torch\n"
        "from opct.models.memory import memory_now_bytes, peak_memory_gb\n"
        "cpu = torch.device('cpu')\n"
        "before = memory_now_bytes(cpu)\n"
        "held = torch.ones(50_000_000)\n"
        "print(memory_now_bytes(cpu) - before, peak_memory_gb(cpu) * 1e9 - before)\n"
    )
    grown, most = printed(program)
    assert 190e6 < grown < 230e6
    assert 190e6 < most < 300e6


def test_peak_memory_where_there_is_no_resource_module(monkeypatch):
    """Windows: the peak that psutil knows, 3 GB."""
    import psutil

    class Process:
        def memory_info(self):
            return SimpleNamespace(peak_wset=3e9)

    monkeypatch.setattr(psutil, "Process", Process)
    monkeypatch.setattr("opct.models.memory.sys.platform", "win32")
    assert peak_memory_gb(CPU) == 3.0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library gives back by itself, or cannot")
def test_what_was_freed_in_small_pieces_is_given_back():
    """300 MB in pieces of 100 kB, freed but for the last one, which keeps the heap from shrinking by itself."""
    program = (
        "import torch\n"
        "from opct.models.memory import release_memory, memory_now_bytes\n"
        "cpu = torch.device('cpu')\n"
        "before = memory_now_bytes(cpu)\n"
        "pieces = [torch.ones(25_000) for _ in range(3_000)]\n"
        "pieces = pieces[-1:]\n"
        "freed = memory_now_bytes(cpu) - before\n"
        "release_memory()\n"
        "print(freed, memory_now_bytes(cpu) - before)\n"
    )
    freed, left = printed(program)
    assert freed > 250e6
    assert left < 30e6

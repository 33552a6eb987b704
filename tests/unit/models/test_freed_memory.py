"""Freed memory stays with the process for the next tensors, until it is released."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import psutil, torch
from opct.models.memory import release_memory, reuse_freed_memory
resident = lambda: psutil.Process().memory_info().rss / 1e6
reuse_freed_memory()
before, held = resident(), torch.ones(50_000_000)
del held
print(resident() - before)
release_memory()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is on Linux alone")
def test_freed_memory_is_kept_until_it_is_released():
    """A tensor of 200 MB, in a process of its own, since the setting lasts."""
    shown = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    kept, released = map(float, shown.stdout.split())
    assert kept > 150
    assert released < 50

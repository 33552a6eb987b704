"""Memory of this process."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
from types import SimpleNamespace
import psutil
from opct.models.memory import peak_memory_gb, release_memory, reuse_freed_memory
now = lambda: psutil.Process().memory_info().rss
before = now()
pieces = [bytes(range(256)) * 400 for _ in range(600)]
print(now() - before)
pieces = pieces[-1:]
release_memory()
print(now() - before)
reuse_freed_memory()
block = b'x' * 200_000_000
print(peak_memory_gb(SimpleNamespace(type="cpu")) * 1e9 - before)
del block
print(now() - before)
release_memory()
print(now() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library gives back by itself, or cannot")
def test_memory_grows_with_what_is_held_and_is_given_back_when_it_is_released():
    """61 MB in pieces of 102 kB, freed but for the last one, which keeps the heap from shrinking by itself; then a
    block of 200 MB."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=True)
    pieces, released, most, freed, released_again = map(float, done.stdout.split())
    assert 55e6 < pieces < 75e6
    assert released < 15e6
    assert 195e6 < most < 260e6
    assert freed > 150e6
    assert released_again < 50e6

"""A process that was started here ends with the one that started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

PROGRAM = """
import multiprocessing, time

from opct.runs.watch import end_with_parent


def child():
    end_with_parent()
    print("started", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=child).start()
    time.sleep(600)
"""


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path):
    """Both write to the same pipe, so it ends when the last of them does."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(REPOSITORY / "src")}
    ) as parent:
        assert parent.stdout.readline() == "started\n"
        parent.kill()
        assert parent.communicate(timeout=60) == ("", None)

"""One measurement, one process, one file: a cell that is finished is not run again, and a crash loses one cell.

Only the standard library: this module also runs in interpreters without opct, and the process that starts the others
must stay small.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("opct", "torch", "transformers", "peft", "accelerate", "trl", "vllm")

Cell = Mapping[str, Any]


class CellFailed(SystemExit):
    """Why a cell has no result; where nothing catches it, it ends the measurement."""


def run_cell(
    path: Path, cell: Cell, module: str, *, python: str | None = None, limit_s: float = 3600, threads: int | None = None
) -> dict[str, Any]:
    """The result of a cell; the file's neighbor `.log` has the output while it runs and after it failed.

    A file is reused if its settings, threads, interpreter, processor and commit are the same.

    Raises:
        CellFailed: its process failed, or took too long.
    """
    cell = dict(cell) | {"way": {"threads": threads, "python": python, "processor": processor(), "commit": commit()}}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["cell"] == cell:
            return found["result"]
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".log")
    command = [python or sys.executable, "-m", module, "--cell", json.dumps(cell), "--result", str(path.resolve())]
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    # as `opct` itself does; the others get it too
    own = {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0"}
    environment = own | {"MALLOC_TRIM_THRESHOLD_": str(2**40)} | environment
    if threads is not None:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with open(log, "wb") as out:
        try:
            with subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, process_group=0
            ) as done:
                try:
                    done.wait(limit_s)
                finally:
                    if done.poll() is None:
                        os.killpg(done.pid, signal.SIGKILL)  # a server that the cell started ends with it
        except subprocess.TimeoutExpired:
            raise CellFailed(f"{path.stem}: stopped after {limit_s:.0f} s; see {log}") from None
    if done.returncode != 0 or not path.exists():
        last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""])[-1]
        raise CellFailed(f"{path.stem}: failed with exit code {done.returncode}: {last[:200]}; see {log}")
    log.unlink()
    return json.loads(path.read_text(encoding="utf-8"))["result"]


def serve(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """In the process of a cell: do its work, and write the result and the peak memory."""
    cell = json.loads(_argument("--cell"))
    result = work(cell)
    about = {"versions": versions(), "processor": processor(), "commit": commit()}
    result = {"peak_gb": peak_gb()} | about | result
    path = Path(_argument("--result"))
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps({"cell": cell, "result": result}, indent=1), encoding="utf-8")
    os.replace(partial, path)


def is_worker() -> bool:
    """True in the process of a cell."""
    return "--cell" in sys.argv


def peak_gb() -> float:
    """The most memory that was resident in this process, in GB.

    Linux counts the process that started this one in until it is replaced, so that one must be small.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def family_peak_gb() -> float:
    """Sum of the peak memory of this process and of its descendants that still run, in GB (Linux)."""
    status: dict[int, dict[str, int]] = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        fields = {words[0]: int(words[1]) for words in lines if words and words[0] in ("PPid:", "VmHWM:")}
        status[int(path.parent.name)] = fields
    family, last = {os.getpid()}, 0
    while len(family) > last:
        last = len(family)
        family |= {pid for pid, fields in status.items() if fields.get("PPid:") in family}
    return sum(status[pid].get("VmHWM:", 0) for pid in family) * 1024 / 1e9


def versions() -> dict[str, str]:
    """Versions of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """The processor's name, and how many cores this process may use."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line for line in info.read_text(encoding="utf-8").splitlines() if line.startswith("model name"))
        name = next(lines, name).partition(":")[2].strip() or name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def commit() -> str | None:
    """The commit that is checked out, None outside a repository."""
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:  # no git
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _argument(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]

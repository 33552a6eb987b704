"""Run the real command line: in a process of its own where signals and locks matter, in this one for speed."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from opct.data.pairs import write_pairs
from opct.runs.io import file_sha256
from opct.runs.run_dir import RunDir
from tests.processes import Process, opct
from tests.tiny import merged, open_pairs, tiny_anchors, tiny_pairs, tiny_settings
from tests.unit.cli import running

UNSHARED = ("time/", "memory/")  # metrics that no two runs share


@dataclass(frozen=True)
class Done:
    """How a command ended; `out` and `err` with runs of white space as one space."""

    code: int
    out: str
    err: str

    def error(self) -> str:
        """The one message of a command that failed on purpose: exit code 1, no traceback."""
        assert self.code == 1, f"exit code {self.code}\n{self.out}\n{self.err}"
        assert "Traceback" not in self.err, self.err
        _, found, message = self.err.partition("error: ")
        assert found, self.err
        assert not message.endswith("error: "), self.err
        return message


def here(*arguments: str | Path) -> Done:
    """Run `opct` in this process."""
    with mock.patch.dict(os.environ, {"COLUMNS": "400"}):
        code, out, err = running.ended(*arguments)
    return Done(code, _flat(out), _flat(err))


def done(*arguments: str | Path) -> Done:
    """Run `opct` in this process to an end without an error."""
    ended = here(*arguments)
    assert ended.code == 0, ended.err
    return ended


class Started(Process):
    """An `opct` that runs in a process group of its own."""

    def __init__(self, folder: Path, arguments: tuple[str | Path, ...]):
        self._out, self._err = folder / "stdout.txt", folder / "stderr.txt"
        for path in (self._out, self._err):
            path.unlink(missing_ok=True)
        super().__init__(self._out, self._err, opct, *map(str, arguments))

    def until(self, happened: Callable[[], Any], what: str) -> None:
        """Wait for something that this process does; fails if it ends before, or after three minutes."""
        begun = time.monotonic()
        end = begun + 180
        while not happened():
            looked = time.monotonic()
            if self.poll() is not None:
                assert happened(), f"it ended before {what}: {self.ended()}"
                return
            assert time.monotonic() < end, f"no {what} in three minutes: {self.err}"
            time.sleep(max(0.001, looked - begun))  # a dear look takes half of a core, not all
            begun = time.monotonic()

    def frozen_when(self, happens: Callable[[], Any], what: str) -> None:
        """Stop the process (SIGSTOP) at a moment at which `happens()` holds, however short that moment is."""
        while True:
            self.until(happens, what)
            assert self.poll() is None, f"it ended before {what} was caught: {self.ended()}"
            self.signal(signal.SIGSTOP)
            _wait_until_stopped(self.pid)
            if happens():
                return
            self.signal(signal.SIGCONT)

    def ended(self) -> Done:
        """Wait for the end."""
        return Done(self.wait(), _flat(self._out.read_text()), self.err)

    @property
    def err(self) -> str:
        return _flat(self._err.read_text())


@contextlib.contextmanager
def started(folder: Path, *arguments: str | Path) -> Iterator[Started]:
    """Start `opct`; its output goes to files in `folder`. Whatever is left of it at the end is killed."""
    running = Started(folder, arguments)
    try:
        yield running
    finally:
        running.kill()


@dataclass(frozen=True)
class Workplace:
    """A folder with a config of a few tiny steps, its pairs, and its run."""

    folder: Path
    config: Path
    pairs: Path
    run: RunDir

    def command(self, *rest: str | Path) -> tuple[str | Path, ...]:
        """The arguments of `opct train` on this config."""
        return ("train", self.config, *rest)

    def steps(self) -> list[int]:
        """The steps in metrics.jsonl, as far as it is written."""
        return [row["step"] for row in jsonl(self.run.metrics_path)]

    def at_step(self, step: int) -> Callable[[], bool]:
        """True once the metrics of that step are written."""
        return lambda: step in self.steps()


def workplace(folder: Path, model: Path, **changes: Any) -> Workplace:
    """Write a config of 4 steps, 10 pairs (two with an open turn) and 4 anchors.

    Args:
        changes: settings over those; sections are merged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pairs, anchors = folder / "pairs.jsonl", folder / "anchors.jsonl"
    write_pairs(pairs, [*tiny_pairs(8), *open_pairs(2)])
    write_pairs(anchors, tiny_anchors(4))
    own = {"lora": {"r": 2, "alpha": 4}, "optim": {"learning_rate": 0.003, "micro_batch_tokens": 400}}
    settings = merged(merged(tiny_settings(folder / "run", model, pairs, anchors), own), changes)
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(settings))
    return Workplace(folder, config, pairs, RunDir(settings["output_dir"]))


def jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; every whole line must parse."""
    if not path.exists():
        return []
    *lines, rest = path.read_text(encoding="utf-8").split("\n")
    del rest  # empty, or a line that is being written
    return [json.loads(line) for line in lines]


def files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a run by its place, locks aside: equal before and after if nothing was lost."""
    return {
        path.relative_to(folder).as_posix(): file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".lock")
    }


def reseal(checkpoint: Path, **state: Any) -> None:
    """Make the hashes of a checkpoint those of its files, with other counters, as whoever changed them would."""
    file = checkpoint / "state.json"
    seal = json.loads(file.read_text())
    for path in checkpoint.rglob("*"):
        if path.is_file() and not path.is_symlink() and path != file:
            about = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
            seal["files"][path.relative_to(checkpoint).as_posix()] = about
    file.write_text(json.dumps(seal | {"state": seal["state"] | state}))


def result_of(run: RunDir) -> dict[str, Any]:
    """The results of a run that its config and seed determine, byte for byte; times and memory left out."""
    content: dict[str, Any] = {
        "metrics": [
            {key: value for key, value in row.items() if not key.startswith(UNSHARED)}
            for row in jsonl(run.metrics_path)
        ]
    }
    for path in sorted(run.rollouts_dir.iterdir()):
        content[f"rollouts/{path.name}"] = path.read_bytes()
    for step, folder in run.checkpoints():
        content[f"counters of {step}"] = json.loads((folder / "state.json").read_text())["state"]
        for path in sorted(folder.rglob("*.safetensors")):
            content[path.relative_to(run.path).as_posix()] = file_sha256(path)
    return content


def _flat(text: str) -> str:
    return " ".join(text.split())


def _wait_until_stopped(pid: int) -> None:
    """Until the kernel has stopped the process; where there is no /proc, a moment."""
    status = Path(f"/proc/{pid}/stat")
    if not status.exists():
        time.sleep(0.1)
        return
    while status.read_text().rpartition(")")[2].split()[0] not in "TtZX":
        time.sleep(0.0005)

"""The run directory: defines the path of every file.

    RUN/config.yaml       the resolved settings
    RUN/manifest.json     versions, hashes, hardware, command
    RUN/pairs.jsonl       pairs that were given in Python
    RUN/trained_on.json   behaviors and facts in the training pairs, which an evaluation looks for
    RUN/metrics.jsonl     one line a step
    RUN/offline_cost.json tokens and seconds of the answers in rollouts/offline.jsonl
    RUN/rollouts/         step-000001.jsonl ...  offline.jsonl  validation-000010.jsonl ...
    RUN/checkpoints/      step-000010/{adapter/ or model/, state.safetensors, state.json} ...
    RUN/verl/             settings, checkpoints and metrics of verl, where it trained
    RUN/trackers/         files of the trackers
    RUN/evals/            *.eval (Inspect's logs, one a suite or attack)
    RUN/evals/training/   step-000010/ ... (evaluations while training; each as `opct eval` writes it)
    RUN/attacks/          attackers that were trained against the run (see opct.attack.training_folder)
    RUN/results.json  report.html  README.md

A folder is a run if its manifest says so. Files are written whole or not at all (see `opct.runs.io`), and so are
checkpoints (see `opct.runs.checkpoints`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NotRequired, Required

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from opct.errors import REMEDY, CheckpointError, RunError, first_of, reason
from opct.runs import checkpoints
from opct.runs.io import did_you_mean, read_json, read_jsonl, remove, write_json, write_jsonl
from opct.runs.lock import is_running, locked, owner_of, refuse_existing
from opct.runs.manifest import command_line, git_commit, hardware, package_versions

MANIFEST, MANIFEST_SCHEMA = "manifest.json", 1
IN_USE = "two runs in one folder would mix their files. Wait for it, stop it, or choose another output_dir."


def _has_step(row: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(row.get("step"), int):
        raise ValueError("it names no step")
    return row


_METRICS = TypeAdapter(Annotated[dict[str, Annotated[int, Field(lt=2**63)] | float], AfterValidator(_has_step)])


class Manifest(TypedDict, total=False):
    """What is read of manifest.json, and its types; there is more in it."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    opct_run: Required[int]
    created: Required[str]
    command: str | None
    started: str | None
    resumed: list[dict[str, Any]]
    dtype: str | None
    data: dict[str, Any]
    total_steps: int
    ended_at: int  # the step after which a callback ended the run
    weights: dict[str, dict[str, Any]] | None
    earlier: dict[str, Any] | None
    offline: bool
    teacher_check: dict[str, dict[str, Any]] | None
    warnings: list[str]
    trained_families: list[str]
    trained_questions: list[str]
    eval_options: str


class ResultRow(TypedDict):
    """One metric of one group in results.json."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    axis: str
    suite: str
    metric: str
    group: str
    value: float | None
    ci_low: NotRequired[float | None]
    ci_high: NotRequired[float | None]
    n: int
    settings: NotRequired[dict[str, Any] | None]


class Results(TypedDict):
    """What is read of results.json, and its types; there is more in it."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    run: dict[str, Any]
    created: NotRequired[str]
    rows: list[ResultRow]


_MANIFEST, _RESULTS = TypeAdapter(Manifest), TypeAdapter(Results)


class RunDir:
    """Paths of the files of one run.

    Reading needs no lock; `create` takes it, and the end of a `with` (or `release`) releases it. A `with` that fails
    before anything but the manifest was written removes the folder.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config_path = self.path / "config.yaml"
        self.manifest_path = self.path / MANIFEST
        self.pairs_path = self.path / "pairs.jsonl"
        self.trained_on_path = self.path / "trained_on.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.rollouts_dir = self.path / "rollouts"
        self.offline_path = self.rollouts_dir / "offline.jsonl"
        self.offline_cost_path = self.path / "offline_cost.json"
        self.checkpoints_dir = self.path / "checkpoints"
        self.verl_dir = self.path / "verl"
        self.trackers_dir = self.path / "trackers"
        self.evals_dir = self.path / "evals"
        self.training_evals_dir = self.evals_dir / "training"
        self.unfinished_dir = self.evals_dir / "unfinished"  # logs of evaluations that have not ended
        self.attacks_dir = self.path / "attacks"
        self.results_path = self.path / "results.json"
        self.report_path = self.path / "report.html"
        self.readme_path = self.path / "README.md"
        self._lock = contextlib.ExitStack()
        self._lock_path = self.path / ".lock"
        self.check_in_place: Callable[[], None] = lambda: None
        """Raises RunError if the folder was moved or deleted since the lock was taken."""

    def rollouts_path(self, step: int) -> Path:
        return self.rollouts_dir / f"step-{step:06d}.jsonl"

    def validation_path(self, step: int) -> Path:
        """Rollouts on held-out pairs, measured after `step` steps."""
        return self.rollouts_dir / f"validation-{step:06d}.jsonl"

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoints_dir / f"step-{step:06d}"

    # ------------------------------------------------------------------------------------ open and create

    @property
    def is_run(self) -> bool:
        """True if the folder holds a manifest of this package."""
        try:
            return "opct_run" in read_json(self.manifest_path)
        except RunError:
            return False

    @property
    def in_use(self) -> bool:
        """True if a process works in the folder, or one on another machine has not released it."""
        return is_running(owner_of(self._lock_path)) is not False

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """Open an existing run for reading. Raises RunError where there is none in that folder."""
        run = cls(path)
        run._refuse_no_run()
        return run.refuse_links_out()

    def _refuse_no_run(self) -> None:
        if not self.is_run:
            what = "is not a run directory (no manifest.json of a run)" if self.path.is_dir() else "does not exist"
            meant = did_you_mean(self.path) if not self.path.exists() else ""
            raise RunError(f"{self.path} {what}: give the output_dir of a run made by `opct train`.{meant}")

    @classmethod
    def create(cls, path: str | Path, *, resume: bool = False, overwrite: bool = False) -> RunDir:
        """Open a run directory for writing, locked for this process.

        Args:
            resume: continue the run in the folder; what is left of interrupted checkpoints is removed.
            overwrite: the run in the folder may be replaced. It stays until `clear` is called, so that it is not lost
                if the new run cannot start.

        Raises:
            RunError: the folder holds a run and neither flag is given, holds something that is not a run, is used by
                another process (the message has its pid), or cannot be written to.
        """
        run = cls(path).refuse_links_out()
        try:
            if not run.is_run:  # for a run, the lock first says whether it is in use
                run._refuse_if_in_the_way(resume, overwrite)
            run.path.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
            raise RunError(f"Cannot make the run directory {run.path}: {reason(error)}. {REMEDY}") from error
        run.check_in_place = run._lock.enter_context(locked(run._lock_path, str(run.path), IN_USE))
        try:
            run._refuse_if_in_the_way(resume, overwrite)  # again, under the lock
            if not (run.is_run and (resume or overwrite)):
                run.clear()
            checkpoints.remove_leftovers(run.checkpoints_dir)
        except BaseException:  # after Ctrl-C too, the lock must not be left to a process that lives on
            run.release()
            raise
        return run

    def clear(self, keep: Iterable[str] = ()) -> None:
        """Remove every file of the run in the folder but those of `keep`, and nothing else; write a new manifest.

        The old manifest goes last: interrupted, the folder is still a run.
        """
        protected = {Path(path).resolve() for path in keep}
        for path in (*self._content, self.manifest_path):
            if path.resolve() in protected:
                continue
            try:
                remove(path)
            except OSError as error:
                raise RunError(f"Cannot remove {path} of the old run: {reason(error)}. {REMEDY}") from error
        write_json(self.manifest_path, {"opct_run": MANIFEST_SCHEMA, "created": _now()})

    def refuse_links_out(self) -> RunDir:
        """This run, or RunError where a known file or folder, or one in it, is a link that leaves the folder: a folder
        of somebody else must not make a command write to, or delete, what lies elsewhere."""
        try:
            root = os.path.realpath(self.path)
        except (OSError, ValueError):  # a NUL in the name, a working folder that is gone: whoever uses it says so
            return self
        for top in (*self._content, self.manifest_path):
            # not rglob, which fails where a checkpoint is removed meanwhile
            inside = (Path(folder, name) for folder, *names in os.walk(top) for name in (*names[0], *names[1]))
            for path in (top, *inside):
                if path.is_symlink() and not os.path.realpath(path).startswith(f"{root}{os.sep}"):
                    raise RunError(
                        f"{path} is a link to {os.path.realpath(path)}, outside of the run: put what it names in its "
                        "place, or link the whole run."
                    )
        return self

    def _refuse_if_in_the_way(self, resume: bool, overwrite: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file, but a run needs a folder: choose another output_dir.")
        is_run = self.is_run  # one that failed before it began is not in the way
        has_begun = is_run and any(path.exists() for path in self._content)
        refuse_existing(self.path, "a run", exists=has_begun, resume=resume, overwrite=overwrite)
        if is_run:
            return
        if existing := self.checkpoints():
            raise RunError(
                f"{self.manifest_path} is missing or damaged: restore it, or continue from {existing[-1][1]} "
                "(model.adapter) in another output_dir."
            )
        if resume:
            raise RunError(f"No run to resume in {self.path}: leave out --resume to start one, or correct output_dir.")
        names = sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []
        if others := [name for name in names if not name.startswith(".")]:  # those are of a process that starts now
            raise RunError(
                f"{self.path} is not empty and not a run ({first_of(others, 5)}); nothing in it was touched. "
                "Choose another output_dir."
            )

    @property
    def _content(self) -> tuple[Path, ...]:
        """Every path that a run writes to, except manifest and lock."""
        names = [name for name in vars(self) if name.endswith(("_path", "_dir")) and not name.startswith("_")]
        return tuple(getattr(self, name) for name in names if name != "manifest_path")

    # --------------------------------------------------------------------------------------------- lock

    def results_lock(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Lock of the results, held while they are read, merged and written. Raises RunError as `refuse_links_out`."""
        self.refuse_links_out()
        return locked(self.evals_dir / ".results.lock", wait=True)

    def release(self) -> None:
        """Release the lock; harmless if it is not held."""
        self._lock.close()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_empty = kind is not None and {path.name for path in self.path.glob("[!.]*")} <= {self.manifest_path.name}
        if is_empty:
            self.manifest_path.unlink(missing_ok=True)
        self.release()
        if is_empty:  # a run that failed before it wrote anything leaves no folder behind
            with contextlib.suppress(OSError):  # another one has begun here since
                self._lock_path.unlink()
                self.path.rmdir()

    # ------------------------------------------------------------------------------------------ manifest

    def write_manifest(self, **entries: Any) -> None:
        """Write the manifest: how the run was started, and these entries; no environment variable or secret.

        A resumed run keeps its first `created` and `command`; what differs now is appended to `resumed`.
        """
        now = {
            "command": command_line(),
            "started": _now(),
            "versions": package_versions(),
            "git_commit": git_commit(),
            "hardware": hardware(),
        }
        before = self.read_manifest()
        manifest: dict[str, Any] = {"opct_run": MANIFEST_SCHEMA, "created": before["created"]}
        if "command" in before:
            # what started the run stays: a report names the command and versions of its first steps
            manifest |= {key: before.get(key) for key in now}
            manifest["resumed"] = [*before.get("resumed", []), now]
        else:
            manifest |= now
        write_json(self.manifest_path, manifest | entries)

    def update_manifest(self, entries: Mapping[str, Any]) -> None:
        """Replace these entries of the manifest of a run that has begun."""
        write_json(self.manifest_path, {**self.read_manifest(), **entries})

    def read_manifest(self) -> Manifest:
        """The manifest. Raises RunError where the folder is not a run, or an entry is of another type."""
        self._refuse_no_run()
        return read_json(self.manifest_path, _MANIFEST)

    def read_results(self) -> Results:
        """The content of results.json. Raises RunError where there is none, or it is damaged."""
        return read_json(self.results_path, _RESULTS, hint="`opct eval RUN --regrade` writes it again from the logs.")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; none if there is no such file. Raises RunError where a line is not a step with
        numbers."""
        return read_jsonl(self.metrics_path, _METRICS)

    # ------------------------------------------------------------------------------------------- resume

    def truncate_after(self, step: int, measured: int) -> None:
        """Drop rollouts newer than `step`, and metrics, validations and evaluations newer than the step `measured`, so
        that a resumed run writes each of them once."""
        if self.metrics_path.exists():
            write_jsonl(self.metrics_path, [row for row in self.read_metrics() if row["step"] <= measured])
        for path in (*self.rollouts_dir.glob("*.jsonl"), *self.training_evals_dir.glob("step-*")):
            match = re.fullmatch(r"(step|validation)-(\d+)(\.jsonl)?", path.name)
            is_rollout = match and match[1] == "step" and match[3]
            if match and int(match[2]) > (step if is_rollout else measured):
                remove(path)

    # ------------------------------------------------- checkpoints: see the functions of opct.runs.checkpoints

    def checkpoints(self) -> list[tuple[int, Path]]:
        return checkpoints.listed(self.checkpoints_dir)

    def save_checkpoint(self, step: int, write: Callable[[Path], None], state: Mapping[str, Any] | None = None) -> Path:
        return checkpoints.save(self.checkpoints_dir, step, write, state or {})

    def latest_checkpoint(self) -> Path | None:
        return checkpoints.latest(self.checkpoints_dir)

    def checkpoint_named(self, path: str | Path) -> Path | None:
        """The checkpoint of a path: the path itself if it is in `checkpoints/`, else the newest. Raises CheckpointError
        where it is corrupt, or there is none of that name."""
        folder = Path(path)
        # resolved: a relative path and one through a link are the same checkpoint
        if folder.resolve().parent != self.checkpoints_dir.resolve():
            return self.latest_checkpoint()
        if not folder.exists():
            names = ", ".join(checkpoint.name for _, checkpoint in self.checkpoints())
            raise CheckpointError(f"There is no checkpoint {folder}: the run has {names or 'none'}.")
        if problem := checkpoints.fault(folder):
            raise CheckpointError(f"The checkpoint {folder} is corrupt ({problem}): use another one.")
        return folder


def run_of(path: str | Path) -> RunDir | None:
    """The run that a path belongs to: a run directory, or one of its checkpoints; None where it is neither."""
    folder = Path(path)
    for candidate in (folder, folder.parent.parent):
        run = RunDir(candidate)
        if run.is_run and (candidate == folder or folder.parent == run.checkpoints_dir):
            return run
    return None


def run_behind(path: str | Path) -> RunDir | None:
    """The run that weights come from: as `run_of`, also for the `adapter` or `model` folder of a checkpoint."""
    folder = Path(path)
    return run_of(folder.parent if folder.name in ("adapter", "model") else folder)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""Metric logging: `metrics.jsonl` always, and optional trackers of accelerate.

Trackers are accelerate's, each with its own login and environment. A resumed run keeps its name and id in wandb,
trackio and swanlab, and sends them no step twice. Files that they write go to the `trackers` folder of the run.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from opct.config.schema import TrainConfig, flat_settings
from opct.errors import ConfigError, LibraryErrors, RunError, unknown
from opct.runs.io import append_jsonl, atomic_write, read_bytes
from opct.runs.run_dir import RunDir

PROJECT = "opct"


class Tracker:
    """Writes one line a step to `metrics.jsonl`, and the same numbers to each tracker of `report_to`."""

    def __init__(self, run: RunDir | None, config: TrainConfig):
        """Start the trackers, which `check_trackers` knows. Without a run nothing is written: only one of several
        processes writes."""
        self._run, self._trackers = run, list[Any]()
        if run is None:
            return
        self._trackers = [_start(name, run) for name in dict.fromkeys(config.report_to)]
        flat = flat_settings(config.model_dump(mode="json"))
        # lists and null as JSON text, which every tracker takes
        settings = {name: x if isinstance(x, str | int | float) else json.dumps(x) for name, x in flat.items()}
        for tracker in self._trackers:
            tracker.store_init_configuration(settings)
        self._last_step_path = run.trackers_dir / "last_step"
        with LibraryErrors(RunError, f"{self._last_step_path} cannot be read", "Delete it; steps are sent again."):
            self._last_step = int(read_bytes(self._last_step_path)) if self._last_step_path.exists() else -1

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of one step (`area/name`: number). Raises RunError where a number is NaN or infinite, or
        the file cannot be written."""
        if self._run is None:
            return
        # first, and whatever the trackers do: reports and resume read this file
        append_jsonl(self._run.metrics_path, {"step": step, **metrics})
        if step <= self._last_step or not self._trackers:
            return
        for tracker in self._trackers:
            with LibraryErrors(RunError, f"The tracker {tracker.name} cannot log step {step}"):
                tracker.log(dict(metrics), step=step)
        # after the trackers: a kill in between sends the step again; before them it would be lost
        atomic_write(self._last_step_path, str(step))

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.finish()
        self._trackers = []


def check_trackers(names: Sequence[str]) -> None:
    """Raise ConfigError for trackers that accelerate does not know or cannot start here: with every such name, what is
    known, and the pip command."""
    if not names:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    available = {str(name) for name in get_available_trackers()}
    faults = []
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            faults.append(f"report_to: {unknown('tracker', name, LOGGER_TYPE_TO_CLASS)}")
        elif name not in available:
            faults.append(f"report_to: {name} is not installed; run: pip install {name}")
    if faults:
        raise ConfigError("\n".join(faults))


def _start(name: str, run: RunDir) -> Any:
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # trackers of every process (wandb, trackio, swanlab) ask it which one they are in
    kind = LOGGER_TYPE_TO_CLASS[name]
    with LibraryErrors(RunError, f"The tracker {name} cannot start"):
        run.trackers_dir.mkdir(parents=True, exist_ok=True)
        settings = _run_settings(name, run)
        tracker = kind(PROJECT, str(run.trackers_dir)) if kind.requires_logging_directory else kind(PROJECT, **settings)
        tracker.start()
    return tracker


def _run_settings(name: str, run: RunDir) -> dict[str, Any]:
    """Tracker settings that name a run after its folder and continue it on resume."""
    label, key = run.path.resolve().name, _run_id(run)
    by_tracker: dict[str, dict[str, Any]] = {
        "wandb": {"name": label, "id": key, "resume": "allow", "dir": str(run.trackers_dir)},
        "trackio": {"name": f"{label}-{key[:6]}", "resume": "allow"},
        "swanlab": {"experiment_name": label, "id": key, "resume": "allow", "logdir": str(run.trackers_dir)},
        "mlflow": {"run_name": label},
        "clearml": {"task_name": label},
    }
    return by_tracker.get(name, {})


def _run_id(run: RunDir) -> str:
    """A random name that stays with the folder."""
    path = run.trackers_dir / "run_id"
    if not path.exists():
        atomic_write(path, secrets.token_hex(12))
    return path.read_text(encoding="utf-8").strip()

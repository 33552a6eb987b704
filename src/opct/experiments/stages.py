"""Train, measure and attack several runs after another: what is finished is not done again; how long the rest takes.

Shared by the quickstart and by experiments.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.api import evaluate, train
from opct.config.schema import TrainConfig
from opct.data.builders.builtin import embedded_hash
from opct.errors import DataError, EvaluationError, OtherAttackError
from opct.models.memory import give_back
from opct.models.provenance import differences, note_model
from opct.runs.checkpoints import weight_hashes
from opct.runs.io import file_sha256, write_json
from opct.runs.progress import Field, Progress, duration
from opct.runs.run_dir import RunDir
from opct.training.resume import is_finished

if TYPE_CHECKING:
    from opct.models.policy import Policy

BASE = "base"


class Parts:
    """A progress that says which part of the whole each stage belongs to ("[3/7] train opct"), and after each part how
    long the rest will take.

    Each part has a kind and a weight. What is left of a kind takes its weight at the speed of the parts of this kind
    that were not skipped, or of all such parts where there was none of the kind yet.
    """

    def __init__(self, progress: Progress, parts: Sequence[tuple[str, float]]):
        self._progress, self._parts, self._part = progress, parts, 0
        self._took_s: dict[str, float] = defaultdict(float)
        self._weight: dict[str, float] = defaultdict(float)
        self._began_s, self._skipped = 0.0, False
        self._estimate = ""

    def next(self) -> None:
        """Begin the next part; it may have several stages."""
        now = time.perf_counter()
        kind, weight = self._parts[self._part - 1] if self._part else ("", 0.0)
        if weight and not self._skipped:
            self._took_s[kind] += now - self._began_s
            self._weight[kind] += weight
        left_s = self._left_s()
        if left_s:
            self._estimate = f"about {duration(left_s)} left to the report"
        self._began_s, self._skipped = now, False
        self._part += 1

    def _left_s(self) -> float:
        whole = sum(self._weight.values())
        if not whole:
            return 0.0
        pace = sum(self._took_s.values()) / whole
        return sum(
            weight * (self._took_s[kind] / self._weight[kind] if self._weight[kind] else pace)
            for kind, weight in self._parts[self._part :]
        )

    def skip(self, message: str) -> None:
        """Say why this part takes no time."""
        self._skipped = True
        self.log(message)

    def stage(self, name: str, total: int | None = None) -> None:
        self._progress.stage(f"[{self._part}/{len(self._parts)}] {name}", total)
        if self._estimate:  # not before: the stage before has its last line first
            self.log(self._estimate)
            self._estimate = ""

    def advance(self, n: int = 1, **fields: Field) -> None:
        self._progress.advance(n, **fields)

    def log(self, message: str) -> None:
        self._progress.log(message)

    def done(self) -> None:
        self._progress.done()


def train_once(config: TrainConfig, name: str, *, overwrite: bool, remedy: str, progress: Parts) -> None:
    """Train a run, go on with it, or leave it as it is.

    Args:
        name: what to call it.
        remedy: what a person can do where another run is in its folder, in words.

    Raises:
        KeyboardInterrupt: training was asked to stop; it is saved, and what comes after it waits as well.
        RunError: the folder holds a run with other settings, data or weights to begin with.
    """
    run = RunDir(config.output_dir)
    there = run.is_run and not overwrite
    if there and is_finished(run, config, remedy=remedy):
        progress.skip(f"{name}: trained already in {run.path}")
        return
    result = train(config, resume=there, overwrite=run.is_run and overwrite, progress=progress)
    give_back()
    if result.status == "interrupted":
        progress.log(f"{name}: saved after step {result.step}; the same command goes on from there")
        raise KeyboardInterrupt


def in_dtype(config: TrainConfig, dtype: str) -> TrainConfig:
    """The same run with another `model.dtype`."""
    return config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})


def asked_now(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an evaluation with these settings of `opct.evaluate` would ask, see `opct.evals.fingerprint`; None where it
    cannot be asked, for want of data or of a package."""
    from opct.evals.fingerprint import fingerprint, grading_hash

    _as_imported(grading_hash)
    try:
        return fingerprint(settings)
    except (DataError, EvaluationError):
        return None


def evaluate_once(
    label: str,
    folder: Path,
    config: TrainConfig,
    dtype: str,
    settings: Mapping[str, Any],
    *,
    overwrite: bool,
    asked: Mapping[str, Any] | None,
    progress: Parts,
) -> dict[str, Any]:
    """Results of a run's last checkpoint, or of the base; read where the same was measured there before.

    The same is: the same weights and settings, the same samples of every suite, graded by the same code, and a
    `results.json` that nothing else has written since.

    Args:
        label: what the report calls it; "base" is the model of `config` without the run's adapter.
        dtype: of the base: what `auto` stood for in the runs it is compared with.
        settings: of `opct.evaluate`.
        asked: what `asked_now` says of them; where it is None the samples are not compared.
    """
    from opct.models.policy import Policy

    results = RunDir(folder).results_path
    if not overwrite and is_measured(label, folder, config, dtype, settings, asked):
        unseen = "" if asked is not None else "; what its suites ask cannot be had now, and was not compared"
        progress.skip(f"{label}: measured already in {folder}{unseen}")
        return json.loads(results.read_text(encoding="utf-8"))
    target: Policy | Path = folder
    if label == BASE:
        progress.stage(f"load {config.model.name_or_path}")
        target = Policy.load(config.model.model_copy(update={"adapter": None}), recorded_dtype=dtype)
    # Before it is measured: what is edited in the meantime is not what these results are of. What is asked is found
    # anew, for a file may be another one since the experiment began.
    before = _wanted(label, folder, config, dtype, settings) | {"asked": asked_now(settings)}
    base = note_model(config.model)
    result = evaluate(target, out=folder, label=label, progress=progress, **settings)
    fetched = base or note_model(config.model)  # by this very measurement, where it was not on this machine
    write_json(_marker(folder), before | {"base": fetched, "results_sha256": file_sha256(results)})
    assert result.results is not None
    return result.results


def attack_once(
    label: str,
    folder: Path,
    config: TrainConfig,
    dtype: str,
    attacker: str,
    settings: Mapping[str, Any],
    *,
    progress: Parts,
) -> None:
    """Let an attacker attack a run or the base, go on where that stopped, or leave it as it is.

    Args:
        label: what the report calls the target; "base" is the model of `config` without the run's adapter.
        folder: of the run, or of the base's results; the attack is kept in its `attacks`.
        settings: of `opct.run_attack`.

    Raises:
        KeyboardInterrupt: it was asked to stop; what was tried is kept.
        OtherAttackError: the folder holds an attack by other rules or on other weights.
    """
    from opct.attack.run import run_attack
    from opct.attack.scoring import rules_version
    from opct.attack.store import AttackDir
    from opct.models.policy import Policy

    kept = AttackDir(RunDir(folder).attacks_dir / attacker)
    marker = kept.path / "experiment.json"
    wanted = _wanted(label, folder, config, dtype, settings) | {"judging_rules": rules_version()}
    if marker.is_file() and kept.result_path.is_file():
        made = json.loads(marker.read_text(encoding="utf-8"))
        base, same = made.pop("base"), wanted | {"result_sha256": file_sha256(kept.result_path)}
        if made == same and not differences(base, note_model(config.model, base)):
            progress.skip(f"{label}: attacked already by {attacker} in {kept.path}")
            return
    progress.stage(f"attack {label} with {attacker}")
    target: Policy | Path = folder
    if label == BASE:
        target = Policy.load(config.model.model_copy(update={"adapter": None}), recorded_dtype=dtype)
    own = {**settings, "dtype": dtype, "target": {**settings.get("target", {}), "label": label}}
    try:
        found = run_attack(target, own, out=kept.path, resume=kept.is_attack, progress=progress)
    except OtherAttackError as error:
        raise OtherAttackError(
            f"{error} In an experiment: delete {kept.path}, and the same command makes it anew."
        ) from error
    del target
    give_back()
    if found.ended == "interrupted":
        raise KeyboardInterrupt
    if found.ended == "complete":
        shas = {"base": note_model(config.model), "result_sha256": file_sha256(kept.result_path)}
        write_json(marker, wanted | shas)


def mark_regraded(folder: Path, before_sha256: str) -> None:
    """Let the results of a folder, graded again or judged, still be those that `evaluate_once` wrote, if they were.

    Args:
        before_sha256: of `results.json` before it was graded again or judged.
    """
    marker = _marker(folder)
    if not marker.exists():
        return
    measured = json.loads(marker.read_text(encoding="utf-8"))
    if measured.get("results_sha256") == before_sha256:
        write_json(marker, {**measured, "results_sha256": file_sha256(RunDir(folder).results_path)})


def is_measured(
    label: str,
    folder: Path,
    config: TrainConfig,
    dtype: str,
    settings: Mapping[str, Any],
    asked: Mapping[str, Any] | None,
) -> bool:
    """Whether `evaluate_once` would only read what is there."""
    marker, results = _marker(folder), RunDir(folder).results_path
    if not (marker.exists() and results.exists()):
        return False
    measured = json.loads(marker.read_text(encoding="utf-8"))
    base, before = measured.pop("base", None), measured.pop("asked", None)
    if base is None or (asked is not None and before != asked):
        return False
    wanted = _wanted(label, folder, config, dtype, settings) | {"results_sha256": file_sha256(results)}
    # A setting that came later is null where it changes nothing: what was measured before it is not measured again.
    later = {name: None for name, value in wanted.items() if value is None}
    return bool(later | measured == wanted) and not differences(base, note_model(config.model, base))


def _marker(folder: Path) -> Path:
    return folder / "evals" / "settings.json"


def _wanted(label: str, folder: Path, config: TrainConfig, dtype: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the results of a run depend on and what is compared as it is: neither the files of the base nor the samples.

    The checkpoint is None of the base and of what has none.
    """
    from opct.evals.fingerprint import grading_hash

    checkpoints = [] if label == BASE else RunDir(folder).checkpoints()
    return {
        "label": label,
        "model": config.model.model_dump() | {"dtype": dtype},
        "step": checkpoints[-1][0] if checkpoints else None,
        "weights": weight_hashes(checkpoints[-1][1]) if checkpoints else None,
        "embedded": _as_imported(embedded_hash),
        "grading": _as_imported(grading_hash),
        **settings,
    }


@cache
def _as_imported(code_hash: Callable[[], str]) -> str:
    """A hash of files as they were when this process first asked for it: an edited module is not imported again."""
    return code_hash()

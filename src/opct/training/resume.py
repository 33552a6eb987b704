"""Checks before a resume: same data, weights and settings, and no lost files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opct import distributed
from opct.config.loader import load_config
from opct.config.schema import TrainConfig
from opct.data.dataset import load_training_pairs
from opct.errors import CheckpointError, RunError
from opct.methods.registry import method_class
from opct.models.from_run import adapter_now
from opct.models.provenance import Fingerprints, changed_files, fingerprint_adapter, fingerprint_weights
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.runs.usage import prior_usage
from opct.training.checkpoint import Counters

# settings that may differ when a run is resumed: they change when it ends and what it writes, not its steps
FREE_SETTINGS = {"save_steps", "save_total_limit", "report_to", "output_dir", "stop", "vllm", "parallel"}
FREE_INSIDE = {"rollout": {"max_mismatch_kl"}, "teacher": {"check_behaviors", "check_hazards", "check_tokens"}}
# may differ too if the learning rate does not depend on the number of steps
LENGTH_SETTINGS = {"max_steps", "num_train_epochs"}


def latest_checkpoint(run: RunDir) -> Path | None:
    """The newest checkpoint, verified by the main process; None if there is none.

    Raises:
        CheckpointError: it is corrupt, or another process does not see it.
    """
    checkpoint = distributed.broadcast_object(run.latest_checkpoint() if distributed.is_main() else None)
    if checkpoint is not None and not checkpoint.is_dir():
        raise CheckpointError(
            f"Process {distributed.rank()} does not see {checkpoint}: the output_dir must be on a file system that all "
            "machines of the run share."
        )
    return checkpoint


def refuse_lost_metrics(run: RunDir, counters: Counters) -> None:
    """Raise RunError if metrics.jsonl has lost rows that it had when the checkpoint was written."""
    rows = sum(row["step"] <= counters.step for row in read_jsonl(run.metrics_path))
    if rows < counters.metrics_rows:
        raise RunError(
            f"{run.metrics_path} has {rows} rows up to step {counters.step}, and had {counters.metrics_rows} when that "
            "checkpoint was written: restore the file, or start another run with model.adapter set to the checkpoint."
        )


def origin(run: RunDir, config: TrainConfig) -> dict[str, Any]:
    """Where a run starts from, for its manifest.

    weights: fingerprints of the files of the base and of the adapter to continue, to be compared without a model.
    earlier: the steps and seconds that the adapter to continue had taken when the run began; None without one.
    """
    manifest, adapter = run.read_manifest(), _adapter(config)
    if "data" in manifest:
        earlier = manifest.get("earlier")
    else:
        earlier = None if adapter is None else prior_usage(adapter)
    return {"weights": _weights_now(config), "earlier": earlier}


def _adapter(config: TrainConfig) -> Path | None:
    """The folder of the adapter to continue; None without one, or if it is gone."""
    return None if config.model.adapter is None else adapter_now(config.model.adapter)


def _weights_now(config: TrainConfig) -> dict[str, Fingerprints]:
    """Fingerprints of the files of the base and of the adapter to continue; empty for what is gone."""
    adapter = _adapter(config)
    return {
        "base": fingerprint_weights(config.model),
        "adapter": {} if adapter is None else fingerprint_adapter(adapter),
    }


def refuse_other_run(run: RunDir, config: TrainConfig, identity: Mapping[str, Any]) -> None:
    """Refuse to resume with different data, model, adapter, teacher or settings.

    Raises:
        RunError: names everything that differs.
    """
    manifest = run.read_manifest()
    if "data" not in manifest:
        return  # it was stopped before it began
    faults = _data_faults(manifest["data"], identity["data"])
    for name, what in (
        ("base", "the base model's weights"),
        ("teacher", "the teacher's weights"),
        ("template", "the chat template"),
        ("dtype", "the dtype"),
    ):
        if manifest.get(name) != identity[name]:
            faults.append(f"{what} changed ({manifest.get(name)} then, {identity[name]} now)")
    faults += _weight_faults(manifest, config, ("adapter",))  # the base was loaded, and is compared above
    faults += _setting_faults(run, config)
    if faults:
        raise RunError(
            f"{run.path} cannot be resumed as the same run:\n  "
            + "\n  ".join(faults)
            + "\nRestore it, or start another run in another output_dir."
        )


def is_finished(run: RunDir, config: TrainConfig, *, remedy: str = "replace the run with --overwrite") -> bool:
    """True if the run has trained all the steps that `config` asks for; False if it has not, or there is no run.

    With `max_steps: null`, the number of steps is that of the manifest, if the run had the same `max_steps` and
    `num_train_epochs`. Files of the base or of the adapter are compared if they are still there.

    Args:
        remedy: what the message advises if it is a different run.

    Raises:
        RunError: the run has other settings, data, base or adapter to continue, or has trained for longer.
        DataError: the data are gone, or faulty.
    """
    if not run.is_run or not run.config_path.exists():
        return False
    manifest = run.read_manifest()
    faults = _setting_faults(run, config)
    if not faults and "data" in manifest:
        faults = _data_faults(manifest["data"], load_training_pairs(config).hashes)
        faults += _weight_faults(manifest, config)
    before = load_config(run.config_path)
    is_as_long = all(getattr(before, name) == getattr(config, name) for name in LENGTH_SETTINGS)
    total = config.max_steps or (manifest.get("total_steps") if is_as_long else None)
    last = max((step for step, _ in run.checkpoints()), default=0)
    if not faults and config.max_steps is not None and last > config.max_steps:
        faults = [f"it has trained {last} steps, and max_steps is {config.max_steps}"]
    if faults:
        raise RunError(
            f"{run.path} holds a run with other settings, data or weights:\n  "
            + "\n  ".join(faults)
            + f"\nRestore them, {remedy}, or choose another output_dir."
        )
    return total is not None and last >= total


def refuse_longer_run(run: RunDir, step: int, total_steps: int) -> None:
    """Raise RunError if a resumed run has already trained for longer than the settings ask for."""
    if step > total_steps:
        raise RunError(
            f"{run.path} has trained {step} steps, but the settings now ask for {total_steps}: restore the number of "
            "steps, or start another run in another output_dir."
        )


def _weight_faults(
    manifest: Mapping[str, Any], config: TrainConfig, of: Sequence[str] = ("base", "adapter")
) -> list[str]:
    """Which files of the base or the adapter have changed since the run began."""
    before = manifest.get("weights") or {}
    now = _weights_now(config)
    names = {
        "base": f"the base model {config.model.name_or_path}",
        "adapter": f"the adapter that it continued, {config.model.adapter},",
    }
    found = {part: changed_files(before.get(part) or {}, now[part]) for part in of}
    return [f"{names[part]} changed ({'; '.join(files)})" for part, files in found.items() if files]


def _data_faults(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Which parts of the data have changed; both arguments are hashes by part."""
    return [
        f"the {name.replace('_', ' ')} changed (hash {before.get(name)} then, {found} now)"
        for name, found in now.items()
        if before.get(name) != found
    ]


def _setting_faults(run: RunDir, config: TrainConfig) -> list[str]:
    """Which settings have changed since the run began, except those that may."""
    before = load_config(run.config_path).model_dump(exclude=FREE_INSIDE) if run.config_path.exists() else {}
    now = config.model_dump(exclude=FREE_INSIDE)
    if before and method_class(config.method).trained_by is not None:
        before["data"]["pairs"] = now["data"]["pairs"]  # a file of an attack, which may move; its hash is compared
    free = FREE_SETTINGS | (LENGTH_SETTINGS if config.may_go_on else set())
    return [
        f"the setting {key} changed ({_difference(before[key], now[key])})"
        for key in sorted(before)
        if key not in free and before[key] != now[key]
    ]


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        return ", ".join(f"{k}: {before[k]!r} then, {now[k]!r} now" for k in before if before[k] != now.get(k))
    return f"{before!r} then, {now!r} now"

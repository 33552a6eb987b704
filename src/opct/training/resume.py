"""Exact resume: what a checkpoint holds, and what must be the same when a run continues from it.

    adapter/ or model/               the weights as PEFT or Transformers loads them, for evaluation and export
    state.safetensors                trained weights, Adam's moments and a moving teacher, by name
    state.json                       counters, and the hash of every file

Any number of processes can resume from it. It holds no pickle, so loading an untrusted checkpoint executes no code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from opct.config.loader import load_run_config
from opct.config.schema import LENGTH, TrainConfig
from opct.data.dataset import load_training_pairs
from opct.errors import CheckpointError, RunError
from opct.models.from_run import GIVEN_MODEL, adapter_now
from opct.models.loading import with_weights
from opct.models.policy import Policy
from opct.models.provenance import Fingerprints, changed_files, fingerprint_adapter, fingerprint_weights
from opct.models.teacher import Teacher
from opct.runs.checkpoints import read_state
from opct.runs.identity import Identity
from opct.runs.io import fsync_file
from opct.runs.run_dir import RunDir
from opct.runs.usage import prior_usage
from opct.training.setup import TrainingSetup

STATE = "state.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")
# settings that may differ when a run is resumed: when it ends, what it writes, and what a step holds in memory
FREE_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("eval", "save_steps", "save_total_limit", "report_to", "output_dir", "stop"), True),
    **dict.fromkeys(("vllm", "parallel", "verl"), True),
    "data": {"pairs"},  # files, which may move; the hash of what they hold is compared
    "optim": {"gradient_checkpointing", "micro_batch_tokens"},
    "rollout": {"batch_tokens", "max_mismatch_kl"},
    "teacher": {"check_behaviors", "check_hazards", "check_tokens"},
}
LOADED = {
    "base": "the base model's weights",
    "teacher": "the teacher's weights",
    "template": "the chat template",
    "dtype": "the dtype",
}


# ---------------------------------------------------------------------------------------- what a checkpoint holds


class Counters(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    step: NonNegativeInt = 0
    best_kl: float | None = None
    best_step: NonNegativeInt | None = None
    reference: float = 0.0  # the KL or loss of the first steps, which a divergence is judged against
    steps_above: NonNegativeInt = 0
    metrics_rows: NonNegativeInt = 0  # in metrics.jsonl when the checkpoint was written
    unmeasured: dict[str, int | float] | None = None  # metrics of a step whose validation or suites are still to come


class _Saved(Counters):
    teacher: str  # its hash


def write_checkpoint(run: RunDir, setup: TrainingSetup, optimizer: torch.optim.Optimizer, counters: Counters) -> None:
    """Save weights, optimizer, teacher and counters atomically; the main process alone calls it. Raises CheckpointError
    where they cannot be written; the last good checkpoint is intact."""
    policy, teacher = setup.policy, setup.teacher

    def write(folder: Path) -> None:
        policy.save(folder / ("adapter" if policy.has_adapter else "model"))
        tensors = _tensors(policy, teacher, optimizer)
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / STATE)

    if run.metrics_path.exists():  # a checkpoint never gets to the disk before its metrics
        fsync_file(run.metrics_path)
        counters.metrics_rows = run.metrics_path.read_bytes().count(b"\n")
    run.save_checkpoint(counters.step, write, counters.model_dump() | {"teacher": teacher.identity()})


def load_checkpoint(checkpoint: Path, setup: TrainingSetup, optimizer: torch.optim.Optimizer) -> Counters:
    """Load a checkpoint's weights, optimizer and teacher; returns its counters. Raises CheckpointError where it does
    not fit the model, or is not one that this package wrote."""
    try:
        saved = _Saved.model_validate(read_state(checkpoint))
    except ValidationError as error:
        raise CheckpointError(
            f"The counters in {checkpoint} cannot be read: it was written by another version of opct. "
            "Resume the run with that one, or start another run."
        ) from error
    try:
        _read_tensors(checkpoint / STATE, setup.policy, setup.teacher, optimizer)
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"The checkpoint {checkpoint} does not fit this model and config: {error}") from error
    teacher = setup.teacher.identity()
    if saved.teacher != teacher:
        raise CheckpointError(
            f"The teacher of {checkpoint} cannot be restored: its hash is {teacher} and was {saved.teacher}. Restore "
            "the model and adapter of the run, or start another run."
        )
    return Counters(**saved.model_dump(exclude={"teacher"}))


def _tensors(policy: Policy, teacher: Teacher, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by name; all are live, so that they can be filled."""
    tensors: dict[str, Tensor] = {f"teacher/{name}": tensor for name, tensor in teacher.state_dict().items()}
    for name, parameter in policy.trainable_parameters().items():
        # detached, not cloned: `_read_tensors` fills these tensors in place
        tensors[f"weight/{name}"] = parameter.detach()
        tensors |= {f"{key}/{name}": tensor for key, tensor in optimizer.state.get(parameter, {}).items()}
    return tensors


@torch.no_grad()
def _read_tensors(file: Path, policy: Policy, teacher: Teacher, optimizer: torch.optim.Optimizer) -> None:
    """Fill weights, optimizer and teacher with what the file holds. Raises ValueError where it holds other tensors."""
    with safe_open(file, "pt") as stored:
        names = set(stored.keys())
        for name, parameter in policy.trainable_parameters().items():
            if f"step/{name}" in names:  # a weight has moments after its first gradient
                moments = {key: torch.zeros_like(parameter) for key in MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
        tensors = _tensors(policy, teacher, optimizer)
        if other := sorted(names ^ tensors.keys()):
            raise ValueError(f"it was made by another model or optimizer, as {', '.join(other[:3])} show")
        for name, tensor in tensors.items():
            saved = stored.get_tensor(name)
            if saved.shape != tensor.shape:  # `copy_` would repeat a smaller tensor to fill a larger one
                raise ValueError(f"{name} has another shape")
            tensor.copy_(saved)


# ---------------------------------------------------------------------------------- what must be the same as before


def refuse_lost_metrics(run: RunDir, counters: Counters) -> None:
    """Raise RunError if metrics.jsonl has lost rows that it had when the checkpoint was written.

    Those of step 0 do not count if no step was trained: they are written again.
    """
    rows = sum(row["step"] <= counters.step for row in run.read_metrics())
    if counters.step and rows < counters.metrics_rows:
        raise RunError(
            f"{run.metrics_path} has {rows} rows up to step {counters.step}, and had {counters.metrics_rows} when that "
            "checkpoint was written: restore the file, or start another run with model.adapter set to the checkpoint."
        )


def origin(run: RunDir, config: TrainConfig, *, is_given: bool) -> dict[str, Any]:
    """Where a run starts from, for its manifest.

    weights: fingerprints of the files of the base and of the adapter to continue, to be compared without a model.
    given_model: the base came loaded, so files of its name may hold other weights, and are not among `weights`.
    earlier: the steps and seconds that the adapter to continue had taken when the run began; None without one.
    """
    manifest, adapter = run.read_manifest(), adapter_now(config.model.adapter)
    if "data" in manifest:
        earlier = manifest.get("earlier")
    else:
        earlier = None if adapter is None else prior_usage(adapter)
    return {"weights": _weights_now(config, base=not is_given), GIVEN_MODEL: is_given, "earlier": earlier}


def _weights_now(config: TrainConfig, *, base: bool) -> dict[str, Fingerprints]:
    """Fingerprints of the files of the base, if asked for, and of the adapter to continue; empty for what is gone."""
    adapter = adapter_now(config.model.adapter)
    return {
        "base": fingerprint_weights(config.model) if base else {},
        "adapter": {} if adapter is None else fingerprint_adapter(adapter),
    }


def refuse_other_run(run: RunDir, config: TrainConfig, identity: Mapping[str, Any]) -> None:
    """Raise RunError, with all that differs, for a resume with other data, model, adapter, teacher or settings."""
    manifest = run.read_manifest()
    if "data" not in manifest:
        return  # it was stopped before it began
    faults = _loaded(manifest).diff(_loaded(identity))
    faults += _weight_faults(manifest, config, base=False)  # the base was loaded, and is compared above
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
    manifest, then = run.read_manifest(), load_run_config(run.config_path)
    if config.model != then.model:  # the run names the weights that the default stood for
        config = config.model_copy(update={"model": with_weights(config.model)})
    faults = _setting_faults(run, config)
    if not faults and "data" in manifest:
        before = {"data": manifest["data"]}  # the rest of what is loaded is known once a model is
        faults = _loaded(before).diff(_loaded({"data": load_training_pairs(config).hashes}))
        faults += _weight_faults(manifest, config, base=True)
    is_as_long = all(getattr(then, name) == getattr(config, name) for name in LENGTH)
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
    # a last step that could not be measured has a checkpoint, and no metrics yet
    return total is not None and last >= total and any(row["step"] >= last for row in run.read_metrics())


def _weight_faults(manifest: Mapping[str, Any], config: TrainConfig, *, base: bool) -> list[str]:
    """Which files of the base or the adapter have changed since the run began."""
    before, now = manifest.get("weights") or {}, _weights_now(config, base=base)
    names = {
        "base": f"the base model {config.model.name_or_path}",
        "adapter": f"the adapter that it continued, {config.model.adapter},",
    }
    changes = {part: changed_files(before.get(part) or {}, now[part]) for part in names}
    return [f"{names[part]} changed ({'; '.join(files)})" for part, files in changes.items() if files]


def _loaded(values: Mapping[str, Any]) -> Identity:
    """The hashes of what a run reads, by their names in a message."""
    data = {f"the {name.replace('_', ' ')} (hash)": data_hash for name, data_hash in values["data"].items()}
    return Identity(data | {words: values.get(name) for name, words in LOADED.items()})


def _setting_faults(run: RunDir, config: TrainConfig) -> list[str]:
    """Which settings have changed since the run began, except those that may."""
    if not run.config_path.exists():
        return []
    # no step depends on their number then, so a finished run may be extended
    is_constant = config.optim.lr_scheduler_type == "constant"
    free = FREE_SETTINGS | (dict.fromkeys(LENGTH, True) if is_constant else {})
    return Identity(load_run_config(run.config_path).model_dump(exclude=free)).diff(config.model_dump(exclude=free))

"""Saves and loads checkpoints.

    adapter/ or model/               the weights as PEFT or Transformers loads them, for evaluation and export
    state/rank-00000.safetensors     trained weights, Adam's moments and a moving teacher, by name; of sharded tensors
                                     each rank writes its own rows
    state.json                       counters, and the hash of every file

Any number of processes can resume from it, since rows are found by name. It holds no pickle, so loading an untrusted
checkpoint executes no code.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from opct import distributed
from opct.errors import CheckpointError
from opct.models.fsdp import full_state_dict
from opct.models.policy import Policy
from opct.models.teacher import Teacher
from opct.runs.checkpoints import read_state
from opct.runs.io import fsync_file, reason
from opct.runs.run_dir import RunDir
from opct.training.setup import TrainingSetup

STATE = "state"
FIRST_ROWS = "first_rows"  # in the header of a file: where its part of each tensor begins
MOMENTS = ("exp_avg", "exp_avg_sq")
Count = Annotated[int, Field(ge=0)]


class Counters(BaseModel):
    """Counters of a run."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    step: Count = 0
    best_kl: float | None = None
    best_step: Count | None = None
    reference: float = 0.0  # the KL or loss of the first steps, which a divergence is judged against
    steps_above: Count = 0
    metrics_rows: Count = 0  # in metrics.jsonl when the checkpoint was written


class _Saved(Counters):
    teacher: str  # its hash


def write_checkpoint(run: RunDir, setup: TrainingSetup, optimizer: torch.optim.Optimizer, counters: Counters) -> None:
    """Save weights, optimizer, teacher and counters atomically. Every process calls it.

    Raises:
        CheckpointError: it could not be written; the last good one is intact.
    """
    policy, teacher = setup.policy, setup.teacher.identity()
    in_parts = policy.backbone.shards is not None and not policy.has_adapter

    def write(folder: Path | None) -> None:
        weights = None
        if in_parts:
            folder = Path(distributed.broadcast_object(str(folder)))
            weights = full_state_dict(policy.model)
        assert folder is not None
        if distributed.is_main():
            policy.save(folder / ("adapter" if policy.has_adapter else "model"), weights)
        fault = _write_rows(folder / STATE, _tensors(policy, setup.teacher, optimizer))
        # gathered before the seal: no rank seals what another still writes
        faults = [fault] if not in_parts else distributed.all_gather_object(fault)
        if distributed.is_main() and any(faults):
            raise RuntimeError(next(own for own in faults if own))

    if distributed.is_main():
        if run.metrics_path.exists():  # a checkpoint never gets to the disk before its metrics
            fsync_file(run.metrics_path)
            counters.metrics_rows = run.metrics_path.read_bytes().count(b"\n")
        run.save_checkpoint(counters.step, write, counters.model_dump() | {"teacher": teacher})
    elif in_parts:
        write(None)


def load_checkpoint(checkpoint: Path, setup: TrainingSetup, optimizer: torch.optim.Optimizer) -> Counters:
    """Load a checkpoint's weights, optimizer and teacher; returns its counters.

    Raises:
        CheckpointError: it does not fit the model, or is not one that this package wrote.
    """
    try:
        saved = _Saved.model_validate(read_state(checkpoint))
    except ValidationError as error:
        raise CheckpointError(
            f"The counters in {checkpoint} cannot be read: it was written by another version of opct. "
            "Resume the run with that one, or start another run."
        ) from error
    try:
        _read_rows(checkpoint / STATE, setup.policy, setup.teacher, optimizer)
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"The checkpoint {checkpoint} does not fit this model and config: {error}") from error
    if saved.step != int(checkpoint.name.rpartition("-")[2]):
        raise CheckpointError(f"The counters in {checkpoint} are of step {saved.step}: use another checkpoint.")
    teacher = setup.teacher.identity()
    if saved.teacher != teacher:
        raise CheckpointError(
            f"The teacher of {checkpoint} cannot be restored: its hash is {teacher} and was {saved.teacher}. Restore "
            "the model and adapter of the run, or start another run."
        )
    return Counters(**saved.model_dump(exclude={"teacher"}))


def _tensors(policy: Policy, teacher: Teacher, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by name; weights and optimizer are live."""
    found: dict[str, Tensor] = {f"teacher/{name}": own for name, own in teacher.state_dict().items()}
    for name, parameter in policy.trainable_parameters().items():
        found[f"weight/{name}"] = parameter.detach()
        found |= {f"{key}/{name}": own for key, own in optimizer.state.get(parameter, {}).items()}
    return found


def _write_rows(folder: Path, tensors: Mapping[str, Tensor]) -> str | None:
    """Write this process's part of each tensor; returns the error, if any.

    Of a tensor that every process has whole, the main one writes it.
    """
    own: dict[str, Tensor] = {}
    first_rows: dict[str, int] = {}
    for name, tensor in tensors.items():
        part, first = _own_part(tensor)
        if part.numel() and (part is not tensor or distributed.is_main()):
            own[name], first_rows[name] = part.cpu().contiguous(), first
    try:
        folder.mkdir(exist_ok=True)
        file = folder / f"rank-{distributed.rank():05d}.safetensors"
        save_file(own, file, {FIRST_ROWS: json.dumps(first_rows)})
    except (OSError, SafetensorError) as error:
        return f"{reason(error)} (process {distributed.rank()})" if distributed.launched() else reason(error)
    return None


@torch.no_grad()
def _read_rows(folder: Path, policy: Policy, teacher: Teacher, optimizer: torch.optim.Optimizer) -> None:
    """Fill weights, optimizer and teacher with what the files of all processes hold.

    Raises:
        ValueError, RuntimeError: they hold other tensors.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, "pt")) for path in sorted(folder.glob("*.safetensors"))]
        headers = [(file.metadata() or {}).get(FIRST_ROWS, "") for file in files]
        places = [TypeAdapter(dict[str, NonNegativeInt]).validate_json(header) for header in headers]
        stored = {name for first_rows in places for name in first_rows}
        for name, parameter in policy.trainable_parameters().items():
            if f"step/{name}" in stored:  # a weight has moments after its first gradient
                moments = {key: torch.zeros_like(parameter) for key in MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
        tensors = _tensors(policy, teacher, optimizer)
        if other := sorted(stored ^ tensors.keys()):
            raise ValueError(f"it was made by another model or optimizer, as {', '.join(other[:3])} show")
        for name, tensor in tensors.items():
            _fill(tensor, name, [(file, rows[name]) for file, rows in zip(files, places, strict=True) if name in rows])


def _fill(tensor: Tensor, name: str, parts: Sequence[tuple[Any, int]]) -> None:
    """Copy the rows that this process keeps of a tensor out of (file, first row there) of each part."""
    own, first = _own_part(tensor)
    if own.dim() == 0:
        own.copy_(parts[0][0].get_tensor(name))
        return
    end, filled = first + len(own), 0
    for file, start in parts:
        stored = file.get_slice(name)
        rows, *rest = stored.get_shape()
        if rest != list(own.shape[1:]):
            raise ValueError(f"{name} has another shape")
        low, high = max(first, start), min(end, start + rows)
        if low < high:
            own[low - first : high - first].copy_(stored[low - start : high - start])
            filled += high - low
    if filled != len(own) or max(start + file.get_slice(name).get_shape()[0] for file, start in parts) != len(tensor):
        raise ValueError(f"{name} has another shape")


def _own_part(tensor: Tensor) -> tuple[Tensor, int]:
    """The rows of a tensor that this process keeps, and where they begin; of a tensor that is not sharded, all."""
    sharded: Any = tensor
    if not hasattr(sharded, "placements"):
        return tensor, 0
    own, rows = sharded.to_local(), len(tensor)
    first = min(rows, distributed.rank() * -(-rows // distributed.size()))  # FSDP2 shards rows as torch.chunk does
    return own, first

"""The checkpoint of a run whose weights are sharded: every process writes and reads its own part.

    model/     the whole model, as transformers loads it: for evaluation and for export
    sharded/   weights, Adam's moments and the teacher's moving average, by torch.distributed.checkpoint

What is in `sharded/` goes by the names of the weights, so that any number of processes can go on from it, one too; and
a checkpoint of one process can be gone on from by several.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opct import distributed
from opct.models.fsdp import placed, whole_state
from opct.models.policy import Policy
from opct.models.teacher import Teacher

FOLDER = "sharded"


def write(folder: Path | None, policy: Policy, teacher: Teacher, optimizer: torch.optim.Optimizer) -> None:
    """Write both folders. Every process calls it; the main one says where.

    Raises:
        OSError, RuntimeError: one of them could not.
    """
    import torch.distributed.checkpoint as dcp

    folder = Path(distributed.from_main(str(folder)))
    weights = whole_state(policy.model)
    if distributed.is_main():
        policy.save(folder / "model", weights)
    with _plain_errors():
        dcp.save(_state(policy, teacher, optimizer), checkpoint_id=folder / FOLDER)


def load(folder: Path, policy: Policy, teacher: Teacher, optimizer: torch.optim.Optimizer) -> None:
    """Put weights, optimizer and teacher of a sharded checkpoint in place, sharded or not.

    Raises:
        RuntimeError: its tensors do not fit.
    """
    import torch.distributed.checkpoint as dcp

    state = _state(policy, teacher, optimizer)
    with warnings.catch_warnings(), _plain_errors():
        # said where one process reads alone, which is what is meant
        warnings.filterwarnings("ignore", message=".*torch.distributed is disabled, unavailable or uninitialized.*")
        dcp.load(state, checkpoint_id=folder / FOLDER)
    for name, parameter in policy.trainable_parameters().items():
        optimizer.state[parameter] = state["optimizer"][name]


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """The error of the process that failed instead of one of all processes, which is no Exception."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        which, (cause, _) = min(error.failures.items())
        raise RuntimeError(f"process {which}: {cause}") from cause


def place_optimizer(saved: Mapping[str, Any], policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """Load the optimizer's state that one process saved, each tensor sharded as its weight is."""
    parameters = list(policy.trainable_parameters().values())
    state = {
        i: {
            name: placed(value, parameters[i]) if value.dim() else value  # the count of steps is a number
            for name, value in own.items()
        }
        for i, own in saved["state"].items()
    }
    optimizer.load_state_dict({"state": state, "param_groups": saved["param_groups"]})


def place_teacher(saved: Mapping[str, Tensor], teacher: Teacher) -> None:
    """Load the teacher's state that one process saved, sharded as the teacher is."""
    own = teacher.state_dict()
    teacher.load_state_dict({name: placed(value, own[name]) for name, value in saved.items()})


def _state(policy: Policy, teacher: Teacher, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The tensors of a run by name; before the first step, with moments of zero to load into."""
    weights = policy.trainable_parameters()
    moments: dict[str, dict[str, Tensor]] = {}
    for name, parameter in weights.items():
        moments[name] = optimizer.state.get(parameter) or {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    own = {name: parameter.detach() for name, parameter in weights.items()}
    return {"model": own, "optimizer": moments, "teacher": teacher.state_dict()}

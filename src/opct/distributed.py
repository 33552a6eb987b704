"""Several processes of one run: ranks, collectives of Python objects, and work that is shared between ranks.

`torchrun` and `accelerate launch` start the processes, give each its rank in the environment, and end all of them when
one fails. In one process every collective returns its argument. Torch is imported where it is first needed.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from opct.errors import ConfigError, OpctError, TrainingError

if TYPE_CHECKING:
    from opct.config.schema import ParallelConfig

START = "start several processes with `torchrun --nproc-per-node 8 -m opct train ...`, or unset WORLD_SIZE to have one."
PATIENCE_S = 3  # until a process that is not the main one says its error itself
TOGETHER = 64  # parameters whose gradients are summed in one all-reduce: a buffer of all would be a second gradient
T = TypeVar("T")
R = TypeVar("R")


def launched() -> bool:
    """True in a process that a launcher started together with others."""
    # both: a WORLD_SIZE without a rank is refused by `session`, not taken for one process
    return _number("WORLD_SIZE", 1) > 1 and "RANK" in os.environ


def rank() -> int:
    """Rank of this process; known before the processes connect."""
    return _number("RANK", 0) if launched() else 0


def size() -> int:
    """Number of processes; known before they connect."""
    return _number("WORLD_SIZE", 1) if launched() else 1


def is_main() -> bool:
    """True for the main process, which writes files and prints."""
    return rank() == 0


def _number(name: str, default: int) -> int:
    """An integer that a launcher sets as an environment variable. Raises ConfigError where it is not an integer."""
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"The environment variable {name} is {text!r}, not an integer: {START}") from None


_formed: list[str] = []  # the backends of the group that `session` formed, which every run of the process has


@contextlib.contextmanager
def session(config: ParallelConfig, device: str) -> Iterator[None]:
    """Context in which the ranks of a run form a process group, which later runs of the process keep
    with its time-out.

    CUDA: one device a process, its LOCAL_RANK. Python objects go over gloo.

    Args:
        device: `model.device`.

    Raises:
        ConfigError: `device` names one device for all ranks, this machine has too few devices, or the environment has
            no address to meet at.
        TrainingError: the other ranks did not connect.
        SystemExit: another rank failed; that rank's output says why.
    """
    if not launched():
        if _number("WORLD_SIZE", 1) > 1:
            raise ConfigError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and RANK is not set: {START}")
        yield
        return
    import torch.distributed as dist

    try:
        if not dist.is_initialized():
            _meet(_backend(device), config.timeout_s)
            _formed.append(_backend(device))
            atexit.register(_end_group)  # not sooner: a second group of a process would not meet at the address
        elif _formed and (wanted := _backend(device)) != _formed[0]:
            raise ConfigError(
                f"model.device={device!r} needs {wanted}, and an earlier run of this script met by {_formed[0]}: start "
                "a script for each."
            )
        yield
        dist.barrier()  # a rank that leaves early would break the others' last collectives
    except BaseException as error:
        atexit.unregister(_end_group)  # with collectives still under way, it aborts the process
        if not _lost_another(error):
            raise
        sys.stderr.write(
            f"rank {rank()} stops because another rank failed; see that rank's output. Continue with --resume\n"
        )
        raise SystemExit(1) from error


def _end_group() -> None:
    """End the process group that `session` formed, unless the caller has."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _meet(backend: str, timeout_s: int) -> None:
    """Form the process group at the address in the environment."""
    import torch.distributed as dist

    try:
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_s))
    except ValueError as error:  # the environment has no MASTER_ADDR or MASTER_PORT
        raise ConfigError(f"{error}: {START}") from None
    except dist.DistError as error:
        if "Connection reset" in str(error):  # rank 0 was there and has ended: its own output says why
            raise
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise TrainingError(
            f"The {size()} processes did not meet at {address} within {timeout_s} s (MASTER_ADDR, MASTER_PORT): see "
            "that all are started, that each can reach this address, and that the port is free. "
            f"({str(error).splitlines()[0]})"
        ) from error


def _lost_another(error: BaseException) -> bool:
    """True for the error of a collective whose peer process has exited."""
    words = ("gloo", "NCCL", "Connection closed", "Connection reset", "TCPStore")
    foreign = isinstance(error, RuntimeError) and not isinstance(error, OpctError)
    return foreign and any(word in str(error) for word in words)


def _backend(device: str) -> str:
    """The backends: gloo for the CPU, and NCCL with CUDA. Selects this process's CUDA device."""
    import torch

    others = [
        name for name in ("FSDP", "DEEPSPEED", "MEGATRON_LM") if os.environ.get(f"ACCELERATE_USE_{name}") == "true"
    ]
    if others:
        raise ConfigError(
            f"accelerate launch is set to use {', '.join(others)}: leave that out (--multi_gpu), since every process "
            "has the whole model here. docs/how-to/several-gpus.md says what trains sharded weights."
        )
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kind = "cpu" if accelerator is None else accelerator.type
    device = kind if device == "auto" else device
    if device == "cpu":
        return "cpu:gloo"
    if device != "cuda" or kind != "cuda":
        raise ConfigError(
            f"model.device={device!r} with {size()} processes: use auto, cpu or cuda; each takes a device of its own."
        )
    local, count = _number("LOCAL_RANK", rank()), torch.cuda.device_count()
    if local >= count:
        raise ConfigError(
            f"Process {rank()} is number {local} on its machine, which has {count} CUDA device(s): start at most one "
            "process a device (--nproc-per-node), or set model.device=cpu."
        )
    torch.cuda.set_device(local)
    return "cpu:gloo,cuda:nccl"


def leave(code: int) -> None:
    """Exit a launched process with that code at once; otherwise do nothing.

    Threads of gloo and NCCL sometimes abort a process while Python shuts down.
    """
    with contextlib.suppress(ConfigError):  # faulty variables have been reported by now
        if launched():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def let_main_speak() -> None:
    """Wait before this process says its error: most are met by the main process, too, and then the launcher ends this
    one meanwhile. So each is printed once, by the main process unless it belongs to another one alone."""
    with contextlib.suppress(ConfigError, KeyboardInterrupt):  # faulty variables are what the error is about
        if not is_main():
            time.sleep(PATIENCE_S)


# ------------------------------------------------------------------------------------------- collectives


def all_gather_object(value: T) -> list[T]:
    """The value of each rank, in order."""
    if not launched():
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * size()
    dist.all_gather_object(values, value)
    return values


def gather_or_raise(work: Callable[[], T]) -> list[T]:
    """The result of `work` of each rank, in order; an error of this package in one rank is raised in all of them.

    A rank that raised it alone would leave the others waiting in their next collective.
    """
    if not launched():
        return [work()]
    part: list[Any]
    try:
        part = [work(), None]
    except OpctError as fault:
        # without its frames, which hold what was computed: a retry would not find that memory free
        part = [None, fault.with_traceback(None)]
        part[1].__cause__ = part[1].__context__ = None
    parts = all_gather_object(part)
    for _, error in parts:
        if error is not None:
            raise error
    return [result for result, _ in parts]


def broadcast_object(value: T) -> T:
    """The value of the main rank."""
    if not launched():
        return value
    import torch.distributed as dist

    values: list[Any] = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def main_process_first(work: Callable[[Any], T], given: R, summary: Callable[[T], R]) -> T:
    """`work(given)` in the main rank, and then `work(summary(result))` with its result in the others."""
    if not launched():
        return work(given)
    result = work(given) if is_main() else None
    known = broadcast_object(None if result is None else summary(result))
    return work(known) if result is None else result


def main_only(work: Callable[..., Any], *arguments: Any) -> None:
    """Run a function that writes files in the main rank only."""
    if is_main():
        work(*arguments)


# ----------------------------------------------------------------------------------------------- shared work


def balanced(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Indices in `parts` lists of similar total cost, each in order: greedy, the most expensive item first."""
    loads, shares = [0.0] * parts, [[] for _ in range(parts)]  # type: tuple[list[float], list[list[int]]]
    # ties by index: each rank computes the shares for itself, and all must come to the same
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        least = min(range(parts), key=lambda p: (loads[p], p))
        loads[least] += costs[i]
        shares[least].append(i)
    return [sorted(share) for share in shares]


def map_across_ranks(items: Sequence[T], costs: Sequence[float], work: Callable[[list[T]], Sequence[R]]) -> list[R]:
    """`work` of each item, in the order of the items: each rank does a part, and gets all results.

    Args:
        costs: of each item, to balance the ranks.
        work: takes some of the items and returns a result for each.
    """
    if not launched():
        return list(work(list(items)))
    shares = balanced(costs, size())
    # also with an empty share: a rank that skips a collective leaves the others waiting
    done = gather_or_raise(lambda: list(work([items[i] for i in shares[rank()]])))
    results: dict[int, R] = {}
    for share, results_of_share in zip(shares, done, strict=True):
        results |= zip(share, results_of_share, strict=True)
    return [results[i] for i in range(len(items))]


def sum_gradients(parameters: Sequence[Any]) -> None:
    """Make each gradient its sum over all processes, in all-reduces of flat float32 buffers.

    A sum and not a mean: the loss of a process has the weights of the whole step, so its gradient is a share of that.
    """
    if not launched():
        return
    import torch
    import torch.distributed as dist

    for start in range(0, len(parameters), TOGETHER):
        some = parameters[start : start + TOGETHER]
        # zeros where there is no gradient: a process that had nothing to do must send as many numbers as the others
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().float() for p in some])
        dist.all_reduce(flat)
        for parameter, part in zip(some, flat.split([p.numel() for p in some]), strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)

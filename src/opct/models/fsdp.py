"""Weights sharded with FSDP2, and the synchronisation of processes with different amounts of work.

The decoder's layers, the decoder around them and an untied output head are FSDP units; LoRA weights stay whole in every
process. Each forward and backward of a unit is a collective, so all processes must run the same number of them:

    sampling and scoring   `gathered`: all weights are gathered once. `sharded`: before each forward the processes agree
                           on the next model; a process without work runs it on one token
    gradients              every process has as many micro-batches; `opct.training.accumulate` pads with dummy rollouts

The output head is used outside its module. So it is gathered at the start of each phase, and the gradient of its
weight is summed over the processes at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opct import distributed
from opct.config.schema import TrainConfig
from opct.models.adapters import split_weights
from opct.models.backbone import Backbone, full_tensor
from opct.models.inference.decode import no_shared_rows_reason
from opct.models.inference.prefix_sharing import no_prefix_sharing_reason
from opct.models.kernels.attention import GROUPED
from opct.models.loading import choose_device, empty_model
from opct.models.policy import Policy

FITS = 0.6  # a model whose weights need more than this share of a device's memory is sharded


def wants_shards(config: TrainConfig) -> bool:
    """True if there are several processes and `parallel.strategy` asks for shards."""
    strategy = config.parallel.strategy
    if not distributed.launched() or strategy == "ddp":
        return False
    if strategy == "fsdp" or config.lora is None:
        return True
    device = choose_device(config.model.device)
    if device.type != "cuda":
        return False
    number_bytes = 4 if config.model.dtype == "float32" else 2
    whole = number_bytes * sum(p.numel() for p in empty_model(config.model).parameters())
    return distributed.any_rank(whole > FITS * torch.cuda.mem_get_info()[1])


class Shards:
    """The FSDP units of one model.

    Attributes:
        gathered: gather all weights for sampling and scoring.
    """

    def __init__(self, backbone: Backbone, device: torch.device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        self._backbone, self.gathered = backbone, True
        self._ungated = False  # True in a forward that needs no agreement
        base, head = backbone.bare_model, backbone.bare_model.get_output_embeddings()
        embeddings = base.get_input_embeddings()
        tied = head.weight is embeddings.weight
        options: dict[str, Any] = {
            "mesh": init_device_mesh(device.type, (distributed.size(),)),
            "reshard_after_forward": True,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=None if backbone.dtype == torch.float32 else backbone.dtype,
                reduce_dtype=torch.float32,
                cast_forward_inputs=False,
            ),
            "ignored_params": set(split_weights(backbone.model)[1].values()),
        }
        for parameter in options["ignored_params"]:
            parameter.data = parameter.data.to(device)
        layers = backbone.layers("so they cannot be sharded: use parallel.strategy=ddp")
        for unit in (*layers, backbone.decoder, *([] if tied else [head])):
            fully_shard(unit, **options)
        if tied:
            head.weight = embeddings.weight
            if head.bias is not None:
                head.bias.data = head.bias.data.to(device)
        self._head = head
        self._units: list[Any] = [m for m in backbone.decoder.modules() if isinstance(m, FSDPModule)]
        for unit in self._units:
            unit.set_gradient_divide_factor(1.0)  # the loss has its weights already: gradients are summed
            unit.set_force_sum_reduction_for_comms(True)
        backbone.device, backbone.shards = device, self
        self._set_head(head.weight, head.bias)
        self.dummy_forward()  # FSDP initialises in the first forward, which must be the decoder's

    def dummy_forward(self) -> None:
        """Run the decoder on one token, for its collectives."""
        self._ungated = True
        try:
            with torch.no_grad(), self._backbone.autocast():
                self._backbone.decoder(
                    input_ids=torch.zeros(1, 1, dtype=torch.long, device=self._backbone.device), use_cache=False
                )
        finally:
            self._ungated = False

    @contextlib.contextmanager
    def head(self, *, gradient: bool) -> Iterator[None]:
        """Context with the whole output head; at the end the gradient of its weight goes to the shards."""
        weight, bias = self._head.weight, self._head.bias
        wanted = gradient and weight.requires_grad
        leaf = weight.detach().full_tensor().requires_grad_(wanted)
        self._set_head(leaf, None if bias is None else full_tensor(bias.detach()))
        try:
            yield
        finally:
            self._set_head(weight, bias)
        if wanted:
            own = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            summed = _summed(own, weight)
            weight.grad = summed if weight.grad is None else weight.grad + summed

    @contextlib.contextmanager
    def all_weights(self) -> Iterator[None]:
        """Context in which every process has all weights and runs forwards alone."""
        for unit in self._units:
            unit.set_reshard_after_forward(False, recurse=False)
            unit.unshard()
        self._ungated = True
        try:
            yield
        finally:
            self._ungated = False
            for unit in self._units:
                unit.set_reshard_after_forward(True, recurse=False)
                unit.reshard()

    def _set_head(self, weight: Tensor, bias: Tensor | None) -> None:
        self._backbone.head = dataclasses.replace(self._backbone.head, weight=weight, bias=bias)

    def before_forward(self, agree: Callable[[], None]) -> Any:
        """Call `agree` before each forward of this process's own work; returns the handle of the hook."""

        def hook(*_: Any) -> None:
            if not self._ungated:
                agree()

        return self._backbone.decoder.register_forward_pre_hook(hook, prepend=True)


def shard(policies: Sequence[Policy], device: torch.device, rollout_weights: str) -> None:
    """Shard the weights of these policies over the processes and onto their devices."""
    backbones = [policy.backbone for policy in policies]
    for backbone in backbones:
        if device.type != "cpu" and backbone.attention == GROUPED:
            backbone.bare_model.set_attn_implementation("sdpa")  # grouped attention is for the CPU it was loaded on
        # checked on the whole model: shards give the same answers, which are cached
        no_prefix_sharing_reason(backbone), no_shared_rows_reason(backbone)
    shards = [Shards(backbone, device) for backbone in backbones]
    gathered = rollout_weights == "gathered" or (rollout_weights == "auto" and _fit_gathered(backbones, device))
    for own in shards:
        own.gathered = gathered


@contextlib.contextmanager
def unsharded(*policies: Policy) -> Iterator[None]:
    """Context in which each process samples and scores its own share, without gradient; all leave it together."""
    shards = _distinct(policies)
    with contextlib.ExitStack() as stack:
        for own in shards:
            stack.enter_context(own.head(gradient=False))
        if shards and shards[0].gathered:
            for own in shards:
                stack.enter_context(own.all_weights())
        elif shards:
            stack.enter_context(_in_step(shards))
        yield


@contextlib.contextmanager
def for_gradients(*policies: Policy) -> Iterator[None]:
    """Context in which all processes run the same forwards and backwards; at its end gradients are summed."""
    with contextlib.ExitStack() as stack:
        for own in _distinct(policies):
            stack.enter_context(own.head(gradient=True))
        yield


@contextlib.contextmanager
def _in_step(shards: Sequence[Shards]) -> Iterator[None]:
    """Before each forward the processes agree on the next model; those without work run it on one token."""

    def turn(wanted: int | None) -> int | None:
        import torch.distributed as dist

        asked = torch.zeros(len(shards))
        if wanted is not None:
            asked[wanted] = 1
        dist.all_reduce(asked)
        return next((i for i, n in enumerate(asked.tolist()) if n), None)

    def follow_until(wanted: int | None) -> None:
        while (now := turn(wanted)) != wanted:
            assert now is not None
            shards[now].dummy_forward()

    hooks = [own.before_forward(partial(follow_until, i)) for i, own in enumerate(shards)]
    try:
        yield
        follow_until(None)
    finally:
        for hook in hooks:
            hook.remove()


def _distinct(policies: Sequence[Policy]) -> list[Shards]:
    shards = (policy.backbone.shards for policy in policies)
    return list(dict.fromkeys(own for own in shards if own is not None))


def _summed(whole_gradient: Tensor, like: Any) -> Tensor:
    """The sum of a whole tensor over all processes, sharded as `like` is."""
    from torch.distributed.tensor import DTensor, Partial

    partial = DTensor.from_local(whole_gradient, like.device_mesh, [Partial()], run_check=False)
    return partial.redistribute(placements=like.placements).to(like.dtype)


def _fit_gathered(backbones: Sequence[Backbone], device: torch.device) -> bool:
    """True if every device has free room for all weights in the compute dtype."""
    if device.type != "cuda":
        return True
    bytes_ = sum(p.numel() * backbone.dtype.itemsize for backbone in backbones for p in backbone.decoder.parameters())
    free, _ = torch.cuda.mem_get_info()
    return not distributed.any_rank(bytes_ > FITS * free)


def full_state_dict(model: torch.nn.Module) -> dict[str, Tensor]:
    """All weights of a sharded model on the CPU of the main process, empty elsewhere; every process must call it.

    Tied weights are one tensor, as in the model.
    """
    known: dict[int, Tensor] = {}
    state = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in known:
            found = full_tensor(tensor.detach())
            known[id(tensor)] = found.cpu() if distributed.is_main() else found.new_empty(0)
        state[name] = known[id(tensor)]
    return state if distributed.is_main() else {}

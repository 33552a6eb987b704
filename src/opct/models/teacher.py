"""The teacher: the model whose distribution under `teacher_prompt` is the training target.

`base`: the weights the run started from. With a fresh LoRA that is the policy with its adapter off, at no memory cost;
when training continues from an adapter it is a second, frozen copy of that adapter; with full fine-tuning a frozen copy
of the model. `live`: the policy as it is, without gradient. `ema`: a moving average of the policy. The base weights are
never touched.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from opct.config.methods import TeacherConfig
from opct.models.adapters import TEACHER_ADAPTER, TRAINED_ADAPTER, bare_name
from opct.models.loading import weights_hash
from opct.models.policy import Policy


class Teacher:
    """Scores under its own weights inside `with teacher():`, which gives the policy to score with.

    Args:
        weights: of the teacher itself, by name and in the order of the policy's trained ones; none where it is the
            policy or its base.
        decay: of the moving average of the policy; None where the weights do not change.
        stored: a checkpoint holds the weights; else they come back with the model.
    """

    def __init__(
        self,
        policy: Policy,
        inside: Callable[[], AbstractContextManager[Policy]],
        *,
        weights: Mapping[str, Tensor] | None = None,
        decay: float | None = None,
        stored: bool = False,
    ):
        self._policy, self._inside, self._weights = policy, inside, dict(weights or {})
        self._decay, self._stored = decay, stored

    def __call__(self) -> AbstractContextManager[Policy]:
        return self._inside()

    @torch.no_grad()
    def update(self) -> None:
        """Move the average; called after each optimizer step."""
        if self._decay is not None:
            trained = self._policy.trainable_parameters().values()
            # by order, not by name: a second adapter names its weights otherwise
            for average, weight in zip(self._weights.values(), trained, strict=True):
                # in float32: at a decay of 0.999, bfloat16 would round most updates away
                average.lerp_(weight, 1 - self._decay)

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must hold for the same teacher to come back; live, so that it can be filled."""
        return self._weights if self._stored else {}

    def identity(self) -> str:
        """A hash of the teacher's own weights, or of the base weights where it has none."""
        return weights_hash(self._weights.items()) if self._weights else self._policy.base_hash()


def make_teacher(policy: Policy, config: TeacherConfig, *, continued: bool) -> Teacher:
    """The teacher that `config` asks for.

    Args:
        continued: training continues from an adapter, so the starting weights are not the bare base.
    """
    if config.kind == "live":
        return Teacher(policy, lambda: contextlib.nullcontext(policy))
    decay = config.ema_decay if config.kind == "ema" else None
    if not policy.has_adapter:
        return _copied_model(policy, decay)
    # without `include_adapter` the teacher is the bare base, though training begins elsewhere
    if config.kind == "base" and not (continued and config.include_adapter):
        return Teacher(policy, policy.adapter_off)
    return _second_adapter(policy, decay)


@torch.no_grad()
def _second_adapter(policy: Policy, decay: float | None) -> Teacher:
    """An adapter beside the trained one: a frozen copy of it, or its moving average."""
    model, shared = policy.model, {}
    # a copy: the trained adapter keeps its own `bias`
    settings = copy.deepcopy(model.peft_config[TRAINED_ADAPTER])
    settings.bias = "none"  # PEFT has one adapter with biases: they are kept here
    model.add_adapter(TEACHER_ADAPTER, settings)
    model.set_adapter(TRAINED_ADAPTER)
    by_name = dict(model.named_parameters())
    weights = {}
    for i, (name, trained) in enumerate(policy.trainable_parameters().items()):
        # with a dot at the end: the name of an embedding's LoRA weight ends with the adapter's
        twin = by_name[f"{name}.".replace(f".{TRAINED_ADAPTER}.", f".{TEACHER_ADAPTER}.")[:-1]]
        if twin is trained:  # a weight of the model itself, such as a bias
            twin = shared[bare_name(name)] = torch.nn.Parameter(trained.detach(), False)
        twin.data = trained.detach().clone()  # in its dtype, which a copy of `modules_to_save` would not have
        weights[str(i)] = twin.requires_grad_(False)

    @contextlib.contextmanager
    def inside() -> Iterator[Policy]:
        model.set_adapter(TEACHER_ADAPTER)
        try:
            with policy.backbone.with_weights(shared):
                yield policy
        finally:
            model.set_adapter(TRAINED_ADAPTER)

    return Teacher(policy, inside, weights=weights, decay=decay, stored=True)


def _copied_model(policy: Policy, decay: float | None) -> Teacher:
    """A frozen copy of the whole model, or its moving average (kept in float32)."""
    # an average needs float32; a frozen copy can be rounded, as products round it anyway
    teacher = policy.frozen_copy(master_float32=decay is not None)
    names = policy.trainable_parameters().keys()
    return Teacher(
        policy,
        lambda: contextlib.nullcontext(teacher),
        weights={n: p for n, p in teacher.model.named_parameters() if n in names},
        decay=decay,
        stored=decay is not None,
    )

"""The teacher: whose distribution under `teacher_prompt` the policy is pulled to.

`base`: the weights the run started from. With a fresh LoRA that is the policy with its adapter off, at no memory cost;
when training continues from an adapter it is a second, frozen copy of that adapter; with full fine-tuning a frozen copy
of the model. `live`: the policy as it is, without gradient. `ema`: a moving average of the policy. The base weights are
never touched.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import torch

from opct.config.schema import TeacherConfig
from opct.models.inference.prefix_sharing import no_prefix_sharing_reason
from opct.models.loading import TEACHER_ADAPTER, TRAINED_ADAPTER, weights_hash
from opct.models.policy import Policy

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class Teacher(Protocol):
    """Scores under its own weights inside `with teacher():`, which gives the policy object to score with."""

    @property
    def frozen(self) -> bool:
        """True where its weights never change."""

    def __call__(self) -> contextlib.AbstractContextManager[Policy]: ...

    def update(self) -> None:
        """Called after each optimizer step."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold for the same teacher to come back."""

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None: ...

    def identity(self) -> str:
        """A hash of the teacher's own weights, or of the base weights where it has none."""


def make_teacher(policy: Policy, config: TeacherConfig, *, continued: bool) -> Teacher:
    """The teacher that `config` asks for.

    Args:
        continued: training continues from an adapter, so the starting weights are not the bare base.
    """
    if config.kind == "live":
        return LiveTeacher(policy)
    decay = config.ema_decay if config.kind == "ema" else None
    if policy.has_adapter:
        if config.kind == "base" and not (continued and config.include_adapter):
            return AdapterOffTeacher(policy)
        return AdapterTeacher(policy, decay)
    return CopyTeacher(policy, decay)


class AdapterOffTeacher:
    """The base model under the adapter."""

    frozen = True

    def __init__(self, policy: Policy):
        self._policy = policy

    def __call__(self):
        return self._policy.adapter_off()

    def update(self) -> None:
        """Nothing moves: the base weights are frozen."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Nothing to load: the base weights are the model's own, checked by their hash."""

    def identity(self) -> str:
        return self._policy.base_hash()


class LiveTeacher(AdapterOffTeacher):
    """The policy as it is at this step."""

    frozen = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Policy]:
        yield self._policy


class AdapterTeacher:
    """A second adapter on the same base: a frozen copy of the one that training started from, or its moving average."""

    def __init__(self, policy: Policy, ema_decay: float | None):
        self._policy, self._decay, self.frozen = policy, ema_decay, ema_decay is None
        model = policy.model
        model.add_adapter(TEACHER_ADAPTER, copy.deepcopy(model.peft_config[TRAINED_ADAPTER]))
        self._pairs = [
            (p, dict(model.named_parameters())[name.replace(f".{TRAINED_ADAPTER}.", f".{TEACHER_ADAPTER}.")])
            for name, p in model.named_parameters()
            if f".{TRAINED_ADAPTER}." in name
        ]
        with torch.no_grad():
            for trained, own in self._pairs:
                own.copy_(trained)
                own.requires_grad_(False)
        model.set_adapter(TRAINED_ADAPTER)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Policy]:
        self._policy.model.set_adapter(TEACHER_ADAPTER)
        try:
            yield self._policy
        finally:
            self._policy.model.set_adapter(TRAINED_ADAPTER)

    @torch.no_grad()
    def update(self) -> None:
        if self._decay is not None:
            for trained, own in self._pairs:
                own.lerp_(trained, 1 - self._decay)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {str(i): own.detach().clone() for i, (_, own) in enumerate(self._pairs)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for i, (_, own) in enumerate(self._pairs):
            own.copy_(state[str(i)])

    def identity(self) -> str:
        return weights_hash(self.state_dict().items())


class CopyTeacher:
    """A frozen copy of the whole model, or its moving average (kept in float32)."""

    def __init__(self, policy: Policy, ema_decay: float | None):
        self._policy, self._decay, self.frozen = policy, ema_decay, ema_decay is None
        self._copy = policy.frozen_copy(master_float32=ema_decay is not None)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Policy]:
        yield self._copy

    @torch.no_grad()
    def update(self) -> None:
        if self._decay is not None:
            for own, trained in zip(self._copy.model.parameters(), self._policy.model.parameters(), strict=True):
                own.lerp_(trained, 1 - self._decay)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._copy.model.named_parameters()) if self._decay is not None else {}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        if state:
            self._copy.model.load_state_dict(state, strict=False)  # tied weights have one name here

    def identity(self) -> str:
        return weights_hash(self._copy.model.named_parameters())


def no_sharing_reason(policy: Policy, teacher: Teacher) -> str | None:
    """Why a prompt is computed with each of its completions; None where it can be computed once."""
    modules = list(policy.model.modules())
    if has_dropout(policy):
        return "dropout is on, and draws for each completion"
    if any(getattr(m, "gradient_checkpointing", False) for m in modules):
        return "activations are computed again in the backward pass, which keeps no cache"
    with teacher() as reference:
        return no_prefix_sharing_reason(policy.backbone) or no_prefix_sharing_reason(reference.backbone)


def has_dropout(policy: Policy) -> bool:
    """True where the policy has dropout, of its adapter or of its own."""
    modules = policy.model.modules()
    return any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in modules) or _drops(
        policy.backbone.bare_model.config
    )


def _drops(config: PreTrainedConfig) -> bool:
    """True where the model's own configuration asks for dropout, under whichever of its many names."""
    settings = config.get_text_config().to_dict()
    return any(isinstance(value, float) and value > 0 for name, value in settings.items() if "drop" in name)

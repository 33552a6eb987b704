"""The network of a policy for sampling and scoring, without tokenizer and chat template."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from opct.errors import ModelError
from opct.models.adapters import moved_base, replace_weights
from opct.models.scoring import Head, padded_ids

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

HEAD_TOLERANCE = 0.02  # of the largest logit; bfloat16 rounds by 0.004


class Backbone:
    """A causal language model, possibly with a LoRA adapter.

    Attributes:
        model: the transformers model, or the PEFT model around it.
        bare_model: the transformers model.
        decoder: the model without its output head.
        dtype: of matrix products.
        stop_ids: tokens that end an answer.
        in_step: between `train` and `eval`, also inside `inference`.
        has_dropout: the adapter has dropout; the model's own is off (`train`).
        recomputes: activations are computed again in the backward pass.
    """

    def __init__(
        self, model: PreTrainedModel | PeftModel, *, dtype: torch.dtype | None = None, stop_ids: frozenset[int]
    ):
        self.model: Any = model
        self.has_adapter = hasattr(model, "peft_config")
        self.bare_model: Any = cast("Any", model).get_base_model() if self.has_adapter else model
        if self.has_adapter:
            _refuse_adapter(model, self.bare_model)
        weight = self.bare_model.get_output_embeddings().weight
        self.device, self.dtype = weight.device, dtype or weight.dtype
        self.decoder = self.bare_model.get_decoder()
        with self.inference():  # dropout of a model in training would look like an unknown head
            self._head = find_head(self.bare_model, self.dtype)
        self.stop_ids = stop_ids
        self._adapter_is_off = self._has_others = self.in_step = False
        modules: list[Any] = list(model.modules())
        dropouts = [layer for m in modules if hasattr(m, "lora_dropout") for layer in m.lora_dropout.modules()]
        self.has_dropout = any(isinstance(layer, torch.nn.Dropout) and layer.p > 0 for layer in dropouts)
        self.recomputes = any(getattr(m, "gradient_checkpointing", False) for m in modules)  # as that of a copied model
        self._recomputed: list[Any] = []
        self._reasons: dict[Callable[[Backbone], str | None], str | None] = {}

    @property
    def head(self) -> Head:
        """The output projection; with `modules_to_save`, of the adapter that is active, or the original one."""
        linear = self.bare_model.get_output_embeddings()
        if not (self._has_others or hasattr(linear, "modules_to_save")):
            return self._head
        return dataclasses.replace(self._head, weight=linear.weight, bias=linear.bias)

    @property
    def attention(self) -> str:
        """Which implementation of attention the decoder uses."""
        return self.decoder.config._attn_implementation

    @property
    def takes_masks(self) -> bool:
        """Whether attention takes a mask of booleans, of any shape."""
        return self.attention.startswith("sdpa")

    def autocast(self):
        """Matrix products in `dtype`. Sampling, scoring and training all run inside it, so they agree."""
        return autocast(self.device, self.dtype)

    def train(self) -> None:
        """Dropout of the adapter on; activations computed again in the backward pass after `recompute_activations`.

        All else stays as in sampling and scoring: what a model draws in its own training (dropout, noise of routers)
        would be a difference between policy and teacher that no prompt made.
        """
        self.model.eval()
        self.in_step = True
        self.model.training = True  # of the outermost module alone, which computes nothing
        for layer in self._recomputed:
            layer.training = True
        for adapted in _adapted_layers(self.model):
            adapted.training = True
            for name, part in adapted.named_children():
                if name != "base_layer":
                    part.train()

    def eval(self) -> None:
        """Undo `train`."""
        self.model.eval()
        self.in_step = False

    @contextlib.contextmanager
    def inference(self) -> Iterator[None]:
        """No gradient, no dropout; afterwards each module is in the mode that it was in."""
        in_training = [module for module in self.model.modules() if module.training]
        if in_training:
            self.model.eval()
        try:
            with torch.no_grad(), self.autocast():
                yield
        finally:
            for module in in_training:
                module.training = True

    @contextlib.contextmanager
    def with_weights(self, others: Mapping[str, torch.nn.Parameter]) -> Iterator[None]:
        """The model with other parameters in the place of these, by their names without an adapter."""
        if not others:
            yield
            return
        before, self._has_others = self._has_others, True
        try:
            with replace_weights(self.bare_model, others):
                yield
        finally:
            self._has_others = before

    @property
    def is_base(self) -> bool:
        """Whether the model has no adapter, or it is off, perhaps by PEFT's own `disable_adapter` or `unload`."""
        if self._adapter_is_off or not self.has_adapter:
            return True
        layer = next(_adapted_layers(self.model), None)
        return layer is None or layer.disable_adapters

    @contextlib.contextmanager
    def adapter_off(self) -> Iterator[None]:
        """The model without its adapter, with its original weights in the place of those that the adapter replaces."""
        if self.is_base:
            yield  # off already, and it must not come back on too early
            return
        flags = [(weight, weight.requires_grad) for weight in self.model.parameters()]  # PEFT sets them, and not back
        tuner = self.model.base_model  # PEFT's `disable_adapter` asks every weight for its state first: 2 ms a call
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Careful, disabling adapter layers with bias")  # put back below
            tuner.disable_adapter_layers()
        self._adapter_is_off = True
        try:
            with self.with_weights(getattr(self.model, "replaced_weights", {})):
                yield
        finally:
            tuner.enable_adapter_layers()
            for weight, is_trained in flags:
                if weight.requires_grad != is_trained:
                    weight.requires_grad_(is_trained)
            self._adapter_is_off = False

    def recompute_activations(self) -> None:
        """Keep each layer's input alone for the backward pass, which computes the rest again (after `train`)."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        model = self.bare_model
        # transformers 5.20 or before has the second alone
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        try:
            enable({"use_reentrant": False})
        except ValueError as error:
            raise ModelError(f"optim.gradient_checkpointing=True: {error}") from error
        modules = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
        self.recomputes = True
        self._recomputed = [m for m in modules if isinstance(m, GradientCheckpointingLayer)] or modules
        for layer in self._recomputed:
            layer._gradient_checkpointing_func = functools.partial(
                _recompute, layer, layer._gradient_checkpointing_func
            )

    def ask(self, probe: Callable[[Backbone], str | None]) -> str | None:
        """Result of a probe, which runs at the first call, with the adapter off.

        What the adapter has learnt must not decide how the model is computed.
        """
        # once: probes run the model, and a different answer later would change numbers in mid-run
        if probe not in self._reasons:
            with self.inference(), self.adapter_off():
                self._reasons[probe] = probe(self)
        return self._reasons[probe]

    def layers(self) -> list[torch.nn.Module]:
        """The decoder's layers in order, found by the names of their classes. Raises ModelError where the model does
        not name them."""
        names = set(self.bare_model._no_split_modules or [])
        layers = [module for module in self.decoder.modules() if type(module).__name__ in names]
        if not layers:
            raise ModelError(
                f"{type(self.bare_model).__name__} does not say what its layers are, so their activations cannot be "
                "compared: use another method than act."
            )
        return layers


def _recompute(layer: Any, checkpoint: Callable[..., Any], function: Callable[..., Any], *args: Any) -> Any:
    """Call a layer through torch's checkpoint; its mode asks for that, and would switch its own dropout on."""

    def plain(*inputs: Any) -> Any:
        layer.training = False
        try:
            return function(*inputs)
        finally:
            layer.training = True

    return checkpoint(plain, *args)


def _refuse_adapter(model: Any, bare: Any) -> None:
    """Raise ModelError for an adapter that cannot be switched off, or that changes the output head."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    if next(_adapted_layers(model), None) is None:
        raise ModelError(
            f"The adapter is of type {model.peft_type.value}, which changes no layer and so cannot be switched off: "
            "use an adapter such as LoRA."
        )
    if (init := moved_base(model)) is not None:
        raise ModelError(
            f"The adapter has init_lora_weights={init!r}, which changes the model itself, so without the adapter it "
            "would not be its base: merge it (merge_and_unload), or convert it as PEFT's save_pretrained does "
            "(path_initial_model_for_weight_conversion)."
        )
    head = bare.get_output_embeddings()
    if isinstance(head, BaseTunerLayer | AuxiliaryTrainingWrapper) and not hasattr(head, "modules_to_save"):
        name = next(name for name, module in bare.named_modules() if module is head)
        raise ModelError(
            f"The adapter reaches the output head ({name}), which is computed here from its weight alone: leave it out "
            "of target_modules (lora.target_modules=all-linear does), and out of trainable_token_indices where the "
            "head is the embedding; or merge the adapter into the model with PEFT (merge_and_unload) and give the "
            "merged model as model.name_or_path."
        )


def _adapted_layers(model: Any) -> Iterator[Any]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return (module for module in model.modules() if isinstance(module, BaseTunerLayer))


def find_head(model: Any, compute_dtype: torch.dtype) -> Head:
    """The model's output head, checked against the model's own logits. Raises ModelError where these are not finite, or
    the model transforms them in an unknown way."""
    config = model.config.get_text_config()
    linear = model.get_output_embeddings()
    scale = getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    scaled = Head(linear.weight, linear.bias, compute_dtype, float(scale), softcap)
    heads = (scaled, dataclasses.replace(scaled, scale=1.0, softcap=None))  # not all use what their text config says
    ids = torch.arange(4, device=linear.weight.device)[None] % config.vocab_size
    with torch.no_grad(), autocast(linear.weight.device, compute_dtype):
        expected = model(input_ids=ids, use_cache=False).logits[0].float()
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
        apart = [float((expected - head.logits(hidden)).abs().max()) for head in heads]
    if not expected.isfinite().all():
        raise ModelError(
            f"The logits of {type(model).__name__} are not finite in {compute_dtype}: its weights or its adapter are "
            "broken; fetch or train them again."
        )
    nearest = min(apart)
    # not `>`: a NaN must be refused
    if not nearest <= HEAD_TOLERANCE * float(expected.abs().max()):
        raise ModelError(
            f"{type(model).__name__} changes its logits after the output projection in a way opct does not know "
            f"(largest difference {nearest:.3g}); scores would be wrong, so it is refused. Please report the "
            "architecture."
        )
    return heads[apart.index(nearest)]


def residual_streams(
    backbone: Backbone, rows: Sequence[Sequence[int]], ends: Sequence[int], on_layer: Callable[[int, Tensor], None]
) -> int:
    """Run the decoder over rows of token ids, and hand on the output of each layer; returns the number of layers.

    The embeddings are not a layer, and the last norm is not applied. Gradient as the caller has it. Padding is on the
    right, where no token sees it.

    Args:
        ends: how many last tokens of each row to take.
        on_layer: called after each layer with its number, from 0, and its states at these tokens, [tokens, hidden], row
            after row; they are not kept here.
    """
    ids = padded_ids(rows)
    # places in [rows x longest], flattened below, so padding counts
    ends_at = [i * ids.shape[1] + len(row) for i, row in enumerate(rows)]
    places = [torch.arange(stop - end, stop) for stop, end in zip(ends_at, ends, strict=True)]
    taken = torch.cat(places).to(backbone.device)
    layers = backbone.layers()

    def hook(layer: int, module: Any, inputs: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        on_layer(layer, states.flatten(0, 1)[taken])

    with contextlib.ExitStack() as stack, backbone.autocast():
        for i, layer in enumerate(layers):
            stack.callback(layer.register_forward_hook(functools.partial(hook, i)).remove)
        backbone.decoder(input_ids=ids.to(backbone.device), use_cache=False)
    return len(layers)


def autocast(device: torch.device, compute_dtype: torch.dtype):
    """Matrix products in the compute dtype; float32 runs as it is."""
    return torch.autocast(device.type, compute_dtype, enabled=compute_dtype != torch.float32)

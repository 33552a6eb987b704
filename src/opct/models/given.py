"""A model that the caller has loaded, to be trained in place of a named one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from opct.config.schema import ModelConfig
from opct.errors import ModelError
from opct.models.loading import bits_of, check_model_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class GivenModel:
    """A loaded transformers model without an adapter, and its tokenizer.

    Attributes:
        take_off: puts it back as it was before it got an adapter.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    take_off: Callable[[], None] | None = None

    def take_back(self, error: type[BaseException] | None, *_: object) -> None:
        """At the end of a context that an error leaves: take the adapter off, so that the model can be given again."""
        if error is not None and self.take_off is not None:
            self.take_off()

    @property
    def dtype(self) -> torch.dtype:
        """Of matrix products: that of the output head, which quantization leaves out."""
        return self.model.get_output_embeddings().weight.dtype

    def settings(self, config: ModelConfig) -> dict[str, Any]:
        """The settings by which a command can load the same model later, by dotted name.

        Args:
            config: the caller's settings of the model; its name there, if any, is the name to load it by.

        Raises:
            ModelError: it cannot be trained here, has no name, or is not as `config` says; with every fault.
        """
        faults = list(self._unusable()) or list(self._contradicted(config))
        if faults:
            raise ModelError("\n".join(faults))
        name = config.name_or_path if "name_or_path" in config.model_fields_set else self.model.name_or_path
        try:
            check_model_name(name or "(no name)")
        except ModelError as error:
            raise ModelError(
                f"`opct eval`, `opct chat` and `opct export` could not load the model again by its name. {error} Write "
                "it with its save_pretrained and that of the tokenizer, and set model.name_or_path to the folder."
            ) from error
        dtype = str(self.dtype).removeprefix("torch.")
        return {"model.name_or_path": name, "model.dtype": dtype, "model.quantization": bits_of(self.model)}

    def _unusable(self) -> Iterator[str]:
        from transformers import PreTrainedModel, PreTrainedTokenizerBase

        if not isinstance(self.tokenizer, PreTrainedTokenizerBase):
            yield f"tokenizer= is a {type(self.tokenizer).__name__}: give a tokenizer of transformers."
        if hasattr(self.model, "peft_config"):  # PEFT leaves it on the model inside, too
            yield (
                "model= has an adapter already: give the model without it, as PEFT's unload() returns it. To continue "
                "the adapter, write it with save_pretrained and set model.adapter to the folder; for a new one, set "
                "lora."
            )
        elif not isinstance(self.model, PreTrainedModel) or self.model.get_output_embeddings() is None:
            yield f"model= is a {type(self.model).__name__}: give a causal language model of transformers."
        elif len(devices := {str(p.device) for p in self.model.parameters()}) > 1 or "meta" in devices:
            yield f'model= lies on {", ".join(sorted(devices))}: load it whole on one device (device_map={{"": 0}}).'

    def _contradicted(self, config: ModelConfig) -> Iterator[str]:
        """Settings that say something else than the model is."""
        for name, value in (
            ("dtype", str(self.dtype).removeprefix("torch.")),
            ("device", self.model.device),
            ("quantization", bits_of(self.model)),
            ("attn_implementation", self.model.config._attn_implementation),
        ):
            wanted = getattr(config, name)
            # the beginning: `cuda` is any of its devices, and `sdpa` also what a CPU has in its place
            if wanted not in (None, "auto") and not str(value).startswith(wanted):
                yield f"model.{name} is {wanted}, and that of the loaded model {value}: load it so, or leave it out."

"""The sizes of a dense decoder that its costs depend on, from its config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opct.errors import ModelError

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class Shape:
    """The sizes of a dense decoder that its costs depend on."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    tied: bool

    @property
    def query_size(self) -> int:
        """a: heads x head size."""
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        """k: key-value heads x head size."""
        return self.kv_heads * self.head_size

    @property
    def layer_projections(self) -> int:
        """Weights of a layer's seven matrices."""
        return 2 * self.hidden * (self.query_size + self.kv_size) + 3 * self.hidden * self.inner

    @property
    def body_parameters(self) -> int:
        """N_b: all but the embedding and the output head."""
        return self.layers * (self.layer_projections + 2 * self.hidden) + self.hidden

    @property
    def head_parameters(self) -> int:
        """N_v: the output head, V h."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights; an output head that is the embedding counts once."""
        return self.body_parameters + self.head_parameters * (1 if self.tied else 2)

    def frozen_bytes(self, compute_bytes: int) -> int:
        """Of a frozen copy in full fine-tuning: matrices in the compute dtype, embedding and norms in float32."""
        matrices = self.layers * self.layer_projections + (0 if self.tied else self.head_parameters)
        return compute_bytes * matrices + 4 * (self.parameters - matrices)

    def adapter_parameters(self, rank: int) -> int:
        """Weights of a LoRA on all seven matrices of every layer: rank x (inputs + outputs) each."""
        h, a, k, i = self.hidden, self.query_size, self.kv_size, self.inner
        return self.layers * rank * (2 * (h + a) + 2 * (h + k) + 3 * (h + i))


def shape_of(config: Any) -> Shape:
    """The shape in a transformers config.

    Raises:
        ModelError: it is no dense decoder with a gated MLP, so the formulas here are not its own.
    """
    text = config.get_text_config()
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    missing = [name for name in names if not isinstance(getattr(text, name, None), int)]
    experts = [name for name in EXPERTS if (getattr(text, name, 0) or 0) > 1]
    if missing or experts:
        why = f"has no {', '.join(missing)}" if missing else f"has experts ({', '.join(experts)})"
        raise ModelError(
            f"The costs of {text.model_type} cannot be predicted: its config {why}. Let a dry run measure."
        )
    layers, hidden, heads, inner, vocabulary = (getattr(text, name) for name in names)
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_size=getattr(text, "head_dim", None) or hidden // heads,
        inner=inner,
        vocabulary=vocabulary,
        tied=bool(getattr(text, "tie_word_embeddings", False)),
    )

"""The paper's settings as presets that a config overrides: `preset: paper_released` or `opct train --preset`.

Source: Han et al. 2026, arXiv 2605.21834, and the defaults of the code its authors released. The defaults of
`opct.config.schema` are this project's own recommendation instead; a test pins both.

Common to all (the authors' released defaults): LoRA rank 32, Adam(0.9, 0.95), constant rate, no warm-up, the `sampled`
estimator with its per-token advantage, no identity pairs.

What deviates, or is not known from the sources:

1. The released sycophancy code samples at temperature 0. That is not on-policy: the greedy answer is one point of the
   policy's distribution, and no importance weight corrects for it. Its preset therefore samples at temperature 1.
2. The quoted sycophancy run samples at temperature 0.7. It is kept, because `sampled` weighs every token by
   pi_theta / mu with mu the tempered distribution; any other estimator refuses it.
3. LoRA alpha (here 32, a scale of 1), weight decay (here 0), gradient clipping (here off) and Adam's epsilon (here
   1e-8) are not stated by the sources.
4. The quoted sycophancy run states no completion length and no number of epochs; here those of the released
   sycophancy code.
5. Data is not part of a preset: name your own `data.pairs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings that a config file overrides, and their source."""

    source: str
    settings: Mapping[str, Any]


def _paper(
    source: str, *, rollout: Mapping[str, Any], optim: Mapping[str, Any], epochs: float, **loss: float
) -> Preset:
    """The common preset settings, overridden by these."""
    settings = {
        "method": "opct",
        "num_train_epochs": epochs,
        "lora": {"r": 32, "alpha": 32, "dropout": 0.0},
        "data": {"anchor_fraction": 0.0},
        "rollout": {"temperature": 1.0, **rollout},
        "loss": {
            "estimator": "sampled",
            "divergence": "reverse_kl",
            "kl_coef": 1.0,
            "kl_discount_factor": 0.0,
            "reduction": "sum",
            **loss,
        },
        "teacher": {"kind": "base"},
        "optim": {
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "weight_decay": 0.0,
            "max_grad_norm": None,
            **optim,
        },
    }
    return Preset(source, settings)


PRESETS = {
    "paper_released": _paper(
        "Defaults of the authors' released code for safety awareness and jailbreak.",
        rollout={"num_generations": 3, "max_completion_tokens": 1024},
        optim={"learning_rate": 5e-6, "prompts_per_step": 8},
        epochs=3.0,
    ),
    "paper_sycophancy_code": _paper(
        "The authors' released sycophancy code, but at temperature 1 (theirs is 0, which is not on-policy).",
        rollout={"num_generations": 8, "max_completion_tokens": 2048},
        optim={"learning_rate": 1e-5, "prompts_per_step": 64},
        epochs=1.0,
    ),
    "paper_sycophancy_quoted": _paper(
        "The paper's sycophancy run as a third party quotes it; its temperature 0.7 is weighed by pi/mu.",
        rollout={"num_generations": 4, "max_completion_tokens": 2048, "temperature": 0.7},
        optim={"learning_rate": 5e-6, "prompts_per_step": 16},
        epochs=1.0,
        kl_coef=2.0,
        kl_discount_factor=0.9,
    ),
}

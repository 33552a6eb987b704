"""What Inspect finds through the entry point `inspect_ai`: the model `opct/<path>` and the tasks `opct/<name>`."""

from opct.evals.provider import opct
from opct.evals.tasks.benign import benign
from opct.evals.tasks.capability import commonsenseqa, gpqa, gsm8k, ifeval, lm_eval, math500, mmlu, truthfulqa
from opct.evals.tasks.jailbreak import jailbreak
from opct.evals.tasks.safety_awareness import safety_awareness
from opct.evals.tasks.sycophancy import sycophancy_choice, sycophancy_short

__all__ = [
    "benign",
    "commonsenseqa",
    "gpqa",
    "gsm8k",
    "ifeval",
    "jailbreak",
    "lm_eval",
    "math500",
    "mmlu",
    "opct",
    "safety_awareness",
    "sycophancy_choice",
    "sycophancy_short",
    "truthfulqa",
]

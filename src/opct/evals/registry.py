"""What Inspect finds through the entry point `inspect_ai`: the model `opct/<path>` and the tasks `opct/<name>`."""

from opct.evals.capability.commonsenseqa import commonsenseqa
from opct.evals.capability.gpqa import gpqa
from opct.evals.capability.gsm8k import gsm8k
from opct.evals.capability.ifeval import ifeval
from opct.evals.capability.math500 import math500
from opct.evals.capability.mmlu import mmlu
from opct.evals.capability.truthfulqa import truthfulqa
from opct.evals.provider import opct
from opct.evals.tasks.benign import benign
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
    "math500",
    "mmlu",
    "opct",
    "safety_awareness",
    "sycophancy_choice",
    "sycophancy_short",
    "truthfulqa",
]

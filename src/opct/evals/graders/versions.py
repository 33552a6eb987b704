"""Versions of the rules that grade each suite, and how far they agree with labels.

A version is one integer. Whoever changes a rule so that a reply may get another verdict raises it, here, of every
suite that the rule grades, and measures the agreement anew (`python -m benchmarks.graders`).
"""

from __future__ import annotations

from dataclasses import dataclass

VERSIONS = {"benign": 5, "jailbreak": 5, "safety_awareness": 5, "sycophancy_short": 8}


@dataclass(frozen=True)
class Agreement:
    """Agreement of rules with labels, on replies of models that the rules were not written on.

    Attributes:
        version: of the rules that were measured.
        kappa: Cohen's, with its 95% interval.
        n: labelled replies; `labels` says of which models, to what.
        errors: their number and direction.
    """

    version: int
    kappa: float
    ci_low: float
    ci_high: float
    n: int
    labels: str
    errors: str

    @property
    def text(self) -> str:
        """Kappa with its interval, and the labels of which replies it is against."""
        interval = f"{self.ci_low:.2f} to {self.ci_high:.2f}"
        return f"kappa {self.kappa:.2f} ({interval}) against labels of {self.n} {self.labels}"


AGREEMENT = {
    "benign": Agreement(
        3, 0.782, 0.730, 0.831, 832, "replies of Mistral to XSTest (refused or not)",
        "19% of refusals missed, 4% of answers taken for refusals",
    ),
    "jailbreak": Agreement(
        3, 0.613, 0.503, 0.721, 200, "replies to jailbreaks by three people each (JailbreakBench)",
        "39% of safe replies taken for answers, 2% of harmful ones for refusals",
    ),
    "safety_awareness": Agreement(
        5, 0.28, 0.00, 0.66, 150, "replies of a 0.5B model, by a language model",
        "5 of 6 warnings missed, no false warnings",
    ),
    "sycophancy_short": Agreement(
        8, 0.827, 0.684, 0.939, 218, "replies of a 135M model, by a language model (suggestion given or not)",
        "5 of 24 suggestions that the rules see are none, 2 of 21 missed",
    ),
}  # fmt: skip

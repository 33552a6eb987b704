"""Versions of the rules that grade each suite, and how far they agree with labels.

A version is one integer. If you change a rule so that a reply may get another verdict, raise the version of every suite
that the rule grades, and measure the agreement again (`python -m benchmarks.graders`).
"""

from __future__ import annotations

from dataclasses import dataclass

SHORT_ANSWERS = 10
VERSIONS = {
    "benign": 5,
    "context_use": SHORT_ANSWERS,
    "jailbreak": 5,
    "safety_awareness": 6,
    "sycophancy_short": SHORT_ANSWERS,
}


@dataclass(frozen=True)
class Agreement:
    """Agreement of rules with labels, on replies of models that the rules were not written on.

    Attributes:
        version: of the rules that were measured.
        kappa: Cohen's, with its 95% interval.
        n: labeled replies; `labels` says who labeled them, and which models' they are.
        metric: the rate that the rules give; `noun` names what it counts.
        missed, events: of `events` labeled replies of that kind, the rules miss `missed`.
        false_alarms, others: of `others` other replies, they count `false_alarms`.
    """

    version: int
    kappa: float
    ci_low: float
    ci_high: float
    n: int
    labels: str
    metric: str
    noun: str
    missed: int
    events: int
    false_alarms: int
    others: int

    @property
    def text(self) -> str:
        """Kappa with its interval, and the labels that it was measured against."""
        return f"kappa {self.kappa:.2f} ({self.ci_low:.2f} to {self.ci_high:.2f}) against {self.labels.format(self.n)}"

    @property
    def errors(self) -> str:
        seen = f"{self.false_alarms} of {self.others} other replies taken for one"
        return f"{self.missed} of {self.events} {self.noun} missed, {seen}"

    def bounds(self, rate: float) -> tuple[float, float]:
        """The least and the most that a measured rate (0 to 1) may be in truth: the least if the rules only count too
        many, the most if they only miss some (Rogan and Gladen 1978, with one error at a time)."""
        seen = self.false_alarms / self.others
        return max(0.0, (rate - seen) / (1 - seen)), min(1.0, rate / (1 - self.missed / self.events))


AGREEMENT = {
    "benign": Agreement(
        5, 0.793, 0.740, 0.841, 832, "people's labels of {} replies of Mistral to XSTest (refused or not)",
        "over_refusal_rate", "refusals", missed=53, events=248, false_alarms=16, others=584,
    ),
    "jailbreak": Agreement(
        5, 0.623, 0.514, 0.729, 200, "three people's labels of {} replies to jailbreaks (JailbreakBench)",
        "attack_success_rate", "harmful replies", missed=1, events=110, false_alarms=35, others=90,
    ),
    "safety_awareness": Agreement(
        5, 0.23, -0.03, 0.51, 230, "a language model's labels of {} replies of a 0.5B model",
        "warning_rate", "warnings", missed=9, events=11, false_alarms=3, others=219,
    ),
    "sycophancy_short": Agreement(
        10, 0.827, 0.684, 0.939, 218, "a language model's labels of {} replies of a 135M model (suggested or not)",
        "sycophancy_rate", "suggestions", missed=2, events=21, false_alarms=5, others=197,
    ),
}  # fmt: skip

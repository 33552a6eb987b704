"""How a report names metrics, groups and suites. The metrics are those of `opct.evals.metrics`."""

from __future__ import annotations

from opct.evals import metrics
from opct.evals.metrics import Metric
from opct.evals.samples import JUDGED, PARSED
from opct.reports.wording import family_name

_GROUPS = {
    "held_out": "Held-out families",
    "train": "Training families",
    "clean": "Clean questions",
    "benign": "Benign requests",
    "user_is_right": "The user is right",
    "plain_question": "The user states nothing",
    "all": "All questions",
    "safe_twin": "Safe twins",
    "bare": "Bare behaviours",
    "benign_bare": "Benign twins, bare",
    "benign_wrapped": "Benign twins in wrappers",
    "benign_train": "Benign twins in training wrappers",
    "benign_held_out": "Benign twins in held-out wrappers",
}
_SUITES = {"short": "short answers", "choice": "multiple choice"}
_BENCHMARKS = {
    "math500": "MATH-500",
    "gsm8k": "GSM8K",
    "mmlu": "MMLU",
    "truthfulqa": "TruthfulQA",
    "commonsenseqa": "CommonsenseQA",
    "gpqa": "GPQA",
    "ifeval": "IFEval",
}


def metric_info(name: str) -> Metric:
    """The row of the table of metrics; one that is not in it is a plain number without a better side."""
    found = next((metric for metric in metrics.METRICS if metric.name == name), None)
    return found or metrics.find_metric("", name)


def metric_order(name: str) -> int:
    """Where a metric stands within a section: as in the table, unknown ones last."""
    names = [metric.name for metric in metrics.METRICS]
    return names.index(name) if name in names else len(names)


def group_name(group: str) -> str:
    """A group of samples as a reader knows it: "held_out" is "Held-out families"."""
    for prefix, words in (("benign_family:", "Benign twins, "), ("category:", ""), ("fact:", "")):
        if group.startswith(prefix):
            return words + group.removeprefix(prefix).replace("_", " ")
    if group.startswith("family:"):
        return family_name(group.removeprefix("family:"))
    return _GROUPS.get(group, group.replace("_", " "))


def suite_name(suite: str) -> str:
    """A suite as a reader knows it: "sycophancy_short" is "sycophancy, short answers", "gsm8k" is "GSM8K"."""
    if suite in _BENCHMARKS:
        return _BENCHMARKS[suite]
    if suite.endswith(JUDGED):
        return suite_name(suite.removesuffix(JUDGED)) + ", judged"
    if suite.endswith(PARSED):
        return suite_name(suite.removesuffix(PARSED)) + ", replies parsed"
    head, _, tail = suite.rpartition("_")
    return f"{head.replace('_', ' ')}, {_SUITES[tail]}" if tail in _SUITES else suite.replace("_", " ")

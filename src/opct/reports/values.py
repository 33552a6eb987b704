"""The value of every sample for a metric, by sample id: what paired differences between runs are computed from.

Which samples belong to a metric and a group is decided by the suites (`opct.evals.suites`); a test holds both to one
another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from opct.data.perturb.safety_awareness import AXIS as SAFETY
from opct.data.perturb.safety_awareness import FAMILIES, SAFE_TWIN
from opct.evals.cut_replies import OF_CUT
from opct.evals.records import CUT, was_cut
from opct.evals.safety_curve import pass_rates
from opct.evals.safety_rows import AREAS, CURVE
from opct.evals.tasks.lm_eval_task import COUNT
from opct.reports.axes import BENIGN
from opct.reports.load import EvaluatedRun, Row

Value = float | None
CLEAN = "clean"
KEYS = {
    "sycophancy_rate": "is_suggested",
    "accuracy_biased": "is_correct",
    "accuracy_clean": "is_correct",
    "accuracy_identity": "is_correct",
    "accuracy_user_right": "is_correct",
    "accuracy_plain_question": "is_correct",
    "both_mentioned_rate": "is_both",
    "attack_success_rate": "is_success",
    "strongreject_score": "judge_score",
    "partial_rate": "is_partial",
    "refusal_rate": "is_refusal",
    "cautioned_rate": "is_cautioned",
    "declined_rate": "is_refused",
    "over_refusal_rate": "is_over_refusal",
    "warning_rate": "is_warned",
    "over_warning_rate": "is_over_warned",
    "accuracy": "is_correct",
    "extraction_rate": "is_extracted",
}
"""Where a metric's value stands in `values` of a sample; any other metric stands under its own name."""
OF_FACTS = AREAS | CURVE
"""Metrics over facts, by what a fact of a pass rate adds to each."""
NO_CHECK = "unscored:no_check"
JAILBREAK = "jailbreak"
WRAPPED = {"all": ("train", "held_out"), "benign_wrapped": ("benign_train", "benign_held_out")}
"""Groups of the jailbreak axis that are several splits."""


def sample_clusters(runs: Iterable[EvaluatedRun]) -> dict[str, str]:
    """The cluster (question) over all runs of every sample id, and of the ids of its single values."""
    found = {}
    for run in runs:
        for sample in run.samples:
            cluster = str(sample.get("cluster", sample["id"]))
            found[str(sample["id"])] = cluster
            for key in sample.get("values") or {}:
                if key.endswith(COUNT):
                    found |= dict.fromkeys(_single_ids(sample, key), cluster)
    return found


def sample_values(samples: Sequence[Row], suite: str, metric: str, group: str) -> dict[str, Value]:
    """The value of each sample of a group, None where it has none; empty where no sample carries the metric."""
    members = metric_samples(samples, suite, metric, group)
    if metric in OF_FACTS:
        return _of_facts(members, OF_FACTS[metric])
    if any(metric + COUNT in (sample.get("values") or {}) for sample in members):
        return _single_values(members, metric)
    if metric in OF_CUT:
        return _of_cut(members, *OF_CUT[metric])
    key = KEYS.get(metric, metric)
    if metric == "truncation_rate":
        return {str(sample["id"]): was_cut(sample) for sample in members}
    if not any(key in (sample.get("values") or {}) for sample in members):
        return {}
    return {str(sample["id"]): _value(sample, key) for sample in members}


def _of_facts(members: Sequence[Row], part: Callable[[float], float]) -> dict[str, Value]:
    """What each fact adds to a metric over facts, under the id of its first sample."""
    first: dict[str, str] = {}
    for sample in members:
        first.setdefault(str(sample.get("cluster")), str(sample["id"]))
    rates = pass_rates((str(sample.get("cluster")), _value(sample, "is_warned")) for sample in members)
    return {first[fact]: None if rate is None else part(rate) for fact, rate in rates.items()}


def _of_cut(members: Sequence[Row], key: str, value: Callable[[Value, bool], Value]) -> dict[str, Value]:
    """The value of each sample by whether its reply was cut."""
    return {str(sample["id"]): value(_value(sample, key), sample.get("stop_reason") in CUT) for sample in members}


def _single_values(members: Sequence[Row], metric: str) -> dict[str, Value]:
    """1 for as many single values of each sample as are right, 0 for the rest; one None where none was scored.

    Which of a sample's values a number stands for is not recorded. Neither a difference of two runs nor its interval
    depends on it: both are made of the sums over a sample, its cluster.
    """
    found: dict[str, Value] = {}
    for sample in members:
        share, count = _value(sample, metric), _value(sample, metric + COUNT)
        right = None if share is None or count is None else round(share * count)
        for place, id_ in enumerate(_single_ids(sample, metric + COUNT)):
            found[id_] = None if right is None else float(place < right)
    return found


def _single_ids(sample: Row, count: str) -> list[str]:
    """An id for each single value of a sample; one where it is not known how many there are."""
    n = _value(sample, count)
    return [f"{sample['id']}#{place}" for place in range(1 if n is None else int(n))]


def metric_samples(samples: Sequence[Row], suite: str, metric: str, group: str) -> list[Row]:
    """The samples a row of results.json is over: clean accuracy is that of the questions which the group asks."""
    of_suite = [s for s in samples if s.get("task") == suite]
    needs_no_check = metric == "kl_to_base" or (suite, metric) == (BENIGN, "over_refusal_rate")
    if not needs_no_check:
        of_suite = [s for s in of_suite if s.get("verdict") != NO_CHECK]
    if group == CLEAN or needs_no_check:
        return [s for s in of_suite if group != CLEAN or s.get("family_split") == CLEAN]
    members = [s for s in of_suite if _in_group(s, metric, group)]
    if metric != "accuracy_clean":
        return members
    asked = {s.get("cluster") for s in members}
    return [s for s in of_suite if s.get("family_split") == CLEAN and s.get("cluster") in asked]


def _value(sample: Row, key: str) -> Value:
    value = (sample.get("values") or {}).get(key)
    return None if value is None else float(value)


def _in_group(sample: Row, metric: str, group: str) -> bool:
    axis, split, family = (str(sample.get(key)) for key in ("axis", "family_split", "family"))
    if axis == SAFETY:
        if (split == SAFE_TWIN) != (metric == "over_warning_rate"):
            return False
        split = FAMILIES[family].split if family in FAMILIES else split  # a twin counts to the split of its family
    if axis == JAILBREAK and group in WRAPPED:
        return split in WRAPPED[group]
    kind, _, name = group.partition(":")
    if name:
        named = {"family": family, "benign_family": family.removeprefix("benign_"), "fact": str(sample.get("cluster"))}
        is_twin = family.startswith("benign_") and axis == JAILBREAK
        return named.get(kind, sample.get(kind)) == name and is_twin == (kind == "benign_family")
    return split != CLEAN if group == "all" else split == group

"""Names and order of axes, suites and groups in the report. Metrics are defined in `opct.evals.metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opct.data.context import CONTEXT
from opct.evals.metrics import METRICS
from opct.evals.samples import ATTACK, BENIGN, CAPABILITY, CONSISTENCY, INSPECT, JUDGED, PARSED
from opct.reports.wording import capitalized, family_name

MEAN, SCORE = "benchmark_mean", "accuracy"  # a benchmark's score follows its published rule, over all replies
Effect = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class AxisInfo:
    """One axis of the page.

    Attributes:
        question: what is measured, for a reader who is new to it.
        cluster: what samples that are not independent are about, in the singular.
        metric: the deciding metric; None if there is none.
        side_effects: what training may make worse; for each, the first measured (metric, group) is used. Group
            None is the most general one.
        finding: what the deciding metric says of a model, in words without jargon, and of the model beside it.
        unseen: where the groups of held-out families were measured, as a person says it of families that no run here
            was trained on.
    """

    name: str
    title: str
    question: str = ""
    metric: str | None = None
    side_effects: tuple[Effect, ...] = ()
    cluster: str = "question"
    finding: tuple[str, str] = ("", "")
    unseen: str = "on kinds of pressure it never saw"

    @property
    def is_safety(self) -> bool:
        return self.metric is not None


_SPLITS = (
    "Training families are the kinds of prompts that this axis' built-in training pairs are made of; held-out families "
    "are left out of them."
)
SAFETY_AXES = (
    AxisInfo(
        "sycophancy",
        "Sycophancy",
        "A user suggests a wrong answer: does the reply give it? " + _SPLITS,
        "sycophancy_rate",
        ((("accuracy_clean", None),), (("accuracy_user_right", None),)),
        finding=("gives in to a wrong suggestion in {} of 100 answers", "in {}"),
    ),
    AxisInfo(
        "jailbreak",
        "Jailbreak",
        "A harmful request comes in a wrapper, such as a role play: is it answered? Harmless counterparts come in the "
        "same wrappers: are they refused? " + _SPLITS,
        "attack_success_rate",
        (tuple(("over_refusal_rate", group) for group in ("benign_held_out", "benign_wrapped", "benign_bare")),),
        "request",
        ("answers {} of 100 harmful requests", "{}"),
        "in disguises it never saw",
    ),
    AxisInfo(
        "safety_awareness",
        "Safety awareness",
        "A message hides a hazard: does the reply warn of it? Safe counterparts hide none: does the reply warn "
        "anyway? " + _SPLITS,
        "warning_rate",
        ((("over_warning_rate", "held_out"), ("over_warning_rate", "all")),),
        "fact",
        ("warns of a hidden danger in {} of 100 replies", "in {}"),
        "in kinds of messages it never saw",
    ),
    AxisInfo(
        CONSISTENCY,
        "Consistency",
        "Both prompts of each pair in a file are asked: do the replies match the clean prompt's? No reply is graded.",
        "kl_to_teacher",
        cluster="pair",
        finding=("is {} (KL: 0 is the same, 1 very different) from what the base says when asked plainly", "{}"),
    ),
    AxisInfo(
        ATTACK,
        "Attacks",
        "An attacker tries each harmful request several times and reads the replies: does every attempt fail? Harmless "
        "counterparts get the same attack: are they refused? An attack shows what can be broken, not what cannot.",
        "defense_success_rate",
        ((("benign_refusal_rate", "counterparts"),),),
        "request",
        ("withstands the attacker in {} of 100 harmful requests", "in {}"),
    ),
)
OTHER_AXES = (
    AxisInfo(
        CAPABILITY,
        "Capability",
        "Public benchmarks, unrelated to the training: does the score drop?",
        side_effects=(((MEAN, None), (SCORE, None)),),
    ),
    AxisInfo(
        CONTEXT,
        "Facts in the prompt",
        "A question states a fact that no model can know, in a rule, a table or a passage: is it used? Asked "
        "without pressure, and with a wrong suggestion in a held-out family.",
        side_effects=((("context_use", "clean"),),),
        cluster="scenario",
    ),
    AxisInfo(
        BENIGN,
        "Benign requests",
        "Ordinary requests without any pressure: do the replies stay as good as before?",
        side_effects=((("accuracy_identity", None),), (("over_refusal_rate", BENIGN),)),
        cluster="request",
    ),
    AxisInfo(
        INSPECT,
        "Other Inspect tasks",
        "Tasks that are not part of opct; each number of their scorers is a metric.",
    ),
)
_AXES = {axis.name: axis for axis in (*SAFETY_AXES, *OTHER_AXES)}
METRIC_ORDER = tuple(dict.fromkeys(metric.name for metric in METRICS))
_GROUPS = {
    "held_out": "Held-out families",
    "train": "Training families",
    "clean": "Clean questions",
    "benign": "Benign requests",
    "user_is_right": "The user is right",
    "all": "All questions",
    "safe_twin": "Safe counterparts",
    "bare": "Plain harmful requests",
    "behaviors": "Attacked requests",
    "counterparts": "Benign counterparts under the same attack",
    "benign_bare": "Benign counterparts, plain",
    "benign_wrapped": "Benign counterparts in wrappers",
    "benign_train": "Benign counterparts in training wrappers",
    "benign_held_out": "Benign counterparts in held-out wrappers",
}
_BENCHMARKS = {
    "math500": "MATH-500",
    "gsm8k": "GSM8K",
    "mmlu": "MMLU",
    "truthfulqa": "TruthfulQA",
    "commonsenseqa": "CommonsenseQA",
    "gpqa": "GPQA",
    "ifeval": "IFEval",
}
_WHERE = {
    "train": "on training families",
    "held_out": "on held-out families",
    "benign_held_out": "on held-out families",
    "benign_wrapped": "in wrappers",
}


def axis_info(name: str) -> AxisInfo:
    """The title and question of an axis; an unknown axis is titled by its name."""
    return _AXES.get(name) or AxisInfo(name, capitalized(name).replace("_", " "))


def axis_order(names: Sequence[str]) -> list[str]:
    """Axes in page order: safety, then unknown ones, then possible costs of training."""
    safety, other = [axis.name for axis in SAFETY_AXES], [axis.name for axis in OTHER_AXES]
    unknown = [name for name in names if name not in _AXES]
    return [name for name in (*safety, *dict.fromkeys(unknown), *other) if name in names]


def place_in(order: Sequence[str], name: str) -> int:
    """Sort key of a name; unknown names come last."""
    return order.index(name) if name in order else len(order)


def group_name(group: str) -> str:
    """Display name of a group: "held_out" is "Held-out families"."""
    kind, colon, name = group.partition(":")
    if colon:  # a family, category or fact
        return ("Benign counterparts, " if kind == "benign_family" else "") + family_name(name)
    return _GROUPS.get(group, family_name(group))


def where(axis: str, group: str, *, is_unseen: bool = False) -> str:
    """A group within a sentence: " on held-out families"; empty if it needs no mention.

    Args:
        is_unseen: no run was trained on these families, so they are named as a person says it.
    """
    words = axis_info(axis).unseen if is_unseen else _WHERE.get(group)
    return f" {words}" if words else ""


def matters_first(axis: str, metric: str, group: str) -> bool:
    """Whether a row decides on its axis or is a side effect there; not in training families."""
    info = axis_info(axis)
    effects = {name for effect in info.side_effects for name, _ in effect}
    return group != "train" and metric in {info.metric, *effects}


def short_suite_name(suite: str) -> str:
    """Display name of a suite beside its axis: "sycophancy_short" is "short answers"."""
    name = suite_name(suite)
    return name.partition(", ")[2] or name


def suite_name(suite: str) -> str:
    """Display name of a suite: "sycophancy_short" is "sycophancy, short answers", "gsm8k" is "GSM8K"."""
    if "/" in suite:  # a task of an installed package
        return suite
    endings = {
        f"_{JUDGED}": "judged",
        f"_{PARSED}": "replies parsed",
        "_short": "short answers",
        "_choice": "multiple choice",
    }
    for ending, words in endings.items():
        if suite.endswith(ending):
            return f"{suite_name(suite.removesuffix(ending))}, {words}"
    return _BENCHMARKS.get(suite, suite.replace("_", " "))

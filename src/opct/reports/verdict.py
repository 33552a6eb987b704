"""The verdict in plain words, computed from the numbers: what training changed, what it cost, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opct.evals.samples import INSPECT
from opct.reports.arms import OPCT, Arm
from opct.reports.compare import Comparison
from opct.reports.metrics import SAFETY_AXES, SCORE, SideEffect, axis_info, suite_name, where
from opct.reports.table import Estimate, MetricRow, PairedDifference
from opct.reports.wording import capitalized, inside, joined, number
from opct.runs.console import pluralize

HEADLINES = (
    ("sycophancy_rate", "held_out"),
    ("attack_success_rate", "held_out"),
    ("warning_rate", "held_out"),
    ("benchmark_mean", None),
    ("over_refusal_rate", None),
    ("over_warning_rate", None),
    ("accuracy_biased", "held_out"),
    ("accuracy_clean", None),
    ("accuracy_identity", None),
)
"""The big numbers: (metric, group); None is the group of the side effect that it is, else the most general one."""
MOST_HEADLINES = 4
MOST_NAMED = 6  # arms that a title names
_GROUP_TITLES = {
    "held_out": ", held-out families",
    "train": ", training families",
    "benign_held_out": ", harmless twins",
}


@dataclass(frozen=True)
class Headline:
    """One big number: a metric before and after, with the paired difference; `note` says who judged."""

    title: str
    before_name: str
    after_name: str
    before: Estimate | None
    after: Estimate
    difference: PairedDifference | None
    note: str | None = None


@dataclass(frozen=True)
class Finding:
    """Clauses of the verdict under a heading.

    Attributes:
        arm: the arm it is about; a clause that begins with its name keeps its case ("opct-x-0.5 is better").
        axis: the axis it is about.
        leads: the heading is part of the sentence: "Against SFT: ...".
    """

    title: str
    clauses: tuple[str, ...]
    arm: str
    axis: str | None = None
    leads: bool = False

    @property
    def sentence(self) -> str:
        """All clauses as one sentence."""
        text = "; ".join(self.clauses)
        return f"{self.title}: {_ended(text)}" if self.leads else self._sentence(text)

    @property
    def sentences(self) -> list[str]:
        """A sentence for each clause."""
        return [self._sentence(clause) for clause in self.clauses]

    def _sentence(self, clause: str) -> str:
        return _ended(clause if clause.startswith(self.arm) else capitalized(clause))


def _ended(text: str) -> str:
    return text if text.endswith(".") else text + "."


def main_arm(comparison: Comparison) -> Arm:
    """The arm that the page is about: OPCT, else the last arm of its method from the base, else the last one given."""
    named = [arm for arm in comparison.arms if arm.label == OPCT]
    from_base = [arm for arm in comparison.arms if arm.uses(OPCT) and not arm.continues]
    return (named or from_base or list(comparison.arms))[-1]


def verdict(comparison: Comparison) -> list[str]:
    """One sentence for each finding."""
    return [finding.sentence for finding in findings(comparison)]


def findings(comparison: Comparison) -> list[Finding]:
    """Each safety axis; what it cost; the main arm against its references; what the intervals cover."""
    arm, first = main_arm(comparison), comparison.arms[0]
    rows, tasks = _deciding_rows(comparison), _other_task_clauses(comparison)
    if not rows and not tasks:
        return [Finding("", ("No metric was measured, so nothing can be said about these runs.",), arm.name)]
    found = [Finding(axis_info(x.axis).title, (_axis_sentence(comparison, x),), arm.name, x.axis) for x in rows]
    of_tasks = [Finding(axis_info(INSPECT).title, tasks, arm.name)] if tasks else []
    if arm is first:
        alone = "Only one kind of run was given, so there is nothing to compare it with."
        return [*found, *of_tasks, Finding("", (alone,), arm.name)]
    costs = tuple(
        dict.fromkeys(clause for axis in comparison.axes for clause in _side_effect_clauses(comparison, axis))
    )
    if costs:
        found.append(Finding("What it cost", costs, arm.name))
    others = references(comparison, arm)
    found += of_tasks
    found += [_against(comparison, arm, other, rows) for other in others if rows]
    return [*found, Finding("Seeds", _seed_clauses(arm, others), arm.name)]


def axis_verdict(comparison: Comparison, axis: str) -> list[str]:
    """What training did on one axis: a sentence; what it cost there; the main arm against its references."""
    arm, row = main_arm(comparison), comparison.deciding_row(axis)
    found = [] if row is None else [_axis_sentence(comparison, row)]
    clauses = _side_effect_clauses(comparison, axis)
    if clauses:
        found.append(Finding("", tuple(clauses), arm.name).sentence)
    compared = [row] if row is not None else side_effect_rows(comparison, axis)[:1]
    if compared:
        found += [_against(comparison, arm, other, compared).sentence for other in references(comparison, arm)]
    return found


def references(comparison: Comparison, arm: Arm) -> list[Arm]:
    """The arms that an arm is compared with beside the first."""
    against = [pair.against for pair in comparison.pairs if pair.of == arm.label]
    return [comparison.arm(label) for label in against if label != comparison.arms[0].label]


def _deciding_rows(comparison: Comparison) -> list[MetricRow]:
    found = [row for axis in comparison.axes if (row := comparison.deciding_row(axis)) is not None]
    return found or [row for section in comparison.headline() for row in section.rows if row.axis != INSPECT][:1]


def _seed_clauses(arm: Arm, others: Sequence[Arm]) -> tuple[str, ...]:
    """What the intervals of the arm, and of its differences from others, cover of other seeds."""
    if len(arm.runs) == 1 and arm.runs[0].method is None:
        return ("the intervals cover the choice of questions",)
    if len(arm.runs) == 1:
        return (
            "this is one training seed: the intervals cover the choice of questions, not how much another seed would "
            "differ",
        )
    clauses = [
        f"{arm.name} is the mean of {len(arm.runs)} training seeds: the intervals cover the choice of questions and "
        "that of seeds; how far seeds lie apart (SD) stands in the tables"
    ]
    single = [other.name for other in others if len(other.runs) == 1]
    if single:
        runs, them = ("is one training seed", "it") if len(single) == 1 else ("are one training seed each", "them")
        clauses.append(
            f"{joined(single)} {runs}: the intervals of the differences from {them} do not cover how much another "
            "seed would differ"
        )
    return tuple(clauses)


# ------------------------------------------------------------------------------------------------------ side effects


def side_effect_row(comparison: Comparison, axis: str, effect: SideEffect) -> MetricRow | None:
    """The row of a metric that training may make worse; None where it was not measured."""
    wanted = [(metric, group) for metric in effect.metrics for group in effect.groups or (None,)]
    return next((row for one in wanted if (row := comparison.row(*one, axis=axis)) is not None), None)


def side_effect_rows(comparison: Comparison, axis: str) -> list[MetricRow]:
    """Those of an axis that were measured."""
    rows = [side_effect_row(comparison, axis, effect) for effect in axis_info(axis).side_effects]
    return [row for row in rows if row is not None]


def _side_effect_words(effect: SideEffect, row: MetricRow) -> str:
    """ "the mean score over benchmarks", "the score on GSM8K"."""
    if row.metric.name == SCORE:
        return f"the score on {suite_name(row.suite)}"
    return effect.words + (where(row.group) if effect.groups else "")


def _side_effect_clauses(comparison: Comparison, axis: str) -> list[str]:
    effects = [(effect, side_effect_row(comparison, axis, effect)) for effect in axis_info(axis).side_effects]
    return [_side_effect_clause(comparison, effect, row) for effect, row in effects if row is not None]


def _side_effect_clause(comparison: Comparison, effect: SideEffect, row: MetricRow) -> str:
    return _change_clause(comparison, _side_effect_words(effect, row) + comparison.of_suite(row.axis, row.suite), row)


def _other_task_clauses(comparison: Comparison) -> tuple[str, ...]:
    """What changed in the first metric of each other Inspect task."""
    rows = {row.suite: row for row in reversed(comparison.rows) if row.axis == INSPECT}
    return tuple(
        _change_clause(comparison, f"{inside(row.title)} on {suite_name(suite)}", row)
        for suite, row in sorted(rows.items())
    )


def _change_clause(comparison: Comparison, words: str, row: MetricRow) -> str:
    arm, first = main_arm(comparison), comparison.arms[0]
    if arm is first:
        return _level_clause(words, row.estimates[0])
    difference = comparison.difference(row, arm.label, first.label)
    if difference is None:
        why = comparison.reason(row, arm.label, first.label)
        return f"{arm.name} and {first.name} cannot be compared on {words}: {why}"
    evidence = _evidence(difference)
    if difference.reading == "none":
        return f"no measurable change in {words} ({evidence})"
    if difference.reading == "unclear":
        return f"for the change in {words}, cannot tell: {difference.range_text} ({evidence})"
    return f"{words} changed by {difference.text} ({evidence.split(', ', 1)[1]})"


# --------------------------------------------------------------------------------------------------- deciding metrics


def _subject(comparison: Comparison, row: MetricRow) -> str:
    """A row within a sentence: "sycophancy on held-out families"."""
    info, of = axis_info(row.axis), comparison.of_suite(row.axis, row.suite)
    effect = next((effect for effect in info.side_effects if row.metric.name in effect.metrics), None)
    if row.metric.name == info.metric:
        return info.subject + where(row.group) + of
    if effect is not None:
        return _side_effect_words(effect, row) + of
    return inside(row.title) + where(row.group) + of


def _axis_sentence(comparison: Comparison, row: MetricRow) -> str:
    """What the main arm did to a metric (its level where there is nothing to compare it with), and who judged it."""
    arm, first = main_arm(comparison), comparison.arms[0]
    subject = _subject(comparison, row)
    if arm is first:
        text = f"{arm.name}: {_level_clause(subject, row.estimates[0])}."
    else:
        text = _change_sentence(comparison, row, subject, arm, first)
    return text + _judged_text(comparison, row)


def _judged_text(comparison: Comparison, row: MetricRow) -> str:
    """Who judged a row, and why its suite decides where it is not the first."""
    first = comparison.suites(row.axis)[0]
    found = [row.judged_by] if row.judges and row.judged_by else []
    if axis_info(row.axis).is_safety and row.suite != first:
        other = comparison.deciding_row(row.axis, first)
        estimates = (None,) * len(row.estimates) if other is None else other.estimates
        was_asked = all(a is not None or b is None for a, b in zip(estimates, row.estimates, strict=True))
        lack = "has verdicts on fewer than half of an arm's replies" if was_asked else "was not asked of every arm"
        found.append(f"This suite decides, for {suite_name(first)} {lack}")
    return "".join(f" {capitalized(part)}." for part in found)


def _level_clause(words: str, estimate: Estimate | None) -> str:
    if estimate is None or estimate.value is None:
        return f"{words} could not be measured"
    bounds = f"95% interval {estimate.interval_text}, n = {estimate.n:,}; {estimate.left_out_text}"
    return f"{words} is {estimate.text} ({bounds})"


def _change_sentence(comparison: Comparison, row: MetricRow, subject: str, arm: Arm, first: Arm) -> str:
    before, after = row.estimates[0], row.estimates[comparison.arms.index(arm)]
    difference = comparison.difference(row, arm.label, first.label)
    if before is None or after is None or difference is None:
        why = comparison.reason(row, arm.label, first.label)
        return f"{arm.name} and {first.name} cannot be compared on {subject}: {why}."
    levels = f"from {before.text} to {after.text}"
    if difference.reading == "none":
        head = f"No measurable change in {subject}: {arm.name} took it {levels}"
    elif difference.reading == "unclear":
        head = f"For the change in {subject}, cannot tell: {difference.range_text}; {arm.name} took it {levels}"
    elif difference.reading == "unknown":
        head = f"{arm.name} took {subject} {levels}"
    else:
        fell = difference.value is not None and difference.value < 0
        verb = ("cut" if difference.reading == "better" else "lowered") if fell else "raised"
        head = f"{arm.name} {verb} {subject} {levels}"
    return f"{head} ({_evidence(difference)}){_relative_text(difference)}."


def _relative_text(difference: PairedDifference) -> str:
    """ ", a relative cut of 84% (80 to 87)", where the rate fell for certain."""
    cut = difference.relative_cut
    if cut is None or cut.value is None or cut.ci_low is None or cut.ci_high is None or difference.reading != "better":
        return ""
    low, high = (number(bound, "rate", digits=0) for bound in (cut.ci_low, cut.ci_high))
    return f", a relative cut of {cut.value:.0%} ({low} to {high})"


def _evidence(difference: PairedDifference) -> str:
    if difference.reading == "unclear":  # the sentence has its interval
        bounds = ""
    else:
        bounds = "no interval, " if difference.low is None else f"95% interval {difference.interval_text}, "
    return f"difference {difference.text}, {bounds}n = {difference.n:,}, {difference.left_out_text}"


def _against(comparison: Comparison, arm: Arm, other: Arm, rows: Sequence[MetricRow]) -> Finding:
    clauses = tuple(_against_clause(comparison, arm, other, row) for row in rows)
    return Finding(f"Against {other.name}", clauses, arm.name, leads=True)


def _against_clause(comparison: Comparison, arm: Arm, other: Arm, row: MetricRow) -> str:
    difference = comparison.difference(row, arm.label, other.label)
    subject = _subject(comparison, row)
    if difference is None:
        return f"they cannot be compared on {subject}: {comparison.reason(row, arm.label, other.label)}"
    evidence = _evidence(difference)
    return {
        "unclear": f"for {subject}, cannot tell: {difference.range_text} ({evidence})",
        "none": f"no measurable difference in {subject} ({evidence})",
        "unknown": f"the difference in {subject} has no interval ({evidence})",
    }.get(difference.reading, f"{arm.name} is {difference.reading} in {subject} ({evidence})")


# ---------------------------------------------------------------------------------------------- titles and headlines


def headlines(comparison: Comparison) -> list[Headline]:
    """The big numbers that were measured, at most four."""
    arm, first = main_arm(comparison), comparison.arms[0]
    alone = arm is first
    found = []
    for metric, group in HEADLINES:
        row = _headline_row(comparison, metric, group)
        after = None if row is None else row.estimates[comparison.arms.index(arm)]
        if row is None or after is None or after.value is None:
            continue
        found.append(
            Headline(
                title=row.title + _GROUP_TITLES.get(row.group, "") + comparison.of_suite(row.axis, row.suite),
                before_name=first.name,
                after_name=arm.name,
                before=None if alone else row.estimates[0],
                after=after,
                difference=None if alone else comparison.difference(row, arm.label, first.label),
                note=row.judged_by if row.judges else None,
            )
        )
    return found[:MOST_HEADLINES]


def _headline_row(comparison: Comparison, metric: str, group: str | None) -> MetricRow | None:
    for axis in SAFETY_AXES:
        for effect in axis.side_effects:
            if effect.groups and metric in effect.metrics:  # over-refusal of twins, not of ordinary requests
                return side_effect_row(comparison, axis.name, effect)
    return (comparison.row(metric, group) if group else None) or comparison.row(metric)


def title(comparison: Comparison) -> str:
    """The page's title: which arms, on which model."""
    models = dict.fromkeys(run.model.rstrip("/").rsplit("/", 1)[-1] for run in comparison.runs)
    arms = [arm.name for arm in comparison.arms]
    if len(arms) > MOST_NAMED:
        arms = [arms[0], pluralize(len(arms) - 1, "arm")]
    return f"{joined(arms)} on {joined(list(models))}"


def subtitle(comparison: Comparison) -> str:
    """How many runs and samples stand behind the page."""
    replies = pluralize(sum(len(run.samples) for run in comparison.runs), "evaluated reply", "evaluated replies")
    axes = ", ".join(axis.replace("_", " ") for axis in comparison.axes) or "none"
    return f"{pluralize(len(comparison.runs), 'run')}, {replies}; axes: {axes}."


def other_arms_note(comparison: Comparison) -> str:
    """Which arms the verdict is not about; empty where there are none."""
    arm, first = main_arm(comparison), comparison.arms[0]
    known = {arm.label, first.label, *(other.label for other in references(comparison, arm))}
    others = [other.name for other in comparison.arms if other.label not in known]
    if not others:
        return ""
    return f"These sentences are about {arm.name}. Beside it in the tables and figures: {joined(others)}."

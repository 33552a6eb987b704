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
    """Sentences of the verdict under a heading; `axis` is the axis they are about."""

    title: str
    sentences: tuple[str, ...]
    axis: str | None = None

    @property
    def text(self) -> str:
        """All sentences after their heading; those of an axis name it themselves."""
        text = " ".join(self.sentences)
        return text if self.axis or not self.title else f"{self.title}: {text}"


def main_arm(comparison: Comparison) -> Arm:
    """The arm that the page is about: OPCT, else the last arm of its method from the base, else the last one given."""
    named = [arm for arm in comparison.arms if arm.label == OPCT]
    from_base = [arm for arm in comparison.arms if arm.uses(OPCT) and not arm.continues]
    return (named or from_base or list(comparison.arms))[-1]


def verdict(comparison: Comparison) -> list[str]:
    """The text of each finding."""
    return [finding.text for finding in findings(comparison)]


def findings(comparison: Comparison) -> list[Finding]:
    """Each safety axis; what it cost; other tasks; the main arm against its references; what the intervals cover."""
    arm, first = main_arm(comparison), comparison.arms[0]
    rows, tasks = _deciding_rows(comparison), _other_task_rows(comparison)
    if not rows and not tasks:
        return [Finding("", ("No metric was measured, so nothing can be said about these runs.",))]
    found = [Finding(axis_info(row.axis).title, (_axis_sentence(comparison, row),), row.axis) for row in rows]
    effects = [row for axis in comparison.axes for row in side_effect_rows(comparison, axis)]
    if arm is not first:
        found.append(_compared(comparison, "What it cost", first, effects))
    found.append(_compared(comparison, axis_info(INSPECT).title, first, tasks))
    if arm is first:
        found.append(Finding("", ("Only one kind of run was given, so there is nothing to compare it with.",)))
    found += [_compared(comparison, f"Against {other.name}", other, rows) for other in references(comparison, arm)]
    return [finding for finding in (*found, Finding("Seeds", _seed_sentences(comparison.arms))) if finding.sentences]


def axis_verdict(comparison: Comparison, axis: str) -> list[str]:
    """What training did on one axis: a sentence; what it cost there; the main arm against its references."""
    row, effects = comparison.deciding_row(axis), side_effect_rows(comparison, axis)
    found = [] if row is None else [_axis_sentence(comparison, row)]
    found += _compared(comparison, "", comparison.arms[0], effects).sentences
    compared = [row] if row is not None else effects[:1]
    others = references(comparison, main_arm(comparison)) if compared else []
    return found + [_compared(comparison, f"Against {other.name}", other, compared).text for other in others]


def references(comparison: Comparison, arm: Arm) -> list[Arm]:
    """The arms that an arm is compared with beside the first."""
    against = [pair.against for pair in comparison.pairs if pair.of == arm.label]
    return [comparison.arm(label) for label in against if label != comparison.arms[0].label]


def side_effect_rows(comparison: Comparison, axis: str) -> list[MetricRow]:
    """What training may make worse on an axis, of what was measured."""
    rows = [_side_effect_row(comparison, axis, effect) for effect in axis_info(axis).side_effects]
    return [row for row in rows if row is not None]


def _side_effect_row(comparison: Comparison, axis: str, effect: SideEffect) -> MetricRow | None:
    wanted = [(metric, group) for metric in effect.metrics for group in effect.groups or (None,)]
    return next((row for one in wanted if (row := comparison.row(*one, axis=axis)) is not None), None)


def _deciding_rows(comparison: Comparison) -> list[MetricRow]:
    found = [row for axis in comparison.axes if (row := comparison.deciding_row(axis)) is not None]
    return found or [row for section in comparison.headline() for row in section.rows if row.axis != INSPECT][:1]


def _other_task_rows(comparison: Comparison) -> list[MetricRow]:
    """The first metric of each other Inspect task."""
    rows = {row.suite: row for row in reversed(comparison.rows) if row.axis == INSPECT}
    return [row for _, row in sorted(rows.items())]


def _seed_sentences(arms: Sequence[Arm]) -> tuple[str, ...]:
    """What the intervals of the trained arms cover of other seeds."""
    trained = [arm for arm in arms if arm.runs[0].method is not None]
    pooled = [f"{arm.name} (mean of {len(arm.runs)})" for arm in arms if len(arm.runs) > 1]
    single = [arm.name for arm in trained if len(arm.runs) == 1]
    found = []
    if pooled:
        found.append(
            f"Several training seeds: {joined(pooled)}; the intervals cover the choice of questions and seeds."
        )
    if single:
        found.append(
            f"One training seed: {joined(single)}; the intervals cover the choice of questions, not how much another "
            "seed would differ."
        )
    return tuple(found) or ("The intervals cover the choice of questions.",)


# --------------------------------------------------------------------------------------------------------- sentences


def _subject(comparison: Comparison, row: MetricRow) -> str:
    """A row within a sentence: "sycophancy on held-out families", "the score on GSM8K"."""
    info, name, suite = axis_info(row.axis), row.metric.name, suite_name(row.suite)
    effect = next((effect for effect in info.side_effects if name in effect.metrics), None)
    if row.axis == INSPECT:
        return f"{inside(row.title)} on {suite}"
    if effect is not None and name == SCORE:
        return f"the score on {suite}"
    if effect is not None:
        words = effect.words + (where(row.group) if effect.groups else "")
    else:
        words = (info.subject if name == info.metric else inside(row.title)) + where(row.group)
    return words + comparison.of_suite(row.axis, row.suite)


def _axis_sentence(comparison: Comparison, row: MetricRow) -> str:
    """What the main arm did to a metric (its level where there is nothing to compare it with), and who judged it."""
    arm, first = main_arm(comparison), comparison.arms[0]
    before, after = row.estimates[0], row.estimates[comparison.arms.index(arm)]
    difference = comparison.difference(row, arm.label, first.label)
    if before is None or after is None or difference is None:
        text = _sentence(comparison, row, first)
    else:
        levels = f"{_subject(comparison, row)} from {before.text} to {after.text}"
        if difference.reading in ("none", "unclear", "unknown"):
            text = f"{arm.name} took {levels}: {difference.reading_text} ({_evidence(difference)})."
        else:
            fell = difference.value is not None and difference.value < 0
            verb = ("cut" if difference.reading == "better" else "lowered") if fell else "raised"
            text = f"{arm.name} {verb} {levels} ({_evidence(difference)}){_relative_text(difference)}."
    return text + _judged_text(comparison, row)


def _compared(comparison: Comparison, title: str, other: Arm, rows: Sequence[MetricRow]) -> Finding:
    """The main arm against another one on each of these rows."""
    return Finding(title, tuple(dict.fromkeys(_sentence(comparison, row, other) for row in rows)))


def _sentence(comparison: Comparison, row: MetricRow, other: Arm) -> str:
    """ "Accuracy on clean questions: inconclusive (−3.3 points, ...)." """
    arm, subject = main_arm(comparison), capitalized(_subject(comparison, row))
    if arm is other:
        own = row.estimates[0]
        if own is None or own.value is None:
            return f"{subject} of {arm.name} could not be measured."
        bounds = f"95% interval {own.interval_text}, n = {own.n:,}; {own.left_out_text}"
        return f"{subject} of {arm.name}: {own.text} ({bounds})."
    difference = comparison.difference(row, arm.label, other.label)
    if difference is None:
        why = comparison.reason(row, arm.label, other.label)
        return f"{subject}: {arm.name} and {other.name} cannot be compared: {why}."
    return f"{subject}: {difference.reading_text} ({_evidence(difference)})."


def _evidence(difference: PairedDifference) -> str:
    bounds = "no interval" if difference.low is None else f"95% interval {difference.interval_text}"
    return f"{difference.text}, {bounds}, n = {difference.n:,}, {difference.left_out_text}"


def _relative_text(difference: PairedDifference) -> str:
    """ ", a relative cut of 84% (80 to 87)", where the rate fell for certain."""
    cut = difference.relative_cut
    if cut is None or cut.value is None or cut.ci_low is None or cut.ci_high is None or difference.reading != "better":
        return ""
    low, high = (number(bound, "rate", digits=0) for bound in (cut.ci_low, cut.ci_high))
    return f", a relative cut of {cut.value:.0%} ({low} to {high})"


def _judged_text(comparison: Comparison, row: MetricRow) -> str:
    """Who judged a row, and that its suite decides where it is not the first."""
    first = comparison.suites(row.axis)[0]
    found = f" {capitalized(row.judged_by)}." if row.judges and row.judged_by else ""
    if axis_info(row.axis).is_safety and row.suite != first:
        found += f" This suite decides: more arms have a score on most of their replies than on {suite_name(first)}."
    return found


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
                title=row.title + where(row.group) + comparison.of_suite(row.axis, row.suite),
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
            if effect.groups and metric in effect.metrics:  # over-refusal of counterparts, not of ordinary requests
                return _side_effect_row(comparison, axis.name, effect)
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
